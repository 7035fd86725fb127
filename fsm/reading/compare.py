"""Whether two runs are the same: six levels in order, and the first that differs is the verdict.

state      prompt, tokenizer and stops; frontiers, and what the decoder, the stop matcher and the parser hold
tensor     the model, and the score row, bit for bit, by its digest
policy     the transforms, and what the row was made into: support, margin, draw, alternatives
decision   the token, its interval and its log-probabilities
sequence   bytes, text, and why the output ended
resume     where the runs stand in the end, or after the last commit: what the next call would go on from

Runs are compared step by step. Once they differ, everything after may differ for that reason alone; so the verdict is
the first step with a difference, and there the first level. Equal text cures no level before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..errors import BrokenInvariant
from ..machine.events import DecisionMade, Event, OutputCommitted
from ..machine.fold import fold
from ..machine.spec import Spec
from ..machine.state import Ending, State
from ..output.horizon import START
from .transcript import Transcript

LEVELS: Final = ("state", "tensor", "policy", "decision", "sequence", "resume")
SHOWN: Final = ("sequence", "resume")

Facts = Mapping[str, Mapping[str, Any]]
"""Level -> name -> value, of one step or of all."""


class Run(NamedTuple):
    """What a log says of a run.

    request   what was asked for and decides the steps, also where none is committed yet
    steps     the facts of each committed step
    end       what it came to; empty where it has not ended
    ahead     what the next step would begin with. That follows from the commits; calls and tenures since then are left
              out
    ending    how it ended, if it has
    """

    request: Facts
    steps: Sequence[Facts]
    end: Facts
    ahead: Facts
    ending: Ending | None

    @property
    def ended(self) -> bool:
        return self.ending is not None


class Difference(NamedTuple):
    """The first difference: the step (output tokens before it), the level, and what is there on both sides."""

    step: int
    level: str
    name: str
    left: Any
    right: Any


def run_of(events: Iterable[Event]) -> Run:
    """Fold a whole log into what is compared. Tenures, failed calls and rebuilt lanes are no part of it.

    Errors: those of `fold`; BrokenInvariant for a log without events.
    """
    state: State | None = None
    steps: list[dict[str, dict[str, Any]]] = []
    for event in events:
        before, state = state, fold(state, event)
        if isinstance(event, DecisionMade) and before is not None:
            steps.append(_decided(before, event))
        elif isinstance(event, OutputCommitted) and before is not None and before.receipt is not None:
            receipt = before.receipt
            steps[-1]["sequence"] = {
                "bytes": receipt.piece,
                "hidden": receipt.hidden,
                "text": state.delta,
                "due": state.due,
            }
    if state is None:
        raise BrokenInvariant(clause="FSM-4", reason="a job without events cannot be compared")
    committed = steps[: state.frontier.output]
    return Run(_request(state.spec), committed, _end(state), _ahead(state), state.ending)


def shown(transcript: Transcript) -> Run:
    """What a whole transcript shows readers of a run: the levels from `sequence` on.

    This much is there of a sealed log too, and of a log that was not folded event by event.
    """
    if transcript.state is None:
        raise BrokenInvariant(clause="FSM-4", reason="a job without events cannot be compared")
    steps = [
        {"sequence": {"bytes": moment.piece, "hidden": moment.hidden, "text": moment.delta}}
        for moment in transcript.moments
        if moment.selection is not None
    ]
    state = transcript.state
    return Run({}, steps, _end(state), _ahead(state), state.ending)


def compare(left: Run, right: Run, normative: str = LEVELS[0]) -> Difference | None:
    """The first difference of two runs; None where there is none.

    normative   the first level that counts: differences of the levels before it are passed over
    Of runs that have not both ended, the steps are compared that both have, and what the next one would begin with.
    """
    counted = LEVELS[LEVELS.index(normative) :]
    common = min(len(left.steps), len(right.steps))
    for step, (one, other) in enumerate(zip(_facts(left, common), _facts(right, common), strict=True)):
        if found := _difference(step, one, other, counted):
            return found
    as_long = len(left.steps) == len(right.steps)
    shorter = left if len(left.steps) == common else right
    if shorter.ended and not as_long:
        first = max(LEVELS.index("sequence"), LEVELS.index(normative))
        return Difference(common, LEVELS[first], "tokens", len(left.steps), len(right.steps))
    if left.ended and right.ended:
        return _difference(common, left.end, right.end, counted)
    if left.ended or right.ended or not as_long:
        counted = tuple([each for each in counted if each != "resume"])  # they do not stand at one place
    return _difference(common, left.ahead, right.ahead, counted)


def _facts(run: Run, common: int) -> Sequence[Facts]:
    """The facts of the first `common` steps; the request's go with the first's, or alone where there is none."""
    first: Facts = run.steps[0] if common else {}
    merged = {level: {**run.request.get(level, {}), **first.get(level, {})} for level in LEVELS}
    return [merged, *run.steps[1:common]]


def _difference(step: int, one: Facts, other: Facts, levels: Sequence[str]) -> Difference | None:
    for level in levels:
        mine, theirs = one.get(level, {}), other.get(level, {})
        for name in mine:
            if mine[name] != theirs.get(name):
                return Difference(step, level, name, mine[name], theirs.get(name))
    return None


def _request(spec: Spec) -> Facts:
    """What decides each step and is no part of one.

    Limits count by the end that they bring about, and what is only shown not at all.
    """
    envelope = spec.envelope
    artifact, runtime, policy, ends = envelope.artifact, envelope.runtime, envelope.policy, envelope.termination
    return {
        "state": {
            "prompt": spec.prompt,
            "tokenizer": envelope.text_interface.tokenizer_sha256,
            "stops": ends.stop_strings,
            "detectors": ends.detectors,
        },
        "tensor": {
            "architecture": artifact.architecture,
            "checkpoint": artifact.checkpoint_sha256,
            "configuration": artifact.config_sha256,
            "weight_dtype": artifact.weight_dtype,
            "compute_dtype": runtime.compute_dtype,
            "logit_dtype": runtime.logit_dtype,
        },
        "policy": {
            "family": policy.family,
            "transforms": policy.transforms,
            "ending_ids": tuple(sorted(spec.ending_ids)),
            "min_new_tokens": spec.min_new_tokens,
        },
    }


def _decided(before: State, event: DecisionMade) -> dict[str, dict[str, Any]]:
    chosen = event.receipt.selection
    _, output, processed, unprocessed, suffix = before.frontier
    return {
        "state": {
            "output": output,
            "processed": processed,
            "unprocessed": unprocessed,
            "suffix": suffix,
            "horizon": before.horizon,
            "structure": before.structure,
        },
        "tensor": {"scores": before.scores},
        "policy": {
            "support": chosen.support,
            "margin": chosen.margin,
            "draw": chosen.unit_draw,
            "alternatives": chosen.alternatives,
        },
        "decision": {
            "token": chosen.token,
            "interval": (chosen.start, chosen.end),
            "logprob_raw": chosen.logprob_raw,
            "logprob": chosen.logprob,
            "structure": event.receipt.structure,
        },
    }


def _end(state: State) -> Facts:
    ending = state.ending
    if ending is None:
        return {}
    return {
        "sequence": {
            "finish": (ending.finish, ending.cause),
            "triggers": state.due,
            "stop": state.matched_stop,
            "text": state.delta,
        },
        "resume": {
            "status": state.status,
            "frontier": state.frontier,
            "horizon": state.horizon,
            "structure": state.structure,
        },
    }


def _ahead(state: State) -> Facts:
    """What the next step starts from, by what was committed.

    A call moves only what of the frontier is processed, and before the first commit a prompt's record the horizon.
    """
    prompt, output, _, _, _ = state.frontier
    envelope = state.spec.envelope
    rng = envelope.rng
    return {
        "policy": {"noise": (rng.algorithm, rng.seed, rng.choice) if envelope.policy.family == "sample" else None},
        "resume": {
            "frontier": (prompt, output),
            "horizon": state.horizon if output else START,
            "structure": state.structure,
        },
    }
