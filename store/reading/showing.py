"""Shows a database's rows as they are, also where part of it cannot be read: such damage is one job's, or no job's.

Most logs are read by one statement over all of them. Where the database breaks off, every job that has not been shown
by then is read by itself, along its links, so that a damaged page costs the jobs that lie on it and no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

from sqlalchemy import Select, select

from ...fsm.errors import DatabaseFault, UnknownJob, UnsupportedDatabase
from ...fsm.ports import EMPTY_HEAD, Head
from ...fsm.reading.audit import Fault
from ..database.connection import Database
from ..database.listing import job_row, readable, wrong
from ..database.tables import appends, jobs
from ..log.chain import StoredLog
from ..log.stored import Stored
from ..log.walk import ALL, FROM_TAIL
from .integrity import damage

BROKEN = (DatabaseFault, UnsupportedDatabase)
"""What a statement raises that meets damage which the database itself notices."""

# A name lies in the table and in its index: where one of them is damaged, the other may tell.
NAMES = (
    select(jobs.c.id, jobs.c.job).order_by(jobs.c.job),
    select(jobs.c.id, jobs.c.job, jobs.c.tail).order_by(jobs.c.id),
)


class DatabaseRows:
    """What is stored, over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def logs(self, job: str | None = None) -> Iterator[StoredLog]:
        """All that is stored of one job's log or of every one, found by its rows and not by their links."""
        shown = _Shown(self._database)
        try:
            yield from shown.together(job)
        except BROKEN:
            if job is not None:
                raise
            shown.broken = True
        if shown.broken and job is None:
            yield from shown.others()

    def damage(self) -> Iterator[Fault]:
        """What is wrong with the database itself, whatever its logs say."""
        return damage(self._database)


class _Shown:
    """One showing. `last` is the id of the newest job that was shown whole or begun, `broken` whether one broke off."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.last = 0
        self.broken = False

    def together(self, job: str | None) -> Iterator[StoredLog]:
        columns = [appends.c[name].label(f"append_{name}") for name in ("id", "prev", *Stored._fields)]
        query = select(jobs, *columns).join_from(jobs, appends, jobs.c.id == appends.c.job_id, isouter=True)
        query = query.order_by(jobs.c.id, appends.c.first, appends.c.id)
        chosen = query if job is None else query.where(jobs.c.job == job)
        # One statement for both: a job that runs meanwhile is shown as it was at one moment.
        with self._database.long_read() as connection, connection.execute(chosen) as rows:
            found = False
            for _, group in groupby(rows, key=attrgetter("id")):
                found, row = True, next(group)
                self.last = row.id
                placed = (tuple(each[-len(columns) :]) for each in chain((row,), group))
                links: list[tuple[int, str]] = []
                stored = _linked(row.tail, (each for each in placed if each[0] is not None), links)
                yield _log(row, self._noticing(stored), links)
                if self.broken:
                    return
            if job is not None and not found:
                raise UnknownJob(job)

    def _noticing(self, stored: Iterable[Stored]) -> Iterator[Stored]:
        """The same rows, noting where the database breaks off; the error reaches the caller, who may go on."""
        try:
            with self._database.translated():
                yield from stored
        except BROKEN:
            self.broken = True
            raise

    def others(self) -> Iterator[StoredLog]:
        """The jobs that were not begun, each read by itself; one that cannot be is damaged."""
        names: dict[int, str] = {}
        for query in NAMES:
            names |= self._names(query)
        for number, name in sorted(names.items()):
            try:
                yield self._one(number)
            except BROKEN as problem:
                yield StoredLog(name, EMPTY_HEAD, 0, (), f"the job's row or its log cannot be read: {problem.reason}")

    def _names(self, query: Select[Any]) -> dict[int, str]:
        names: dict[int, str] = {}
        try:
            with self._database.lenient() as connection:
                for row in connection.execute(query.where(jobs.c.id > self.last)):
                    names[row.id] = readable(row.job)
        except BROKEN:
            pass  # what was read until then is there, and the damage is named by `damage`
        return names

    def _one(self, number: int) -> StoredLog:
        with self._database.lenient() as connection:
            row = connection.execute(select(jobs).where(jobs.c.id == number)).one()
            walked = connection.execute(FROM_TAIL, {"tail": row.tail, "after": ALL}).all()
        return _log(row, [Stored._make(each[1:]) for each in walked])


def _log(row: Any, stored: Iterable[Stored], links: Sequence[tuple[int, str]] = ()) -> StoredLog:
    problem = wrong(row)
    head, listed = Head(row.sequence, row.chain), None if problem else job_row(row)
    return StoredLog(readable(row.job), head, row.fence, stored, problem, listed, links=links)


def _linked(tail: int, placed: Iterable[tuple[Any, ...]], links: list[tuple[int, str]]) -> Iterator[Stored]:
    """What is stored of appends that come with their ids and links; a link that leads elsewhere is noted in `links`."""
    before, last = None, 0
    for number, prev, *stored in placed:
        row = Stored._make(stored)
        if prev != before:
            links.append((row.first, f"the append there is linked to row {prev!r} of appends, and follows {before!r}"))
        before, last = number, row.last
        yield row
    if before is not None and before != tail:
        links.append((last, f"the log ends with row {before} of appends, and the job's row names {tail!r}"))
