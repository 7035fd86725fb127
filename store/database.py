"""One database: its engine, its transactions, its clock, and its errors in this program's terms."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import psycopg
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper
from sqlalchemy import Engine, create_engine, event, exc, extract, func
from sqlalchemy import cast as sql_cast
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import BigInteger

from ..fsm.errors import (
    DatabaseFault,
    DatabaseFull,
    DatabaseLocked,
    DatabaseUnavailable,
    Problem,
    SchemaMissing,
    UnsupportedDatabase,
)
from ..fsm.points import Reached, unheard
from .driver import Driver

BUSY_TIMEOUT_MS = 10_000
WRITE_AHEAD_TRIES = 5
SQLITE_MIN = (3, 35, 0)  # the first with RETURNING
NO_ROOM = "53100"
READ_ONLY = "25006"  # a server that is not, or not yet, the one to write to: during a failover
REACHED = {"connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
           "tcp_user_timeout": 30_000}  # fmt: skip
"""Of PostgreSQL's driver, where the URL does not say otherwise: nobody waits for ever for a host that has vanished."""

_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_ENVIRONMENT = {
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,
}


class Database:
    """An engine whose every failure is a typed store error. Safe to use from several threads.

    at   told the points of `fsm.points` that are the store's
    """

    def __init__(self, url: URL, busy_timeout_ms: int, at: Reached = unheard) -> None:
        self.url = url
        self.at = at
        self.name = url.render_as_string(hide_password=True)
        self.sqlite = url.get_backend_name() == "sqlite"
        engines = sqlite_engines if self.sqlite else postgres_engines
        self._single, self._transactions = engines(url, busy_timeout_ms)
        if at is not unheard:
            watch(self._transactions, at)
        self.driver = Driver(self.name, self._transactions, self._problem, busy_timeout_ms / 1000)

    @contextmanager
    def single(self) -> Iterator[Connection]:
        """A connection on which every statement is a transaction of its own, committed when it ends."""
        with self.translated(), self._single.connect() as connection:
            yield connection

    @contextmanager
    def transaction(self, operation: str | None = None) -> Iterator[Connection]:
        """A transaction that is committed at the end, or leaves no trace; `operation` names its points.

        SQLite takes the write lock at its start: a transaction that turns to writing later is refused at once, however
        long the timeout, where another one has written meanwhile.
        """
        alone = self.driver.aside() if self.sqlite else nullcontext()
        engine = self._transactions
        if operation is not None and self.at is not unheard:
            engine = engine.execution_options(operation=operation)
            self.at(f"{operation}.begin")
        with alone, self.translated(), engine.begin() as connection:
            yield connection
        if operation is not None:
            self.at(f"{operation}.committed")

    @contextmanager
    def lenient(self) -> Iterator[Connection]:
        """A `single` connection on which text that is no UTF-8 has surrogates, where SQLite's driver would raise."""
        with self.single() as connection, self.surrogates(connection):
            yield connection

    @contextmanager
    def surrogates(self, connection: Connection) -> Iterator[None]:
        """Have text that is no UTF-8 read with surrogates."""
        if not self.sqlite:  # PostgreSQL stores no such text
            yield
            return
        driver = cast(sqlite3.Connection, connection.connection.dbapi_connection)
        driver.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
        try:
            yield
        finally:
            driver.text_factory = str

    @contextmanager
    def long_read(self) -> Iterator[Connection]:
        """A connection for reading rows that are fetched as they are needed; it keeps no one from writing."""
        with self.lenient() if self.sqlite else self.transaction() as connection:
            yield connection.execution_options(yield_per=1000)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn the drivers' errors into this program's."""
        try:
            yield
        except (exc.DBAPIError, exc.TimeoutError, sqlite3.Error, psycopg.Error) as error:
            if isinstance(error, exc.DBAPIError) and (error.connection_invalidated or read_only(error)):
                self.close()  # the other connections are as lost, and are made anew
            raise self._problem(error) from error

    def now_ms(self) -> ColumnElement[int]:
        """The database's clock, as an expression: ms since 1970."""
        if self.sqlite:
            return sql_cast((func.julianday("now") - 2440587.5) * 86_400_000, BigInteger)
        return sql_cast(extract("epoch", func.clock_timestamp()) * 1000, BigInteger)

    def write_ahead(self) -> None:
        """Have SQLite write ahead, which its file remembers; only for a database that is known to be this program's."""
        if not self.sqlite:
            return
        for _ in range(WRITE_AHEAD_TRIES):
            with suppress(DatabaseLocked), self.single() as connection:
                if connection.exec_driver_sql("PRAGMA journal_mode").scalar() != "wal":
                    connection.exec_driver_sql("PRAGMA journal_mode = WAL")
                return
            with self.transaction():
                pass  # The statement above waits for readers, and this for whoever writes.
        raise DatabaseLocked(self.name, "its journal mode cannot be changed while others write")

    def close(self) -> None:
        """Close the connections; later use makes new ones."""
        self.driver.close()
        self._single.dispose()
        self._transactions.dispose()

    def _problem(self, error: Exception) -> Problem:
        cause = error.orig if isinstance(error, exc.DBAPIError) and error.orig is not None else error
        reason = " ".join(str(cause).split())
        if isinstance(cause, sqlite3.Error):
            return self._sqlite_problem(getattr(cause, "sqlite_errorcode", 0) & 0xFF, reason)
        if isinstance(cause, psycopg.Error):
            return self._postgres_problem(cause, reason)
        if isinstance(cause, exc.TimeoutError):
            return DatabaseUnavailable(self.name, "every connection is in use")
        return DatabaseFault(self.name, reason)

    def _sqlite_problem(self, code: int, reason: str) -> Problem:
        if code in _LOCKED:
            return DatabaseLocked(self.name, reason)
        if code == sqlite3.SQLITE_FULL:
            return DatabaseFull(self.name, reason)
        if code == sqlite3.SQLITE_NOTADB:
            return UnsupportedDatabase(self.name, "the file is no SQLite database")
        if code in _ENVIRONMENT:
            return DatabaseUnavailable(self.name, reason)
        return DatabaseFault(self.name, reason)

    def _postgres_problem(self, error: psycopg.Error, reason: str) -> Problem:
        state = error.sqlstate or ""
        if state.startswith("40") or state == "55P03":  # serialization, deadlock; lock not available
            return DatabaseLocked(self.name, reason)
        if state == NO_ROOM:
            return DatabaseFull(self.name, reason)
        if state == READ_ONLY or isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return DatabaseUnavailable(self.name, reason)
        return DatabaseFault(self.name, reason)


