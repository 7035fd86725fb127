"""Integrity: what a database reports about itself, and rows in its tables that belong to no job.

Logs are proven by their chains (see `audit`). A damaged page, index or table is outside any chain, and may still hide
a job from a reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import Table, UniqueConstraint, func, inspect, select, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from ...fsm.errors import DatabaseFault, Problem, UnsupportedDatabase
from ...fsm.machine.events import RequestAdmitted
from ...fsm.reading.audit import Fault
from ..database.connection import Database
from ..database.listing import readable
from ..database.tables import appends, inbox, jobs, metadata, refusals, snapshots
from ..log.chain import WRONG_TYPE
from ..log.codec import decode

KIND = "database"
ORPHANED = "orphan"
CORRUPTED = ("XX001", "XX002")  # PostgreSQL's words for a page and an index that are not what was written
TOLD = 100
"""Faults of one kind that are told one by one: whoever has more restores a backup."""

AMCHECK = text(
    """
    SELECT c.oid, c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam
    WHERE i.indrelid = ANY(CAST(:tables AS regclass[])) AND a.amname = 'btree' AND i.indisvalid ORDER BY c.relname
    """
)
INVALID = text(
    """
    SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = ANY(CAST(:tables AS regclass[])) AND NOT (i.indisvalid AND i.indisready) ORDER BY c.relname
    """
)


def damage(database: Database) -> Iterator[Fault]:
    """Each thing that is wrong, of a job where one can be named. Raises only where the database does not answer."""
    checks: list[Callable[[Connection], Iterator[Fault]]] = [_schema, _orphans]
    checks.insert(0, _pages if database.sqlite else _indexes)
    for check in checks:
        try:
            with database.lenient() as connection:
                yield from check(connection)
        except (DatabaseFault, UnsupportedDatabase) as problem:
            yield Fault("", 0, KIND, problem.reason)


def _pages(connection: Connection) -> Iterator[Fault]:
    """What SQLite finds in its pages and indexes, and in the types of what lies there."""
    for (line,) in connection.exec_driver_sql(f"PRAGMA integrity_check({TOLD:d})"):
        yield from (Fault("", 0, KIND, readable(each)) for each in str(line).splitlines() if each != "ok")


def _indexes(connection: Connection) -> Iterator[Fault]:
    """What PostgreSQL says of the indexes; with its extension `amcheck`, whether each leads to every row."""
    given = {"tables": list(metadata.tables)}
    for name in connection.scalars(INVALID, given):
        yield Fault("", 0, KIND, f"index {name} is not valid")
    if not connection.scalar(text("SELECT count(*) FROM pg_extension WHERE extname = 'amcheck'")):
        return
    for number, name in connection.execute(AMCHECK, given).all():
        try:
            connection.execute(text("SELECT bt_index_check(CAST(:index AS oid), true)"), {"index": number})
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", "") not in CORRUPTED:
                return  # this role may not ask
            yield Fault("", 0, KIND, f"index {name}: {' '.join(str(error.orig).split())}")


def _schema(connection: Connection) -> Iterator[Fault]:
    """Where the tables are not what this program makes."""
    found = inspect(connection)
    for table in metadata.sorted_tables:
        if not found.has_table(table.name):
            yield Fault("", 0, KIND, f"there is no table {table.name}")
            continue
        there = {each["name"]: (each["nullable"], _kind(each["type"])) for each in found.get_columns(table.name)}
        for column in table.columns:
            if there.get(column.name) != (column.nullable, _kind(column.type)):
                yield Fault("", 0, KIND, f"column {column.name} of table {table.name} is not what was made")
        named = [*found.get_indexes(table.name), *found.get_unique_constraints(table.name)]
        wanted = {str(each.name) for each in table.indexes} | {str(each.name) for each in _uniques(table)}
        for name in sorted(wanted - {str(each["name"]) for each in named}):
            yield Fault("", 0, KIND, f"there is no index {name} of table {table.name}")


def _kind(kind: TypeEngine[Any]) -> type | None:
    """What a column holds, in Python's terms; None for a type that has none."""
    try:
        return kind.python_type
    except NotImplementedError:
        return None


def _uniques(table: Table) -> list[UniqueConstraint]:
    return [each for each in table.constraints if isinstance(each, UniqueConstraint)]


def _orphans(connection: Connection) -> Iterator[Fault]:
    """Rows of jobs that are not there."""
    for table in (appends, refusals, inbox, snapshots):
        homeless = table.c.job_id.not_in(select(jobs.c.id)) | table.c.job_id.is_(None)
        counted = (
            select(table.c.job_id, func.count().label("rows")).where(homeless).group_by(table.c.job_id).limit(TOLD)
        )
        for number, count in connection.execute(counted.order_by(table.c.job_id)).all():
            job = _admitted(connection, number) if table is appends else ""
            yield Fault(
                job, 0, ORPHANED, f"{count} rows of {table.name} are of job id {number!r}, which is not in jobs"
            )


def _admitted(connection: Connection, number: int) -> str:
    """The name that a log without a job's row says it is of; empty where it does not say it."""
    first = select(appends.c.payload, appends.c.key).where(appends.c.job_id == number, appends.c.first == 1)
    row = connection.execute(first.limit(1)).first()
    try:
        found = () if row is None else decode(row.payload, row.key, "", 1)
    except (Problem, *WRONG_TYPE):
        return ""
    names = [event.job for event in found if isinstance(event, RequestAdmitted)]
    return readable(names[0]) if names else ""
