"""Whether two runs are the same: six levels in order, and the first that differs is the verdict.

state      prompt, frontiers, and what the decoder, the stop matcher and the structure's parser hold
tensor     the score row, bit for bit, by its digest
policy     what the row was made into: support, margin, draw, alternatives
decision   the token, its interval and its log-probabilities
sequence   bytes, text, and why the output ended
resume     where the runs stand in the end: what the next call would process and go on from

Runs are compared step by step. Once they differ, everything after may differ for that reason alone; so the verdict is
the first step with a difference, and there the first level. Equal text cures no level before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from .errors import BrokenInvariant
from .events import DecisionMade, Event, OutputCommitted
from .fold import fold
from .state import State
from .transcript import Transcript

LEVELS: Final = ("state", "tensor", "policy", "decision", "sequence", "resume")
SHOWN: Final = ("sequence", "resume")

Facts = Mapping[str, Mapping[str, Any]]
"""Level -> name -> value, of one step."""


class Run(NamedTuple):
    """What a log says of a run: the facts of each committed step, and of its end as far as it has come."""

    steps: Sequence[Facts]
    end: Facts
    ended: bool


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
    return Run(committed, _end(state), state.ending is not None)


def shown(transcript: Transcript) -> Run:
    """What a whole transcript says of a run, as far as readers are shown it: the levels from `sequence` on.

    This much is there of a sealed log too, and of a log that was not folded event by event.
    """
    if transcript.state is None:
        raise BrokenInvariant(clause="FSM-4", reason="a job without events cannot be compared")
    steps = [
        {"sequence": {"bytes": moment.piece, "hidden": moment.hidden, "text": moment.delta}}
        for moment in transcript.moments
        if moment.selection is not None
    ]
    return Run(steps, _end(transcript.state), transcript.state.ending is not None)


def compare(left: Run, right: Run, normative: str = LEVELS[0]) -> Difference | None:
    """The first difference of two runs; None where there is none.

    normative   the first level that counts: differences of the levels before it are passed over
    Of a run that has not ended the steps so far are compared, and its end only with that of another such run.
    """
    counted = LEVELS[LEVELS.index(normative) :]
    for step, (one, other) in enumerate(zip(left.steps, right.steps, strict=False)):
        if found := _difference(step, one, other, counted):
            return found
    common = min(len(left.steps), len(right.steps))
    shorter = left if len(left.steps) == common else right
    if len(left.steps) != len(right.steps):
        if shorter.ended:
            return Difference(common, "sequence", "tokens", len(left.steps), len(right.steps))
        return None
    return _difference(common, left.end, right.end, counted) if left.ended == right.ended else None


def _difference(step: int, one: Facts, other: Facts, levels: Sequence[str]) -> Difference | None:
    for level in levels:
        mine, theirs = one.get(level, {}), other.get(level, {})
        for name in mine:
            if mine[name] != theirs.get(name):
                return Difference(step, level, name, mine[name], theirs.get(name))
    return None


def _decided(before: State, event: DecisionMade) -> dict[str, dict[str, Any]]:
    chosen, envelope = event.receipt.selection, before.spec.envelope
    _, output, processed, unprocessed, suffix = before.frontier
    return {
        "state": {
            "prompt": before.spec.prompt,
            "output": output,
            "processed": processed,
            "unprocessed": unprocessed,
            "suffix": suffix,
            "horizon": before.horizon,
            "structure": before.structure,
        },
        "tensor": {"scores": before.scores},
        "policy": {
            "family": envelope.policy.family,
            "transforms": envelope.policy.transforms,
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
    return {
        "sequence": {"finish": ending and (ending.finish, ending.cause), "triggers": state.due, "text": state.delta},
        "resume": {
            "status": state.status,
            "frontier": state.frontier,
            "horizon": state.horizon,
            "structure": state.structure,
            "scores": state.scores,
        },
    }
