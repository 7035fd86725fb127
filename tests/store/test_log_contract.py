"""What every log promises, over memory, SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from databases import AnyStore
from steps import IDENTITY, Writer, admit, digest, envelope, events_of, step_events, write

from decodelog.fsm.errors import IdempotencyConflict, JobNameTaken, MisformedAppend, UnknownJob
from decodelog.fsm.machine.events import CallFailed, OutputCommitted, RequestFailed
from decodelog.fsm.machine.states import Status
from decodelog.fsm.ports import EMPTY_HEAD, Admission, Append, AppendResult, Head, JobRow, Outcome, Record


def contents(store: AnyStore, job: str = "job-1") -> tuple[JobRow, list[Record]]:
    """Everything that a refused append must not change."""
    return store.row(job), list(store.read(job))


def outcomes(results: Sequence[AppendResult]) -> list[Outcome]:
    return [result.outcome for result in results]


@pytest.mark.contract("LOG-1", "LOG-2", "LOG-5")
def test_what_was_appended_is_read_back_in_order_and_equal(store: AnyStore) -> None:
    writer = admit(store)
    appends = []
    for drawn in (False, True, False):
        append = writer.step(drawn=drawn)
        (result,) = store.append([append])
        assert result.outcome is Outcome.APPENDED
        appends.append(append)
        writer = writer.at(result.head)
    first, *rest = store.read("job-1")
    assert (first.first, first.last, first.fence, first.events) == (1, 1, 0, (envelope("job-1"),))
    assert [(record.key, record.events) for record in rest] == [(append.key, append.events) for append in appends]
    assert [(record.first, record.last) for record in rest] == [(2, 4), (5, 7), (8, 10)]
    assert store.row("job-1").head == Head(10, rest[-1].chain) == writer.head


@pytest.mark.contract("LOG-1", "LOG-2", "LOG-4")
def test_an_append_in_two_halves_is_seen_after_the_second(store: AnyStore) -> None:
    """An append in two halves is seen after the second which any thread may do."""
    writers = [admit(store, f"job-{number}") for number in range(3)]
    before = [contents(store, writer.job) for writer in writers]
    durable = store.begin([writer.step() for writer in writers])
    assert [contents(store, writer.job) for writer in writers] == before
    with ThreadPoolExecutor(1) as thread:
        results = thread.submit(durable).result()
    assert outcomes(results) == [Outcome.APPENDED] * 3
    assert [store.row(writer.job).head for writer in writers] == [result.head for result in results]
    assert store.begin([])() == []


@pytest.mark.contract("LOG-1", "LOG-2", "LOG-4")
def test_an_append_without_its_second_half_leaves_no_trace(store: AnyStore) -> None:
    """An append whose second half is dropped leaves no trace and keeps no one waiting."""
    writer = admit(store)
    before = contents(store)
    durable = store.begin([writer.step("lost")])
    del durable
    assert contents(store) == before
    (result,) = store.append([writer.step()])
    assert result.outcome is Outcome.APPENDED


@pytest.mark.contract("LOG-1", "LOG-2", "LOG-4")
def test_a_refused_append_does_not_stop_a_batch_in_two_halves(store: AnyStore) -> None:
    """A batch of which one is refused takes the others in two halves too."""
    one, two = admit(store, "job-1"), admit(store, "job-2")
    store.append([one.step("first")])
    results = store.begin([one.step("other"), two.step()])()
    assert outcomes(results) == [Outcome.CONFLICT, Outcome.APPENDED]


@pytest.mark.contract("LOG-3")
def test_the_chain_is_the_declared_digest_of_everything_before(store: AnyStore) -> None:
    from decodelog.store.log.codec import encode

    write(store, admit(store), 3)
    before = bytes(32)
    for record in store.read("job-1"):
        payload = encode(record.events, record.key)
        content = sha256(record.key + payload).digest()
        before = sha256(before + record.first.to_bytes(8, "big") + content).digest()
        assert record.chain == before
    assert store.row("job-1").head.chain == before


@pytest.mark.contract("LOG-1", "LOG-4")
def test_one_batch_appends_for_many_jobs_and_twice_for_one(store: AnyStore) -> None:
    writers = [admit(store, f"job-{number}") for number in range(5)]
    batch = [writer.step() for writer in writers]
    ahead = [writers[0].at(AppendResult(*store.append([batch[0]])[0]).head)]
    again = ahead[0].step()
    results = store.append([*batch[1:], again])
    assert outcomes(results) == [Outcome.APPENDED] * 5
    writers = [ahead[0].at(results[-1].head), *[w.at(r.head) for w, r in zip(writers[1:], results, strict=False)]]
    # Two in one batch: the second expects the head that the first one makes.
    one = writers[2].step()
    probe = store.append([writers[3].step()])[0]
    assert probe.outcome is Outcome.APPENDED
    two = predicted(writers[2], one).step()
    results = store.append([one, two, writers[4].step()])
    assert outcomes(results) == [Outcome.APPENDED] * 3
    assert store.row("job-2").head == results[1].head
    assert [store.row(f"job-{number}").output for number in range(5)] == [2, 1, 3, 2, 2]
    for number in range(5):
        *_, newest = store.read(f"job-{number}")
        assert Head(newest.last, newest.chain) == store.row(f"job-{number}").head


def predicted(writer: Writer, append: Append) -> Writer:
    """The writer after an append that was not sent yet, by the declared digest."""
    from decodelog.store.log.codec import encode

    first = append.expected.sequence + 1
    content = sha256(append.key + encode(append.events, append.key)).digest()
    chain = sha256(append.expected.chain + first.to_bytes(8, "big") + content).digest()
    return writer.at(Head(append.expected.sequence + len(append.events), chain))


@pytest.mark.contract("LOG-1")
def test_the_same_append_again_is_a_duplicate_with_its_own_head(store: AnyStore) -> None:
    start = admit(store)
    first = start.step()
    (one,) = store.append([first])
    (two,) = store.append([start.at(one.head).step()])
    kept = contents(store)
    assert store.append([first]) == [AppendResult(Outcome.DUPLICATE, one.head)]
    assert store.append([start.at(one.head).step()]) == [AppendResult(Outcome.DUPLICATE, two.head)]
    assert contents(store) == kept


@pytest.mark.contract("LOG-1")
def test_a_conflict_names_what_differs(store: AnyStore) -> None:
    start = admit(store)
    store.append([start.step()])
    kept = contents(store)
    key, events = step_events("job-1", 0)
    other_key = start.step("other")
    other_state = start.step(entries=(*events[:2], OutputCommitted(1, digest("else"))))
    other_kind = start.step(entries=(CallFailed("numeric", "NaN"), *events[1:]))
    shorter = start.step(entries=events[:2])
    results = store.append([other_key, other_state, other_kind, shorter])
    assert outcomes(results) == [Outcome.CONFLICT] * 4
    assert [result.detail for result in results] == [
        f"at event 2 the log has key {key.hex()[:16]}, not {other_key.key.hex()[:16]}",
        "event 4 differs: output.committed has another state",
        "event 2 differs: the log has call.completed, not call.failed",
        "the log has events 2 to 4 there, and 2 to 3 were given",
    ]
    assert {result.head for result in results} == {kept[0].head}
    assert contents(store) == kept


@pytest.mark.contract("LOG-1")
def test_a_head_that_the_log_never_had_is_stale(store: AnyStore) -> None:
    start = admit(store)
    writer = write(store, start, 2)
    kept = contents(store)
    head = writer.head
    beyond = writer.step(expected=Head(40, head.chain))
    inside = start.step(expected=Head(3, start.head.chain))
    elsewhere = writer.step(expected=Head(head.sequence, digest("another chain")))
    earlier = start.step(expected=Head(1, digest("another chain")))
    empty = start.step(expected=Head(0, digest("another chain")))
    results = store.append([beyond, inside, elsewhere, earlier, empty])
    assert outcomes(results) == [Outcome.STALE] * 5
    told = f"; its head is event 7 with chain {head.chain.hex()[:16]}"
    assert results[0].detail == "the log does not reach event 40" + told
    assert results[1].detail == "no append ends at event 3" + told
    assert results[2].detail.startswith(f"at event 7 the chain is {head.chain.hex()[:16]}, not ")
    assert contents(store) == kept


NO_NUMBER: Any = object()
WRONG: dict[str, tuple[Outcome, Callable[[Writer], Writer]]] = {
    "sequence": (Outcome.STALE, lambda writer: replace(writer, head=Head(writer.head.sequence + 1, writer.head.chain))),
    "chain": (Outcome.STALE, lambda writer: replace(writer, head=Head(writer.head.sequence, digest("another")))),
    "old fence": (Outcome.FENCED, lambda writer: replace(writer, fence=writer.fence - 1)),
    "unknown fence": (Outcome.FENCED, lambda writer: replace(writer, fence=writer.fence + 1)),
}


@pytest.mark.contract("LOG-1", "LOG-2")
@pytest.mark.parametrize("end", ["step", "last_step"])
@pytest.mark.parametrize("wrong", WRONG)
def test_each_condition_alone_refuses_an_append_that_is_right_otherwise(store: AnyStore, wrong: str, end: str) -> None:
    """One append in its batch, which is what databases do at their fastest."""
    writer = admit(store)
    store.claim("worker-1", 60_000, 1)
    writer = write(store, replace(writer, fence=1), 1)
    kept = contents(store)
    expected, change = WRONG[wrong]
    assert outcomes(store.append([getattr(change(writer), end)()])) == [expected]
    assert contents(store) == kept
    assert outcomes(store.append([getattr(writer, end)()])) == [Outcome.APPENDED]


@pytest.mark.contract("FSM-9", "LOG-1")
@pytest.mark.parametrize("end", ["step", "last_step"])
def test_the_end_alone_refuses_an_append_that_is_right_otherwise(store: AnyStore, end: str) -> None:
    start = admit(store)
    (closed,) = store.append([start.last_step()])
    assert outcomes(store.append([getattr(start.at(closed.head), end)()])) == [Outcome.TERMINAL]


@pytest.mark.contract("LOG-1", "LOG-7")
def test_only_the_fence_of_the_newest_claim_appends(store: AnyStore) -> None:
    zombie = admit(store)
    (claim,) = store.claim("worker-1", 60_000, 10)
    owner = replace(zombie, fence=claim.fence)
    results = store.append([zombie.step(), replace(zombie, fence=7).step()])
    assert outcomes(results) == [Outcome.FENCED] * 2
    assert results[0].detail == "fence 0 was given, and the job has fence 1"
    assert outcomes(store.append([owner.step()])) == [Outcome.APPENDED]


@pytest.mark.contract("LOG-1", "LOG-7")
def test_what_an_old_fence_already_appended_stays_its_duplicate(store: AnyStore) -> None:
    zombie = admit(store)
    (one,) = store.append([zombie.step()])
    store.claim("worker-1", 60_000, 10)
    kept = contents(store)
    assert store.append([zombie.step()]) == [AppendResult(Outcome.DUPLICATE, one.head)]
    assert outcomes(store.append([zombie.step("other")])) == [Outcome.FENCED]
    assert outcomes(store.append([zombie.at(one.head).step()])) == [Outcome.FENCED]
    assert contents(store) == kept


@pytest.mark.contract("FSM-9", "LOG-1")
def test_nothing_is_appended_after_the_end(store: AnyStore) -> None:
    start = admit(store)
    end = start.last_step()
    (closed,) = store.append([end])
    assert closed.outcome is Outcome.APPENDED
    kept = contents(store)
    late = start.at(closed.head)
    results = store.append([late.step(), late.cancel(), start.cancel(), replace(late, fence=3).step()])
    assert outcomes(results) == [Outcome.TERMINAL] * 4
    assert {result.detail for result in results} == {"the job ended at event 5 (length)"}
    assert store.append([end]) == [AppendResult(Outcome.DUPLICATE, closed.head)]
    assert contents(store) == kept


@pytest.mark.contract("FSM-9", "LOG-7")
def test_only_fenced_and_late_appends_are_recorded_with_a_reason(store: AnyStore) -> None:
    """Fenced and late appends are recorded with their reason and nothing else is."""
    start = admit(store)
    (claim,) = store.claim("worker-1", 60_000, 10)
    fenced = start.step()
    store.append([fenced])
    owner = replace(start, fence=claim.fence)
    stale, end = owner.step(expected=Head(9, bytes(32))), owner.last_step()
    store.append([stale, end, end, owner.step("conflict")])
    late = owner.at(store.row("job-1").head).cancel()
    store.append([late])
    refused = store.refusals("job-1")
    assert [(r.outcome, r.first, r.fence, r.key) for r in refused] == [
        (Outcome.FENCED, 2, 0, fenced.key),
        (Outcome.TERMINAL, 2, 1, owner.step("conflict").key),
        (Outcome.TERMINAL, 6, 1, late.key),
    ]
    assert refused[0].reason == "fence 0 was given, and the job has fence 1"
    assert refused[0].refused_ms >= store.row("job-1").created_ms


@pytest.mark.contract("LOG-1")
def test_an_append_to_no_job_is_unknown(store: AnyStore) -> None:
    nobody = Writer("nobody", EMPTY_HEAD)
    assert store.append([nobody.step()]) == [AppendResult(Outcome.UNKNOWN, EMPTY_HEAD, "there is no job nobody")]
    assert store.rows() == []
    assert store.append([]) == []


@pytest.mark.contract("LOG-1", "LOG-4")
def test_a_refused_append_does_not_keep_the_others_from_being_appended(store: AnyStore) -> None:
    writers = [admit(store, f"job-{number}") for number in range(6)]
    store.append([writers[1].last_step(), writers[2].step()])
    batch = [
        writers[0].step(),
        writers[1].cancel(),
        writers[2].step(),
        Writer("nobody", EMPTY_HEAD).step(),
        writers[3].step(),
        writers[4].step(expected=Head(8, bytes(32))),
        writers[5].last_step(),
    ]
    assert outcomes(store.append(batch)) == [
        Outcome.APPENDED,
        Outcome.TERMINAL,
        Outcome.DUPLICATE,
        Outcome.UNKNOWN,
        Outcome.APPENDED,
        Outcome.STALE,
        Outcome.APPENDED,
    ]
    assert [store.row(f"job-{number}").head.sequence for number in range(6)] == [4, 5, 4, 4, 1, 5]
    assert [len(list(store.read(f"job-{number}"))) for number in range(6)] == [2, 2, 2, 2, 1, 2]


@pytest.mark.contract("LOG-1")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"entries": ()}, "it has no events"),
        ({"key": b"short"}, "its key and chain have 5 and 32 bytes, not 32"),
        ({"expected": Head(1, b"")}, "its key and chain have 32 and 0 bytes, not 32"),
        ({"status": Status.CLOSED}, "its status is CLOSED and its finish is None"),
        ({"finish": "length"}, "its status is PENDING and its finish is length"),
        ({"entries": (OutputCommitted(NO_NUMBER, b""),)}, "an event cannot be written"),
    ],
)
def test_an_impossible_append_is_refused_before_any_of_its_batch(
    store: AnyStore, changes: dict[str, Any], reason: str
) -> None:
    """An append that no log could hold is refused before any of its batch."""
    writer, other = admit(store), admit(store, "job-2")
    with pytest.raises(MisformedAppend) as problem:
        store.append([other.step(), writer.step(**changes)])
    assert problem.value.job == "job-1"
    assert problem.value.reason.startswith(reason)
    assert store.row("job-2").head == other.head


# ---- admission ----


@pytest.mark.contract("ENV-8")
def test_an_admitted_job_is_there_with_its_first_event(store: AnyStore) -> None:
    assert store.admit("job-1", IDENTITY, "smollm2", 5, envelope("job-1"), "key-1") == Admission("job-1", True)
    row = store.row("job-1")
    assert (row.job, row.identity, row.model, row.idempotency_key) == ("job-1", IDENTITY, "smollm2", "key-1")
    assert (row.status, row.finish, row.prompt, row.output, row.fence) == (Status.ADMITTED, None, 5, 0, 0)
    assert (row.owner, row.lease_until_ms, row.head.sequence) == (None, None, 1)
    assert row.created_ms > 1_700_000_000_000
    assert events_of(store, "job-1") == [envelope("job-1")]
    assert store.rows() == [row]


@pytest.mark.contract("ENV-8")
def test_the_same_key_and_request_attach_to_the_job_running_or_finished(store: AnyStore) -> None:
    writer = admit(store, "job-1", "key-1")
    attach = ("job-2", IDENTITY, "scripted", 5, envelope("job-2"), "key-1")
    assert store.admit(*attach) == Admission("job-1", False)
    store.append([writer.last_step()])
    assert store.admit(*attach) == Admission("job-1", False)
    assert [row.job for row in store.rows()] == ["job-1"]


@pytest.mark.contract("ENV-8")
def test_another_request_under_a_key_is_a_conflict_and_writes_nothing(store: AnyStore) -> None:
    """The same key and another request is a conflict that writes nothing."""
    admit(store, "job-1", "key-1")
    with pytest.raises(IdempotencyConflict) as problem:
        store.admit("job-2", "b" * 64, "scripted", 5, envelope("job-2"), "key-1")
    assert (problem.value.key, problem.value.job) == ("key-1", "job-1")
    assert (problem.value.held, problem.value.offered) == (IDENTITY, "b" * 64)
    assert [row.job for row in store.rows()] == ["job-1"]


@pytest.mark.contract("ENV-8")
def test_a_name_is_taken_once_and_jobs_without_a_key_do_not_meet(store: AnyStore) -> None:
    admit(store, "job-1")
    admit(store, "job-2")
    assert store.admit("job-1", IDENTITY, "scripted", 5, envelope("job-1"), None) == Admission("job-1", False)
    with pytest.raises(JobNameTaken, match="choose another name"):
        store.admit("job-1", "b" * 64, "scripted", 5, envelope("job-1"), None)
    with pytest.raises(JobNameTaken):
        store.admit("job-1", "b" * 64, "scripted", 5, envelope("job-1"), "key-1")
    assert [row.job for row in store.rows()] == ["job-1", "job-2"]


# ---- reading ----


@pytest.mark.contract("LOG-2", "OUT-7")
def test_reading_from_any_sequence_gives_exactly_the_rest(store: AnyStore) -> None:
    """More than two anchors' worth of events, so that reading begins before, at and after them."""
    write(store, admit(store), 50)
    records = list(store.read("job-1"))
    assert records[-1].last == 151
    for after in range(160):
        assert list(store.read("job-1", after)) == [record for record in records if record.last > after]


