"""Events for people, one line each, and for programs, one JSON object each."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from typing import Any

from ...fsm.evidence.receipt import Receipt
from ...fsm.machine.events import (
    AttemptStarted,
    CallCompleted,
    CallFailed,
    DecisionMade,
    Event,
    LanesRebuilt,
    OutputCommitted,
    PromptRecorded,
    RequestAdmitted,
    RequestClosed,
    RequestFailed,
)
from ...fsm.machine.thinned import Thinned, ThinnedCall, ThinnedDecision, ThinnedOutput
from ...fsm.request.finish import MatchedStop
from .reading import Numbered


def event_line(numbered: Numbered) -> str:
    """Sequence number, what happened, and what matters about it."""
    return f"{numbered.sequence:>6}  {numbered.event.tag:<16}  {_words(numbered.event)}"


def event_json(numbered: Numbered) -> dict[str, Any]:
    """Every field of the event: bytes as hexadecimal digits, the request as the object that it is."""
    event = numbered.event
    values = {field.name: _plain(getattr(event, field.name)) for field in fields(event)}
    if isinstance(event, RequestAdmitted):
        values["envelope"] = json.loads(event.envelope)
    sealed = {"thinned": True} if isinstance(event, Thinned) else {}
    return {"sequence": numbered.sequence, "event": event.tag} | values | sealed


def _words(event: Event) -> str:
    match event:
        case RequestAdmitted(job=job, envelope=envelope, parent=parent):
            forked = "" if parent is None else f", forked from {parent.job} at step {parent.step}"
            return f"job {job}, a request of {len(envelope)} bytes{forked}"
        case AttemptStarted(fence=fence, worker=worker):
            return f"tenure {fence} of worker {worker}"
        case LanesRebuilt(form=form, tokens=tokens):
            return f"{tokens} tokens computed again by {form}"
        case CallCompleted(tokens=tokens, lanes=lanes):
            return f"{tokens} tokens processed, {lanes} in all"
        case CallFailed(cause=cause, detail=detail) | RequestFailed(cause=cause, detail=detail):
            return f"[{cause}] {' '.join(detail.split())}"
        case PromptRecorded(tokens=tokens):
            scored = sum(token.logprob_raw is not None for token in tokens)
            return f"{len(tokens)} tokens of the prompt, {scored} with log-probabilities"
        case DecisionMade(receipt=receipt):
            return _decision(receipt)
        case OutputCommitted(output=output, matched_stop=stop):
            return f"output {output}" if stop is None else f"output {output}, stopped by {named(stop)}"
        case RequestClosed(reason=reason, triggers=triggers):
            return f"{reason}" if len(triggers) == 1 else f"{reason} (before {', '.join(triggers[1:])})"
        case ThinnedCall(tokens=tokens, lanes=lanes):
            return f"{tokens} tokens processed, {lanes} in all; sealed without its digest"
        case ThinnedDecision(step=step, token=token, logprob=logprob, piece=piece):
            text = piece.decode(errors="backslashreplace")
            return f"step {step}: token {token} {text!r}, log-probability {logprob:.4f}; sealed without its receipt"
        case ThinnedOutput(output=output):
            return f"output {output}; sealed without its digest"


def named(stop: MatchedStop) -> str:
    """A stop by what it is: a string, or a token's id."""
    return repr(stop) if isinstance(stop, str) else f"token {stop}"


def _decision(receipt: Receipt) -> str:
    chosen = receipt.selection
    text = receipt.piece.decode(errors="backslashreplace")
    drawn = ""
    if chosen.unit_draw is not None:
        drawn = f", draw {chosen.unit_draw:.6f} in [{chosen.start:.6f}, {chosen.end:.6f})"
    words = f"step {receipt.step}: token {chosen.token} {text!r}, log-probability {chosen.logprob:.4f}{drawn}"
    return f"{words}, margin {chosen.margin:.4f}, receipt {receipt.receipt_id.hex()[:12]}"


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        named = getattr(value, "_asdict", None)
        return {name: _plain(item) for name, item in named().items()} if named else [_plain(item) for item in value]
    return value
