"""Why a token is what it is: one decision of a job, told from its log alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..fsm.emission import plain_alternative
from ..fsm.errors import NoSuchStep
from ..fsm.events import DecisionMade, OutputCommitted, RequestClosed, RequestFailed
from ..fsm.fold import fold
from ..fsm.ports import EventLog
from ..fsm.receipt import Receipt
from ..fsm.state import State
from .policy_text import Place, effects, removers
from .reading import events_of


@dataclass(slots=True)
class Decision:
    """One recorded decision: the state it was made in, its receipt, and what became of it.

    sequence   its place in the job's log
    before     the PREFILLED state
    output     the tokens before it
    after      the state after its commit; None where it is recorded and not consumed
    committed  the commit's place in the log
    ended      the state in which the job ended, where no other decision came between
    """

    sequence: int
    before: State
    receipt: Receipt
    output: tuple[int, ...]
    after: State | None = None
    committed: int | None = None
    ended: State | None = None


def decision_of(log: EventLog, job: str, step: int | None = None) -> Decision:
    """The decision of output token number `step`, counted from 0; None: the newest.

    Every event up to it is folded, and so checked. Errors: UnknownJob, NoSuchStep, CorruptRecord and what the fold
    finds broken.
    """
    state: State | None = None
    newest: Decision | None = None
    found: Decision | None = None
    output: list[int] = []
    for sequence, event in events_of(log, job):
        before, state = state, fold(state, event)
        if isinstance(event, DecisionMade) and before is not None:
            if found is not None:
                break
            newest = Decision(sequence, before, event.receipt, ())
            found = newest if event.receipt.step == step else None
        elif isinstance(event, OutputCommitted) and newest is not None:
            newest.after, newest.committed = state, sequence
            output.append(newest.receipt.selection.token)
        elif isinstance(event, RequestClosed | RequestFailed) and newest is not None:
            newest.ended = state
    found = newest if step is None else found
    if found is None:
        raise NoSuchStep(job, step, 0 if newest is None else newest.receipt.step + 1)
    found.output = tuple(output[: found.receipt.step])
    return found


def explained(decision: Decision) -> dict[str, Any]:
    """The decision as plain values, ready for JSON: bytes as hexadecimal digits, log-probabilities in nats.

    `effects` says of each transform in words what it does at this step, and what it did to the chosen token's score
    where the log can say so. Of the tokens that were not chosen the log holds the ids, and not the texts.
    """
    before, receipt = decision.before, decision.receipt
    chosen, envelope = receipt.selection, before.spec.envelope
    policy, place = envelope.policy, Place(before.spec, decision.output)
    return {
        "job": before.spec.job,
        "step": receipt.step,
        "sequence": decision.sequence,
        "receipt": receipt.receipt_id.hex(),
        "scores": before.scores.hex(),
        "token": chosen.token,
        "text": receipt.piece.decode(errors="replace"),
        "bytes": receipt.piece.hex(),
        "hidden": receipt.hidden,
        "shown": not (receipt.hidden and before.spec.skip_special),
        "family": policy.family,
        "tie_rule": policy.tie_rule,
        "transforms": [transform.model_dump() for transform in policy.transforms],
        "effects": effects(place, chosen.token),
        "held_back_until": before.spec.min_new_tokens,
        "vocabulary": envelope.text_interface.vocabulary_size,
        "support": chosen.support,
        "logprob_raw": chosen.logprob_raw,
        "logprob": chosen.logprob,
        "margin": _finite(chosen.margin),
        "draw": _draw(decision),
        "alternatives": [
            plain_alternative(each)
            | {"removed_by": list(removers(place, each.token)) if each.logprob == -math.inf else []}
            for each in chosen.alternatives
        ],
        "structure": None if receipt.structure is None else receipt.structure.name.lower(),
        **_committed(decision),
        **_ended(decision),
    }


def _draw(decision: Decision) -> dict[str, Any] | None:
    receipt, rng = decision.receipt, decision.before.spec.envelope.rng
    unit, start, end = receipt.selection.unit_draw, receipt.selection.start, receipt.selection.end
    if unit is None:
        return None
    address = {"seed": rng.seed, "choice": rng.choice, "branch": receipt.branch, "step": receipt.step}
    return {"unit": unit, "start": start, "end": end, "algorithm": rng.algorithm, **address}


def _committed(decision: Decision) -> dict[str, Any]:
    """What the commit released, and where that begins, as in a stream; what it still holds back, and why."""
    start, after = decision.before.horizon, decision.after
    return {
        "committed": after is not None,
        "committed_sequence": decision.committed,
        "released": None if after is None else after.delta,
        "released_at": {"characters": start.characters_released, "bytes": start.bytes_released},
        "held": None if after is None else after.horizon.held.hex(),
        "undecoded": None if after is None else after.horizon.undecoded.hex(),
        "alignment": decision.before.spec.alignment,
        "due": [] if after is None else [reason.value for reason in after.due],
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
