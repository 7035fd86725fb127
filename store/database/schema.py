"""The schema of a database: whether it is the one this program needs, and making it so.

Checking reads one row; Alembic and the migrations are loaded only to upgrade.
"""

from __future__ import annotations

from importlib.resources import files

from sqlalchemy import inspect, text
from sqlalchemy.engine import Connection

from ...fsm.errors import SchemaMissing, SchemaNewer, SchemaOutdated
from .connection import Database, connected

REVISIONS = ("0001",)
"""Every revision of the schema, oldest first; a test holds them equal to the migrations."""

HEAD = REVISIONS[-1]

UPGRADE_LOCK = 0x6465636F6465  # number of the advisory lock that two upgrades cannot hold at once


def found(connection: Connection) -> str | None:
    """The revision that the database says it has, None where it says nothing."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def required(database: Database, connection: Connection) -> None:
    """Raise SchemaMissing, SchemaOutdated or SchemaNewer unless the schema is the one this program needs."""
    revision = found(connection)
    if revision is None:
        raise SchemaMissing(database.name)
    if revision not in REVISIONS:
        raise SchemaNewer(database.name, revision, HEAD)
    if revision != HEAD:
        raise SchemaOutdated(database.name, revision, HEAD)


def check(url: str) -> str:
    """The revision of the database, where it is the one this program needs; else a typed error."""
    with connected(url) as database, database.single() as connection:
        required(database, connection)
    return HEAD


def current(url: str) -> str | None:
    """The revision of the database, None where it holds no schema."""
    with connected(url) as database, database.single() as connection:
        return found(connection)


def upgrade(url: str) -> str:
    """Bring the database to this program's schema, creating a SQLite file where there is none; returns the revision.

    All in one transaction that only one process can be in: a failure leaves everything as it was, and upgrading what
    is up to date changes nothing. A SQLite file is switched to a write-ahead log. A schema of a later release is
    SchemaNewer.
    """
    from alembic import command
    from alembic.config import Config

    with connected(url, create=True) as database:
        with database.transaction() as connection:
            if not database.sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": UPGRADE_LOCK})
            revision = found(connection)
            if revision is not None and revision not in REVISIONS:
                raise SchemaNewer(database.name, revision, HEAD)
            config = Config(attributes={"connection": connection})
            config.set_main_option("script_location", scripts().replace("%", "%%"))
            command.upgrade(config, "head")
        database.write_ahead()
    return HEAD


def scripts() -> str:
    """The folder of the migrations, which are installed beside this package."""
    return str(files("decodelog.migrations"))
