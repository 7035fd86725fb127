"""A log put back into a database: what of it is there already, who holds the job meanwhile, and what is damaged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from databases import Clock, database_store
from sqlalchemy import delete, select, update
from sqlalchemy.engine import Connection
from steps import IDENTITY, Writer, admit, write

from decodelog.fsm.errors import CorruptRecord, DatabaseLocked, JobBusy, RestoreConflict
from decodelog.fsm.ports import EMPTY_HEAD, JobRow
from decodelog.store.archive.restore import TRIES, DatabaseRestore, Restorable
from decodelog.store.database.tables import appends, jobs
from decodelog.store.engine import DatabaseStore
from decodelog.store.reading.audit import audit_rows

pytestmark = pytest.mark.contract("RES-2", "LOG-7")

HOUR_MS = 3_600_000


@pytest.fixture
def store(database_url: str) -> Iterator[DatabaseStore]:
    opened = database_store(database_url)
    assert isinstance(opened, DatabaseStore)
    yield opened
    opened.close()


def taken(store: DatabaseStore, job: str = "job-1") -> Restorable:
    """What a file would have of a job, by now."""
    (rows,) = [list(log.rows) for log in store.logs(job)]
    return Restorable(store.row(job), rows)


def cut(store: DatabaseStore, writer: Writer) -> None:
    """Take the job back to where `writer` is, as if its later appends had never come here."""
    with store._database.transaction() as connection:
        later = appends.c.first > writer.head.sequence
        connection.execute(delete(appends).where(later))
        tail = connection.scalar(select(appends.c.id).order_by(appends.c.id.desc()).limit(1))
        head = {"sequence": writer.head.sequence, "chain": writer.head.chain}
        connection.execute(update(jobs).values(tail=tail, output=writer.output, status="PENDING", finish=None, **head))


def contents(store: DatabaseStore) -> tuple[Any, ...]:
    with store._database.single() as connection:
        return tuple(tuple(connection.execute(select(table).order_by(table.c.id)).all()) for table in (jobs, appends))


@pytest.fixture
def short(store: DatabaseStore) -> tuple[Writer, Restorable]:
    """A job of two steps in the database, and a file that has it with five."""
    writer = write(store, admit(store), 2)
    write(store, writer, 3)
    file = taken(store)
    cut(store, writer)
    return writer, file


def outcome(store: DatabaseStore, file: Restorable, dead: tuple[str, ...] = ()) -> tuple[str, int]:
    (restored,) = store.restore([file], dead)
    assert restored.row == store.row("job-1")
    return restored[:2]


def test_a_shorter_log_is_advanced_once_and_then_held(store: DatabaseStore, short: tuple[Writer, Restorable]) -> None:
    """A log that ends earlier is brought up to the file's and a second time held."""
    writer, file = short
    assert outcome(store, file) == ("advanced", 3)
    row = store.row("job-1")
    assert (row.head, row.output, row.status, row.fence) == (file.row.head, 5, "PENDING", 1)
    assert [record.first for record in store.read("job-1")] == [1, 2, 5, 8, 11, 14]
    assert audit_rows(store).ok
    before = contents(store)
    assert outcome(store, file) == ("held", 0)
    assert contents(store) == before
    write(store, replace(writer, head=row.head, output=5, fence=1), 2)
    further = contents(store)
    assert outcome(store, file) == ("held", 0)
    assert contents(store) == further


def test_a_log_that_is_not_there_is_created_under_a_fence_that_has_grown(
    store: DatabaseStore, short: tuple[Writer, Restorable]
) -> None:
    _, file = short
    with store._database.transaction() as connection:
        connection.execute(delete(appends))
        connection.execute(delete(jobs))
    file = file._replace(row=replace(file.row, fence=7))
    assert outcome(store, file) == ("created", 6)
    row = store.row("job-1")
    assert (row.head, row.fence, row.owner, row.lease_until_ms) == (file.row.head, 8, None, None)
    assert row.created_ms == file.row.created_ms
    assert audit_rows(store).ok
    assert [claim.fence for claim in store.claim("worker", HOUR_MS, 1)] == [9]


@pytest.mark.parametrize("held", [0, 5, 20])
@pytest.mark.parametrize("given", [0, 5, 20])
def test_the_fence_grows_beyond_both(
    store: DatabaseStore, short: tuple[Writer, Restorable], held: int, given: int
) -> None:
    _, file = short
    with store._database.transaction() as connection:
        connection.execute(update(jobs).values(fence=held))
    outcome(store, file._replace(row=replace(file.row, fence=given)))
    assert store.row("job-1").fence == max(held, given) + 1


def test_a_job_whose_worker_holds_it_is_left_alone_until_the_lease_is_over(
    store: DatabaseStore, short: tuple[Writer, Restorable]
) -> None:
    clock = Clock(store)
    writer, file = short
    store.claim("worker", 1000, 1)
    before = contents(store)
    for ms in (0, 999):
        clock.pass_ms(ms)
        for dead in ((), ("another",)):
            with pytest.raises(JobBusy) as caught:
                outcome(store, file, dead)
            assert (caught.value.job, caught.value.owner) == ("job-1", "worker")
            assert contents(store) == before
    clock.pass_ms(1)
    assert outcome(store, file) == ("advanced", 3)
    row = store.row("job-1")
    assert (row.fence, row.owner, row.lease_until_ms) == (2, None, None)
    (result,) = store.append([replace(writer, fence=1).step()])
    assert result.outcome in ("fenced", "duplicate")
    assert store.row("job-1").head == file.row.head


