"""Appending to PostgreSQL: the batch is one statement, one transaction and one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from sqlalchemy import select

from ...fsm.ports import AppendResult, Durable, Outcome
from ..database.connection import Database
from ..database.postgres_server import SETTLED
from ..database.tables import jobs
from .offer import JOBS_REMEMBERED, Offer
from .resolve import resolve

# Offers come in the order of their jobs' ids, and each looks its job up by itself. What waits for several rows locks
# them in this order, so that no two wait for each other; and no plan compares every offer with every job.
TAKE = """
WITH {settled}offered AS {firm}(
    SELECT offered.* FROM {beside}unnest(
        %(job_id)b::bigint[], %(sequence)b::bigint[], %(chain)b::bytea[], %(fence)b::bigint[],
        %(last)b::bigint[], %(key)b::bytea[], %(kept)b::bytea[], %(payload)b::bytea[],
        %(head)b::bytea[], %(status)b::text[], %(finish)b::text[], %(output)b::bigint[]
    ) WITH ORDINALITY AS offered (
        job_id, sequence, chain, fence, last, key, kept, payload, head, status, finish, output, place
    )
), held AS MATERIALIZED (
    SELECT offered.*, found.tail, nextval('appends_id_seq') AS id
    FROM offered CROSS JOIN LATERAL (
        SELECT jobs.tail FROM jobs
        WHERE jobs.id = offered.job_id AND jobs.sequence = offered.sequence AND jobs.chain = offered.chain
            AND jobs.fence = offered.fence AND jobs.finish IS NULL FOR UPDATE
    ) AS found
), added AS (
    INSERT INTO appends (id, job_id, prev, first, last, fence, key, chain, payload)
    SELECT id, job_id, tail, sequence + 1, last, fence, key, kept, payload FROM held
), moved AS (
    UPDATE jobs SET tail = held.id, sequence = held.last, chain = held.head, status = held.status,
        finish = held.finish, output = held.output,
        owner = CASE WHEN held.finish IS NULL THEN jobs.owner END,
        lease_until_ms = CASE WHEN held.finish IS NULL THEN jobs.lease_until_ms END,
        ended_ms = CASE WHEN held.finish IS NOT NULL THEN (extract(epoch from clock_timestamp()) * 1000)::bigint END
    FROM held WHERE jobs.id = held.job_id
), forgotten AS (
    DELETE FROM snapshots WHERE job_id = ANY (ARRAY(SELECT job_id FROM held WHERE finish IS NOT NULL))
)
SELECT place, CASE WHEN finish IS NOT NULL THEN pg_notify('decodelog', '') END FROM held
"""

# Behind a pooler nothing of a session holds from one transaction to the next: what it would set is set in here, and
# comes first, since every offer is read beside it.
TAKE_ALONE = TAKE.format(settled="", firm="", beside="")
TAKE_POOLED = TAKE.format(
    settled=f"settled AS MATERIALIZED ({SETTLED}), ", firm="MATERIALIZED ", beside="settled CROSS JOIN "
)

THERE = (Outcome.APPENDED, Outcome.DUPLICATE)


class PostgresAppender:
    """Takes every offer that finds its job as expected in one statement, then looks at each of the others.

    Remembers the ids of the jobs' rows while they run. Where these become too many it keeps those of the newest batch
    alone, since a job that another worker took over never appends here again.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ids: dict[str, int] = {}

    def __call__(self, offers: list[Offer]) -> Durable:
        # The whole append is one round trip, and all of that is waiting.
        return partial(self._append, offers)

    def _append(self, offers: list[Offer]) -> list[AppendResult]:
        results = [offered.done(Outcome.APPENDED) for offered in offers]
        ids = self._known(offers)
        for wave in waves(offers):
            wave.sort(key=lambda index: ids[offers[index].append.job])
            taken = self._take([offers[index] for index in wave], ids)
            for place, index in enumerate(wave, 1):
                if place not in taken:
                    with self._database.transaction("judge") as connection:
                        results[index] = resolve(connection, self._database, offers[index])
        for offered, result in zip(offers, results, strict=True):
            job = offered.append.job
            if offered.append.finish is None and result.outcome in THERE:
                self._ids[job] = ids[job]
            else:
                self._ids.pop(job, None)
        if len(self._ids) > JOBS_REMEMBERED:
            self._ids = {job: self._ids[job] for job in ids if job in self._ids}
        return results

    def _known(self, offers: list[Offer]) -> dict[str, int]:
        """The ids of the rows of these offers' jobs, 0 of a job that is not there."""
        ids = {offered.append.job: self._ids.get(offered.append.job, 0) for offered in offers}
        if new := [job for job, job_id in ids.items() if not job_id]:
            with self._database.single() as connection:
                found = connection.execute(select(jobs.c.job, jobs.c.id).where(jobs.c.job.in_(new)))
                ids |= {row.job: row.id for row in found}
        return ids

    def _take(self, offers: list[Offer], ids: dict[str, int]) -> set[int]:
        """Append the offers whose job is as they expect, one of each job at most; their places, from 1."""
        parameters: dict[str, object] = {
            "job_id": [ids[offered.append.job] for offered in offers],
            "sequence": [offered.append.expected.sequence for offered in offers],
            "chain": [offered.append.expected.chain for offered in offers],
            "fence": [offered.append.fence for offered in offers],
            "last": [offered.row.last for offered in offers],
            "key": [offered.row.key for offered in offers],
            "kept": [offered.row.chain for offered in offers],
            "payload": [offered.row.payload for offered in offers],
            "head": [offered.head.chain for offered in offers],
            "status": [offered.append.status.value for offered in offers],
            "finish": [offered.append.finish for offered in offers],
            "output": [offered.append.output for offered in offers],
        }
        self._database.at("append.begin")
        with self._database.single() as connection:
            self._database.keeps()
            server = self._database.server
            if server is not None and server.pooled:
                parameters |= server.settings(local=True)
                taken = {place for place, _ in connection.exec_driver_sql(TAKE_POOLED, parameters)}
            else:
                taken = {place for place, _ in connection.exec_driver_sql(TAKE_ALONE, parameters)}
        self._database.at("append.committed")
        return taken


def waves(offers: Iterable[Offer]) -> Iterator[list[int]]:
    """Indices of offers in order, cut before a second one of the same job: one statement changes a row once."""
    wave: list[int] = []
    seen: set[str] = set()
    for index, offered in enumerate(offers):
        if offered.append.job in seen:
            yield wave
            wave, seen = [], set()
        wave.append(index)
        seen.add(offered.append.job)
    if wave:
        yield wave
