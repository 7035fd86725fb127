"""Translates drivers' errors: one class for each cause, with what to do about that cause."""

from __future__ import annotations

import re
import sqlite3
from typing import Final

import psycopg
from sqlalchemy import exc

from ...fsm.errors import (
    DatabaseDenied,
    DatabaseExhausted,
    DatabaseFault,
    DatabaseFull,
    DatabaseLocked,
    DatabaseMissing,
    DatabasePooled,
    DatabaseReadOnly,
    DatabaseTimeout,
    DatabaseUnavailable,
    Problem,
    UnsupportedDatabase,
)
from ...fsm.errors.redaction import HIDDEN
from .sqlite_file import SqliteFile

SECRET_MIN = 3  # characters: a shorter password cannot be told from the words around it

Kind = type[DatabaseFault] | type[DatabaseUnavailable] | type[UnsupportedDatabase] | type[DatabaseDenied] | (
    type[DatabaseMissing] | type[DatabasePooled] | type[DatabaseLocked] | type[DatabaseFull] | type[DatabaseExhausted]
    | type[DatabaseReadOnly] | type[DatabaseTimeout]
)  # fmt: skip

_SQLITE: Final[dict[int, Kind]] = {
    sqlite3.SQLITE_BUSY: DatabaseLocked,
    sqlite3.SQLITE_LOCKED: DatabaseLocked,
    sqlite3.SQLITE_FULL: DatabaseFull,
    sqlite3.SQLITE_AUTH: DatabaseUnavailable,
    sqlite3.SQLITE_CANTOPEN: DatabaseUnavailable,
    sqlite3.SQLITE_IOERR: DatabaseUnavailable,
    sqlite3.SQLITE_NOLFS: DatabaseUnavailable,
    sqlite3.SQLITE_NOMEM: DatabaseUnavailable,
    sqlite3.SQLITE_PERM: DatabaseUnavailable,
    sqlite3.SQLITE_PROTOCOL: DatabaseUnavailable,
}

_POSTGRES: Final[dict[str, Kind]] = {
    "08": DatabaseUnavailable,
    "25006": DatabaseReadOnly,
    "25P03": DatabaseTimeout,  # idle in a transaction
    "25P04": DatabaseTimeout,  # transaction_timeout
    "26000": DatabasePooled,  # a prepared statement that is not there
    "28": DatabaseDenied,
    "3D000": DatabaseMissing,
    "3F000": DatabaseDenied,  # no schema that this role may create in
    "40": DatabaseLocked,  # serialization, deadlock
    "42501": DatabaseDenied,
    "42P05": DatabasePooled,  # a prepared statement that is there already
    "53": DatabaseExhausted,
    "53100": DatabaseFull,
    "55P03": DatabaseLocked,  # lock_timeout
    "57014": DatabaseTimeout,  # statement_timeout, or somebody's cancel
    "57P0": DatabaseUnavailable,  # shutting down, crashed, starting
    "57P05": DatabaseTimeout,  # idle session
    "58": DatabaseUnavailable,
}
"""SQLSTATE, or how it begins; the longest one that fits holds."""

# Where it gets no connection the driver gives no SQLSTATE, only words. Words of another language are not recognised,
# and the error is then that the server is unavailable.
_NOT_CONNECTED: Final[tuple[tuple[re.Pattern[str], Kind], ...]] = tuple(
    (re.compile(words), kind)
    for words, kind in (
        (r"too many (clients|connections)|connection slots are reserved|max_client_conn", DatabaseExhausted),
        (r"invalid [\w \"]*(value|option|port number)", UnsupportedDatabase),
        (r"database \".*\" does not exist|no such database", DatabaseMissing),
        (r"authentication failed|no password supplied|no pg_hba.conf entry|no such user"
         r"|role \".*\" (does not exist|is not permitted)|permission denied for database", DatabaseDenied),
    )
)  # fmt: skip


class Translator:
    """Turns the errors of one database's drivers into this program's. Passwords of its URL stay out of the reasons."""

    def __init__(self, name: str, secrets: tuple[str, ...] = (), file: SqliteFile | None = None) -> None:
        self._name = name
        self._secrets = tuple(secret for secret in secrets if len(secret) >= SECRET_MIN)
        self._file = file

    def __call__(self, error: Exception) -> Problem:
        cause = error.orig if isinstance(error, exc.DBAPIError) and error.orig is not None else error
        reason = " ".join(str(cause).split())
        for secret in self._secrets:
            reason = reason.replace(secret, HIDDEN)
        if isinstance(cause, sqlite3.Error):
            return self._sqlite(getattr(cause, "sqlite_errorcode", 0) & 0xFF, reason)
        if isinstance(cause, psycopg.Error):
            return postgres_kind(cause, reason)(self._name, reason)
        if isinstance(cause, exc.TimeoutError):
            return DatabaseUnavailable(self._name, "every connection is in use")
        return DatabaseFault(self._name, reason)

    def _sqlite(self, code: int, reason: str) -> Problem:
        if self._file is not None and (problem := self._file.problem(code, reason)) is not None:
            return problem
        if code == sqlite3.SQLITE_NOTADB:
            return UnsupportedDatabase(self._name, "the file is no SQLite database")
        return _SQLITE.get(code, DatabaseFault)(self._name, reason)


def postgres_kind(error: psycopg.Error, reason: str) -> Kind:
    """The class of an error of PostgreSQL, of its driver, or of a pooler before it."""
    state = error.sqlstate or ""
    for length in range(len(state), 1, -1):
        if (kind := _POSTGRES.get(state[:length])) is not None:
            return kind
    if not state:
        for words, kind in _NOT_CONNECTED:
            if words.search(reason):
                return kind
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return DatabaseUnavailable
    elif isinstance(error, psycopg.OperationalError):
        return DatabaseUnavailable
    return DatabaseFault
