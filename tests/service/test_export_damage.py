"""A damaged export: every flipped, lost, added or moved byte and record is found, and its place is named."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from commandline import decodelog, script
from hypothesis import given
from hypothesis import strategies as st

from decodelog.fsm.errors import NotAnExport
from decodelog.fsm.reading.audit import Fault
from decodelog.service.database import opened
from decodelog.service.inspect.audit import Report, audit, verify
from decodelog.store.archive.bundle import APPEND, JOB, KIND, Bundle, write
from decodelog.store.archive.frames import MAGIC, FrameWriter, frames
from decodelog.store.log.chain import StoredLog
from decodelog.store.log.stored import Stored

pytestmark = pytest.mark.contract("LOG-3")


class Record(NamedTuple):
    """A frame of the sound file: its bytes, where they begin, and the job and the event that it is about."""

    offset: int
    kind: int
    data: bytes
    job: str
    event: int


class Sound(NamedTuple):
    """An export, whole and in its records, and the logs that it is of."""

    data: bytes
    records: list[Record]
    logs: list[StoredLog]

    def __repr__(self) -> str:
        return f"an export of {len(self.logs)} jobs"


def sound(folder: Path, *prompts: str) -> Sound:
    """The export of a finished job of a few tokens, and of one that waits, as many as there are prompts for."""
    db = f"sqlite:///{folder / 'jobs.db'}"
    model = script(folder / "model", script={"text": "Hi"})
    for prompt, command in zip(prompts, ("run", "submit"), strict=False):
        assert decodelog(command, "--model", model, "--prompt", prompt, db=db).code == 0
    with opened(db) as store:
        logs = [log._replace(rows=list(log.rows)) for log in store.logs()]
    file = io.BytesIO()
    write(file, logs)
    data = file.getvalue()
    places = [(log.job, first) for log in logs for first in (0, *[row.first for row in log.rows])]
    found = list(frames(file))
    ends = [frame.offset for frame in found[1:]] + [len(data)]
    records = [
        Record(frame.offset, frame.kind, data[frame.offset : end], *place)
        for frame, end, place in zip(found, ends, [*places, ("", 0)], strict=True)
    ]
    return Sound(data, records, logs)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    return sound(tmp_path_factory.mktemp("one"), "G")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    return sound(tmp_path_factory.mktemp("two"), "G", "H")


Proof = Callable[[bytes], Report]


@pytest.fixture
def proof(tmp_path: Path) -> Proof:
    """What `verify` finds in these bytes."""

    def proven(data: bytes) -> Report:
        file = tmp_path / "logs.dlog"
        file.write_bytes(data)
        return verify(file)

    return proven


def container(report: Report) -> list[Fault]:
    return [fault for fault in report.faults if fault.kind == KIND]


def joined(records: list[Record]) -> bytes:
    return MAGIC + b"".join(record.data for record in records)


def starts(records: list[Record]) -> list[int]:
    """Where each record begins, and the end."""
    found = [len(MAGIC)]
    for record in records:
        found.append(found[-1] + len(record.data))
    return found


def test_a_sound_file_has_no_fault(one: Sound, two: Sound, proof: Proof) -> None:
    for whole, jobs in ((one, 1), (two, 2)):
        report = proof(whole.data)
        assert (report.ok, report.jobs) == (True, jobs)
        assert report.events == sum(log.head.sequence for log in whole.logs)
        assert joined(whole.records) == whole.data


def test_every_flipped_byte_is_found_and_its_record_named(one: Sound, proof: Proof) -> None:
    data = one.data
    for position, mask in product(range(len(data)), (0x01, 0xFF)):
        damaged = data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :]
        if position < len(MAGIC):
            with pytest.raises(NotAnExport):
                proof(damaged)
            continue
        record = next(record for record in reversed(one.records) if record.offset <= position)
        report = proof(damaged)
        first = container(report)[0]
        assert f" at byte {record.offset}: " in first.detail, position
        assert len([fault for fault in container(report) if "at byte" in fault.detail]) == 1, position
        assert not report.digest
        if record.kind == APPEND:
            assert (first.job, first.sequence) == (record.job, record.event), position


def test_a_file_cut_at_any_length_is_named_where_it_ends(one: Sound, proof: Proof) -> None:
    for length in range(len(one.data)):
        if length < len(MAGIC):
            with pytest.raises(NotAnExport):
                proof(one.data[:length])
            continue
        cut = next(record for record in one.records if record.offset + len(record.data) > length)
        (fault,) = container(proof(one.data[:length]))
        where = f"ends at byte {length}," if length == cut.offset else f" at byte {cut.offset}: the file ends"
        assert where in fault.detail
        if cut.kind == APPEND:
            assert (fault.job, fault.sequence) == (cut.job, cut.event)


def test_a_byte_taken_out_or_put_in_anywhere_is_found_where_it_was(one: Sound, proof: Proof) -> None:
    data = one.data
    for position in range(len(MAGIC), len(data), 7):
        record = next(record for record in reversed(one.records) if record.offset <= position)
        here, following = data[position], data[position + 1 : position + 2]
        added = b"\x55" if here != 0x55 else b"\x56"  # of two equal bytes nobody can say which was put in, or taken out
        changes = [data[:position] + added + data[position:]]
        changes += [data[:position] + data[position + 1 :]] if following != bytes([here]) else []
        for damaged in changes:
            assert f" at byte {record.offset}: " in container(proof(damaged))[0].detail
    assert f" at byte {len(data)}: " in container(proof(data + b"\0"))[0].detail


def test_every_dropped_record_is_found_where_it_was(two: Sound, proof: Proof) -> None:
    for index, record in enumerate(two.records):
        report = proof(joined([*two.records[:index], *two.records[index + 1 :]]))
        assert f"at byte {record.offset}" in container(report)[0].detail
        if record.kind == APPEND:
            (log,) = [log for log in two.logs if log.job == record.job]
            last = index + 1 == len(two.records) or two.records[index + 1].kind != APPEND
            named = (record.job, log.head.sequence, "head") if last else (record.job, record.event, "gap")
            assert named in [fault[:3] for fault in report.faults]
        if record.kind == JOB:
            assert record.job in [fault.job for fault in container(report)]


def test_a_dropped_job_is_named_by_the_manifest(two: Sound, proof: Proof) -> None:
    for log in two.logs:
        report = proof(joined([record for record in two.records if record.job != log.job]))
        assert Fault(log.job, 0, KIND, "the manifest names it, and it is not there") in report.faults


def test_swapped_records_are_found_where_the_first_of_them_was(two: Sound, proof: Proof) -> None:
    for one_of, other in combinations(range(len(two.records)), 2):
        records = list(two.records)
        records[one_of], records[other] = records[other], records[one_of]
        assert f" at byte {two.records[one_of].offset}: " in container(proof(joined(records)))[0].detail


def test_a_record_put_in_anywhere_is_found_where_it_is(two: Sound, proof: Proof) -> None:
    """Any of the file's own, also right after itself."""
    for index, record in enumerate(two.records):
        for place in range(len(two.records) + 1):
            records = [*two.records[:place], record, *two.records[place:]]
            wrong = starts(records)[place + 1 if place == index else place]
            assert f" at byte {wrong}: " in container(proof(joined(records)))[0].detail


