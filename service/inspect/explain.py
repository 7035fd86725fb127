"""Why a token was chosen: one decision of a job, explained from its log alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from math import nan
from typing import Any, Final, NamedTuple

from ...fsm.errors import Defect, EvidenceSealed, NoSuchStep, Problem
from ...fsm.evidence.receipt import Receipt, Selection
from ...fsm.machine.events import CallCompleted, DecisionMade, OutputCommitted, RequestClosed, RequestFailed
from ...fsm.machine.fold import fold
from ...fsm.machine.spec import Spec
from ...fsm.machine.state import State
from ...fsm.machine.thinned import NOT_KEPT, ThinnedDecision
from ...fsm.output.horizon import Horizon
from ...fsm.ports import EventLog, Record
from ...fsm.reading.emission import plain_alternative
from ...fsm.reading.load import load
from ...fsm.reading.transcript import Transcript
from ...fsm.request.finish import FinishReason
from ..streams.reading import events_of
from .policy_text import effects, removers

EVIDENCE: Final = ("receipt", "scores", "margin", "draw")
"""What a sealed log does not keep of the steps in the middle of a run."""


class Committed(NamedTuple):
    """What a commit did: its place in the log, the text that it released, the horizon after it, and the ends due."""

    sequence: int
    released: str
    horizon: Horizon
    due: tuple[FinishReason, ...]


@dataclass(slots=True)
class Decision:
    """One recorded decision: where it was made, its receipt, and what became of it.

    sequence   its place in the job's log
    scores     the digest of the score row; empty where a sealed log does not keep it, nor then the receipt's id, its
               margin and its draw
    horizon    before it
    output     the tokens before it
    committed  None where it is recorded and not consumed
    ended      the state in which the job ended, where no other decision came between
    damage     what is wrong with the log behind it, where that was met
    """

    sequence: int
    spec: Spec
    scores: bytes
    horizon: Horizon
    receipt: Receipt
    output: tuple[int, ...] = ()
    committed: Committed | None = None
    ended: State | None = None
    damage: Problem | None = None


def decision_of(log: EventLog, job: str, step: int | None = None) -> Decision:
    """The decision of output token number `step`, counted from 0; None: the newest.

    Every event up to it is folded, and so checked; of a sealed log, which keeps less, as much as a load does.
    Errors: UnknownJob, NoSuchStep; CorruptRecord and what the fold finds broken, where that comes before the decision.
    """
    try:
        return _folded(log, job, step)
    except EvidenceSealed:
        return _kept(log, job, step)


def _folded(log: EventLog, job: str, step: int | None) -> Decision:
    state: State | None = None
    newest: Decision | None = None
    found: Decision | None = None
    output: list[int] = []
    try:
        for sequence, event in events_of(log, job):
            before, state = state, fold(state, event)
            if isinstance(event, DecisionMade) and before is not None:
                if found is not None:
                    break
                newest = Decision(sequence, before.spec, before.scores, before.horizon, event.receipt)
                found = newest if event.receipt.step == step else None
            elif isinstance(event, OutputCommitted) and newest is not None:
                newest.committed = Committed(sequence, state.delta, state.horizon, state.due)
                output.append(newest.receipt.selection.token)
            elif isinstance(event, RequestClosed | RequestFailed) and newest is not None:
                newest.ended = state
    except Defect as damage:  # what came before it is proven
        if newest is None or (step is not None and found is None):
            raise
        newest.damage = damage
    found = newest if step is None else found
    if found is None:
        raise NoSuchStep(job, step, 0 if newest is None else newest.receipt.step + 1)
    found.output = tuple(output[: found.receipt.step])
    return found


def _kept(log: EventLog, job: str, step: int | None) -> Decision:
    """The decision as a sealed log has it, which is one of an ended job."""
    records = list(log.read(job))
    transcript = Transcript()
    load(transcript, records)
    if (state := transcript.state) is None:
        raise NoSuchStep(job, step, 0)
    made, last = _decisions(records), transcript.moments[-1].before
    if step is not None and step >= len(made):
        raise NoSuchStep(job, step, len(made))
    place = len(made) - 1 if step is None else step
    sequence, scores, receipt = made[place]
    decision = Decision(sequence, state.spec, scores, last, receipt, tuple(transcript.token_ids[:place]))
    commits = [moment for moment in transcript.moments if moment.selection is not None]
    newest = place == len(made) - 1
    if place < len(commits):
        commit = commits[place]
        decision.horizon = commit.before
        decision.committed = Committed(commit.sequence, commit.delta, commit.after, state.due if newest else ())
    decision.ended = state if newest else None
    return decision


def _decisions(records: Iterable[Record]) -> list[tuple[int, bytes, Receipt]]:
    """Each decision of a sealed log in order: its place, the digest of its score row, and its receipt."""
    made: list[tuple[int, bytes, Receipt]] = []
    scores = b""
    for record in records:
        for sequence, event in enumerate(record.events, start=record.first):
            match event:
                case CallCompleted():
                    scores = event.scores
                case ThinnedDecision(step, branch, token, support, raw, logprob, alternatives, piece, hidden):
                    chosen = Selection(token, support, raw, logprob, nan, alternatives=alternatives)
                    made.append((sequence, b"", Receipt(step, branch, chosen, piece, hidden, NOT_KEPT)))
                case DecisionMade():
                    made.append((sequence, scores, event.receipt))
    return made


def explained(decision: Decision) -> dict[str, Any]:
    """The decision as plain values, ready for JSON: bytes as hexadecimal digits, log-probabilities in nats.

    `effects` says of each transform in words what it does at this step, and what it did to the chosen token's score
    where the log can say so. `not_kept` names what a sealed log has no more. Of the tokens that were not chosen the log
    holds the ids, and not the texts.
    """
    spec, receipt = decision.spec, decision.receipt
    chosen, envelope, kept = receipt.selection, spec.envelope, receipt.receipt_id != NOT_KEPT
    policy, output = envelope.policy, decision.output
    return {
        "job": spec.job,
        "step": receipt.step,
        "sequence": decision.sequence,
        "not_kept": [] if kept else list(EVIDENCE),
        "receipt": receipt.receipt_id.hex() if kept else None,
        "scores": decision.scores.hex() if kept else None,
        "token": chosen.token,
        "text": receipt.piece.decode(errors="replace"),
        "bytes": receipt.piece.hex(),
        "hidden": receipt.hidden,
        "shown": not (receipt.hidden and spec.skip_special),
        "family": policy.family,
        "tie_rule": policy.tie_rule,
        "transforms": [transform.model_dump() for transform in policy.transforms],
        "effects": effects(spec, output, chosen.token),
        "held_back_until": spec.min_new_tokens,
        "vocabulary": envelope.text_interface.vocabulary_size,
        "support": chosen.support,
        "logprob_raw": chosen.logprob_raw,
        "logprob": chosen.logprob,
        "margin": _finite(chosen.margin),
        "draw": _draw(decision),
        "alternatives": [
            plain_alternative(each)
            | {"removed_by": list(removers(spec, output, each.token)) if each.logprob == -math.inf else []}
            for each in chosen.alternatives
        ],
        "structure": None if receipt.structure is None else receipt.structure.name.lower(),
        **_committed(decision),
        **_ended(decision),
    }


def _draw(decision: Decision) -> dict[str, Any] | None:
    receipt, rng = decision.receipt, decision.spec.envelope.rng
    unit, start, end = receipt.selection.unit_draw, receipt.selection.start, receipt.selection.end
    if unit is None:
        return None
    address = {"seed": rng.seed, "choice": rng.choice, "branch": receipt.branch, "step": receipt.step}
    return {"unit": unit, "start": start, "end": end, "algorithm": rng.algorithm, **address}


def _committed(decision: Decision) -> dict[str, Any]:
    """What the commit released, and where that begins, as in a stream; what it still holds back, and why."""
    start, done = decision.horizon, decision.committed
    return {
        "committed": done is not None,
        "committed_sequence": None if done is None else done.sequence,
        "released": None if done is None else done.released,
        "released_at": {"characters": start.characters_released, "bytes": start.bytes_released},
        "held": None if done is None else done.horizon.held.hex(),
        "undecoded": None if done is None else done.horizon.undecoded.hex(),
        "alignment": decision.spec.alignment,
        "due": [] if done is None else [reason.value for reason in done.due],
    }


def _ended(decision: Decision) -> dict[str, Any]:
    """How the job ended after this decision; `flushed` is the text that the end itself released."""
    ended = decision.ended
    ending = None if ended is None else ended.ending
    return {
        "finish_reason": None if ending is None or ending.finish is None else ending.finish.value,
        "matched_stop": None if ended is None else ended.matched_stop,
        "triggers": [] if ended is None else [reason.value for reason in ended.due],
        "error": None if ending is None or ending.finish is not None else f"[{ending.cause}] {ending.detail}",
        "flushed": None if ended is None else ended.delta,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
