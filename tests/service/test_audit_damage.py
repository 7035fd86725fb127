"""A damaged database: an audit always ends, names what was touched and nothing else, and judges every other job."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from commandline import decodelog, script
from sqlalchemy import text

from decodelog.fsm.errors import Problem
from decodelog.fsm.ports import EMPTY_HEAD
from decodelog.service.database import opened
from decodelog.service.inspect.audit import Report, audit
from decodelog.store.database.tables import metadata
from decodelog.store.engine import DatabaseStore
from decodelog.store.log.chain import StoredLog, digest, verified
from decodelog.store.log.erased import erased

pytestmark = pytest.mark.contract("LOG-3")

# What no chain covers, as docs/guide/operations.md says: any value of the right type and range may be so.
# Of a job whose content is erased, so are its name, its identity and its counts.
COVERED = {"job", "identity", "status", "finish", "prompt", "output", "sequence", "chain", "tail"}
LEFT_BY_ERASURE = {"status", "sequence", "chain", "tail"}
NULLABLE = {
    (table.name, column.name) for table in metadata.tables.values() for column in table.columns if column.nullable
}

ODD: list[Any] = [None, -1, 2**63 - 1, -(2**63), 1.5, float("inf"), "x", "", b"x", b"", 2**40]


class Damaged(NamedTuple):
    """An open database, and a way to run a statement on it beside the program."""

    store: DatabaseStore
    jobs: list[str]

    def run(self, statement: str, **values: Any) -> Any:
        with self.store._database.transaction() as connection:
            result = connection.execute(text(statement), values)
            return result.all() if result.returns_rows else []


def filled(url: str, folder: Path) -> None:
    """A job that waits, one that has ended, one whose content is erased, one that is sealed."""
    model = script(folder / "model", script={"text": "Hi"})
    for command in ("submit", "run", "run", "run"):
        assert decodelog(command, "--model", model, "--prompt", "G", db=url).code == 0
    names = [each["job"] for each in decodelog("jobs", "--json", db=url).json]
    assert decodelog("erase", names[2], db=url).code == 0
    assert decodelog("seal", names[3], db=url).code == 0


@pytest.fixture
def damaged(database_url: str, tmp_path: Path) -> Iterator[Damaged]:
    filled(database_url, tmp_path)
    with opened(database_url) as store:
        assert isinstance(store, DatabaseStore)
        yield Damaged(store, [row.job for row in store.rows()])


def named(report: Report) -> set[str]:
    return {fault.job for fault in report.faults}


def kinds(report: Report, job: str) -> set[str]:
    return {fault.kind for fault in report.faults if fault.job == job}


# ---- every column of every row ----


def values(before: Any, odd: Iterator[Any]) -> list[Any]:
    """What is put in the place of a value: some that it cannot have, and some near to it."""
    near: list[Any] = []
    if isinstance(before, bytes) and before:
        near = [
            before[:at] + bytes([before[at] ^ 0x11]) + before[at + 1 :] for at in {0, len(before) // 2, len(before) - 1}
        ]
        near += [before[:-1], before + b"\0"]
    elif isinstance(before, str) and before:
        near = [before[:-1] + chr(ord(before[-1]) ^ 1)]
    elif isinstance(before, int):
        near = [before + 1, before ^ (1 << 33)]
    return [
        value for value in [*near, next(odd), next(odd), next(odd)] if (type(value), value) != (type(before), before)
    ]


def cells(damaged: Damaged, table: str) -> Iterator[tuple[int, str, Any, str]]:
    """(id, column, value, the job that it is of) of everything that a table holds."""
    for row in damaged.run(f"SELECT * FROM {table} ORDER BY id"):
        cell = row._mapping
        job = damaged.jobs[cell["id" if table == "jobs" else "job_id"] - 1]
        yield from ((cell["id"], column, cell[column], job) for column in cell if column != "id")


@pytest.mark.timeout(900)  # hundreds of audits, on a machine that may have other things to do
@pytest.mark.parametrize(("table", "least"), [("jobs", 100), ("appends", 100), ("snapshots", 0), ("inbox", 0)])
def test_whatever_a_column_holds_the_audit_ends_and_names_the_job(damaged: Damaged, table: str, least: int) -> None:
    """A change that the database itself refuses is none. A row that is made another job's is damage to both."""
    whole, odd, tried = audit(damaged.store), cycle(ODD), 0
    assert whole.ok
    for number, column, before, job in list(cells(damaged, table)):
        change = f"UPDATE {table} SET {column} = :value WHERE id = :id"
        for value in values(before, odd):
            try:
                damaged.run(change, value=value, id=number)
            except Problem:
                continue
            ((kept,),) = damaged.run(f"SELECT {column} FROM {table} WHERE id = :id", id=number)
            if (type(kept), kept) != (type(before), before):
                tried += 1
                held_to(damaged, audit(damaged.store), (table, column, kept), job)
            damaged.run(change, value=before, id=number)
    assert tried >= least
    assert audit(damaged.store) == whole


def held_to(damaged: Damaged, report: Report, change: tuple[str, str, Any], job: str) -> None:
    table, column, value = change
    owners = {job, ""}
    if column == "job_id" and value in range(1, 1 + len(damaged.jobs)):
        owners.add(damaged.jobs[value - 1])
    if column == "job":  # its name is what has changed, and its log knows the other one
        owners |= named(report) - set(damaged.jobs)
    assert named(report) <= owners, change
    assert report.jobs == len(damaged.jobs), change
    covered = LEFT_BY_ERASURE if job == damaged.jobs[2] else COVERED
    odd = isinstance(value, float) or (value is None and (table, column) not in NULLABLE)
    if table == "appends" or (table == "jobs" and (column in covered or odd or value in (-1, -(2**63)))):
        assert report.faults, change


