"""Bells: how a process notices that another one has changed the database.

PostgreSQL notifies its listeners. SQLite does not, but counts the changes of a file, and the count is read from shared
memory: polling it every few milliseconds costs next to nothing.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Condition
from typing import TYPE_CHECKING

import psycopg
from sqlalchemy import text
from sqlalchemy.engine import URL, Connection

from ...fsm.errors import Problem
from ...fsm.ports import Bell
from ..database.names import LISTEN, PREPARE, listening
from ..database.postgres_server import found, reach
from ..database.sqlite_file import SqliteFile

if TYPE_CHECKING:
    from ..database.connection import Database

CHANNEL = "decodelog"
RING = text(f"SELECT pg_notify('{CHANNEL}', '')")
LOOK_S = 0.01


class MemoryBell:
    """Rings where `rung`, guarded by `changed`, has grown."""

    def __init__(self, changed: Condition, rung: Callable[[], int]) -> None:
        self._changed, self._rung, self._heard = changed, rung, rung()

    def wait(self, seconds: float) -> bool:
        with self._changed:
            rang = self._changed.wait_for(lambda: self._rung() > self._heard, seconds)
            self._heard = self._rung()
        return rang

    def close(self) -> None: ...


class SqliteBell:
    """Rings for every change of the file by another connection."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._connection: sqlite3.Connection | None = None
        self._heard = self._changes(0)

    def wait(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while True:
            changes = self._changes(self._heard)
            if changes != self._heard:
                self._heard = changes
                return True
            if (left := until - time.monotonic()) <= 0:
                return False
            time.sleep(min(LOOK_S, left))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _changes(self, otherwise: int) -> int:
        """The file's count, or `otherwise` where it cannot be asked for."""
        try:
            if self._connection is None:
                self._connection = self._file.connect(LOOK_S)
            (changes,) = self._connection.execute("PRAGMA data_version").fetchone()
        except (sqlite3.Error, Problem):
            self.close()
            return otherwise
        return int(changes)


class PostgresBell:
    """Rings for each notification; after a lost connection it rings once, for what it may have missed.

    LISTEN does not work through a pooler: the listener would be whichever server connection had that transaction. So it
    does not ring there and waiters have to poll, unless the URL says where one can listen (`listen`).
    """

    def __init__(self, url: URL) -> None:
        there = listening(url)
        self._declared = there is not None
        self._deaf = False
        plain = (there or url).difference_update_query([LISTEN, PREPARE]).set(drivername="postgresql")
        self._url = plain.render_as_string(hide_password=False)
        self._reached = reach(plain)
        self._connection: psycopg.Connection | None = None
        with suppress(psycopg.Error):
            self._listen()

    def wait(self, seconds: float) -> bool:
        try:
            if self._deaf:
                time.sleep(seconds)
                return False
            if self._connection is None:
                self._listen()
                return not self._deaf
            return bool(list(self._connection.notifies(timeout=seconds, stop_after=1)))
        except psycopg.Error:
            self.close()
            time.sleep(seconds)
            return False

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def _listen(self) -> None:
        connection = psycopg.connect(self._url, autocommit=True, **self._reached)
        try:
            if not self._declared and found(connection).pooled:
                self._deaf = True
                connection.close()
                return
            connection.execute(f"LISTEN {CHANNEL}")
        except psycopg.Error:
            connection.close()
            raise
        self._connection = connection


def bell_of(database: Database) -> Bell:
    """A new bell for the caller, for what others do in a database."""
    if database.file is not None:
        return SqliteBell(SqliteFile(database.file.path, database.name))
    return PostgresBell(database.url)


def ring(connection: Connection) -> None:
    """Have the bells of a PostgreSQL database rung when the transaction commits; SQLite's need no help."""
    if connection.dialect.name == "postgresql":
        connection.execute(RING)
