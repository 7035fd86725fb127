"""The database: where it is, its schema, and whether it answers."""

from __future__ import annotations

from dataclasses import dataclass

from .problem import Defect, Rejected, Transient


@dataclass(eq=False)
class SchemaMissing(Rejected):
    code = "schema_missing"
    says = "{database} holds no decodelog schema; run `decodelog db upgrade`"
    database: str


@dataclass(eq=False)
class SchemaOutdated(Rejected):
    code = "schema_outdated"
    says = "{database} has schema {found}, and this program needs {needed}; run `decodelog db upgrade`"
    database: str
    found: str
    needed: str


@dataclass(eq=False)
class SchemaNewer(Rejected):
    """The database was upgraded by a later release: this one must not touch it."""

    code = "schema_newer"
    says = (
        "{database} has schema {found}, which is newer than {needed}, the last one this program knows; "
        "install the decodelog that ran `decodelog db upgrade` on it"
    )
    database: str
    found: str
    needed: str


@dataclass(eq=False)
class UnsupportedDatabase(Rejected):
    code = "unsupported_database"
    says = "{database} cannot be used: {reason}; name a database as sqlite:///file.db or postgresql://host/name"
    database: str
    reason: str


@dataclass(eq=False)
class DatabaseUnavailable(Transient):
    code = "database_unavailable"
    says = "{database} does not answer: {reason}; see to it and try again: what it already took is not taken twice"
    database: str
    reason: str


@dataclass(eq=False)
class DatabaseFull(Transient):
    """The disk that the database is on has no room left, or the database has a limit of its own."""

    code = "database_full"
    says = "{database} has no room: {reason}; make room and try again: nothing was written by half"
    database: str
    reason: str


@dataclass(eq=False)
class DatabaseLocked(Transient):
    code = "database_locked"
    says = "another process holds {database} ({reason}); nothing was changed: try again, or end that process"
    database: str
    reason: str


@dataclass(eq=False)
class DatabaseFault(Defect):
    """The database refused a statement that this program makes: its tables are not what the schema says."""

    code = "database_fault"
    says = "{database} refused a statement: {reason}; run `decodelog db check`, and restore a backup if it fails"
    database: str
    reason: str
