"""The transcript: what callers read of a job, projected from its events.

The state keeps nothing that grows; token ids, text and log-probabilities live here, for the reader and for the worker
that rebuilds lanes or looks back for a penalty. Taking one event costs the same at any length.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .events import Event, LanesRebuilt, OutputCommitted, RequestClosed, RequestFailed
from .finish import FinishReason
from .fold import fold
from .state import State


class Emission(NamedTuple):
    """One item of a stream: what one event made visible.

    sequence     the event's place in the job's log; reading on from it gives exactly the rest
    token        the id it committed, or None where the event only flushed held text
    text         text released, possibly empty while bytes are held back
    characters   character offset of `text` in the whole text;  bytes  the byte offset of the same place
    logprob_raw, logprob   of the token, nats, before and after the transforms
    finish       set on the last item: a finish reason, or "failed"
    """

    sequence: int
    token: int | None
    text: str
    characters: int
    bytes: int
    logprob_raw: float | None
    logprob: float | None
    finish: str | None = None


@dataclass(slots=True)
class Transcript:
    """A job's state beside everything it has made visible; `take` changes it by one event, `load` by a log.

    `rebuilt` counts the tokens that the newest rebuild processed in one call, 0 where there was none: the prompt, or
    these, were prefilled, and every token after them had a call of its own.
    """

    state: State | None = None
    sequence: int = 0
    token_ids: list[int] = field(default_factory=list)
    emissions: list[Emission] = field(default_factory=list)
    rebuilt: int = 0

    def take(self, event: Event, state: State | None = None) -> None:
        """Fold the next event in; `state` is the state after it where the caller has folded it already."""
        before = self.state
        after = fold(before, event) if state is None else state
        self.state = after
        self.sequence += 1
        if isinstance(event, OutputCommitted) and before is not None and before.receipt is not None:
            selection = before.receipt.selection
            self.token_ids.append(selection.token)
            self._emit(before, after, selection.token, selection.logprob_raw, selection.logprob, None)
        elif isinstance(event, LanesRebuilt) and event.form == "prefill":
            self.rebuilt = event.tokens
        elif isinstance(event, RequestClosed):
            self._emit(before, after, None, None, None, event.reason.value)
        elif isinstance(event, RequestFailed):
            self._emit(before, after, None, None, None, "failed")

    def _emit(
        self,
        before: State | None,
        after: State,
        token: int | None,
        logprob_raw: float | None,
        logprob: float | None,
        finish: str | None,
    ) -> None:
        horizon = (before or after).horizon
        self.emissions.append(
            Emission(
                self.sequence,
                token,
                after.delta,
                horizon.characters_released,
                horizon.bytes_released,
                logprob_raw,
                logprob,
                finish,
            )
        )

    @property
    def text(self) -> str:
        """All text released so far: the joined deltas, which is what every stream shows."""
        return "".join([emission.text for emission in self.emissions])

    @property
    def processed_tokens(self) -> list[int]:
        """The token ids that the lanes hold, prompt first: what one prefill must process to rebuild them."""
        if self.state is None:
            return []
        return [*self.state.spec.prompt, *self.token_ids][: self.state.frontier.processed]

    def result(self) -> dict[str, Any]:
        """The object that callers get: plain values, ready for JSON. Usage counts committed tokens, in all modes.

        `structure_complete` is there where structure was asked for, and says whether the text is one whole structure.
        """
        state = self.state
        if state is None:
            return {}
        ending, frontier = state.ending, state.frontier
        result: dict[str, Any] = {
            "job": state.spec.job,
            "identity": state.spec.identity.hex(),
            "state": state.status.value,
            "finish_reason": ending.finish.value if ending is not None and ending.finish is not None else None,
            "text": self.text,
            "token_ids": list(self.token_ids),
            "usage": {
                "prompt_tokens": frontier.prompt,
                "completion_tokens": frontier.output,
                "total_tokens": frontier.prompt + frontier.output,
                "recomputed_tokens": state.tenure.recomputed,
                "attempts": state.tenure.attempt,
            },
        }
        if state.structure is not None:
            # A stop string that matched has cut the text, so what the parser or a detector saw is not all there.
            whole = state.structure.standing.whole and FinishReason.STOP_STRING not in state.due
            result["structure_complete"] = whole
        if ending is not None and ending.finish is None:
            result["error"] = {"code": ending.cause, "message": ending.detail}
        return result