@pytest.mark.contract("LOG-2")
def test_a_reader_sees_the_log_as_it_was_when_it_began(store: AnyStore) -> None:
    writer = write(store, admit(store), 2)
    reading = store.read("job-1")
    write(store, writer, 2)
    assert [record.last for record in reading] == [1, 4, 7]


@pytest.mark.contract("LOG-2")
def test_a_job_that_is_not_there_is_a_typed_error(store: AnyStore) -> None:
    for ask in (store.row, store.read, store.refusals):
        with pytest.raises(UnknownJob, match="there is no job nobody"):
            ask("nobody")


@pytest.mark.contract("LOG-1")
def test_the_listing_follows_the_appends(store: AnyStore) -> None:
    writer = write(store, admit(store, "job-1"), 2)
    admit(store, "job-2")
    failed = RequestFailed("numeric_fault", "a score is NaN")
    end = writer.step(entries=(failed,), status=Status.FAILED, finish="numeric_fault", output=2)
    store.claim("worker-1", 60_000, 1)
    (result,) = store.append([end._replace(fence=1)])
    row = store.row("job-1")
    assert (row.status, row.finish, row.output, row.head) == (Status.FAILED, "numeric_fault", 2, result.head)
    assert (row.owner, row.lease_until_ms) == (None, None)
    assert [row.job for row in store.rows()] == ["job-1", "job-2"]


@pytest.mark.contract("LOG-2")
def test_closing_twice_is_closing_once(store: AnyStore) -> None:
    store.close()
    store.close()
