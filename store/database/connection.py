"""One database: its engine, its transactions, its clock, and its errors in this program's terms."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import cast

import psycopg
from sqlalchemy import Engine, create_engine, event, exc, extract, func
from sqlalchemy import cast as sql_cast
from sqlalchemy.engine import URL, Connection
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import BigInteger

from ...fsm.errors import DatabaseLocked, DatabaseNotDurable, UnsupportedDatabase
from ...fsm.errors.redaction import redacted_url
from ...fsm.failpoints import Reached, unheard
from .driver import Driver
from .faults import Translator
from .names import not_there, parsed
from .postgres_server import REACHED as REACHED
from .postgres_server import PostgresServer
from .sqlite_file import SqliteFile

BUSY_TIMEOUT_MS = 10_000
WRITE_AHEAD_TRIES = 5
SQLITE_MIN = (3, 35, 0)  # the first with RETURNING
READ_ONLY = "25006"  # a server that is not, or not yet, the one to write to: during a failover


class Database:
    """An engine whose every failure is a typed store error. Safe to use from several threads.

    name     its URL for messages, without a password
    at       told the points of `fsm.failpoints` that are the store's
    file     of SQLite, `server` of PostgreSQL; the other one is None
    """

    def __init__(self, url: URL, name: str, busy_timeout_ms: int, create: bool = False, at: Reached = unheard) -> None:
        self.url = url
        self.at = at
        self.name = name
        self.sqlite = url.get_backend_name() == "sqlite"
        self.file = SqliteFile(url.database or "", name, create) if self.sqlite else None
        self.server = None if self.sqlite else PostgresServer(url, busy_timeout_ms)
        self._problem = Translator(name, secrets(url), self.file)
        if self.file is not None:
            self._single, self._transactions = sqlite_engines(self.file, busy_timeout_ms)
        elif self.server is not None:
            self._single, self._transactions = self.server.engines()
        if at is not unheard:
            watch(self._transactions, at)
        there = self.there if self.sqlite else nothing
        self.driver = Driver(name, self._transactions, self._problem, busy_timeout_ms / 1000, there)

    def there(self) -> None:
        """DatabaseMoved where the database's name no longer leads to the files that this process writes."""
        if self.file is not None:
            self.file.check()

    def keeps(self) -> None:
        """DatabaseNotDurable where the server can lose acknowledged commits; known once it is connected to."""
        if self.server is not None and self.server.standing is not None and (lacking := self.server.standing.unkept):
            raise DatabaseNotDurable(self.name, lacking)

    @contextmanager
    def single(self) -> Iterator[Connection]:
        """A connection on which every statement is a transaction of its own, committed when it ends."""
        with self.translated(), self._single.connect() as connection:
            self.there()
            yield connection
        if self.file is not None and self.file.frozen:
            self._read_as_it_lay(self.file)

    def _read_as_it_lay(self, file: SqliteFile) -> None:
        """Make sure that what was read without a lock was written by nobody meanwhile. Errors: DatabaseLocked."""
        if file.unfrozen():
            self.close()
            raise DatabaseLocked(self.name, "it was written while it was read as it lay")

    @contextmanager
    def transaction(self, operation: str | None = None) -> Iterator[Connection]:
        """A transaction that is committed at the end, or leaves no trace; `operation` names its points.

        With a name it is refused where an acknowledged commit can be lost (DatabaseNotDurable). If it was written to a
        file that is gone from its place, DatabaseMoved is raised after it.

        SQLite takes the write lock at its start: a transaction that turns to writing later is refused at once, however
        long the timeout, where another one has written meanwhile.
        """
        alone = self.driver.aside() if self.sqlite else nullcontext()
        engine = self._transactions
        if operation is not None and self.at is not unheard:
            engine = engine.execution_options(operation=operation)
            self.at(f"{operation}.begin")
        with alone, self.translated(), engine.begin() as connection:
            if operation is not None:
                self.keeps()
            yield connection
        self.there()
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
                self.close()  # the other connections are lost as well, and are replaced
            raise self._problem(error) from error

    def now_ms(self) -> ColumnElement[int]:
        """The database's clock, as an expression: ms since 1970."""
        if self.sqlite:
            return sql_cast((func.julianday("now") - 2440587.5) * 86_400_000, BigInteger)
        return sql_cast(extract("epoch", func.clock_timestamp()) * 1000, BigInteger)

    def write_ahead(self) -> None:
        """Switch SQLite to a write-ahead log, which its file remembers; only for a database that is this program's."""
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
        if self.file is not None:
            self.file.forget_log()


def nothing() -> None:
    """Nothing to check: a server's database cannot be moved away while there are connections to it."""


def secrets(url: URL) -> tuple[str, ...]:
    """The parts of a URL that no message may contain."""
    options = (value for name, value in url.query.items() if redacted_url(f"?{name}=x") != f"?{name}=x")
    given = [url.password, *(each for value in options for each in ([value] if isinstance(value, str) else value))]
    return tuple(str(each) for each in given if each)


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


def sqlite_engines(file: SqliteFile, busy_timeout_ms: int) -> tuple[Engine, Engine]:
    """One engine for single statements and one for transactions, over the same connections.

    A sync for every commit, and the driver's own way of beginning transactions off. Nothing here changes the file,
    which may be another program's.
    """
    url = URL.create("sqlite", database=file.path)
    engine = create_engine(url, creator=lambda: file.connect(busy_timeout_ms / 1000))

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
    found, name = parsed(url), redacted_url(url)
    if found.get_backend_name() == "sqlite":
        if sqlite3.sqlite_version_info < SQLITE_MIN:
            raise UnsupportedDatabase(name, f"SQLite is {sqlite3.sqlite_version}, older than 3.35")
        if not create and (missing := not_there(name, found.database or "")) is not None:
            raise missing
    return Database(found, name, busy_timeout_ms, create, at)
