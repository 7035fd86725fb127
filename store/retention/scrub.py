"""Scrub: have a database overwrite the bytes of deleted rows, as far as its readers let it."""

from __future__ import annotations

import time
from typing import Final

from sqlalchemy import text

from ..database.connection import Database

TRIES: Final = 10
PAUSE_S: Final = 0.2
BUSY_MS: Final = 50
"""How long SQLite may wait for a reader in one try: it holds the write lock meanwhile."""

NOW: Final = text("SELECT txid_current() % 4294967296")
"""A transaction's id, which is younger than any that has erased something."""

# Transactions of this database, prepared ones and replicas that may still see what was there before `now`. Of sessions
# of other roles one may only see that they are in a transaction.
OLDER: Final = text(
    """
    SELECT EXISTS (
        SELECT FROM pg_stat_activity a
        WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND (
            age(a.backend_xmin) > age(CAST(CAST(:now AS TEXT) AS XID))
            OR a.query = '<insufficient privilege>'
            AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.locktype = 'virtualxid')
        )
        UNION ALL SELECT FROM pg_prepared_xacts p
        WHERE p.database = current_database() AND age(p.transaction) > age(CAST(CAST(:now AS TEXT) AS XID))
        UNION ALL SELECT FROM pg_replication_slots s WHERE age(s.xmin) > age(CAST(CAST(:now AS TEXT) AS XID))
    )
    """
)


def scrub(database: Database) -> bool:
    """False where readers keep the bytes after some tries, `PAUSE_S` apart; nobody waits for the tries to end."""
    return _truncated(database) if database.sqlite else _vacuumed(database)


def _truncated(database: Database) -> bool:
    """Empty SQLite's write-ahead file."""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE_S)
        with database.driver.aside(), database.single() as connection:
            patience: int = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
            try:
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {BUSY_MS:d}")
                busy: int = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]
            finally:
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {patience:d}")
        if not busy:
            return True
    return False


def _vacuumed(database: Database) -> bool:
    """Vacuum PostgreSQL's tables once no transaction sees the old rows; if one still does, for what can be cleared."""
    with database.single() as connection:
        now: int = connection.execute(NOW).scalar_one()
        for attempt in range(TRIES):
            if attempt:
                time.sleep(PAUSE_S)
            if not (older := connection.execute(OLDER, {"now": now}).scalar_one()):
                break
        connection.exec_driver_sql("VACUUM appends, snapshots")
    return not older
