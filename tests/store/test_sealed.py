"""Sealed and erased rows: what they weigh, what they say again, and that every changed byte of them is found."""

from __future__ import annotations

import lzma
import random
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import Any

import pytest
from databases import AnyStore, database_store
from msgpack import packb
from shown import rows_of
from sqlalchemy import event
from steps import Writer, admit, digest, write

from decodelog.fsm.errors import ContentErased, CorruptRecord, JobNotEnded, Problem, SealRefused, UnknownSeal
from decodelog.fsm.evidence.receipt import Alternative, Receipt, Selection
from decodelog.fsm.machine.events import CallCompleted, DecisionMade, OutputCommitted, TokenStep
from decodelog.fsm.machine.states import Status
from decodelog.fsm.machine.thinned import ThinnedStep
from decodelog.fsm.ports import EMPTY_HEAD, Append, Head
from decodelog.store.appending.offer import offer
from decodelog.store.log import columns, sealed, sealed_body
from decodelog.store.log.chain import StoredLog, records
from decodelog.store.log.erased import erased
from decodelog.store.log.sealed_body import _Reader
from decodelog.store.log.stored import ERASED, MARK, Stored
from decodelog.store.memory.log import MemoryStore
from decodelog.store.reading.audit import audit_rows

pytestmark = pytest.mark.contract("LOG-9")

BYTES_MAX = 24
NO_ROW: Any = None


@pytest.fixture(scope="module")
def log() -> StoredLog:
    """A log that has ended."""
    store = MemoryStore()
    writer = write(store, admit(store), 12, drawn=True)
    assert store.append([writer.last_step()])[0].outcome == "appended"
    (whole,) = store.logs("job-1")
    return whole


