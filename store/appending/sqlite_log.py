"""Appending to SQLite: the batch is one transaction and one sync, in two statements over all of its rows."""

from __future__ import annotations

import sqlite3
from functools import partial
from typing import Any

from ...fsm.machine.states import Status
from ...fsm.ports import AppendResult, Durable, Outcome
from ..database.connection import Database
from .offer import JOBS_REMEMBERED, Offer
from .resolve import resolve

_WHERE = "WHERE id = ? AND tail = ? AND sequence = ? AND chain = ? AND fence = ? AND finish IS NULL"
NOW_MS = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
MOVE = f"UPDATE jobs SET tail = ?, sequence = ?, chain = ?, status = ?, output = ? {_WHERE}"
END = (
    "UPDATE jobs SET tail = ?, sequence = ?, chain = ?, status = ?, output = ?, finish = ?, "
    f"owner = NULL, lease_until_ms = NULL, ended_ms = {NOW_MS} {_WHERE}"
)
FORGET = "DELETE FROM snapshots WHERE job_id = ?"
ADD = (
    "INSERT INTO appends (id, job_id, prev, first, last, fence, key, chain, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)

APPENDED = Outcome.APPENDED  # an enum finds its members by way of Python code, and their values too
_TEXT = {status: status.value for status in Status}

Ends = dict[str, tuple[int, int]]
"""Job -> its row's id and the id of its newest append."""


class Unexpected(Exception):
    """A job is not as the batch expects it."""


class SqliteAppender:
    """Takes a batch whole where every job is as expected, else offer by offer in another transaction.

    Remembers where the logs that it appends to end; of too many, only those of the newest batch. A stale entry only
    costs time: the statement compares it with the job's row.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._at = database.at
        self._ends: Ends = {}

    def __call__(self, offers: list[Offer]) -> Durable:
        """Execute the batch; what is left is to commit it, with the sync."""
        self._at("append.begin")
        transaction = self._database.driver.begin()
        try:
            self._at("append.executed")
            with transaction as cursor:
                ends = self._take(cursor, offers)
        except Unexpected:
            for append, _, _ in offers:
                self._ends.pop(append.job, None)
            return partial(self._resolve, offers)

        def commit() -> list[AppendResult]:
            self._at("append.commit")
            transaction.commit()
            self._at("append.committed")
            for append, _, _ in offers:
                if append.finish is not None:
                    self._ends.pop(append.job, None)
                else:
                    self._ends[append.job] = ends[append.job]
            if len(self._ends) > JOBS_REMEMBERED:
                self._ends = {job: self._ends[job] for job in ends if job in self._ends}
            return [AppendResult(APPENDED, head) for _, _, head in offers]

        return commit

    def _resolve(self, offers: list[Offer]) -> list[AppendResult]:
        with self._database.transaction("judge") as connection:
            return [resolve(connection, self._database, offered) for offered in offers]

    def _take(self, cursor: sqlite3.Cursor, offers: list[Offer]) -> Ends:
        """Append all offers, and say where their logs end now; Unexpected where one cannot be."""
        ends = self._known(cursor, offers)
        added = [(ends[append.job][0], ends[append.job][1], *row) for append, row, _ in offers]
        # The write lock is ours, so the ids after the first one that SQLite gives are free.
        cursor.execute(ADD, (None, *added[0]))
        self._at("append.executed")
        first = cursor.lastrowid or 0
        if len(added) > 1:
            cursor.executemany(ADD, [(tail, *row) for tail, row in enumerate(added[1:], first + 1)])
            self._at("append.executed")
        moved: list[tuple[Any, ...]] = []
        ended: list[tuple[Any, ...]] = []
        for tail, (append, _, head) in enumerate(offers, first):
            job_id, prev = ends[append.job]
            after = (tail, head.sequence, head.chain, _TEXT[append.status], append.output)
            before = (job_id, prev, append.expected.sequence, append.expected.chain, append.fence)
            if append.finish is None:
                moved.append(after + before)
            else:
                ended.append((*after, append.finish, *before))
            ends[append.job] = (job_id, tail)
        changed = 0
        for sql, rows in ((MOVE, moved), (END, ended)):
            if rows:
                changed += cursor.executemany(sql, rows).rowcount
                self._at("append.executed")
        if changed < len(offers):
            raise Unexpected
        if ended:
            cursor.executemany(FORGET, [ends[append.job][:1] for append, _, _ in offers if append.finish is not None])
            self._at("append.executed")
        return ends

    def _known(self, cursor: sqlite3.Cursor, offers: list[Offer]) -> Ends:
        """Where the logs of these offers end, from memory or from the job's row; Unexpected where one is missing."""
        ends: Ends = {}
        for offered in offers:
            job = offered.append.job
            if job in ends:
                raise Unexpected  # its second append follows on the first
            if (end := self._ends.get(job)) is None:
                end = cursor.execute("SELECT id, tail FROM jobs WHERE job = ?", (job,)).fetchone()
                if end is None:
                    raise Unexpected
            ends[job] = end
        return ends
