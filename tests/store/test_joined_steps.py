"""A step as one value and as its three events: equal bytes, equal digests, and one append of the log."""

from __future__ import annotations

import pytest
from databases import AnyStore
from hypothesis import given
from hypothesis import strategies as st
from steps import Writer, admit, digest

from decodelog.fsm.evidence.receipt import Alternative, Selection
from decodelog.fsm.machine.events import (
    STATE_BYTES,
    Entry,
    Event,
    RequestClosed,
    RequestFailed,
    TokenStep,
    count,
    expand,
)
from decodelog.fsm.machine.states import Status
from decodelog.fsm.output.standing import Standing
from decodelog.fsm.ports import Append, Outcome
from decodelog.fsm.request.finish import FinishReason
from decodelog.store.log.codec import decode, encode, entries
from decodelog.store.memory.log import MemoryStore
from decodelog.store.reading.audit import audit_rows

KEY, OTHER = digest("receipt"), digest("another receipt")

floats = st.floats(allow_nan=False)
counts = st.integers(0, 2**53 - 1)
sizes = st.sampled_from([32, 32, 32, STATE_BYTES, STATE_BYTES, 0, 31])
alternatives = st.lists(
    st.builds(Alternative, counts, floats, floats, st.one_of(st.none(), st.binary(max_size=4))), max_size=3
)
draws = st.one_of(st.just((None,) * 3), st.tuples(floats, floats, floats))
selections = st.builds(
    lambda token, support, raw, logprob, margin, draw, listed: Selection(
        token, support, raw, logprob, margin, draw[0], draw[1], draw[2], tuple(listed)
    ),
    counts, counts, floats, floats, floats, draws, st.one_of(st.just([]), alternatives),
)  # fmt: skip
steps = st.builds(
    TokenStep,
    tokens=counts,
    lanes=counts,
    scores=sizes.flatmap(lambda size: st.binary(min_size=size, max_size=size)),
    branch=st.integers(0, 3),
    selection=selections,
    piece=st.binary(max_size=6),
    hidden=st.booleans(),
    receipt_id=st.sampled_from([KEY, KEY, KEY, OTHER]),
    output=st.integers(1, 2**40),
    state=sizes.flatmap(lambda size: st.binary(min_size=size, max_size=size)),
    structure=st.one_of(st.none(), st.sampled_from(Standing)),
)
reasons = st.sampled_from(FinishReason)
ends = st.one_of(
    st.just(()),
    st.builds(lambda reason, other: (RequestClosed(reason, (reason, other)),), reasons, reasons),
    st.builds(lambda cause, detail: (RequestFailed(cause, detail),), st.text(max_size=5), st.text(max_size=5)),
)


@pytest.mark.contract("LOG-5", "FSM-2")
@given(steps, ends)
def test_both_forms_give_equal_bytes_and_are_read_as_the_same_events(step: TokenStep, end: tuple[Event, ...]) -> None:
    joined, plain = (step, *end), (*step.events, *end)
    payload = encode(joined, KEY)
    assert payload == encode(plain, KEY)
    assert decode(payload, KEY, "job-1", 1) == plain
    read = entries(payload, KEY, "job-1", 1)
    assert (expand(read), count(read)) == (plain, count(joined))
    assert encode(read, KEY) == payload


def append_of(writer: Writer, given: tuple[Entry, ...], end: tuple[Event, ...]) -> Append:
    if not end:
        return Append(writer.job, writer.head, writer.fence, KEY, given, Status.PENDING, 1)
    last = end[0]
    closed = isinstance(last, RequestClosed)
    finish = last.reason.value if isinstance(last, RequestClosed) else "a_cause"
    return Append(
        writer.job, writer.head, writer.fence, KEY, given, Status.CLOSED if closed else Status.FAILED, 1, finish
    )


@pytest.mark.contract("LOG-5", "LOG-1", "LOG-3")
@given(steps, ends, st.booleans())
def test_one_form_is_appended_and_the_other_is_its_duplicate(
    step: TokenStep, end: tuple[Event, ...], joined_first: bool
) -> None:
    check_appended(MemoryStore(), step, end, joined_first)


@pytest.mark.contract("LOG-5", "LOG-1", "LOG-2")
@pytest.mark.parametrize("end", [(), (RequestClosed(FinishReason.LENGTH, (FinishReason.LENGTH,)),)], ids=["on", "end"])
@pytest.mark.parametrize("joined_first", [True, False])
def test_it_is_so_in_every_store(store: AnyStore, end: tuple[Event, ...], joined_first: bool) -> None:
    selection = Selection(7, 3, -0.5, -0.25, 1.5, 0.25, 0.125, 0.5)
    step = TokenStep(1, 9, digest("scores"), 0, selection, b" a", False, KEY, 1, digest("state")[:STATE_BYTES])
    check_appended(store, step, end, joined_first)


def check_appended(store: AnyStore, step: TokenStep, end: tuple[Event, ...], joined_first: bool) -> None:
    writer = admit(store)
    forms = [(step, *end), (*step.events, *end)]
    one, other = forms if joined_first else forms[::-1]
    first, again = (store.append([append_of(writer, form, end)])[0] for form in (one, other))
    assert (first.outcome, again.outcome, again.head) == (Outcome.APPENDED, Outcome.DUPLICATE, first.head)
    (record,) = store.read(writer.job, 1)
    assert record.events == forms[1]
    assert (record.first, record.last, record.chain) == (2, 1 + count(forms[0]), first.head.chain)
    assert audit_rows(store).ok
    changed = step._replace(lanes=step.lanes + 1)
    assert store.append([append_of(writer, (changed, *end), end)])[0].outcome is not Outcome.DUPLICATE
