"""Bells: how a process hears that another one has done something in the database.

PostgreSQL tells whoever listens. SQLite tells nobody, but counts the changes of a file, and the count is read from
memory that is shared: asking for it every few milliseconds costs next to nothing.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Condition
from typing import Any

import psycopg
from sqlalchemy import text
from sqlalchemy.engine import URL, Connection

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
    """Rings for every change of the file by another connection; `path` is the file's."""

    def __init__(self, path: str) -> None:
        self._path = path
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
                self._connection = sqlite3.connect(self._path, check_same_thread=False)
            (changes,) = self._connection.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error:
            self.close()
            return otherwise
        return int(changes)


class PostgresBell:
    """Rings where somebody has notified; after a lost connection it rings once, for what it may have missed."""

    def __init__(self, url: URL, reached: Mapping[str, int]) -> None:
        """`reached` says how long a host that has vanished is waited for, as the driver's parameters."""
        self._url = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._reached: dict[str, Any] = {name: value for name, value in reached.items() if name not in url.query}
        self._connection: psycopg.Connection | None = None
        with suppress(psycopg.Error):
            self._listen()

    def wait(self, seconds: float) -> bool:
        try:
            if self._connection is None:
                self._listen()
                return True
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
            connection.execute(f"LISTEN {CHANNEL}")
        except psycopg.Error:
            connection.close()
            raise
        self._connection = connection


def ring(connection: Connection) -> None:
    """Have the bells of a PostgreSQL database rung when the transaction commits; SQLite's need no help."""
    if connection.dialect.name == "postgresql":
        connection.execute(RING)
