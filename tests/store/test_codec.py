"""Events as bytes: exact both ways, small, and readable for ever."""

from __future__ import annotations

import math
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgpack import packb, unpackb
from steps import digest, step_events

from decodelog.fsm.errors import CorruptRecord, UnknownWireTag
from decodelog.fsm.evidence.prompt_record import PromptToken
from decodelog.fsm.evidence.receipt import Alternative, Receipt, Selection
from decodelog.fsm.machine.events import (
    EVENTS,
    STATE_BYTES,
    AttemptStarted,
    CallCompleted,
    CallFailed,
    DecisionMade,
    Event,
    LanesRebuilt,
    OutputCommitted,
    Parent,
    PromptRecorded,
    RequestAdmitted,
    RequestClosed,
    RequestFailed,
    TokenStep,
    count,
    expand,
)
from decodelog.fsm.output.standing import Standing
from decodelog.fsm.request.finish import FinishReason
from decodelog.store.log import codec
from decodelog.store.log.codec import STEP, STEP_WIRE, WIRE, decode, encode, entries

GOLDEN = Path(__file__).parents[1] / "golden" / "events"
KEY = bytes(range(32))

# ---- golden bytes: from 0.1.0 on, files are added and never edited ----

SCORES, STATE, OTHER = digest("scores"), digest("state"), digest("other receipt")
GREEDY = Selection(4567, 1, -1.25, -0.1, 0.7)
DRAWN = Selection(4567, 40, -1 / 3, -0.1, math.inf, 0.25, 0.125, 0.5)
LISTED = DRAWN._replace(alternatives=(Alternative(4567, -0.5, -0.25), Alternative(7, -1.5, -math.inf)))
PIECED = DRAWN._replace(alternatives=(Alternative(4567, -0.5, -0.25, b"caf"), Alternative(7, -1.5, -math.inf, b"")))
ZERO = Alternative(0, -2.5, -2.5, b"")
PROMPT = (
    PromptToken(b"<|im_start|>", True),
    PromptToken(
        b"caf\xc3\xa9", False, -1 / 3, (Alternative(7, -0.25, -0.25, b"\xff"), Alternative(0, -2.5, -2.5, b""))
    ),
)
PIECE = b" caf\xc3\xa9\xff"


def receipt(
    selection: Selection, receipt_id: bytes = KEY, hidden: bool = False, structure: Standing | None = None
) -> Receipt:
    return Receipt(1234, 0, selection, PIECE, hidden, receipt_id, structure)


CALL, OUTPUT = CallCompleted(1, 1300, SCORES), OutputCommitted(1235, STATE[:STATE_BYTES])

EXAMPLES: dict[str, tuple[Event, ...]] = {
    "request.admitted.1": (RequestAdmitted("job-1", b'{"schema":"numinens.request.v1"}'),),
    "request.admitted.1-forked": (
        RequestAdmitted("job-1", b'{"schema":"numinens.request.v1"}', Parent("01a2.0", 1234)),
    ),
    "attempt.started.1": (AttemptStarted(3, "worker-1", (("device", "cpu"), ("torch", "2.13.0"))),),
    "attempt.started.1-bare": (AttemptStarted(1, "worker-1", ()),),
    "lanes.rebuilt.1": (LanesRebuilt("tensors", 3, 1300, SCORES),),
    "lanes.rebuilt.1-pending": (LanesRebuilt("reexecute", 2**40, 1300, b""),),
    "call.completed.1": (CALL,),
    "call.failed.1": (CallFailed("numeric_fault", "row 3 holds a NaN"),),
    "decision.made.1-greedy": (DecisionMade(receipt(GREEDY)),),
    "decision.made.1-drawn": (DecisionMade(receipt(DRAWN)),),
    "decision.made.1-alternatives": (DecisionMade(receipt(LISTED, hidden=True)),),
    "decision.made.1-other-key": (DecisionMade(receipt(GREEDY, OTHER)),),
    "decision.made.1-structured": (DecisionMade(receipt(LISTED, OTHER, True, Standing.COMPLETE)),),
    "output.committed.1": (OUTPUT,),
    "output.committed.1-string": (OutputCommitted(1235, STATE[:STATE_BYTES], "caf\u00e9\n"),),
    "output.committed.1-token": (OutputCommitted(1235, STATE[:STATE_BYTES], 151645),),
    "step.1-stopped": (
        CALL,
        DecisionMade(receipt(GREEDY)),
        OutputCommitted(1235, STATE[:STATE_BYTES], 4567),
        RequestClosed(FinishReason.STOP_TOKEN, (FinishReason.STOP_TOKEN,)),
    ),
    "request.closed.1": (RequestClosed(FinishReason.STOP_STRING, (FinishReason.STOP_STRING, FinishReason.LENGTH)),),
    "request.failed.1": (RequestFailed("numeric_fault", "row 3 holds a NaN"),),
    "prompt.recorded.1": (PromptRecorded(PROMPT),),
    "step.1-greedy": (CALL, DecisionMade(receipt(GREEDY)), OUTPUT),
    "step.1-drawn": (CALL, DecisionMade(receipt(DRAWN)), OUTPUT),
    "step.1-alternatives-with-bytes": (CALL, DecisionMade(receipt(PIECED)), OUTPUT),
    "step.1-alternatives": (CALL, DecisionMade(receipt(LISTED)), OUTPUT),
    "step.1-structured": (CALL, DecisionMade(receipt(GREEDY, structure=Standing.TERMINATED)), OUTPUT),
    "step.1-structured-end": (
        CALL,
        DecisionMade(receipt(GREEDY, structure=Standing.TERMINATED)),
        OUTPUT,
        RequestClosed(FinishReason.STRUCTURED_COMPLETE, (FinishReason.STRUCTURED_COMPLETE,)),
    ),
    "step.1-closed": (
        CALL,
        DecisionMade(receipt(GREEDY)),
        OUTPUT,
        RequestClosed(FinishReason.EOS, (FinishReason.EOS, FinishReason.LENGTH)),
    ),
}


