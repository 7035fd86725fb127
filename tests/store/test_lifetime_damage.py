"""What an audit says of logs that are sealed or erased by half, or otherwise than their job's row has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from databases import AnyStore, database_store
from shown import faults, rows_of
from sqlalchemy import text
from steps import Writer, admit, digest, write

from decodelog.fsm.machine.events import AttemptStarted
from decodelog.fsm.machine.states import Status
from decodelog.fsm.ports import Append, JobRow
from decodelog.store.log import sealed
from decodelog.store.log.chain import StoredLog, content, records
from decodelog.store.log.erased import erased
from decodelog.store.memory.log import MemoryStore
from decodelog.store.reading.audit import audit_rows

HOUR_MS = 3_600_000


def ended(store: AnyStore, job: str = "job-1") -> None:
    """A job with a tenure that is recorded by itself, eight steps, and a cancel under another fence."""
    writer = admit(store, job)
    store.claim("worker", HOUR_MS, 1, [job])
    start = AttemptStarted(1, "worker", ())
    (result,) = store.append([Append(job, writer.head, 1, digest("tenure"), (start,), Status.ADMITTED, 0)])
    writer = write(store, Writer(job, result.head, 1), 8)
    store.claim("caller", HOUR_MS, 1, [job], dead=["worker"])
    (result,) = store.append([replace(writer, fence=2).cancel()])
    assert result.outcome == "appended"


@pytest.fixture(scope="module")
def log() -> StoredLog:
    store = MemoryStore()
    ended(store)
    (whole,) = store.logs("job-1")
    assert faults(whole) == []
    return whole


def row_of(log: StoredLog) -> JobRow:
    assert log.row is not None
    return log.row


def without_content(log: StoredLog, times: bool = True) -> StoredLog:
    row = replace(row_of(log), erased_ms=1) if times else log.row
    return log._replace(rows=erased("job-1", rows_of(log)), row=row)


@pytest.mark.contract("LOG-3", "LOG-9")
@pytest.mark.parametrize("index", range(11))
@pytest.mark.parametrize("dated", [True, False])
def test_one_append_whose_content_is_gone_is_a_fault(log: StoredLog, index: int, dated: bool) -> None:
    """Its digest still proves what follows, so that nothing but the whole log says that it may not be gone."""
    row = rows_of(log)[index]
    rows = list(log.rows)
    rows[index] = row._replace(key=b"", payload=content(row.key, row.payload))
    found = faults(log._replace(rows=rows, dated=dated))
    place = rows_of(log)[index or 2].first  # beside the first one, the tenure is no content
    assert found == [(place, "payload"), *([(row.first, "listing")] if dated else [])]
    marked = log._replace(rows=rows, row=replace(row_of(log), erased_ms=1), dated=dated)
    assert faults(marked) == [(place, "payload")]


@pytest.mark.contract("LOG-3", "LOG-9")
def test_one_append_whose_content_is_left_is_a_fault(log: StoredLog) -> None:
    gone = without_content(log)
    assert faults(gone) == []
    assert [row.erased for row in gone.rows] == [True, False, *[True] * 8, False]
    for index in range(11):
        rows = list(gone.rows)
        rows[index] = rows_of(log)[index]
        place = rows_of(log)[2].first if index == 0 else rows_of(log)[index].first
        assert faults(gone._replace(rows=rows)) == ([(place, "payload")] if rows_of(gone)[index].erased else [])


@pytest.mark.contract("LOG-3", "LOG-9")
def test_only_a_databases_row_says_when_its_log_was_sealed_or_erased(log: StoredLog) -> None:
    """A row of a database says what was done to its log and a file does not."""
    one = [sealed.seal(log.head, rows_of(log), list(records("job-1", rows_of(log), 0)), structured=False)]
    gone = erased("job-1", one)
    for rows, told in ((log.rows, {}), (one, {"sealed_ms": 1}), (gone, {"sealed_ms": 1, "erased_ms": 1})):
        for name in ("sealed_ms", "erased_ms"):
            for times in ({}, {name: 1}):
                marks: dict[str, Any] = told | {name: None} | times
                row = replace(row_of(log), **marks)
                wrong = times.get(name) != told.get(name)
                assert [kind for _, kind in faults(log._replace(rows=rows, row=row))] == ["listing"] * wrong
        assert faults(log._replace(rows=rows, dated=False)) == []


@pytest.mark.contract("LOG-3", "LOG-9", "LOG-2")
@pytest.mark.parametrize("name", ["sealed_ms", "erased_ms"])
def test_a_time_that_is_lost_or_invented_is_named(database_url: str, name: str) -> None:
    store = database_store(database_url)
    for number in range(4):
        ended(store, f"job-{number}")
    whole = store.whole("job-1")
    rows = list(whole.rows)
    if name == "sealed_ms":
        store.seal("job-1", whole.head, sealed.seal(whole.head, rows, list(records("job-1", rows, 0)), False))
    else:
        store.erase("job-1")
    assert audit_rows(store).faults == []
    with store._database.transaction() as connection:
        connection.execute(text(f"UPDATE jobs SET {name} = NULL WHERE job = 'job-1'"))
        connection.execute(text(f"UPDATE jobs SET {name} = 1 WHERE job = 'job-2'"))
    assert [(fault.job, fault.kind) for fault in audit_rows(store).faults] == [
        ("job-1", "listing"),
        ("job-2", "listing"),
    ]
    store.close()


@pytest.mark.contract("LOG-3", "LOG-7")
def test_the_fence_of_an_end_is_the_rows(log: StoredLog) -> None:
    """The chain does not cover it, and an end needs no tenure: the row of a job that has ended stays as it was."""
    last = rows_of(log)[-1]
    for fence in (0, 1, 3, 9):
        changed = log._replace(rows=[*rows_of(log)[:-1], last._replace(fence=fence)])
        place = last.first if fence == 0 else last.last
        assert (place, "fence") in faults(changed)
    for fence in (1, 3, 9):
        row = replace(row_of(log), fence=fence)
        assert faults(log._replace(fence=fence, row=row)) == [(last.last, "fence")]
    assert faults(without_content(log)._replace(fence=3, row=replace(row_of(log), erased_ms=1, fence=3))) == [
        (last.last, "fence")
    ]
    for dated in (True, False):
        assert faults(log._replace(fence=3, dated=dated)) == [(last.last, "fence")]
