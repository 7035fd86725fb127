"""The transcript: what callers read of a job, projected from its events.

The state keeps nothing that grows; token ids, text and log-probabilities live here, for the reader and for the worker
that rebuilds lanes or looks back for a penalty. Taking one event costs the same at any length.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from ..errors import BrokenInvariant
from ..machine.events import (
    STEP_EVENTS,
    Event,
    LanesRebuilt,
    OutputCommitted,
    Parent,
    PromptRecorded,
    RequestAdmitted,
    TokenStep,
)
from ..machine.fold import fold
from ..machine.state import State
from ..request.finish import STOPS
from .emission import Emission, Emitter, Moment, plain_token, usage_of


@dataclass(slots=True)
class Transcript:
    """A job's state and everything it has made visible; `take` advances it by one event, `load` by a log.

    parent     the job that it was forked from, if any
    moments    what its emissions are made of; they are made where somebody asks for them
    rebuilt    tokens that one call processed for the lanes as the newest rebuild left them, 0 where there was none: the
               prompt, or these, were prefilled, and every token after them had a call of its own
    echoed     size of the prompt's text before the output's, in bytes and in characters
    """

    state: State | None = None
    sequence: int = 0
    token_ids: list[int] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    rebuilt: int = 0
    parent: Parent | None = None
    echoed: tuple[int, int] = (0, 0)
    _emitter: Emitter | None = field(default=None, compare=False, repr=False)
    _emissions: list[Emission] = field(default_factory=list, compare=False, repr=False)
    _emitted: int = field(default=0, compare=False, repr=False)

    @classmethod
    def standing(
        cls,
        state: State,
        sequence: int,
        token_ids: list[int],
        rebuilt: int,
        echoed: tuple[int, int],
        parent: Parent | None,
    ) -> Transcript:
        """A transcript that begins at this state, with everything before it handed over already."""
        transcript = cls(state, sequence, token_ids, [], rebuilt, parent, echoed)
        spec = state.spec
        transcript._emitter = Emitter(spec.alignment, spec.prompt, spec.skip_special)
        transcript._emitter.stand(state, echoed)
        return transcript

    def take(self, event: Event, state: State | None = None) -> None:
        """Fold the next event in; `state` is the state after it where the caller has folded it already."""
        before = self.state
        after = fold(before, event) if state is None else state
        self.state = after
        self.sequence += 1
        if before is None:
            self.parent = event.parent if isinstance(event, RequestAdmitted) else None
            return
        if isinstance(event, OutputCommitted) and before.receipt is not None:
            receipt = before.receipt
            self.token_ids.append(receipt.selection.token)
            hidden = receipt.hidden and after.spec.skip_special
            self._add(before, after, receipt.selection, receipt.piece, hidden)
        elif isinstance(event, LanesRebuilt):
            self.rebuilt = event.prefilled
        elif isinstance(event, PromptRecorded):
            self.echoed = after.horizon.bytes_released, after.horizon.characters_released
            self._add(before, after, prompt=event.tokens)
        elif after.ending is not None:
            self._add(before, after, ended=after)

    def follow(self, entry: Event | TokenStep, state: State) -> None:
        """Advance to the state after an entry, which the caller has computed: a step is taken as one."""
        if not isinstance(entry, TokenStep):
            self.take(entry, state)
            return
        if (before := self.state) is None:
            raise BrokenInvariant(clause="FSM-4", reason="a log begins with a step, not with its admission")
        self.state = state
        self.sequence += STEP_EVENTS
        selection = entry.selection
        self.token_ids.append(selection.token)
        hidden = entry.hidden and state.spec.skip_special
        self.moments.append(
            Moment(self.sequence, state.delta, before.horizon, state.horizon, selection, entry.piece, hidden)
        )

    def _add(self, before: State, after: State, *committed: Any, **also: Any) -> None:
        self.moments.append(Moment(self.sequence, after.delta, before.horizon, after.horizon, *committed, **also))

    @property
    def emissions(self) -> Sequence[Emission]:
        """Everything that it has made visible, in order; the last item says how the job ended."""
        moments = self.moments
        if self._emitted < len(moments) and self.state is not None:
            spec = self.state.spec
            if self._emitter is None:
                self._emitter = Emitter(spec.alignment, spec.prompt, spec.skip_special)
            made = map(self._emitter.take, moments[self._emitted :])
            self._emissions += [emission for emission in made if emission is not None]
            self._emitted = len(moments)
        return self._emissions

    def emissions_after(self, sequence: int) -> Sequence[Emission]:
        """Those of events after `sequence`."""
        emissions = self.emissions
        return emissions[bisect_right(emissions, sequence, key=attrgetter("sequence")) :]

    def hand_over(self) -> Sequence[Emission]:
        """What became visible since the last hand-over; it is not kept here. For the worker that resumes the job.

        The transcript then has its tokens and its state, and neither text nor result.
        """
        emissions = self.emissions
        self.moments.clear()
        self._emissions, self._emitted = [], 0
        return emissions

    @property
    def text(self) -> str:
        """All text released so far: the joined deltas, which is what every stream shows."""
        return "".join([moment.delta for moment in self.moments])

    @property
    def _intact(self) -> bool:
        """Whether the text is what the parser or a detector saw as the structure, no more and no less."""
        state = self.state
        if state is None or STOPS.isdisjoint(state.due):
            return True
        last = next(moment for moment in reversed(self.moments) if moment.selection is not None)
        if state.spec.grammar is not None and self.token_ids[-1] in state.spec.ending_ids:
            return state.horizon.position == last.before.position  # the structure had ended before its last token
        return state.spec.include_stop or last.hidden  # a hidden token has no byte to be cut off

    @property
    def processed_tokens(self) -> list[int]:
        """The token ids that the lanes hold, prompt first: what one prefill must process to rebuild them."""
        if self.state is None:
            return []
        return [*self.state.spec.prompt, *self.token_ids][: self.state.frontier.processed]

    def result(self) -> dict[str, Any]:
        """The object that callers get: plain values, ready for JSON.

        matched_stop         the stop string that ended the output, or the id of the token that did; None where none did
        token_ids, tokens    the output tokens that the text has, by the request's alignment (see `emission`)
        usage                counts of committed tokens, in all modes
        eos_ids              the model's end tokens that end this output, as they are sealed in the request
        prompt               what the request asks to see of its prompt's tokens
        visible, trimmed     in span alignment, after the end: which part of the output is text, and which was cut off
        structure_complete   where structure was asked for: whether the text is one whole structure
        parent               of a forked job: the job and the step that it comes from
        error                of a failed job
        """
        state = self.state
        if state is None:
            return {}
        ending, emissions = state.ending, self.emissions
        size = state.horizon.bytes_released if ending is not None else None
        tokens = [token for emission in emissions for token in emission.tokens]
        result: dict[str, Any] = {
            "job": state.spec.job,
            "identity": state.spec.identity.hex(),
            "state": state.status.value,
            "finish_reason": ending.finish.value if ending is not None and ending.finish is not None else None,
            "matched_stop": state.matched_stop,
            "text": self.text,
            "token_ids": [token.token for token in tokens],
            "tokens": [plain_token(token, size) for token in tokens],
            "usage": usage_of(state),
            "eos_ids": sorted(state.spec.eos_ids),
        }
        if self.parent is not None:
            result["parent"] = self.parent._asdict()
        for emission in emissions:
            if emission.prompt:
                result["prompt"] = [plain_token(token) for token in emission.prompt]
            if emission.visible is not None and emission.trimmed is not None:
                result |= {"visible": emission.visible._asdict(), "trimmed": emission.trimmed._asdict()}
        if state.structure is not None:
            result["structure_complete"] = state.structure.standing.whole and self._intact
        if ending is not None and ending.finish is None:
            result["error"] = {"code": ending.cause, "message": ending.detail}
        return result