@pytest.mark.contract("LOG-5")
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_golden_bytes_are_written_and_read_as_ever(name: str) -> None:
    golden = (GOLDEN / f"{name}.bin").read_bytes()
    assert encode(EXAMPLES[name], KEY) == golden
    assert decode(golden, KEY, "job-1", 1) == EXAMPLES[name]


@pytest.mark.contract("LOG-5")
def test_every_event_and_code_has_tested_golden_bytes() -> None:
    """Every file of golden bytes is tested and every event and code has one."""
    files = {path.stem: path.read_bytes() for path in GOLDEN.glob("*.bin")}
    assert set(files) == set(EXAMPLES)
    assert {type(event) for events in EXAMPLES.values() for event in events} == set(EVENTS.values())
    assert {fields[0] for golden in files.values() for fields in unpackb(golden)} == {*WIRE, STEP}


@pytest.mark.contract("LOG-5")
def test_every_event_has_one_wire_code_for_each_of_its_versions() -> None:
    assert {tag for tag, _ in WIRE.values()} == set(EVENTS)
    assert len(set(WIRE.values())) == len(WIRE)
    assert set(STEP_WIRE) <= set(WIRE.values())
    assert all(code < 128 for code in (*WIRE, STEP)), "a code takes one byte"


# ---- exactness ----

digests = st.binary(min_size=32, max_size=32)
proofs = st.binary(min_size=STATE_BYTES, max_size=STATE_BYTES)
counts = st.integers(0, 2**63 - 1)
floats = st.floats(allow_nan=False)
maybe = st.none() | floats
reasons = st.sampled_from(FinishReason)
alternatives = st.lists(st.builds(Alternative, counts, floats, floats), max_size=3).map(tuple)
selections = st.builds(Selection, counts, counts, floats, floats, floats, maybe, maybe, maybe, alternatives)
receipts = st.builds(
    Receipt,
    counts,
    counts,
    selections,
    st.binary(),
    st.booleans(),
    digests | st.just(KEY),
    st.none() | st.sampled_from(Standing),
)
text = st.text(st.characters(exclude_categories=["Cs"]))
calls = st.builds(CallCompleted, counts, counts, digests | st.binary())
outputs = st.builds(OutputCommitted, counts, digests | st.binary())
events = st.one_of(
    st.builds(RequestAdmitted, text, st.binary()),
    st.builds(AttemptStarted, counts, text, st.lists(st.tuples(text, text)).map(tuple)),
    st.builds(LanesRebuilt, text, counts, counts, st.binary()),
    calls,
    st.builds(CallFailed, text, text),
    st.builds(DecisionMade, receipts),
    outputs,
    st.builds(RequestClosed, reasons, st.lists(reasons).map(tuple)),
    st.builds(RequestFailed, text, text),
)


@pytest.mark.contract("LOG-5")
@given(st.lists(events, max_size=5))
def test_what_is_decoded_equals_what_was_encoded(given_events: list[Event]) -> None:
    payload = encode(tuple(given_events), KEY)
    assert decode(payload, KEY, "job-1", 1) == tuple(given_events)
    assert encode(decode(payload, KEY, "job-1", 1), KEY) == payload


@st.composite
def steps(draw: st.DrawFn) -> tuple[Event, ...]:
    """Three events that are, or nearly are, an ordinary step, and sometimes its end."""
    receipt = draw(receipts)
    output = draw(st.sampled_from([receipt.step + 1, receipt.step]))
    step = (draw(calls), DecisionMade(receipt), OutputCommitted(output, draw(digests | proofs)))
    return step + draw(st.just(()) | st.builds(RequestClosed, reasons, st.just(())).map(lambda event: (event,)))


@pytest.mark.contract("LOG-5")
@given(steps())
def test_a_step_written_as_one_is_the_same_three_events(step: tuple[Event, ...]) -> None:
    payload = encode(step, KEY)
    assert decode(payload, KEY, "job-1", 1) == step
    held = entries(payload, KEY, "job-1", 1)
    assert isinstance(held[0], TokenStep) is (unpackb(payload)[0][0] == STEP)
    assert (expand(held), count(held)) == (step, len(step))