def test_a_job_whose_worker_is_gone_need_not_wait(store: DatabaseStore, short: tuple[Writer, Restorable]) -> None:
    _, file = short
    store.claim("gone", HOUR_MS, 1)
    assert outcome(store, file, ("gone",)) == ("advanced", 3)
    assert store.row("job-1").owner is None


def test_an_owner_without_a_lease_holds_its_job(store: DatabaseStore, short: tuple[Writer, Restorable]) -> None:
    _, file = short
    store.claim("worker", HOUR_MS, 1)
    with store._database.transaction() as connection:
        connection.execute(update(jobs).values(lease_until_ms=None))
    with pytest.raises(JobBusy):
        outcome(store, file)


def test_a_held_log_that_need_not_grow_is_nobody_s_business(store: DatabaseStore) -> None:
    write(store, admit(store), 2)
    file = taken(store)
    store.claim("worker", HOUR_MS, 1)
    assert outcome(store, file) == ("held", 0)
    assert store.row("job-1").owner == "worker"


@pytest.mark.contract("LOG-3")
@pytest.mark.parametrize("by", [-3, -1, 1, 3, 9])
def test_a_row_whose_head_is_not_its_logs_end_is_damage(
    store: DatabaseStore, short: tuple[Writer, Restorable], by: int
) -> None:
    """The appends agree with the file's as far as they go, and the job's row says that they go elsewhere."""
    writer, file = short
    with store._database.transaction() as connection:
        connection.execute(update(jobs).values(sequence=writer.head.sequence + by, chain=bytes(32)))
    before = contents(store)
    with pytest.raises(CorruptRecord, match="is not the head that the job's row names"):
        store.restore([file])
    assert contents(store) == before


@pytest.mark.parametrize("what", ["identity", "content", "key"])
def test_a_log_that_is_another_one_is_a_conflict_and_nothing_is_written(
    store: DatabaseStore, short: tuple[Writer, Restorable], what: str
) -> None:
    writer, file = short
    if what == "identity":
        file = file._replace(row=replace(file.row, identity="b" * 64))
    elif what == "content":
        (result,) = store.append([writer.step("another way")])
        assert result.outcome == "appended"
    else:
        with store._database.transaction() as connection:
            connection.execute(update(jobs).values(job="job-2", idempotency_key="key"))
        file = file._replace(row=replace(file.row, idempotency_key="key"))
    before = contents(store)
    with pytest.raises(RestoreConflict):
        store.restore([file])
    assert contents(store) == before


def test_of_several_logs_all_are_restored_or_none(store: DatabaseStore) -> None:
    files = []
    for name in ("job-1", "job-2", "job-3"):
        write(store, admit(store, name), 2)
        files.append(taken(store, name))
    with store._database.transaction() as connection:
        connection.execute(delete(appends))
        connection.execute(delete(jobs))
    admit(store, "job-2", identity="c" * 64)
    before = contents(store)
    with pytest.raises(RestoreConflict):
        store.restore(files)
    assert contents(store) == before
    with store._database.transaction() as connection:
        connection.execute(delete(appends))
        connection.execute(delete(jobs))
    done = store.restore(files[::-1])
    assert [(each.outcome, each.appends, each.row.job) for each in done] == [
        ("created", 3, name) for name in ("job-3", "job-2", "job-1")
    ]
    assert [row.job for row in store.rows()] == ["job-1", "job-2", "job-3"]
    assert audit_rows(store).ok


def test_a_restored_ended_log_keeps_its_fence_and_is_dated_now(store: DatabaseStore) -> None:
    """A log that has ended says when it came here and keeps the fence of its end."""
    clock = Clock(store)
    writer = write(store, admit(store), 2)
    store.claim("worker", HOUR_MS, 1)
    store.append([replace(writer, fence=1).last_step()])
    file = taken(store)
    with store._database.transaction() as connection:
        connection.execute(delete(appends))
        connection.execute(delete(jobs))
    clock.pass_ms(5000)
    assert outcome(store, file) == ("created", 4)
    row = store.row("job-1")
    assert (row.fence, row.finish, row.owner, row.lease_until_ms) == (1, "length", None, None)
    assert (row.ended_ms, row.sealed_ms, row.erased_ms) == (clock.now_ms, None, None)
    assert (row.identity, file.row.head != EMPTY_HEAD) == (IDENTITY, True)
    assert audit_rows(store).ok


@pytest.mark.parametrize(("clashes", "made"), [(TRIES - 1, True), (TRIES, False)])
def test_a_row_that_comes_and_goes_is_retried_and_then_busy(
    store: DatabaseStore, monkeypatch: pytest.MonkeyPatch, clashes: int, made: bool
) -> None:
    """As another restore would that gives up in the end: its row clashes, and is not there to be found."""
    write(store, admit(store), 2)
    file = taken(store)
    with store._database.transaction() as connection:
        connection.execute(delete(appends))
        connection.execute(delete(jobs))
    empty, make, tried = contents(store), DatabaseRestore._made, list[str]()

    def clashing(self: DatabaseRestore, connection: Connection, row: JobRow) -> int | None:
        tried.append(row.job)
        return None if len(tried) <= clashes else make(self, connection, row)

    monkeypatch.setattr(DatabaseRestore, "_made", clashing)
    if made:
        assert outcome(store, file) == ("created", 3)
        assert taken(store).appends == file.appends
    else:
        with pytest.raises(DatabaseLocked, match="come and go"):
            store.restore([file])
        assert contents(store) == empty
    assert tried == ["job-1"] * TRIES
