"""Events as bytes: one msgpack array an append, each event an array that begins with its wire code.

A wire code is a small integer that stands for one literal (tag, version), so that naming an event costs a byte. Codes
are added, never reused or edited: bytes once written are read for ever, and `tests/golden/events` holds them to it.

Bytes a token matter. The id of a receipt is the append's key in the append that carries the receipt, and is not written
twice. The three events of an ordinary step, a call, its decision and its commit, share one array under one code, with
what has a fixed size packed together.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from reprlib import repr as shortened
from typing import Any

from msgpack import packb, unpackb

from ...fsm.errors import CorruptRecord, UnknownWireTag
from ...fsm.evidence.prompt_record import PromptToken
from ...fsm.evidence.receipt import Alternative, Receipt, Selection, marked, unmarked
from ...fsm.limits import PAYLOAD_BYTES_MAX, PROMPT_TOKENS_MAX
from ...fsm.machine.events import (
    STATE_BYTES,
    AttemptStarted,
    CallCompleted,
    CallFailed,
    DecisionMade,
    Entry,
    Event,
    LanesRebuilt,
    OutputCommitted,
    Parent,
    PromptRecorded,
    RequestAdmitted,
    RequestClosed,
    RequestFailed,
    TokenStep,
    expand,
    joined,
)
from ...fsm.request.finish import FinishReason
from .unpacking import STEP_BYTES, unpacked

Fields = tuple[Any, ...]
Upcast = Callable[[Fields], Fields]

WIRE: dict[int, tuple[str, int]] = {
    1: ("request.admitted", 1),
    2: ("attempt.started", 1),
    3: ("lanes.rebuilt", 1),
    4: ("call.completed", 1),
    5: ("call.failed", 1),
    6: ("decision.made", 1),
    7: ("output.committed", 1),
    8: ("request.closed", 1),
    9: ("request.failed", 1),
    10: ("prompt.recorded", 1),
}

DIGEST_BYTES = 32

STEP = 11
STEP_WIRE = (("call.completed", 1), ("decision.made", 1), ("output.committed", 1))
"""What wire code 11 stands for: these three events, written as one."""

_GREEDY = struct.Struct("<32s8s3d")
_DRAWN = struct.Struct("<32s8s6d")

UPCASTS: dict[tuple[str, int], Upcast] = {}
"""(tag, version) -> the pure step from that version's fields to the next version's; the wire code is not a field."""


def encode(given: tuple[Entry, ...], key: bytes) -> bytes:
    """The payload of the append that is keyed `key`: equal bytes for equal events, also where a step's are joined.

    A step that comes first is written as one, if it fits there; everything else is written event by event.
    """
    if given and not isinstance(given[0], TokenStep):
        given = joined(given)
    wire: list[Fields] = []
    if given and isinstance(given[0], TokenStep) and (step := _step(given[0], key)) is not None:
        wire, given = [step], given[1:]
    if given:
        wire += [_ENCODE[type(event)](event, key) for event in expand(given)]
    return packb(wire)  # type: ignore[no-any-return]


def decode(payload: bytes, key: bytes, job: str, first: int) -> tuple[Event, ...]:
    """The events of a stored payload, equal to the ones encoded, floats bit for bit; errors as in `entries`."""
    return expand(entries(payload, key, job, first))


def entries(payload: bytes, key: bytes, job: str, first: int) -> tuple[Entry, ...]:
    """The events of a stored payload, with the three of a step as the one value that they were written as.

    `job` and `first`, the sequence of the first event, name the place in errors: UnknownWireTag for an event of a
    newer release, CorruptRecord for bytes that no release wrote.
    """
    try:
        # Nearly every payload is short, and is read without a call more.
        listed = unpackb(payload, use_list=False) if len(payload) <= STEP_BYTES else _unpacked(payload)
    except (ValueError, TypeError, LookupError) as problem:
        raise CorruptRecord(job, first, f"its payload is no list of events ({problem})") from problem
    try:
        return tuple([_DECODE[fields[0]](fields, key) for fields in listed])
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, struct.error) as problem:
        raise undecodable(listed, job, first, problem) from problem


def _unpacked(payload: bytes) -> Any:
    """What a payload lists. ValueError for one that is longer, or says more, than any that a release writes."""
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise ValueError(f"payload_bytes is {len(payload)}, and the maximum is {PAYLOAD_BYTES_MAX}")
    return unpacked(payload, PROMPT_TOKENS_MAX)


def undecodable(listed: Any, job: str, first: int, problem: Exception) -> CorruptRecord | UnknownWireTag:
    """The error for a payload that did not decode, at the event where that happened."""
    try:
        wire = [fields[0] for fields in listed]
    except (ValueError, TypeError, LookupError):
        return CorruptRecord(job, first, f"its payload is no list of events ({problem})")
    for offset, code in enumerate(wire):
        if not isinstance(code, int):
            return CorruptRecord(job, first + offset, f"{shortened(code)} is no wire tag")
        if code not in _DECODE:
            return UnknownWireTag(job, first + offset, code)
    return CorruptRecord(job, first, f"the fields of an event cannot be read ({problem})")


# ---- to the wire: the newest version of each event ------------------------------------------------------------


def _admitted(event: RequestAdmitted, key: bytes) -> Fields:
    parent = () if event.parent is None else (event.parent,)
    return (1, event.job, event.envelope, *parent)


def _attempt(event: AttemptStarted, key: bytes) -> Fields:
    return (2, event.fence, event.worker, event.facts)


def _lanes(event: LanesRebuilt, key: bytes) -> Fields:
    return (3, event.form, event.tokens, event.prefilled, event.scores)


def _call(event: CallCompleted, key: bytes) -> Fields:
    return (4, event.tokens, event.lanes, event.scores)


def _call_failed(event: CallFailed, key: bytes) -> Fields:
    return (5, event.cause, event.detail)


def _decision(event: DecisionMade, key: bytes) -> Fields:
    """Receipt fields, then what only some receipts have: a draw, alternatives, an id other than the append's key."""
    receipt = event.receipt
    token, support, raw, logprob, margin, draw, start, end, alternatives = receipt.selection
    piece, marks = receipt.piece, receipt.marks
    fields: Fields = (6, receipt.step, receipt.branch, piece, marks, token, support, raw, logprob, margin)
    if draw is not None or start is not None or end is not None:
        fields = (*fields, draw, start, end)
    if alternatives or receipt.receipt_id != key:
        fields = (*fields, _listed(alternatives), None if receipt.receipt_id == key else receipt.receipt_id)
    return fields


