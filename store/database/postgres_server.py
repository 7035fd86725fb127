"""The server of a PostgreSQL database, as its connections find it: whether commits last, and whether there is a pooler.

A pooler that gives each transaction another server connection keeps neither prepared statements nor settings of a
session together. It is known by the number of the process that serves the connection: a pooler makes one up, so that
cancels come back to it. Behind one no statement is prepared, and what a session sets elsewhere every transaction sets.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import psycopg
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, Connection

from .names import LISTEN, PREPARE, prepare_threshold

REACHED = {"connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
           "tcp_user_timeout": 30_000}  # fmt: skip
"""Of PostgreSQL's driver, where the URL does not say otherwise: nobody waits for ever for a host that has vanished."""

DURABLE: Final = "decodelog.durable"
"""A setting that an administrator gives a database or a role: `no` declares that its content may be lost."""

KEEPING: Final = ("on", "remote_apply")
"""Values of `synchronous_commit` under which an answered commit survives the crash of any one server."""

FOUND: Final = f"""
SELECT pg_backend_pid(), current_setting('fsync'), current_setting('full_page_writes'),
    current_setting('synchronous_commit'), coalesce(current_setting('{DURABLE}', true), '')
"""
SETTLED: Final = """
SELECT set_config('synchronous_commit', %(commit)s, %(local)s), set_config('lock_timeout', %(patience)s, %(local)s)
"""


class ServerSettings(NamedTuple):
    """How a server was found.

    synchronous_commit   as the role and the database have it; this program's transactions have at least `on`
    durable    what an administrator has declared, empty for nothing
    pooled     whether a pooler is before it
    """

    fsync: str
    full_page_writes: str
    synchronous_commit: str
    durable: str
    pooled: bool

    @property
    def lacking(self) -> str:
        """The settings that let a crash undo an acknowledged commit and that no session can change; empty for none."""
        off = [name for name in ("fsync", "full_page_writes") if getattr(self, name) == "off"]
        return f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} off" if off else ""

    @property
    def unkept(self) -> str:
        """`lacking`, unless that is declared."""
        return "" if self.durable == "no" else self.lacking

    @property
    def commit(self) -> str:
        return self.synchronous_commit if self.synchronous_commit in KEEPING else KEEPING[0]


class PostgresServer:
    """One server by one URL; `standing` is how the newest connection found it, None before the first."""

    def __init__(self, url: URL, busy_timeout_ms: int) -> None:
        self.url = url
        self.standing: ServerSettings | None = None
        self._patience = str(busy_timeout_ms)

    @property
    def pooled(self) -> bool:
        return self.standing is not None and self.standing.pooled

    def engines(self) -> tuple[Engine, Engine]:
        """One engine for single statements and one for transactions, each with connections of its own.

        Locks are waited for as patiently as in SQLite.
        """
        reached = reach(self.url)
        url = self.url.difference_update_query([LISTEN, PREPARE])
        single = create_engine(url, isolation_level="AUTOCOMMIT", pool_reset_on_return=None, connect_args=reached)
        transactions = create_engine(url, connect_args=reached)
        for engine in (single, transactions):
            event.listen(engine, "connect", self._connect)
        event.listen(transactions, "begin", self._begin)
        return single, transactions

    def settings(self, local: bool) -> dict[str, object]:
        """Parameters of SETTLED: for this transaction, where `local`, else for the session."""
        commit = KEEPING[0] if self.standing is None else self.standing.commit
        return {"commit": commit, "patience": self._patience, "local": local}

    def _connect(self, connection: psycopg.Connection[Any], record: object) -> None:
        # Every integer is a bigint: where the type follows the value, statements are planned anew as sequences grow.
        connection.adapters.register_dumper(int, Int8Dumper)
        connection.adapters.register_dumper(int, Int8BinaryDumper)
        self.standing = found(connection)
        if self.standing.pooled and PREPARE not in self.url.query:
            connection.prepare_threshold = None
        if not self.standing.pooled:
            connection.execute(SETTLED, self.settings(local=False))
        connection.commit()

    def _begin(self, connection: Connection) -> None:
        if self.pooled:
            connection.exec_driver_sql(SETTLED, self.settings(local=True))


def found(connection: psycopg.Connection[Any]) -> ServerSettings:
    """How a new connection finds its server."""
    row = connection.execute(FOUND).fetchone()
    if row is None:
        raise psycopg.InternalError("the server says nothing about itself")
    pid, fsync, full_page_writes, synchronous_commit, durable = row
    return ServerSettings(fsync, full_page_writes, synchronous_commit, durable, pid != connection.info.backend_pid)


def reach(url: URL) -> dict[str, Any]:
    """The driver's parameters that the URL leaves open."""
    given: dict[str, Any] = {name: value for name, value in REACHED.items() if name not in url.query}
    if PREPARE in url.query:
        given[PREPARE] = prepare_threshold(url)
    return given
