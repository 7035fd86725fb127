"""One append at a time, with its job's row locked: take it, or say what it found instead.

The slow path. `sqlite_log` and `postgres_log` take a whole batch at once where every job is as the batch expects it,
and use this for the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import insert, select, update
from sqlalchemy.engine import Connection

from ...fsm.errors import CorruptRecord
from ...fsm.ports import EMPTY_HEAD, AppendResult, Head, Outcome
from ..coordination.bells import ring
from ..database.connection import Database
from ..database.listing import sound_head
from ..database.tables import appends, jobs, refusals
from ..log.chain import verified
from ..log.snapshots import forget
from ..log.stored import Stored
from ..log.walk import FROM_TAIL
from .offer import Offer, Tenancy, refusal
from .refusals import RECORDED


class Place(NamedTuple):
    """Where a job's log ends: the ids of the job and of its newest append, and what it takes to append after it."""

    job_id: int
    tail: int
    job: Tenancy


def place(connection: Connection, job: str) -> Place | None:
    """Where a job's log ends, its row locked until the transaction ends; None where there is no such job."""
    columns = (jobs.c.id, jobs.c.tail, jobs.c.sequence, jobs.c.chain, jobs.c.fence, jobs.c.finish)
    row = connection.execute(select(*columns).where(jobs.c.job == job).with_for_update()).one_or_none()
    if row is None:
        return None
    job_id, tail, sequence, chain, fence, finish = row
    return Place(job_id, tail, Tenancy(Head(sequence, chain), fence, finish))


def walk(connection: Connection, tail: int, after: int) -> list[Stored]:
    """A job's appends in order, from an anchor at or before sequence `after`, or else the first, to the newest."""
    return [Stored._make(row[1:]) for row in connection.execute(FROM_TAIL, {"tail": tail, "after": after}).all()]


def surroundings(job: str, rows: Iterable[Stored], sequence: int) -> tuple[bytes | None, Stored | None]:
    """The log's digest at `sequence`, None where no append ends there, and the append that begins right after."""
    before = EMPTY_HEAD.chain if sequence == 0 else None
    for row, chain in verified(job, rows, sequence):
        if row.last == sequence:
            before = chain
        elif row.first > sequence:
            return before, row
    return before, None


def resolve(connection: Connection, database: Database, offered: Offer) -> AppendResult:
    """Append one offer, or find out why not; refusals that matter later are recorded."""
    append = offered.append
    if (found := place(connection, append.job)) is None:
        return AppendResult(Outcome.UNKNOWN, EMPTY_HEAD, f"there is no job {append.job}")
    sequence = append.expected.sequence
    try:
        sound_head(append.job, found.job.head)
        before, there = surroundings(append.job, walk(connection, found.tail, sequence), sequence)
        refused = refusal(offered, found.job, before, there)
    except CorruptRecord as problem:  # damage to one log does not stop the others from growing
        return AppendResult(Outcome.CONFLICT, found.job.head, str(problem))
    if refused is None:
        add(connection, database, found, offered)
        return offered.done(Outcome.APPENDED)
    if refused.outcome in RECORDED:
        record(connection, database, found.job_id, offered, refused)
    return refused


def add(connection: Connection, database: Database, found: Place, offered: Offer) -> None:
    """Add an append to a job whose row is locked."""
    append, row = offered.append, offered.row
    link = {"job_id": found.job_id, "prev": found.tail or None}
    tail = connection.scalar(insert(appends).values(link | row._asdict()).returning(appends.c.id))
    end: dict[str, Any] = {"status": append.status.value, "finish": append.finish, "output": append.output}
    if append.finish is not None:
        end |= {"owner": None, "lease_until_ms": None, "ended_ms": database.now_ms()}
    head = {"tail": tail, "sequence": row.last, "chain": offered.head.chain}
    connection.execute(update(jobs).where(jobs.c.id == found.job_id).values(head | end))
    if append.finish is not None:
        forget(connection, found.job_id)
        ring(connection)


def record(connection: Connection, database: Database, job_id: int, offered: Offer, refused: AppendResult) -> None:
    """Keep a refusal beside the log."""
    row = offered.row
    offer = {"job_id": job_id, "first": row.first, "fence": row.fence, "key": row.key}
    reason = {"outcome": refused.outcome.value, "reason": refused.detail, "refused_ms": database.now_ms()}
    connection.execute(insert(refusals).values(offer | reason))