def _listed(alternatives: Sequence[Alternative]) -> list[Fields]:
    """Alternatives without a field for bytes that they do not have."""
    return [each if each.piece is not None else each[:3] for each in alternatives]


def _prompt(event: PromptRecorded, key: bytes) -> Fields:
    """Processed log-probabilities of a prompt are the raw ones, and are not written."""
    tokens = [
        (piece, hidden, logprob, [(each.token, each.logprob_raw, each.piece) for each in alternatives])
        for piece, hidden, logprob, alternatives in event.tokens
    ]
    return (10, tokens)


def _output(event: OutputCommitted, key: bytes) -> Fields:
    stop = () if event.matched_stop is None else (event.matched_stop,)
    return (7, event.output, event.state, *stop)


def _closed(event: RequestClosed, key: bytes) -> Fields:
    return (8, event.reason.value, [trigger.value for trigger in event.triggers])


def _failed(event: RequestFailed, key: bytes) -> Fields:
    return (9, event.cause, event.detail)


def _step(step: TokenStep, key: bytes) -> Fields | None:
    """The fields of an ordinary step; None where it has more than fits there."""
    tokens, lanes, scores, branch, selection, piece, hidden, receipt_id, output, state, structure, stop = step
    token, support, raw, logprob, margin, draw, start, end, alternatives = selection
    if alternatives or receipt_id != key or stop is not None:
        return None
    if len(state) != STATE_BYTES or len(scores) != DIGEST_BYTES:
        return None
    if draw is not None and start is not None and end is not None:
        packed = _DRAWN.pack(scores, state, raw, logprob, margin, draw, start, end)
    elif draw is start is end is None:
        packed = _GREEDY.pack(scores, state, raw, logprob, margin)
    else:
        return None
    marks = marked(hidden, structure)
    return (STEP, tokens, lanes, output - 1, branch, piece, marks, token, support, packed)


_ENCODE: dict[type[Event], Callable[[Any, bytes], Fields]] = {
    RequestAdmitted: _admitted,
    AttemptStarted: _attempt,
    LanesRebuilt: _lanes,
    CallCompleted: _call,
    CallFailed: _call_failed,
    PromptRecorded: _prompt,
    DecisionMade: _decision,
    OutputCommitted: _output,
    RequestClosed: _closed,
    RequestFailed: _failed,
}


# ---- from the wire: each version that was ever written --------------------------------------------------------


def _to_admitted(fields: Fields, key: bytes) -> RequestAdmitted:
    _, job, envelope, *parent = fields
    return RequestAdmitted(job, envelope, *(Parent(*each) for each in parent))