def test_a_small_log_is_compressed_with_a_small_window_to_the_same_row(
    log: StoredLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read with a window of 64 MiB, whatever the log is."""
    real, windows, sizes = lzma.compress, list[int](), list[int]()

    def compress(body: bytes, form: int, *, filters: list[dict[str, int]]) -> bytes:
        windows.append(filters[0]["dict_size"])
        sizes.append(len(body))
        assert real(body, form, filters=filters) == real(body, form, filters=sealed._FILTERS)
        return real(body, form, filters=filters)

    monkeypatch.setattr(lzma, "compress", compress)
    row = seal(log)
    assert windows == [max(sizes[0], 4096)]
    assert list(sealed.records(log.job, row))
    assert [sealed._filters(size)[0]["dict_size"] for size in (0, 5000, 1 << 40)] == [4096, 5000, 64 << 20]


def test_what_repeats_far_behind_is_still_found() -> None:
    far = random.Random(5).randbytes(100_000)
    body = far + far
    assert len(lzma.compress(body, lzma.FORMAT_RAW, filters=sealed._filters(len(body)))) < 101_000


class Shown:
    """A store that shows one log."""

    def __init__(self, log: StoredLog, rows: Sequence[Stored]) -> None:
        self.log = log._replace(rows=rows)

    def logs(self, job: str | None = None) -> Iterator[StoredLog]:
        return iter([self.log])


def seal(log: StoredLog) -> Stored:
    return sealed.seal(log.head, rows_of(log), list(records(log.job, rows_of(log), 0)), structured=False)


def faults(log: StoredLog, rows: Sequence[Stored]) -> list[tuple[int, str]]:
    """As of a file, whose rows do not say what was done to their logs."""
    return [(fault.sequence, fault.kind) for fault in audit_rows(Shown(log._replace(dated=False), rows)).faults]


def flips(row: Stored) -> Iterator[tuple[str, Stored]]:
    """The row with each byte and each number of it changed, by the name of the field."""
    for name in ("key", "chain", "payload"):
        value = getattr(row, name)
        for position in range(len(value)):
            yield name, row._replace(**{name: value[:position] + bytes([value[position] ^ 1]) + value[position + 1 :]})
    for name in ("last", "fence"):
        yield name, row._replace(**{name: getattr(row, name) + 1})


def step(index: int, numbers: random.Random, alternatives: int = 0) -> TokenStep:
    """A step with log-probabilities of which no bit can be told beforehand, of a large vocabulary."""
    token = int(numbers.paretovariate(0.7)) % 49_152
    raw, processed = -numbers.random() * 9, -numbers.random() * 7
    places = range(alternatives)
    listed = tuple(Alternative(token + place, raw - place, processed - place, b"t%d" % place) for place in places)
    selection = Selection(token, numbers.randrange(1, 49_152), raw, processed, 0.5, 0.5, 0.25, 0.75, listed)
    return TokenStep(1, 30 + index, bytes(32), 0, selection, b" %d" % token, False, bytes(32), index + 1, bytes(32))


def test_a_token_of_a_sampled_job_costs_no_more_than_its_bound() -> None:
    """The worst that numbers can be: every bit of both log-probabilities is noise, and the draw is not kept."""
    numbers = random.Random(1)
    steps = [step(index, numbers) for index in range(4096)]
    assert len(sealed_steps(steps).payload) / len(steps) <= BYTES_MAX


def reader_of(content: bytes) -> _Reader:
    file: Any = BytesIO(content)
    return _Reader(file)


def sealed_steps(steps: Sequence[TokenStep]) -> Stored:
    """A log of these steps alone, sealed."""
    rows, before = [], EMPTY_HEAD
    for each in steps:
        receipt = Receipt(each.output - 1, 0, each.selection, each.piece, False, digest("receipt", each.output), None)
        call = CallCompleted(1, each.lanes, digest("scores", each.output))
        events = (call, DecisionMade(receipt), OutputCommitted(each.output, digest("state", each.output)))
        made = offer(Append("job-1", before, 1, receipt.receipt_id, events, Status.PENDING, each.output))
        rows.append(made.row)
        before = made.head
    return sealed.seal(before, rows, list(records("job-1", rows, 0)), structured=False)


@pytest.mark.parametrize("alternatives", [0, 3])
def test_columns_give_every_step_again_floats_bit_for_bit(alternatives: int) -> None:
    numbers = random.Random(2)
    steps = [step(index, numbers, alternatives if index % 3 else 0) for index in range(70)]
    odd = steps[5].selection._replace(logprob_raw=-0.0, logprob=float("-inf"))
    steps[5] = steps[5]._replace(selection=odd, hidden=True, piece=b"")
    for one, given in zip(columns.read(columns.written(steps)), steps, strict=True):
        assert one[:3] + one[4:] == (given.tokens, given.lanes, given.branch, given.piece, given.hidden, given.output)
        kept = (one.selection.token, one.selection.support, one.selection.alternatives)
        assert kept == (given.selection.token, given.selection.support, given.selection.alternatives)
        for name in ("logprob_raw", "logprob"):
            packed = [struct.pack("<d", getattr(each.selection, name)) for each in (one, given)]
            assert packed[0] == packed[1]


def test_sealing_keeps_the_ends_of_a_run_whole_and_is_repeatable(log: StoredLog) -> None:
    """The first and the last two of a run are whole and the same log gives the same bytes."""
    row = seal(log)
    assert row == seal(log)
    read = list(sealed.records("job-1", row))
    whole = list(records("job-1", log.rows, 0))
    assert [(one.first, one.last, one.fence) for one in read] == [(one.first, one.last, one.fence) for one in whole]
    assert [isinstance(one.entries[0], ThinnedStep) for one in read] == [False] * 2 + [True] * 9 + [False] * 3
    assert [one.events for one in read if one.key] == [
        other.events for one, other in zip(read, whole, strict=True) if one.key
    ]
    assert read[-1].chain == log.head.chain
    for after in range(log.head.sequence + 1):
        assert list(records("job-1", [row], after)) == [one for one in read if one.last > after]


@pytest.mark.contract("LOG-3")
@pytest.mark.parametrize("gone", [False, True])
def test_every_changed_byte_of_a_sealed_row_is_found_and_named(log: StoredLog, gone: bool) -> None:
    """Every changed byte of a sealed row is found by reading and named by the audit."""
    row = seal(log)
    if gone:
        (row,) = erased("job-1", [row])
        assert row.payload[:2] == ERASED
    assert faults(log, [row]) == []
    for _, damaged in flips(row):
        with pytest.raises(CorruptRecord) as problem:
            list(records("job-1", [damaged], 0))
        assert problem.value.sequence == 1
        assert (1, "chain") in faults(log, [damaged])


@pytest.mark.contract("LOG-3")
def test_every_changed_byte_of_an_erased_log_is_found(log: StoredLog) -> None:
    rows = erased("job-1", rows_of(log))
    assert all(row.erased and not row.key and len(row.payload) == 32 for row in rows)
    assert [row[:3] + row[4:5] for row in rows] == [row[:3] + row[4:5] for row in log.rows]
    assert faults(log, rows) == []
    assert erased("job-1", rows) == rows
    for index, row in enumerate(rows):
        for name, damaged in flips(row):
            if name != "fence":  # no digest covers it, in no log; here the events that would tell are gone
                assert faults(log, [*rows[:index], damaged, *rows[index + 1 :]])
        assert faults(log, [*rows[:index], *rows[index + 1 :]])
    invented = rows[3]._replace(key=digest("key"))
    assert faults(log, [*rows[:3], invented, *rows[4:]])


@pytest.mark.contract("LOG-3")
@pytest.mark.parametrize("column", ["key", "payload"])
@pytest.mark.parametrize("value", ["x" * 32, 7, None, 0.5], ids=repr)
def test_a_row_with_a_value_of_another_type_is_erased_and_still_named(log: StoredLog, column: str, value: Any) -> None:
    damaged = rows_of(log)[2]._replace(**{column: value})
    rows = erased("job-1", [*rows_of(log)[:2], damaged, *rows_of(log)[3:]])
    assert (rows[2].key, len(rows[2].payload)) == (b"", 32)
    assert faults(log, rows)


def test_an_erased_row_whose_digest_begins_like_a_sealed_one_is_none(log: StoredLog) -> None:
    row = erased("job-1", rows_of(log))[2]
    assert not row._replace(payload=MARK + row.payload[1:]).sealed
    assert not row._replace(payload=ERASED + row.payload[2:]).sealed


def test_a_seal_of_a_newer_release_says_so(log: StoredLog) -> None:
    row = seal(log)
    newer = row._replace(payload=MARK + b"\x02" + row.payload[2:])
    with pytest.raises(UnknownSeal, match="install a newer decodelog"):
        list(sealed.records("job-1", newer))


def test_bytes_that_no_release_wrote_are_damage_and_nothing_else(log: StoredLog) -> None:
    row = seal(log)
    numbers = random.Random(3)
    for _ in range(200):
        payload = bytearray(row.payload)
        payload[numbers.randrange(2, len(payload))] = numbers.randrange(256)
        cut = bytes(payload[: numbers.randrange(3, len(payload) + 1)])
        with suppress(CorruptRecord):
            list(sealed.records("job-1", row._replace(payload=cut)))


def test_an_excessive_size_is_refused_before_decompression(log: StoredLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A size beyond its limit is refused before anything is decompressed."""
    row = seal(log)
    size = len(lzma.decompress(row.payload[10:], lzma.FORMAT_RAW, filters=sealed._FILTERS))
    assert int.from_bytes(row.payload[2:10]) == size
    monkeypatch.setattr(sealed, "SEALED_BYTES_MAX", size)
    assert list(sealed.records("job-1", row))
    monkeypatch.setattr(sealed, "SEALED_BYTES_MAX", size - 1)
    monkeypatch.setattr(lzma, "LZMADecompressor", None)
    with pytest.raises(CorruptRecord, match=f"sealed_bytes is {size}, and the maximum is {size - 1}"):
        list(sealed.records("job-1", row))


def test_stores_seal_and_erase_only_what_has_ended_and_once(store: AnyStore) -> None:
    writer = write(store, admit(store), 12)
    for ask in (partial(store.erase, "job-1"), partial(store.seal, "job-1", writer.head, NO_ROW)):
        with pytest.raises(JobNotEnded, match="cancel it first"):
            ask()
    (result,) = store.append([writer.last_step()])
    (row,) = [seal(log._replace(rows=list(log.rows))) for log in store.logs("job-1")]
    with pytest.raises(SealRefused, match="its head is not what was read"):
        store.seal("job-1", Head(3, bytes(32)), row)
    assert store.unsealed(60_000) == []
    assert store.unsealed(0) == ["job-1"]
    assert (store.seal("job-1", result.head, row), store.seal("job-1", result.head, row)) == (True, False)
    assert store.unsealed(0) == []
    assert (store.erase("job-1"), store.erase("job-1"), store.scrub()) == (True, False, True)
    with pytest.raises(ContentErased, match="which an audit still proves"):
        list(store.read("job-1"))
    with pytest.raises(ContentErased):
        store.seal("job-1", result.head, row)
    with pytest.raises(Problem):
        store.erase("job-2")
    assert audit_rows(store).ok
    assert (store.row("job-1").head, store.row("job-1").finish) == (result.head, "length")


@pytest.mark.contract("LOG-1")
def test_a_late_append_to_an_erased_log_is_no_duplicate(store: AnyStore) -> None:
    writer = write(store, admit(store), 3)
    last = writer.last_step()
    (result,) = store.append([last])
    assert store.append([last])[0].outcome == "duplicate"
    store.erase("job-1")
    assert [(each.outcome, each.head) for each in store.append([last])] == [("terminal", result.head)]


def test_rows_that_no_link_leads_to_are_erased_all_the_same(sqlite_url: str) -> None:
    """A damaged link may cut a log in two; both parts have content."""
    store = database_store(sqlite_url)
    (result,) = store.append([write(store, admit(store), 6).last_step()])
    with store._database.transaction() as connection:
        connection.exec_driver_sql("UPDATE appends SET prev = NULL WHERE first = 11")
    assert store.erase("job-1")
    assert all(row.erased for log in store.logs("job-1") for row in log.rows)
    assert [(fault.sequence, fault.kind) for fault in audit_rows(store).faults] == [(11, "link")]  # as before
    assert store.row("job-1").head == result.head
    store.close()


def test_writer_of_another_job_is_not_touched(store: AnyStore) -> None:
    other = write(store, admit(store, "job-2"), 4)
    (result,) = store.append([write(store, admit(store, "job-1"), 3).last_step()])
    before = list(store.read("job-2"))
    store.erase("job-1")
    assert list(store.read("job-2")) == before
    write(store, Writer("job-2", other.head, 0, other.output), 2)
    assert store.row("job-1").head == result.head


@pytest.mark.contract("LOG-3")
@pytest.mark.parametrize("ask", ["read", "follow"])
def test_a_reader_sees_the_head_and_what_leads_to_it_at_one_moment(database_url: str, ask: str) -> None:
    """Between any two statements of its own the log may be sealed."""
    other, store = database_store(database_url), database_store(database_url)
    (result,) = other.append([write(other, admit(other), 6).last_step()])
    records_before = list(other.read("job-1"))
    (row,) = [seal(log._replace(rows=list(log.rows))) for log in other.logs("job-1")]
    engine = store._database._single

    @event.listens_for(engine, "after_cursor_execute")
    def executed(*_: object) -> None:
        other.seal("job-1", result.head, row)

    given = store.read("job-1") if ask == "read" else store.follow("job-1", EMPTY_HEAD)
    assert list(given) == records_before
    assert other.row("job-1").sealed_ms is not None
    store.close()
    other.close()


@pytest.mark.contract("LOG-9")
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 65_535, 65_536])
def test_a_list_of_any_size_is_taken_for_as_long_as_it_is(size: int) -> None:
    reader = reader_of(packb([7] * size))
    assert reader.list_size() == size
    assert [reader.number() for _ in range(size)] == [7] * size


@pytest.mark.contract("LOG-3")
@pytest.mark.parametrize("value", [7, -1, b"bytes", "text", {}, {1: 2}, None, True, 0.5], ids=repr)
def test_what_is_no_list_is_taken_for_none(value: Any) -> None:
    with pytest.raises(ValueError, match="in the place of a list"):
        reader_of(packb(value)).list_size()


@pytest.mark.contract("LOG-9")
@pytest.mark.parametrize("begun", [0, 1, 60_000])
def test_the_longest_octets_are_taken_and_longer_ones_are_not(monkeypatch: pytest.MonkeyPatch, begun: int) -> None:
    """What was read beside them, before and after, never takes their room away."""
    most = 1 << 20
    monkeypatch.setattr(sealed_body, "PAYLOAD_BYTES_MAX", most)
    monkeypatch.setattr(sealed_body, "_COLUMN_BYTES_MAX", most - 1)
    reader = reader_of(packb(bytes(begun)) + packb(bytes(most)) + packb(bytes(most)) + packb(bytes(most + 1)))
    assert [len(reader.octets()) for _ in range(3)] == [begun, most, most]
    with pytest.raises(ValueError, match="exceeds"):
        reader.octets()
