"""The lifetime of logs in a database: sealing, erasing, and what is due for either."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.engine import Connection

from ...fsm.errors import ContentErased, JobNotEnded, SealRefused, UnknownJob
from ...fsm.ports import Head
from ..database.connection import Database
from ..database.listing import job_row, wrong
from ..database.tables import appends, jobs
from ..log.chain import StoredLog
from ..log.erased import erased
from ..log.snapshots import forget
from ..log.stored import Stored
from ..log.walk import ALL, FROM_TAIL
from .forks import forks
from .scrub import scrub


class Placed(NamedTuple):
    """A stored append, and the id of its row."""

    id: int
    row: Stored


class DatabaseLifetime:
    """What is done to logs of ended jobs, each in one transaction: the old log is there, or the new one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def whole(self, job: str) -> StoredLog:
        with self._database.transaction() as connection, self._database.surrogates(connection):
            held = ended(connection, job)
            rows = [placed.row for placed in rows_of(connection, held)]
        damage = wrong(held)
        head, listed = Head(held.sequence, held.chain), None if damage else job_row(held)
        return StoredLog(job, head, held.fence, rows, damage, listed)

    def seal(self, job: str, head: Head, row: Stored) -> bool:
        with self._database.transaction("seal") as connection:
            held = ended(connection, job)
            if held.erased_ms is not None:
                raise ContentErased(job)
            if held.sealed_ms is not None:
                return False
            if Head(held.sequence, held.chain) != head:
                raise SealRefused(job, "its head is not what was read")
            self._replace(connection, held, rows_of(connection, held), [row])
            now_ms = self._database.now_ms()
            connection.execute(update(jobs).where(jobs.c.id == held.id).values(sealed_ms=now_ms))
            forget(connection, held.id)
        return True

    def erase(self, job: str) -> bool:
        with self._database.transaction("erase") as connection, self._database.surrogates(connection):
            held = ended(connection, job)
            if held.erased_ms is not None:
                return False
            rows = rows_of(connection, held)
            left = erased(job, [placed.row for placed in rows])
            self._replace(connection, held, rows, left)
            now_ms = self._database.now_ms()
            connection.execute(update(jobs).where(jobs.c.id == held.id).values(erased_ms=now_ms))
            forget(connection, held.id)
        return True

    def forks(self, parents: Collection[str]) -> list[tuple[str, str]]:
        columns = [appends.c[name] for name in Stored._fields]
        query = select(jobs.c.job, *columns).join(appends, appends.c.job_id == jobs.c.id)
        query = query.where(appends.c.first == 1, jobs.c.erased_ms.is_(None)).order_by(jobs.c.id)
        with self._database.long_read() as connection, connection.execute(query) as rows:
            return list(forks(((row[0], Stored._make(row[1:])) for row in rows), parents))

    def scrub(self) -> bool:
        return scrub(self._database)

    def past_retention(self) -> list[str]:
        due = jobs.c.ended_ms + jobs.c.retain_ms <= self._database.now_ms()
        return self._names(due, jobs.c.erased_ms.is_(None))

    def unsealed(self, older_ms: int) -> list[str]:
        due = jobs.c.ended_ms + older_ms <= self._database.now_ms()
        return self._names(due, jobs.c.erased_ms.is_(None), jobs.c.sealed_ms.is_(None))

    def _names(self, *conditions: Any) -> list[str]:
        with self._database.single() as connection:
            return list(connection.scalars(select(jobs.c.job).where(*conditions).order_by(jobs.c.id)))

    def _replace(self, connection: Connection, held: Any, rows: Sequence[Placed], left: Sequence[Stored]) -> None:
        """Put other rows in the place of a job's: as many, or one for all, which is where its row finds the newest."""
        if len(left) == len(rows):
            pairs = [(placed.id, row) for placed, row in zip(rows, left, strict=True) if placed.row != row]
            changed = update(appends).where(appends.c.id == bindparam("of"))
            values = [{"of": of, "key": row.key, "payload": row.payload} for of, row in pairs]
            if values:
                connection.execute(changed.values(key=bindparam("key"), payload=bindparam("payload")), values)
            return
        (row,) = left
        others = [{"of": placed.id} for placed in rows if placed.id != held.tail]
        if others:
            connection.execute(delete(appends).where(appends.c.id == bindparam("of")), others)
        connection.execute(update(appends).where(appends.c.id == held.tail).values(prev=None, **row._asdict()))


def ended(connection: Connection, job: str) -> Any:
    """A job's row, locked until the transaction ends. Errors: UnknownJob, JobNotEnded."""
    row = connection.execute(select(jobs).where(jobs.c.job == job).with_for_update()).one_or_none()
    if row is None:
        raise UnknownJob(job)
    if row.finish is None:
        raise JobNotEnded(job, row.status)
    return row


def rows_of(connection: Connection, held: Any) -> list[Placed]:
    """Every append of a job: by the links, or where these do not lead from its head to its first, by looking at all."""
    walked = connection.execute(FROM_TAIL, {"tail": held.tail, "after": ALL})
    linked = [Placed(row[0], Stored._make(row[1:])) for row in walked]
    spans = [(placed.row.first, placed.row.last) for placed in linked]
    with suppress(TypeError):  # a damaged value of another type
        if [1, *(last + 1 for _, last in spans)] == [*(first for first, _ in spans), held.sequence + 1]:
            return linked
    columns = [appends.c[name] for name in ("id", *Stored._fields)]
    found = connection.execute(
        select(*columns).where(appends.c.job_id == held.id).order_by(appends.c.first, appends.c.id)
    )
    return [Placed(row[0], Stored._make(row[1:])) for row in found]
