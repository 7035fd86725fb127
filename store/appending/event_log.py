"""The log in a database: admission, appends, reading."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, func, insert, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from ...fsm.errors import CorruptRecord, DatabaseLocked, UnknownJob
from ...fsm.limits import SAFE_INTEGER_MAX
from ...fsm.machine.events import Event
from ...fsm.machine.states import Status
from ...fsm.ports import EMPTY_HEAD, Admission, Append, AppendResult, Durable, Head, JobRow, Outcome, Record
from ..coordination.bells import ring
from ..database.connection import Database
from ..database.listing import job_row, sound_head, sound_rows
from ..database.tables import jobs, refusals
from ..log.chain import records
from ..log.stored import Stored
from ..log.walk import FROM_HEAD
from .admission import admission, attached, output_max_of
from .offer import Offer, Tenancy, offer
from .refusals import Refusal
from .resolve import Place, add

ADMIT_TRIES = 3
PAGE = 1000

Appender = Callable[[list[Offer]], Durable]


class DatabaseLog:
    """The log over a database. `appender` is how that kind of database takes a batch."""

    def __init__(self, database: Database, appender: Appender) -> None:
        self._database = database
        self._appender = appender
        self.elsewhere = not database.sqlite

    def admit(
        self,
        job: str,
        identity: str,
        model: str,
        prompt: int,
        event: Event,
        idempotency_key: str | None,
        retain_ms: int | None = None,
        artifact: str = "",
    ) -> Admission:
        offered = admission(job, identity, event)
        made = {"job": job, "identity": identity, "model": model, "prompt": prompt, "idempotency_key": idempotency_key}
        made |= {"retain_ms": retain_ms, "artifact": artifact, "output_max": output_max_of(event)}
        for _ in range(ADMIT_TRIES):
            with self._database.transaction("admit") as connection:
                if (held := holder(connection, job, idempotency_key)) is not None:
                    return attached(job, identity, idempotency_key, *held)
                if self._make(connection, offered, made):
                    return Admission(job, created=True)
        raise DatabaseLocked(self._database.name, f"other submissions of job {job} come and go")

    def _make(self, connection: Connection, offered: Offer, made: dict[str, Any]) -> bool:
        """Insert the job and its first append; False where a submission elsewhere has just made one that clashes."""
        end = {"status": Status.ADMITTED.value, "output": 0, "sequence": 0, "chain": EMPTY_HEAD.chain, "tail": 0}
        values = made | end | {"fence": 0, "created_ms": self._database.now_ms()}
        try:
            with connection.begin_nested():
                job_id = connection.execute(insert(jobs).values(values).returning(jobs.c.id)).scalar_one()
        except IntegrityError:
            return False
        add(connection, self._database, Place(job_id, 0, Tenancy(EMPTY_HEAD, 0, None)), offered)
        ring(connection)
        return True

    def append(self, batch: Sequence[Append]) -> list[AppendResult]:
        return self.begin(batch)()

    def begin(self, batch: Sequence[Append]) -> Durable:
        return self._appender([offer(append) for append in batch]) if batch else list

    def read(self, job: str, after: int = 0) -> Iterator[Record]:
        head, rows = self._leading(job, after)
        return whole(job, rows, after, head)

    def follow(self, job: str, head: Head) -> Iterator[Record]:
        end, rows = self._leading(job, head.sequence)
        if head.sequence > end.sequence:
            raise CorruptRecord(job, end.sequence, f"the log ends there, and does not reach event {head.sequence}")
        return whole(job, [row for row in rows if row.last > head.sequence], head.sequence, end, head)

    def _leading(self, job: str, after: int) -> tuple[Head, list[Stored]]:
        """The job's head, and the appends that lead there from sequence `after`, none where nothing is beyond it."""
        with self._database.single() as connection:
            found = connection.execute(FROM_HEAD, {"job": job, "after": after}).all()
        if not found:
            raise UnknownJob(job)
        _, sequence, _, _, _, chain, _ = found[0]
        return sound_head(job, Head(sequence, chain)), [Stored._make(row[1:]) for row in found[1:]]

    def row(self, job: str) -> JobRow:
        with self._database.lenient() as connection:
            row = connection.execute(select(jobs).where(jobs.c.job == job)).first()
        if row is None:
            raise UnknownJob(job)
        return job_row(row)

    def rows(self) -> list[JobRow]:
        with self._database.lenient() as connection:
            found = connection.execute(select(jobs).order_by(jobs.c.id))
            return list(sound_rows(found))

    def names(self, beginning: str = "", last: int | None = None) -> list[str]:
        query = select(jobs.c.job).where(func.substr(jobs.c.job, 1, len(beginning)) == beginning)
        with self._database.lenient() as connection:
            found = connection.scalars(query.order_by(jobs.c.id.desc()).limit(last)).all()
        return [name for name in reversed(found) if isinstance(name, str)]

    def pages(self, last: int | None = None, states: Collection[Status] = tuple(Status)) -> Iterator[list[JobRow]]:
        """All jobs in these states or the `last` newest, oldest first, a page at a time: each page is one read."""
        among = jobs.c.status.in_([status.value for status in states])
        after = self._before(last, among)
        while True:
            with self._database.lenient() as connection:
                query = select(jobs).where(jobs.c.id > after, among).order_by(jobs.c.id).limit(PAGE)
                found = connection.execute(query).all()
            if not found:
                return
            yield list(sound_rows(found))
            after = found[-1].id

    def count(self, states: Collection[Status] = tuple(Status)) -> int:
        """How many jobs there are in these states."""
        among = jobs.c.status.in_([status.value for status in states])
        with self._database.single() as connection:
            return connection.scalar(select(func.count()).select_from(jobs).where(among)) or 0

    def _before(self, last: int | None, among: ColumnElement[bool]) -> int:
        """The id after which the `last` newest of those jobs come."""
        if last is None:
            return -1
        with self._database.single() as connection:
            query = (
                select(jobs.c.id)
                .where(among)
                .order_by(jobs.c.id.desc())
                .offset(min(last, SAFE_INTEGER_MAX) - 1)
                .limit(1)
            )
            first = connection.scalar(query)
        return -1 if first is None else first - 1

    def refusals(self, job: str) -> list[Refusal]:
        """The recorded refusals of one job, oldest first."""
        columns = [column for column in refusals.c if column.name not in ("id", "job_id")]
        query = select(jobs.c.job, *columns).join_from(refusals, jobs).where(jobs.c.job == job).order_by(refusals.c.id)
        self.row(job)
        with self._database.single() as connection:
            return [Refusal(*row)._replace(outcome=Outcome(row.outcome)) for row in connection.execute(query)]


