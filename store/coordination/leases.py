"""Leases in a database: who may work on which job, in the database's own time."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Select, and_, case, func, literal, not_, or_, select, tuple_, update

from ...fsm.limits import TENURES_STALLED_MAX
from ...fsm.ports import Caution, Claim, Head, ModelRef
from ..database.connection import Database
from ..database.tables import jobs as table
from .bells import ring
from .stalls import SPREAD, doubled, spread

LIVE = table.c.finish.is_(None)
TAKEN = ("id", "job", "fence", "sequence", "chain", "model", "stalled", "artifact")


class DatabaseLeases:
    """Leases as columns of the jobs' rows."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(
        self,
        worker: str,
        lease_ms: int,
        limit: int,
        jobs: Collection[str] | None = None,
        dead: Collection[str] = (),
        exclude: Collection[str] = (),
        caution: Caution | None = None,
        barred: Collection[ModelRef] = (),
    ) -> list[Claim]:
        now_ms = self._database.now_ms()
        free = or_(table.c.owner.is_(None), table.c.lease_until_ms <= now_ms, table.c.owner.in_(dead))
        left = *among(jobs), table.c.job.not_in(exclude), *beside(barred)
        query = select(table.c.id).where(LIVE, free, *left).order_by(table.c.id)
        queries = [query.limit(limit)] if caution is None else cautious(query, caution, worker, now_ms, limit)
        if self._database.sqlite and not self._any(queries):
            return []  # found out without the write lock, which others need
        with self._database.transaction("claim") as connection:
            # Rows that another worker is claiming at this moment are skipped, not waited for.
            chosen: list[int] = []
            for each in queries:
                if not chosen:
                    chosen += connection.scalars(each.with_for_update(skip_locked=True))
            tenure = {"fence": table.c.fence + 1, "owner": worker, "lease_until_ms": now_ms + lease_ms}
            claimed = (
                update(table)
                .where(table.c.id.in_(chosen))
                .values(tenure | judged(worker, now_ms, caution or Caution(0, 0)))
                .returning(*[table.c[name] for name in TAKEN])
            )
            rows = sorted(connection.execute(claimed), key=lambda row: row.id) if chosen else []
        return [
            Claim(row.job, row.fence, Head(row.sequence, row.chain), row.model, row.stalled, row.artifact)
            for row in rows
        ]

    def _any(self, queries: list[Select[tuple[int]]]) -> bool:
        with self._database.single() as connection:
            return any(connection.scalar(query) is not None for query in queries)

    def heartbeat(self, worker: str, lease_ms: int) -> frozenset[str]:
        held = update(table).where(table.c.id.in_(self._held(worker, None)))
        held = held.values(lease_until_ms=self._database.now_ms() + lease_ms)
        with self._database.transaction("heartbeat") as connection:
            return frozenset(connection.scalars(held.returning(table.c.job)))

    def release(self, worker: str, jobs: Collection[str] | None = None) -> None:
        held = update(table).where(table.c.id.in_(self._held(worker, jobs)))
        with self._database.transaction("release") as connection:
            given = connection.execute(held.values(owner=None, lease_until_ms=None, claim_after_ms=None))
            if given.rowcount:
                ring(connection)

    def owners(self) -> frozenset[str]:
        owned = select(table.c.owner).where(LIVE, table.c.owner.is_not(None)).distinct()
        with self._database.single() as connection:
            return frozenset(connection.scalars(owned))

    def waiting(
        self, jobs: Collection[str] | None, exclude: Collection[str], barred: Collection[ModelRef] = ()
    ) -> bool:
        # Ordered by id like the index of live jobs, so that the first entry of that index is the answer.
        left = *among(jobs), table.c.job.not_in(exclude), *beside(barred)
        live = select(table.c.id).where(LIVE, *left).order_by(table.c.id).limit(1)
        with self._database.single() as connection:
            return connection.scalar(live) is not None

    def _held(self, worker: str, jobs: Collection[str] | None) -> Select[tuple[int]]:
        """The ids of a worker's live jobs, locked in the one order that keeps waiting transactions from a deadlock."""
        held = select(table.c.id).where(LIVE, table.c.owner == worker, *among(jobs))
        return held.order_by(table.c.id).with_for_update()


def cautious(
    query: Select[tuple[int]], caution: Caution, worker: str, now_ms: ColumnElement[int], limit: int
) -> list[Select[tuple[int]]]:
    """The queries to try, one after the other until one finds a job: a suspect alone, else ordinary jobs.

    Known suspects are few and have an index, and so do jobs whose owner is gone, whose stall this claim will count.
    """
    stalls, mine = stalling(worker), table.c.owner == worker  # by a claim whose answer was lost
    ordinary = query.where(or_(and_(table.c.stalled == 0, not_(stalls)), mine)).limit(limit)
    if not caution.suspects:
        return [ordinary]
    due = or_(func.coalesce(table.c.claim_after_ms, 0) <= now_ms, mine, literal(caution.asked))
    owned = table.alias("owned")
    among_owned = table.c.id.in_(select(owned.c.id).where(owned.c.finish.is_(None), owned.c.owner.is_not(None)))
    known, new = query.where(table.c.stalled > 0, due), query.where(among_owned, stalls, table.c.stalled == 0)
    few = min(caution.suspects, limit)
    return [known.limit(few), new.limit(few), ordinary]


def stalling(worker: str) -> ColumnElement[bool]:
    """Whether a claim by `worker` counts a stall."""
    gone = and_(table.c.owner.is_not(None), table.c.owner != worker)
    counted = table.c.claimed_sequence.is_not(None)
    return and_(gone, counted, table.c.output <= func.coalesce(table.c.claimed_output, table.c.output))


def judged(worker: str, now_ms: ColumnElement[int], caution: Caution) -> dict[str, Any]:
    """What a claim finds out about the previous tenure, and what follows from that; see `stalls`."""
    delay_ms = caution.delay_ms
    stalled = case(
        (table.c.output > table.c.claimed_output, 0), (stalling(worker), table.c.stalled + 1), else_=table.c.stalled
    )  # fmt: skip
    delays = {count: delay_ms * doubled(count) for count in range(1, TENURES_STALLED_MAX)}
    delay = case(delays, value=stalled, else_=literal(delay_ms * doubled(TENURES_STALLED_MAX), BigInteger))
    later = now_ms + delay + delay * spread(table.c.id, table.c.fence + 1) // SPREAD
    return {
        "stalled": stalled,
        "claimed_output": table.c.output,
        "claimed_sequence": None if caution.asked else table.c.sequence,
        "claim_after_ms": case((stalled > 0, later), else_=None),
    }


def among(jobs: Collection[str] | None) -> list[ColumnElement[bool]]:
    """The condition that a job is one of these; none at all where there are no names."""
    return [] if jobs is None else [table.c.job.in_(jobs)]


def beside(barred: Collection[ModelRef]) -> list[ColumnElement[bool]]:
    """The condition that a job is of none of these models."""
    return [tuple_(table.c.model, table.c.artifact).not_in(list(barred))] if barred else []
