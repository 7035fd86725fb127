"""Why a token is what it is: one decision of a job, told from its log alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fsm.errors import NoSuchStep
from ..fsm.events import DecisionMade, OutputCommitted, RequestClosed, RequestFailed
from ..fsm.fold import fold
from ..fsm.ports import EventLog
from ..fsm.receipt import Receipt
from ..fsm.state import State
from .reading import events_of


@dataclass(slots=True)
class Decision:
    """One recorded decision: the state it was made in, its receipt, and what became of it.

    before   the PREFILLED state
    after    the state after its commit; None where it is recorded and not consumed
    ended    the state in which the job ended, where no other decision came between
    """

    before: State
    receipt: Receipt
    after: State | None = None
    ended: State | None = None


def decision_of(log: EventLog, job: str, step: int | None = None) -> Decision:
    """The decision of output token number `step`, counted from 0; None: the newest.

    Every event up to it is folded, and so checked. Errors: UnknownJob, NoSuchStep, CorruptRecord and what the fold
    finds broken.
    """
    state: State | None = None
    newest: Decision | None = None
    found: Decision | None = None
    for _, event in events_of(log, job):
        before, state = state, fold(state, event)
        if isinstance(event, DecisionMade) and before is not None:
            if found is not None:
                break
            newest = Decision(before, event.receipt)
            found = newest if event.receipt.step == step else None
        elif isinstance(event, OutputCommitted) and newest is not None:
            newest.after = state
        elif isinstance(event, RequestClosed | RequestFailed) and newest is not None:
            newest.ended = state
    found = newest if step is None else found
    if found is None:
        raise NoSuchStep(job, step, 0 if newest is None else newest.receipt.step + 1)
    return found


def explained(decision: Decision) -> dict[str, Any]:
    """The decision as plain values, ready for JSON."""
    before, receipt, after, ended = decision.before, decision.receipt, decision.after, decision.ended
    ending = None if ended is None else ended.ending
    chosen, envelope = receipt.selection, before.spec.envelope
    policy, rng = envelope.policy, envelope.rng
    draw = None
    if chosen.unit_draw is not None:
        address = {"algorithm": rng.algorithm, "seed": rng.seed, "choice": rng.choice, "step": receipt.step}
        draw = {"unit": chosen.unit_draw, "start": chosen.start, "end": chosen.end, **address}
    return {
        "job": before.spec.job,
        "step": receipt.step,
        "receipt": receipt.receipt_id.hex(),
        "token": chosen.token,
        "text": receipt.piece.decode(errors="replace"),
        "bytes": receipt.piece.hex(),
        "hidden": receipt.hidden,
        "family": policy.family,
        "tie_rule": policy.tie_rule,
        "transforms": [transform.model_dump() for transform in policy.transforms],
        "held_back_until": before.spec.min_new_tokens,
        "vocabulary": envelope.text_interface.vocabulary_size,
        "support": chosen.support,
        "logprob_raw": chosen.logprob_raw,
        "logprob": chosen.logprob,
        "margin": _finite(chosen.margin),
        "draw": draw,
        "alternatives": [
            {"token": each.token, "logprob_raw": each.logprob_raw, "logprob": _finite(each.logprob)}
            for each in chosen.alternatives
        ],
        "structure": None if receipt.structure is None else receipt.structure.name.lower(),
        "committed": after is not None,
        "released": None if after is None else after.delta,
        "held": None if after is None else after.horizon.held.hex(),
        "due": [] if after is None else [reason.value for reason in after.due],
        "finish_reason": None if ending is None or ending.finish is None else ending.finish.value,
        "triggers": [] if ended is None else [reason.value for reason in ended.due],
        "error": None if ending is None or ending.finish is not None else f"[{ending.cause}] {ending.detail}",
    }


def told(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The same for people: what each line is about, and what it says."""
    lines = [("decision", f"output token {facts['step']} of job {facts['job']}, receipt {facts['receipt'][:16]}")]
    shown = ", a special token that is not shown" if facts["hidden"] else ""
    lines.append(("token", f"{facts['token']} {facts['text']!r}, bytes {facts['bytes'] or 'none'}{shown}"))
    lines.append(("policy", _policy(facts)))
    lines += [("", _transform(transform)) for transform in facts["transforms"]]
    if facts["step"] < facts["held_back_until"]:
        lines.append(("", f"tokens that end the output are held back until there are {facts['held_back_until']}"))
    lines.append(("support", f"{facts['support']} of {facts['vocabulary']} tokens could be chosen"))
    lines.append(("chance", f"{_logprob(facts['logprob'])}; before the policy {_logprob(facts['logprob_raw'])}"))
    lines.append(("draw", _draw(facts["draw"], facts["tie_rule"])))
    margin = "there is no second token" if facts["margin"] is None else f"{facts['margin']:.4f} nats"
    lines.append(("margin", f"best raw score over the second best: {margin}"))
    for rank, each in enumerate(facts["alternatives"], 1):
        now = "removed by the policy" if each["logprob"] is None else _logprob(each["logprob"])
        lines.append((f"best {rank}", f"token {each['token']}: {_logprob(each['logprob_raw'])} before, then {now}"))
    if facts["structure"] is not None:
        lines.append(("grammar", f"after this token the text is {facts['structure']}"))
    lines += _outcome(facts)
    return lines


def _policy(facts: dict[str, Any]) -> str:
    if facts["family"] == "greedy":
        return "greedy: the best score after these, in order" if facts["transforms"] else "greedy: the best score"
    return "sample: one draw after these, in order" if facts["transforms"] else "sample: one draw"


def _transform(transform: dict[str, Any]) -> str:
    numbers = {name: _short(value) for name, value in transform.items() if name != "kind"}
    return f"{transform['kind']} {', '.join(f'{name} {value}' for name, value in numbers.items())}"


def _short(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"{len(value)} of them" if len(value) > 4 else ", ".join(map(_short, value))
    if isinstance(value, dict):
        return "=".join(str(each) for each in value.values())
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}... ({len(text)} characters)"


def _logprob(value: float) -> str:
    return f"log-probability {value:.4f}"


def _draw(draw: dict[str, Any] | None, tie_rule: str) -> str:
    if draw is None:
        return f"nothing was drawn; among equals the {tie_rule.replace('_', ' ')} is taken"
    address = f"{draw['algorithm']}, seed {draw['seed']}, choice {draw['choice']}, step {draw['step']}"
    return f"{draw['unit']:.9f} in [{draw['start']:.9f}, {draw['end']:.9f}), from {address}"


def _outcome(facts: dict[str, Any]) -> list[tuple[str, str]]:
    if not facts["committed"]:
        over = facts["finish_reason"] or facts["error"]
        what = f"the job ended before it was: {over}" if over else "whoever runs the job next commits this very token"
        return [("commit", f"recorded and not consumed; {what}")]
    held = bytes.fromhex(facts["held"]).decode(errors="replace")
    lines = [("text", f"{facts['released']!r} became visible" + (f", {held!r} is held back" if held else ""))]
    if facts["finish_reason"] is not None:
        others = [each for each in facts["triggers"] if each != facts["finish_reason"]]
        also = f", which comes before {', '.join(others)}" if others else ""
        lines.append(("end", f"the job ended: {facts['finish_reason']}{also}"))
    elif facts["error"] is not None:
        lines.append(("end", f"the job failed before another decision: {' '.join(facts['error'].split())}"))
    elif facts["due"]:
        lines.append(("end", f"due: {', '.join(facts['due'])}"))
    return lines


def _finite(value: float) -> float | None:
    return value if abs(value) != float("inf") else None
