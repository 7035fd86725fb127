"""The database: where it is, its schema, and whether it answers."""

from __future__ import annotations

from dataclasses import dataclass

from .problem import Defect, Rejected, Transient


@dataclass(eq=False)
class SchemaMissing(Rejected):
    code = "schema_missing"
    says = "{database} holds no decodelog schema; make it with an upgrade, or name another database"
    database: str


@dataclass(eq=False)
class SchemaOutdated(Rejected):
    code = "schema_outdated"
    says = "{database} has schema {found}, and this program needs {needed}; upgrade the database"
    database: str
    found: str
    needed: str


@dataclass(eq=False)
class SchemaNewer(Rejected):
    """The database was upgraded by a later release: this one must not touch it."""

    code = "schema_newer"
    says = (
        "{database} has schema {found}, which is newer than {needed}, the last one this program knows; "
        "install the decodelog that upgraded it"
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
class FolderMissing(Rejected):
    """The folder that a SQLite file is to be in."""

    code = "folder_missing"
    says = "{database} cannot be opened: there is no folder {folder}; make it, or name another file"
    database: str
    folder: str


@dataclass(eq=False)
class LogLeftBehind(Rejected):
    """A new SQLite file is to be created where the write-ahead log of a vanished one still lies."""

    code = "log_left_behind"
    says = (
        "{database} was not created: {log} is the write-ahead log of a file that is gone, and would be applied to the "
        "new one; put that file back, or move its log away"
    )
    database: str
    log: str


@dataclass(eq=False)
class FileReadOnly(Rejected):
    """A SQLite file that this process may read and not write, by its rights or by the mount that it is on."""

    code = "file_read_only"
    says = (
        "{database} can be read but not written here: {reason}; give this process the right to write to the file and "
        "to its folder, on a disk that is mounted for writing"
    )
    database: str
    reason: str


@dataclass(eq=False)
class DatabaseDenied(Rejected):
    """A login that is refused, or a right that it lacks (PostgreSQL's classes 28 and 42501); a file's rights."""

    code = "database_denied"
    says = "{database} does not permit it: {reason}; grant the right that is missing, or connect as a user who has it"
    database: str
    reason: str


@dataclass(eq=False)
class DatabaseMissing(Rejected):
    """The PostgreSQL server answers, and has no database of that name."""

    code = "database_missing"
    says = "{database} is not there: {reason}; create it on the server, or name another one"
    database: str
    reason: str


@dataclass(eq=False)
class DatabasePooled(Rejected):
    """A pooler gave a transaction another server connection than the one that has its prepared statements."""

    code = "database_pooled"
    says = (
        "{database} is reached through a pooler that does not keep a session together: {reason}; leave "
        "prepare_threshold out of the URL, or name the server itself"
    )
    database: str
    reason: str


@dataclass(eq=False)
class DatabaseNotDurable(Rejected):
    """A crash of the server could undo acknowledged commits, so nothing is written there."""

    code = "database_not_durable"
    says = (
        "{database} can lose acknowledged commits in a crash: {reason}; turn that on, or declare that its content "
        "may be lost with ALTER DATABASE ... SET decodelog.durable = 'no'"
    )
    database: str
    reason: str


@dataclass(eq=False)
class DatabaseUnavailable(Transient):
    code = "database_unavailable"
    says = "{database} does not answer: {reason}; fix that and try again: nothing that was stored is stored twice"
    database: str
    reason: str


@dataclass(eq=False)
class DatabaseReadOnly(Transient):
    """A server that does not take writes (yet): a standby, or one in the middle of a failover."""

    code = "database_read_only"
    says = "{database} takes no writes: {reason}; point the URL at the primary, or wait for the failover to end"
    database: str
    reason: str


@dataclass(eq=False)
class DatabaseFull(Transient):
    """The disk that the database is on has no room left, or the database has a limit of its own."""

    code = "database_full"
    says = "{database} has no room: {reason}; make room and try again: nothing was half-written"
    database: str
    reason: str


@dataclass(eq=False)
class DatabaseExhausted(Transient):
    """Connections, memory or another resource of the server are used up (PostgreSQL's class 53)."""

    code = "database_exhausted"
    says = "{database} has run out of a resource: {reason}; run fewer processes on it, or raise the server's limit"
    database: str
    reason: str


@dataclass(eq=False)
class DatabaseTimeout(Transient):
    """The server ended a statement, a transaction or a session by a limit of time that is set for it."""

    code = "database_timeout"
    says = (
        "{database} cut the operation off at a time limit of its own: {reason}; try again, and raise that limit for "
        "this role if it happens again"
    )
    database: str
    reason: str


@dataclass(eq=False)
class DatabaseLocked(Transient):
    code = "database_locked"
    says = "another process holds {database} ({reason}); nothing was changed: try again, or end that process"
    database: str
    reason: str


@dataclass(eq=False)
class DatabaseMoved(Defect):
    """The database's name now leads to other files than the ones that this process writes to."""

    code = "database_moved"
    says = (
        "{database} is no longer the file that was opened: {reason}; nothing written after that counts: find out what "
        "removes or replaces it, and put it back or restore a backup"
    )
    database: str
    reason: str


@dataclass(eq=False)
class DatabaseFault(Defect):
    """The database refused a statement that this program makes: its tables are not what the schema says."""

    code = "database_fault"
    says = "{database} refused a statement: {reason}; check its schema, and restore a backup if that is damaged"
    database: str
    reason: str