# ---- damage that somebody wrote a sound file of ----


def written(logs: list[StoredLog]) -> bytes:
    file = io.BytesIO()
    write(file, logs)
    return file.getvalue()


def altered(logs: list[StoredLog]) -> Iterator[tuple[list[Stored], tuple[int, str]]]:
    """Each way to drop, double, swap or change an append of the first log, and the fault that names it."""
    rows, head = list(logs[0].rows), logs[0].head
    for index, row in enumerate(rows):
        last = index + 1 == len(rows)
        without = [*rows[:index], *rows[index + 1 :]]
        yield without, (head.sequence, "head") if last else (row.first, "gap")
        yield [*rows[: index + 1], *rows[index:]], (row.first, "duplicate")
        for field in ("key", "chain", "payload"):
            value = getattr(row, field)
            changed = row._replace(**{field: bytes([value[0] ^ 1]) + value[1:]})
            yield [*rows[:index], changed, *rows[index + 1 :]], (row.first, "chain")
    for before, after in pairwise(range(len(rows))):
        swapped = list(rows)
        swapped[before], swapped[after] = rows[after], rows[before]
        yield swapped, (rows[before].first, "gap")


def test_a_log_that_was_damaged_before_its_export_is_named_as_by_an_audit(two: Sound, proof: Proof) -> None:
    job = two.logs[0].job
    for rows, (sequence, kind) in altered(two.logs):
        report = proof(written([two.logs[0]._replace(rows=rows), two.logs[1]]))
        assert (job, sequence, kind) in [fault[:3] for fault in report.faults]
        assert container(report) == []
        assert {fault.job for fault in report.faults} == {job}


def test_what_the_job_says_of_itself_is_held_to_its_log(two: Sound, proof: Proof) -> None:
    log = two.logs[0]
    assert log.row is not None
    changes: list[dict[str, Any]] = [{"output": 9}, {"prompt": 9}, {"identity": "0" * 64}, {"finish": "length"}]
    for change in changes:
        data = written([log._replace(row=replace(log.row, **change))])
        assert [(fault.job, fault.kind) for fault in proof(data).faults] == [(log.job, "listing")]
    damaged = written([log._replace(damage="the job's row has status 'LOST'", row=None), two.logs[1]])
    assert [fault[2:] for fault in proof(damaged).faults] == [("listing", "the job's row has status 'LOST'")]


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91\xc0", b"\x01", b"\xa1x", b"\x91\x92\xa1x\xc3", b"\x81\x90\x01"])
@pytest.mark.parametrize("kind", [1, 2, 3, 9])
def test_a_frame_that_says_nothing_is_named(two: Sound, proof: Proof, kind: int, body: bytes) -> None:
    """In a file whose digests are all right."""
    file = io.BytesIO()
    writer = FrameWriter(file)
    first, *others = frames(io.BytesIO(two.data))
    writer.write(first.kind, first.body)
    place = file.tell()
    writer.write(kind, body)
    for frame in others:
        writer.write(frame.kind, frame.body)
    assert f" at byte {place}: it cannot be read" in proof(file.getvalue()).faults[0].detail


@given(st.data())
def test_a_row_of_any_values_is_a_fault_and_not_the_end_of_the_proof(two: Sound, data: st.DataObject) -> None:
    """In a file whose digests are all right."""
    values: st.SearchStrategy[object] = (
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
    )
    values |= st.lists(st.integers(0, 9), max_size=2).map(tuple)
    log, other = two.logs
    rows = list(log.rows)
    index, field = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.sampled_from(Stored._fields))
    change: dict[str, Any] = {field: data.draw(values)}
    rows[index] = rows[index]._replace(**change)
    if rows[index] == list(log.rows)[index]:
        return
    bundle = Bundle(io.BytesIO(written([log._replace(rows=rows), other])))
    report = audit(bundle)
    assert bundle.faults == []
    assert {fault.job for fault in report.faults} == {log.job}