# ---- what belongs to no job, and jobs that never were ----


def test_appends_without_a_job_are_named_by_what_they_say(damaged: Damaged) -> None:
    waiting, ended, gone, sealed = damaged.jobs
    damaged.run("DELETE FROM snapshots WHERE job_id = 2")
    damaged.run("DELETE FROM jobs WHERE id = 2")
    report = audit(damaged.store)
    assert [(fault.job, fault.kind) for fault in report.faults] == [(ended, "orphan")]
    assert "rows of appends are of job id 2" in report.faults[0].detail
    damaged.run("UPDATE appends SET payload = :none WHERE job_id = 2 AND first = 1", none=b"\xc1")
    assert [(fault.job, fault.kind) for fault in audit(damaged.store).faults] == [("", "orphan")]
    assert audit(damaged.store, [waiting, gone, sealed]).ok


def rows_of(damaged: Damaged, number: int) -> StoredLog:
    """The log of the job of this id, with all its rows."""
    return next(log._replace(rows=list(log.rows)) for log in damaged.store.logs(damaged.jobs[number - 1]))


def erase_by_hand(damaged: Damaged, number: int, **row: Any) -> None:
    """What an erasure does to a log, and to its job's row what is given."""
    log = rows_of(damaged, number)
    rows = list(log.rows)
    for before, after in zip(rows, erased(log.job, rows), strict=True):
        damaged.run(
            "UPDATE appends SET key = :key, payload = :payload WHERE job_id = :of AND first = :first",
            of=number, first=before.first, key=after.key, payload=after.payload,
        )  # fmt: skip
    for column, value in row.items():
        damaged.run(f"UPDATE jobs SET {column} = :value WHERE id = :of", of=number, value=value)


def live_job(damaged: Damaged) -> int:
    """Take away the end of the job that has ended, so that it is one that runs."""
    log = rows_of(damaged, 2)
    *rows, last = log.rows
    *_, (before, chain) = verified(log.job, rows, 0)
    damaged.run("DELETE FROM appends WHERE job_id = 2 AND first = :first", first=last.first)
    damaged.run(
        "UPDATE jobs SET sequence = :last, chain = :chain, status = 'PENDING', finish = NULL, ended_ms = NULL, "
        "output = output - 1, tail = (SELECT max(id) FROM appends WHERE job_id = 2) WHERE id = 2",
        last=before.last, chain=chain,
    )  # fmt: skip
    assert audit(damaged.store).ok
    return 2


def test_a_live_job_that_is_turned_into_an_erased_one_is_named(damaged: Damaged) -> None:
    """Also where its row says that it had ended: its log is too short for that many tokens and an end."""
    number = live_job(damaged)
    erase_by_hand(damaged, number, erased_ms=1)
    report = audit(damaged.store)
    assert named(report) == {damaged.jobs[1]}
    assert "its content is erased, and the job has not ended" in {fault.detail for fault in report.faults}
    damaged.run("UPDATE jobs SET status = 'CLOSED', finish = 'length', ended_ms = 1, sealed_ms = NULL WHERE id = 2")
    (fault,) = audit(damaged.store).faults
    assert (fault.job, fault.kind) == (damaged.jobs[1], "listing")
    assert "events are too few for" in fault.detail


def test_an_erased_job_that_was_invented_is_named(damaged: Damaged) -> None:
    """By somebody who can take digests and copies a row of an erased job, and does not know how a log begins."""
    payload = bytes(range(32))
    for last, output in ((7, 1), (1, 1)):
        chain = digest(EMPTY_HEAD.chain, 1, b"", payload)
        copied = "identity, model, created_ms, prompt, status, finish, fence, ended_ms, erased_ms, stalled"
        damaged.run(
            f"INSERT INTO jobs (id, job, sequence, output, chain, tail, {copied}) "
            f"SELECT 77, 'invented', :last, :output, :chain, 777, {copied} FROM jobs WHERE id = 3",
            last=last, output=output, chain=chain,
        )  # fmt: skip
        damaged.run(
            "INSERT INTO appends (id, job_id, first, last, fence, key, chain, payload) "
            "SELECT 777, 77, 1, :last, fence, :key, :chain, :payload FROM jobs WHERE id = 77",
            last=last, key=b"", chain=chain, payload=payload,
        )  # fmt: skip
        assert named(audit(damaged.store)) == {"invented"}
        damaged.run("DELETE FROM appends WHERE id = 777")
        damaged.run("DELETE FROM jobs WHERE id = 77")


# ---- names, marks, links ----


def test_a_mark_that_is_neither_a_beginning_nor_whole_is_named(damaged: Damaged) -> None:
    """Also of an erased log, and also where its bytes are right."""
    change = "UPDATE appends SET chain = :mark WHERE job_id = :of AND first = 1"
    for number in (2, 3):
        first, *_ = rows_of(damaged, number).rows
        for size in (1, 7, 9, 16, 31, 33):
            damaged.run(change, mark=(first.chain + bytes(1))[:size], of=number)
            report = audit(damaged.store)
            assert (damaged.jobs[number - 1], "chain") in {(fault.job, fault.kind) for fault in report.faults}
            assert named(report) == {damaged.jobs[number - 1]}
        damaged.run(change, mark=first.chain, of=number)