@pytest.mark.contract("LOG-5", "POL-6")
@given(st.binary(min_size=8, max_size=8), st.booleans())
def test_floats_come_back_bit_for_bit(bits: bytes, drawn: bool) -> None:
    """Any of the 2^64, NaNs and negative zero among them; `==` would not tell them apart."""
    (value,) = struct.unpack("<d", bits)
    selection = Selection(1, 1, value, value, value, *((value, value, value) if drawn else ()))
    step = (CALL, DecisionMade(receipt(selection)), OUTPUT)
    for written in (step, step[1:]):
        (decision,) = [event for event in decode(encode(written, KEY), KEY, "j", 1) if isinstance(event, DecisionMade)]
        read = [number for number in decision.receipt.selection[2:8] if number is not None]
        assert {struct.pack("<d", number) for number in read} == {bits}


@pytest.mark.contract("LOG-5", "LOG-9")
def test_a_step_is_small() -> None:
    """A greedy and a drawn token; what their rows add is measured by the benchmarks."""
    sizes = [
        len(encode(step_events("job-1", 1234, drawn=drawn)[1], step_events("job-1", 1234)[0]))
        for drawn in (False, True)
    ]
    assert sizes[0] <= 91
    assert sizes[1] <= 116


# ---- what was never written ----


@pytest.mark.contract("LOG-5")
def test_an_unknown_wire_tag_is_an_error_and_not_a_skip() -> None:
    payload = packb([[7, 1, STATE], [77, "an event of a later release"]])
    with pytest.raises(UnknownWireTag) as problem:
        decode(payload, KEY, "job-1", 10)
    assert (problem.value.job, problem.value.sequence, problem.value.tag) == ("job-1", 11, 77)
    assert "install a newer decodelog" in str(problem.value)


@pytest.mark.contract("LOG-3", "LOG-5")
@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "its payload is no list of events"),
        (b"\xc1", "its payload is no list of events"),
        (packb(7), "its payload is no list of events"),
        (packb([7]), "its payload is no list of events"),
        (packb([[]]), "its payload is no list of events"),
        (packb([["call.completed", 1]]), "'call.completed' is no wire tag"),
        (packb([[7, 1]]), "the fields of an event cannot be read"),
        (packb([[6, 0, 0, b"", False, 1, 1, 0.0]]), "the fields of an event cannot be read"),
        (packb([[8, "boredom", []]]), "the fields of an event cannot be read"),
        (packb([[STEP, 1, 1, 1, 0, b"", False, 1, 1, b"short"]]), "the fields of an event cannot be read"),
        (packb([[7, 1, STATE]]) + b"\x00", "its payload is no list of events"),
    ],
)
def test_bytes_that_no_release_wrote_are_a_corrupt_record(payload: bytes, reason: str) -> None:
    with pytest.raises(CorruptRecord) as problem:
        decode(payload, KEY, "job-1", 10)
    assert (problem.value.job, problem.value.sequence) == ("job-1", 10)
    assert reason in problem.value.reason


@pytest.mark.contract("LOG-5")
@given(st.binary(max_size=80) | st.recursive(st.none() | counts | st.binary(), st.lists, max_leaves=8).map(packb))
def test_any_bytes_decode_or_are_a_typed_error(payload: bytes) -> None:
    with suppress(CorruptRecord, UnknownWireTag):
        decode(payload, KEY, "job-1", 1)


@pytest.mark.contract("LOG-5")
@given(
    st.lists(st.none() | counts | floats | text | st.binary(), min_size=8, max_size=8),
    st.sampled_from([64, 88]),
)
def test_a_step_of_any_values_expands_or_is_a_typed_error(values: list[object], size: int) -> None:
    with suppress(CorruptRecord):
        expand(entries(packb([[STEP, *values, bytes(size)]]), KEY, "job-1", 1))


# ---- old versions ----


@pytest.mark.contract("LOG-5")
def test_an_old_version_is_brought_to_the_newest_one_version_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if `output.committed` had had a version 1 without its state, and a version 2 that counted from 0."""
    build = codec._NEWEST["output.committed"][1]
    monkeypatch.setitem(codec._NEWEST, "output.committed", (3, build))
    monkeypatch.setitem(codec.UPCASTS, ("output.committed", 1), lambda fields: (*fields, STATE))
    monkeypatch.setitem(codec.UPCASTS, ("output.committed", 2), lambda fields: (fields[0] + 1, *fields[1:]))
    read = [codec.reader("output.committed", version) for version in (1, 2, 3)]
    assert read[0]((7, 4), KEY) == OutputCommitted(5, STATE)
    assert read[1]((7, 4, SCORES), KEY) == OutputCommitted(5, SCORES)
    assert read[2]((7, 4, SCORES), KEY) == OutputCommitted(4, SCORES)