def _to_attempt(fields: Fields, key: bytes) -> AttemptStarted:
    _, fence, worker, facts = fields
    return AttemptStarted(fence, worker, facts)


def _to_lanes(fields: Fields, key: bytes) -> LanesRebuilt:
    _, form, tokens, prefilled, scores = fields
    return LanesRebuilt(form, tokens, prefilled, scores)


def _to_call(fields: Fields, key: bytes) -> CallCompleted:
    _, tokens, lanes, scores = fields
    return CallCompleted(tokens, lanes, scores)


def _to_call_failed(fields: Fields, key: bytes) -> CallFailed:
    _, cause, detail = fields
    return CallFailed(cause, detail)


def _to_decision(fields: Fields, key: bytes) -> DecisionMade:
    _, step, branch, piece, marks = fields[:5]
    hidden, structure = unmarked(marks)
    if len(fields) in _PLAIN:
        return DecisionMade(Receipt(step, branch, Selection(*fields[5:]), piece, hidden, key, structure))
    *chosen, alternatives, receipt_id = fields[5:]
    if len(chosen) not in _CHOSEN:
        raise ValueError(f"a decision of {len(fields)} fields")
    selection = Selection(*chosen)._replace(alternatives=tuple(Alternative(*best) for best in alternatives))
    receipt_id = key if receipt_id is None else receipt_id
    return DecisionMade(Receipt(step, branch, selection, piece, hidden, receipt_id, structure))


def _to_prompt(fields: Fields, key: bytes) -> PromptRecorded:
    _, tokens = fields
    return PromptRecorded(
        tuple(
            PromptToken(
                piece, hidden, raw, tuple(Alternative(token, best, best, exact) for token, best, exact in listed)
            )
            for piece, hidden, raw, listed in tokens
        )
    )


def _to_output(fields: Fields, key: bytes) -> OutputCommitted:
    _, output, state, *stop = fields
    if stop and type(stop[0]) not in (str, int):
        raise ValueError(f"{stop[0]!r} is neither a stop string nor a token's id")
    return OutputCommitted(output, state, *stop)


def _to_closed(fields: Fields, key: bytes) -> RequestClosed:
    _, reason, triggers = fields
    return RequestClosed(FinishReason(reason), tuple(FinishReason(trigger) for trigger in triggers))


def _to_failed(fields: Fields, key: bytes) -> RequestFailed:
    _, cause, detail = fields
    return RequestFailed(cause, detail)


_CHOSEN = (5, 8)  # counts of a greedy and of a drawn selection's fields
_PLAIN = (5 + 5, 5 + 8)

_NEWEST: dict[str, tuple[int, Callable[[Fields, bytes], Event]]] = {
    "request.admitted": (1, _to_admitted),
    "attempt.started": (1, _to_attempt),
    "lanes.rebuilt": (1, _to_lanes),
    "call.completed": (1, _to_call),
    "call.failed": (1, _to_call_failed),
    "prompt.recorded": (1, _to_prompt),
    "decision.made": (1, _to_decision),
    "output.committed": (1, _to_output),
    "request.closed": (1, _to_closed),
    "request.failed": (1, _to_failed),
}


def _to_step(fields: Fields, key: bytes) -> TokenStep:
    """The events of an ordinary step, all at version 1."""
    _, tokens, lanes, step, branch, piece, marks, token, support, packed = fields
    hidden, structure = (marks, None) if marks is False else unmarked(marks)
    if len(packed) == _GREEDY.size:
        scores, state, raw, logprob, margin = _GREEDY.unpack(packed)
        selection = Selection(token, support, raw, logprob, margin)
    else:
        scores, state, raw, logprob, margin, draw, start, end = _DRAWN.unpack(packed)
        selection = Selection(token, support, raw, logprob, margin, draw, start, end)
    return TokenStep(tokens, lanes, scores, branch, selection, piece, hidden, key, step + 1, state, structure)


def reader(tag: str, version: int) -> Callable[[Fields, bytes], Event]:
    """What reads one written version: its upcasts, one version at a time, then the newest version's constructor."""
    newest, build = _NEWEST[tag]
    steps = [UPCASTS[tag, old] for old in range(version, newest)]
    if not steps:
        return build

    def upcast(fields: Fields, key: bytes) -> Event:
        code, values = fields[0], fields[1:]
        for step in steps:
            values = step(values)
        return build((code, *values), key)

    return upcast


_DECODE: dict[int, Callable[[Fields, bytes], Entry]] = {
    STEP: _to_step,
    **{code: reader(tag, version) for code, (tag, version) in WIRE.items()},
}
