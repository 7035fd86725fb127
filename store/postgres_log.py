"""Appending to PostgreSQL: the batch is one statement, one transaction and one round trip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from ..fsm.ports import AppendResult, Durable, Outcome
from .database import Database
from .offer import Offer
from .settle import settle

# Rows are locked in one order by everything that waits for locks, so that no two wait for each other.
TAKE = """
WITH offered AS (
    SELECT * FROM unnest(
        %(job)b::text[], %(sequence)b::bigint[], %(chain)b::bytea[], %(fence)b::bigint[],
        %(last)b::bigint[], %(key)b::bytea[], %(kept)b::bytea[], %(payload)b::bytea[],
        %(head)b::bytea[], %(status)b::text[], %(finish)b::text[], %(output)b::bigint[]
    ) WITH ORDINALITY AS offered (
        job, sequence, chain, fence, last, key, kept, payload, head, status, finish, output, place
    )
), held AS MATERIALIZED (
    SELECT jobs.id AS job_id, jobs.tail, offered.*
    FROM offered JOIN jobs USING (job, sequence, chain, fence)
    WHERE jobs.finish IS NULL ORDER BY jobs.id FOR UPDATE OF jobs
), added AS (
    INSERT INTO appends (job_id, prev, first, last, fence, key, chain, payload)
    SELECT job_id, tail, sequence + 1, last, fence, key, kept, payload FROM held
    RETURNING job_id, id
), moved AS (
    UPDATE jobs SET tail = added.id, sequence = held.last, chain = held.head, status = held.status,
        finish = held.finish, output = held.output,
        owner = CASE WHEN held.finish IS NULL THEN jobs.owner END,
        lease_until_ms = CASE WHEN held.finish IS NULL THEN jobs.lease_until_ms END,
        ended_ms = CASE WHEN held.finish IS NOT NULL THEN (extract(epoch from clock_timestamp()) * 1000)::bigint END
    FROM held JOIN added USING (job_id) WHERE jobs.id = held.job_id
)
SELECT place FROM held
"""


class PostgresAppender:
    """Takes every offer that finds its job as expected in one statement, then looks at each of the others."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __call__(self, offers: list[Offer]) -> Durable:
        # One round trip is all there is to it, and all of it is a wait.
        return partial(self._append, offers)

    def _append(self, offers: list[Offer]) -> list[AppendResult]:
        results = [offered.done(Outcome.APPENDED) for offered in offers]
        for wave in waves(offers):
            taken = self._take([offers[index] for index in wave])
            for place, index in enumerate(wave, 1):
                if place not in taken:
                    with self._database.transaction("judge") as connection:
                        results[index] = settle(connection, self._database, offers[index])
        return results

    def _take(self, offers: list[Offer]) -> set[int]:
        """Append the offers whose job is as they expect, one of each job at most; their places, from 1."""
        parameters = {
            "job": [offered.append.job for offered in offers],
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
            taken = {place for (place,) in connection.exec_driver_sql(TAKE, parameters)}
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
