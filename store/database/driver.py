"""SQLite's own driver, for the appends: SQLAlchemy takes longer to begin a transaction than a small one lasts."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from types import TracebackType
from typing import cast

from sqlalchemy import Engine, exc
from sqlalchemy.pool import PoolProxiedConnection

from ...fsm.errors import DatabaseLocked, Problem

GIVE_WAY_S = 0.0002
FOREIGN = (sqlite3.Error, exc.DBAPIError, exc.TimeoutError)


class Driver:
    """Transactions one at a time, on a connection of `engine` that is kept for them. For any thread.

    Appends can follow each other without a gap, and SQLite has no queue: a waiter retries now and then, and gets
    the lock only by luck. So whatever else this process writes, its heartbeats first of all, goes `aside`.

    problem  translates a driver's error into this program's
    wait_s   how long one waits for the transaction before, at most
    there    called after each commit, before anybody is told of it; raises where the file is gone from its place
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        problem: Callable[[Exception], Problem],
        wait_s: float,
        there: Callable[[], None],
    ) -> None:
        self.problem = problem
        self.there = there
        self._name = name
        self._engine = engine
        self._wait_s = wait_s
        self._lock = Lock()
        self._counting = Lock()
        self._aside = 0
        self._connection: PoolProxiedConnection | None = None
        self._cursor: sqlite3.Cursor | None = None

    def begin(self) -> Transaction:
        """Wait for the one before and for SQLite's write lock, and hold them. Errors: the store's."""
        while self._aside:
            time.sleep(GIVE_WAY_S)
        self._acquire()
        try:
            if (cursor := self._cursor) is None:
                self._connection = self._engine.raw_connection()
                cursor = self._cursor = cast(sqlite3.Cursor, self._connection.cursor())
            cursor.execute("BEGIN IMMEDIATE")
        except FOREIGN as error:
            self.end(kept=False)
            raise self.problem(error) from error
        except BaseException:
            self.end(kept=False)
            raise
        return Transaction(self, cursor)

    def end(self, kept: bool) -> None:
        """Let the next one begin; a connection that is not kept is given back, which rolls back what it has open."""
        try:
            if not kept:
                self._give_back()
        finally:
            self._lock.release()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Keep appends out while something else is written; the next one gives way. Errors: DatabaseLocked."""
        with self._counting:
            self._aside += 1
        try:
            self._acquire()
        finally:
            with self._counting:
                self._aside -= 1
        try:
            yield
        finally:
            self._lock.release()

    def _acquire(self) -> None:
        if not self._lock.acquire(timeout=self._wait_s):
            raise DatabaseLocked(self._name, "an append of this process does not come to its end")

    def close(self) -> None:
        """Give the connection back; later use takes another."""
        with self.aside():
            self._give_back()

    def _give_back(self) -> None:
        connection, self._connection, self._cursor = self._connection, None, None
        if connection is not None:
            connection.close()


class Transaction:
    """A transaction that has begun. An error inside its `with` rolls it back, and so does dropping it.

    `commit` may be called on another thread.
    """

    def __init__(self, driver: Driver, cursor: sqlite3.Cursor) -> None:
        self.cursor = cursor
        self._driver: Driver | None = driver

    def __enter__(self) -> sqlite3.Cursor:
        return self.cursor

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self._end(error)

    def commit(self) -> None:
        """Make it durable, or leave no trace. Errors: the store's; DatabaseMoved where the file it went to is gone."""
        try:
            self.cursor.execute("COMMIT")
            if self._driver is not None:
                self._driver.there()
        except BaseException as error:
            self._end(error)
            raise
        self._end(None)

    def __del__(self) -> None:
        if self._driver is not None:
            self._end(None, kept=False)

    def _end(self, error: BaseException | None, kept: bool = True) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.end(kept=kept and error is None)
            if isinstance(error, FOREIGN):
                raise driver.problem(error) from error
