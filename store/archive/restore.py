"""Restore: a log from a file back into a database, whole or not at all.

What is there already and agrees is left alone; a log that ends earlier is brought up to the file's; anything else is a
conflict. So a restore can be repeated, and never takes a committed token back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import func, insert, select, text, update
from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import IntegrityError

from ...fsm.errors import CorruptRecord, DatabaseLocked, JobBusy, RestoreConflict
from ...fsm.ports import EMPTY_HEAD, Head, JobRow
from ..appending.resolve import walk
from ..database.connection import Database
from ..database.listing import job_row
from ..database.tables import appends, jobs
from ..log.chain import content
from ..log.snapshots import forget
from ..log.stored import Stored

TRIES = 3

# In the order in which everything locks the rows of several jobs.
LOCK = text("SELECT id FROM jobs WHERE job = ANY(:jobs) ORDER BY id FOR UPDATE")


class Restorable(NamedTuple):
    """A job's row and its appends, proven by an audit; `moved` where the caller says where its model lies."""

    row: JobRow
    appends: Sequence[Stored]
    moved: bool = False


class RestoredLog(NamedTuple):
    """What became of one job: "created", "advanced" by so many appends, or "held" as it was; and its row by now."""

    outcome: str
    appends: int
    row: JobRow


class DatabaseRestore:
    """Restores over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def restore(self, logs: Sequence[Restorable], dead: Collection[str] = ()) -> list[RestoredLog]:
        """Bring these jobs' logs into the database, in one transaction; `dead` as in a claim.

        Errors, and then nothing is written: RestoreConflict where a job of that name is another one, its log took
        another way, or its key is another job's; JobBusy where a worker holds a job whose log would grow.
        """
        with self._database.transaction("restore") as connection:
            if not self._database.sqlite:
                connection.execute(LOCK, {"jobs": [log.row.job for log in logs]})
            # New rows come as the jobs did at first, whatever the file: another restore of them waits for the first.
            done = {log.row.job: self._restore(connection, log, dead) for log in sorted(logs, key=_age)}
            return [RestoredLog(*done[log.row.job], _listed(connection, log.row.job)) for log in logs]

    def _restore(self, connection: Connection, log: Restorable, dead: Collection[str]) -> tuple[str, int]:
        """The outcome, and how many appends were added."""
        row, rows = log.row, log.appends
        for _ in range(TRIES):
            found = connection.execute(select(jobs).where(jobs.c.job == row.job).with_for_update()).one_or_none()
            if found is not None:
                break
            if (made := self._made(connection, row)) is not None:
                return "created", self._append(connection, made, 0, row, rows)
        else:
            raise DatabaseLocked(self._database.name, f"others that make job {row.job} come and go")
        there = _agreed(connection, found, log)
        if log.moved and found.model != row.model:
            connection.execute(update(jobs).where(jobs.c.id == found.id).values(model=row.model))
        if there >= len(rows):
            return "held", 0
        if found.owner is not None and found.owner not in dead:
            now_ms = connection.scalar(select(self._database.now_ms()))
            if found.lease_until_ms is None or now_ms is None or found.lease_until_ms > now_ms:
                raise JobBusy(row.job, found.owner)
        return "advanced", self._append(connection, found.id, found.tail, row, rows[there:])

    def _made(self, connection: Connection, row: JobRow) -> int | None:
        """The id of a new row for the job; None where somebody else has just made one that clashes."""
        if row.idempotency_key is not None:
            holder = connection.scalar(select(jobs.c.job).where(jobs.c.idempotency_key == row.idempotency_key))
            if holder is not None:
                raise RestoreConflict(row.job, f"its idempotency key is that of job {holder}")
        made = {
            "job": row.job,
            "identity": row.identity,
            "model": row.model,
            "artifact": row.artifact,
            "idempotency_key": row.idempotency_key,
            "retain_ms": row.retain_ms,
            "created_ms": row.created_ms,
            "prompt": row.prompt,
            "status": "ADMITTED",
            "output": 0,
            "sequence": 0,
            "chain": EMPTY_HEAD.chain,
            "tail": 0,
            "fence": 0,
        }
        try:
            with connection.begin_nested():
                made_id: int = connection.execute(insert(jobs).values(made).returning(jobs.c.id)).scalar_one()
        except IntegrityError:
            return None
        return made_id

    def _append(self, connection: Connection, job_id: int, tail: int, row: JobRow, rows: Sequence[Stored]) -> int:
        """Add appends after the one numbered `tail`, and let the job's row say what the file's does; their count."""
        ids = self._ids(connection, len(rows))
        links = zip(ids, [tail or None, *ids], rows, strict=False)
        added = [{"id": own, "job_id": job_id, "prev": prev} | each._asdict() for own, prev, each in links]
        connection.execute(insert(appends), added)
        tail = ids[-1]
        end: dict[str, Any] = {"status": row.status.value, "finish": row.finish, "output": row.output, "tail": tail}
        if row.finish is not None:
            end |= self._passed(rows)
            forget(connection, job_id)
        head = {
            "sequence": row.head.sequence,
            "chain": row.head.chain,
            "owner": None,
            "lease_until_ms": None,
        }
        if row.finish is None:
            # A fence grows: whoever held the job before, here or where the file comes from, stays locked out.
            held = connection.scalar(select(jobs.c.fence).where(jobs.c.id == job_id)) or 0
            fence = max(held, row.fence) + 1
        else:
            fence = rows[-1].fence  # as in the file: the job has ended, so nobody can append anyway
        changed = end | head | {"fence": fence}
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(changed))
        return len(rows)

    def _ids(self, connection: Connection, count: int) -> list[int]:
        """Ids of new appends, in order, as a link leads to an older one."""
        if self._database.sqlite:
            # The write lock is ours, so all after the newest are free.
            newest = connection.scalar(select(func.max(appends.c.id))) or 0
            return list(range(newest + 1, newest + 1 + count))
        numbers = func.generate_series(1, count).table_valued("number")
        return sorted(connection.scalars(select(func.nextval("appends_id_seq")).select_from(numbers)))

    def _passed(self, rows: Sequence[Stored]) -> dict[str, Any]:
        """When the job ended, was sealed and was erased: the file does not say, and retention counts from now on."""
        erased = any(row.erased for row in rows)
        names = ("ended_ms", "erased_ms" if erased else "sealed_ms")
        return dict.fromkeys(names[: 1 + (erased or rows[0].sealed)], self._database.now_ms())


def _agreed(connection: Connection, found: Row[tuple[object, ...]], log: Restorable) -> int:
    """How many of the file's appends the database has; all that it has must be the file's, or the other way round."""
    if found.identity != log.row.identity:
        raise RestoreConflict(log.row.job, f"its identity is {found.identity}, and the file's is {log.row.identity}")
    if Head(found.sequence, found.chain) == log.row.head:
        return len(log.appends)  # the same log, which one of the two may have sealed or without its content
    there = walk(connection, found.tail, 0)
    for place, rows in (("here", there), ("in the file", log.appends)):
        if any(row.erased for row in rows):
            raise RestoreConflict(log.row.job, f"its content is erased {place}, and the two logs end differently")
        if any(row.sealed for row in rows):
            reason = f"its log is sealed {place}, which can be compared as a whole only, and the two end differently"
            raise RestoreConflict(log.row.job, reason)
    for held, given in zip(there, log.appends, strict=False):
        if (held.first, content(held.key, held.payload)) != (given.first, content(given.key, given.payload)):
            raise RestoreConflict(log.row.job, f"from event {held.first} on its log took another way")
    if there and there[-1].last != found.sequence:
        raise CorruptRecord(log.row.job, there[-1].last, "its end is not the head that the job's row names")
    return len(there)


def _age(log: Restorable) -> tuple[int, str]:
    return log.row.created_ms, log.row.job


def _listed(connection: Connection, job: str) -> JobRow:
    return job_row(connection.execute(select(jobs).where(jobs.c.job == job)).one())
