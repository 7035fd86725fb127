"""The settings of a database: whether its commits last, and what its operator should know."""

from __future__ import annotations

from typing import NamedTuple

from .connection import connected
from .names import listening


class DatabaseSettings(NamedTuple):
    """What was found.

    name       the database, without a password
    settings   its own, as they hold for what this program writes
    lacking    what lets a crash undo an acknowledged commit; empty for nothing
    declared   whether that is permitted, by a setting of the database or the role
    notes      what else there is to know
    """

    name: str
    settings: dict[str, str]
    lacking: str
    declared: bool
    notes: list[str]


def standing(url: str) -> DatabaseSettings:
    """Examine a database. Errors: the store's."""
    with connected(url) as database, database.single() as connection:
        if (server := database.server) is None or (seen := server.standing) is None:
            names = ("journal_mode", "synchronous")
            settings = {name: str(connection.exec_driver_sql(f"PRAGMA {name}").scalar()) for name in names}
            frozen = database.file is not None and database.file.frozen
            notes = ["this process may read the file and not write it"] if frozen else []
            return DatabaseSettings(database.name, settings, "", False, notes)
    notes = []
    if seen.synchronous_commit != seen.commit:
        role = f"synchronous_commit is {seen.synchronous_commit} for this role or database"
        notes.append(f"{role}, and {seen.commit} for what this program writes")
    if seen.pooled:
        notes.append("a pooler is before the server: no statement is prepared, and each transaction sets what it needs")
        if listening(database.url) is None:
            notes.append("nobody is woken by it: add listen=HOST:PORT of the server to the URL, or wait longer")
    settings = {
        "fsync": seen.fsync,
        "full_page_writes": seen.full_page_writes,
        "synchronous_commit": seen.commit,
    }
    return DatabaseSettings(database.name, settings, seen.lacking, seen.durable == "no", notes)