def holder(connection: Connection, job: str, idempotency_key: str | None) -> tuple[str, str, bool] | None:
    """The job and the identity that hold an idempotency key, or else the name, and whether its content is erased."""
    conditions = [jobs.c.job == job]
    if idempotency_key is not None:
        conditions.insert(0, jobs.c.idempotency_key == idempotency_key)
    for condition in conditions:
        row = connection.execute(select(jobs.c.job, jobs.c.identity, jobs.c.erased_ms).where(condition)).first()
        if row is not None:
            return row.job, row.identity, row.erased_ms is not None
    return None


def whole(job: str, rows: list[Stored], after: int, head: Head, before: Head | None = None) -> Iterator[Record]:
    """Decode rows (see `chain.records`), which follow `before` if given, and hold them to the job's row, `head`."""
    if not rows and after < head.sequence:
        raise CorruptRecord(job, head.sequence, "the newest append is missing")
    if not rows and before is not None and before != head:
        raise CorruptRecord(job, head.sequence, "the job's row has another digest there")
    newest = None
    for newest in records(job, rows, after, before):
        yield newest
    last = Head(newest.last, newest.chain) if newest is not None else Head(0, b"")
    if rows and last != head:
        raise CorruptRecord(job, min(last.sequence, head.sequence), "its end is not the head that the job's row names")