def read_only(error: exc.DBAPIError) -> bool:
    """Whether the server that the connection leads to only reads."""
    return isinstance(error.orig, psycopg.Error) and error.orig.sqlstate == READ_ONLY


def watch(engine: Engine, at: Reached) -> None:
    """Have `at` told of each statement that an operation has executed, and of its commit."""

    @event.listens_for(engine, "after_cursor_execute")
    def executed(connection: Connection, *_: object) -> None:
        if operation := connection.get_execution_options().get("operation"):
            at(f"{operation}.executed")

    @event.listens_for(engine, "commit")
    def commit(connection: Connection) -> None:
        if operation := connection.get_execution_options().get("operation"):
            at(f"{operation}.commit")


def sqlite_engines(url: URL, busy_timeout_ms: int) -> tuple[Engine, Engine]:
    """One engine for single statements and one for transactions, over the same connections.

    A sync for every commit, and the driver's own way of beginning transactions off. Nothing here changes the file,
    which may be another program's.
    """
    engine = create_engine(url)

    @event.listens_for(engine, "connect")
    def connect(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {busy_timeout_ms:d}")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        # Bytes that a page gives up, also as rows move between pages, are overwritten: an erasure leaves none of them.
        connection.execute("PRAGMA secure_delete = ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        if not connection.get_execution_options().get("single"):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine.execution_options(single=True), engine


def postgres_engines(url: URL, busy_timeout_ms: int) -> tuple[Engine, Engine]:
    """One engine for single statements and one for transactions, each with connections of its own.

    Locks are waited for as patiently as in SQLite.
    """
    reached = {name: value for name, value in REACHED.items() if name not in url.query}
    single = create_engine(url, isolation_level="AUTOCOMMIT", pool_reset_on_return=None, connect_args=reached)
    transactions = create_engine(url, connect_args=reached)

    def connect(connection: psycopg.Connection[Any], record: object) -> None:
        # Every integer is a bigint: where the type follows the value, statements are planned anew as sequences grow.
        connection.adapters.register_dumper(int, Int8Dumper)
        connection.adapters.register_dumper(int, Int8BinaryDumper)
        connection.execute(f"SET lock_timeout = {busy_timeout_ms:d}")
        connection.commit()

    for engine in (single, transactions):
        event.listen(engine, "connect", connect)
    return single, transactions


@contextmanager
def connected(url: str, *, create: bool = False) -> Iterator[Database]:
    """A database for one task."""
    database = named(url, create=create)
    try:
        yield database
    finally:
        database.close()


def named(url: str, *, create: bool = False, busy_timeout_ms: int = BUSY_TIMEOUT_MS, at: Reached = unheard) -> Database:
    """The database that a URL names; a connection is made when it is used.

    A SQLite file that is not there is SchemaMissing, not created, unless `create` says so. Anything but a file of
    SQLite and a PostgreSQL database is UnsupportedDatabase.
    """
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError) as error:
        raise UnsupportedDatabase(url, "it is no database URL") from error
    if parsed.drivername in ("postgresql", "postgresql+psycopg"):
        return Database(parsed.set(drivername="postgresql+psycopg"), busy_timeout_ms, at)
    name = parsed.render_as_string(hide_password=True)
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise UnsupportedDatabase(name, f"there is no support for {parsed.drivername}")
    if sqlite3.sqlite_version_info < SQLITE_MIN:
        raise UnsupportedDatabase(name, f"SQLite is {sqlite3.sqlite_version}, older than 3.35")
    file = parsed.database or ":memory:"
    if file == ":memory:" or file.startswith("file:"):
        raise UnsupportedDatabase(name, "it is no plain file, and a database in memory would end with its connection")
    if Path(file).is_dir():
        raise UnsupportedDatabase(name, "it is a directory")
    if not create and not Path(file).exists():
        raise SchemaMissing(name)
    return Database(parsed, busy_timeout_ms, at)
