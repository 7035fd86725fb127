"""Opening a store: from a URL to a log, leases and an inbox over one database."""

from __future__ import annotations

from ..fsm.failpoints import Reached, unheard
from ..fsm.ports import Bell, Clock
from .appending.event_log import DatabaseLog
from .appending.postgres_log import PostgresAppender
from .appending.sqlite_log import SqliteAppender
from .archive.restore import DatabaseRestore
from .coordination.bells import bell_of
from .coordination.inbox import DatabaseInbox
from .coordination.leases import DatabaseLeases
from .coordination.models import DatabaseModels
from .database.connection import BUSY_TIMEOUT_MS, Database, named
from .database.schema import required
from .log.snapshots import DatabaseSnapshots
from .memory.log import MemoryStore, still
from .reading.showing import DatabaseRows
from .retention.lifetime import DatabaseLifetime

MEMORY = "memory://"


class DatabaseStore(
    DatabaseLog, DatabaseRows, DatabaseSnapshots, DatabaseRestore, DatabaseLeases, DatabaseInbox, DatabaseModels,
    DatabaseLifetime,
):  # fmt: skip
    """A store over one database. Safe to use from several threads, and from any number of processes."""

    def __init__(self, database: Database) -> None:
        appender = SqliteAppender(database) if database.sqlite else PostgresAppender(database)
        super().__init__(database, appender)

    def bell(self) -> Bell:
        return bell_of(self._database)

    def close(self) -> None:
        self._database.close()


def open_store(
    url: str, *, clock: Clock = still, busy_timeout_ms: int = BUSY_TIMEOUT_MS, at: Reached = unheard
) -> DatabaseStore | MemoryStore:
    """Open `sqlite:///file.db`, `postgresql://host/name`, or `memory://`, a new store that ends with this process.

    Nothing is created or upgraded: a database without this program's schema is SchemaMissing, SchemaOutdated or
    SchemaNewer. A database has its own clock; `clock` gives the time of one in memory. `busy_timeout_ms` is how long a
    statement waits for another process's lock before it is DatabaseLocked. `at` is called
    with the points that a database's operations reach (`fsm.failpoints`); a store in memory has none.
    """
    if url == MEMORY:
        return MemoryStore(clock)
    database = named(url, busy_timeout_ms=busy_timeout_ms, at=at)
    try:
        with database.single() as connection:
            required(database, connection)
        database.write_ahead()  # as the upgrade left it, unless someone has changed the file since
    except BaseException:
        database.close()
        raise
    return DatabaseStore(database)
