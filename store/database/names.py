"""Parses the URL of a database: anything else is refused with the reason, before anything is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo
from sqlalchemy import exc
from sqlalchemy.engine import URL, make_url

from ...fsm.errors import FolderMissing, Problem, SchemaMissing, UnsupportedDatabase
from ...fsm.errors.redaction import redacted_url, unreadable_url

SQLITE: Final = ("sqlite", "sqlite+pysqlite")
POSTGRES: Final = ("postgresql", "postgresql+psycopg")
NAME_BYTES_MAX: Final = 63
"""Of a name on a PostgreSQL server: what is longer is cut off there, and may then be another one's."""

FILE_BYTES_MAX, PATH_BYTES_MAX = 240, 500
"""Of a SQLite file: it has others beside it whose names are longer, and SQLite takes no path above 512 bytes."""

LISTEN, PREPARE = "listen", "prepare_threshold"
"""Options of this program's own: where to listen for notifications; after how many runs a statement is prepared."""

NEVER: Final = "none"
_NUMBERS: Final = {"connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count",
                   "tcp_user_timeout"}  # fmt: skip


def parsed(url: str) -> URL:
    """The URL of a SQLite file or of a PostgreSQL database. Errors: UnsupportedDatabase.

    SQLite takes its file's name as it is written, percent signs and all, and no options.
    """
    scheme, mark, rest = url.partition("://")
    if mark and scheme in SQLITE:
        return URL.create("sqlite", database=_sqlite_path(url, rest))
    try:
        found = make_url(url)
    except (exc.ArgumentError, ValueError) as error:
        reason = "it is no database URL (in a password write @ as %40, : as %3A and / as %2F)"
        raise UnsupportedDatabase(unreadable_url(url), reason if mark else "it is no database URL") from error
    name = redacted_url(url)
    if found.drivername not in POSTGRES:
        raise UnsupportedDatabase(name, f"there is no support for {found.drivername}")
    if "@" in (found.host or ""):
        raise UnsupportedDatabase(unreadable_url(url), "its host has an @; in a password write @ as %40")
    for what, text in (("user", found.username), ("database", found.database)):
        if len((text or "").encode(errors="surrogatepass")) > NAME_BYTES_MAX:
            raise UnsupportedDatabase(name, f"the name of its {what} is longer than {NAME_BYTES_MAX} bytes")
    _check_options(name, found.query)
    return found.set(drivername="postgresql+psycopg")


def listening(url: URL) -> URL | None:
    """Where the URL says that one can listen: the same database by way of `listen`; None where it says nothing."""
    where = url.query.get(LISTEN)
    if not isinstance(where, str):
        return None
    host, colon, port = where.rpartition(":")
    if not (colon and port.isdecimal()):
        host, port = where, ""
    query = {name: value for name, value in url.query.items() if name not in (LISTEN, PREPARE, "host", "port")}
    folder = host.startswith("/")  # of sockets
    return URL.create(
        url.drivername,
        url.username,
        url.password,
        None if folder else host.strip("[]"),
        int(port) if port else None,
        url.database,
        query | {"host": host} if folder else query,
    )


def prepare_threshold(url: URL) -> int | None:
    """After how many runs the URL has a statement prepared; None: never. KeyError where it says nothing."""
    text = url.query[PREPARE]
    return None if text == NEVER else int(str(text))


def _check_options(name: str, query: Mapping[str, object]) -> None:
    for option, value in query.items():
        if option == LISTEN:
            good = isinstance(value, str) and bool(value)
        elif option == PREPARE:
            good = isinstance(value, str) and (value == NEVER or _whole(value))
        elif option in _NUMBERS:
            good = isinstance(value, str) and _whole(value.removeprefix("-"))
        else:
            try:
                make_conninfo("", **{option: value if isinstance(value, str) else ""})
            except psycopg.Error as error:
                raise UnsupportedDatabase(name, f"there is no option {option}") from error
            good = isinstance(value, str) or option in ("host", "port")
        if not good:
            raise UnsupportedDatabase(name, f"its option {option} has a value that it cannot have")


def _whole(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _sqlite_path(url: str, rest: str) -> str:
    """The file's path after `sqlite://`."""
    file = rest.removeprefix("/")
    reason = ""
    if file in ("", ":memory:"):
        reason = "it is no plain file, and a database in memory would end with its connection"
    elif not rest.startswith("/"):
        reason = "it names a host; write three slashes before a file's name, and four before a path from the root"
    elif file.startswith("file:"):
        reason = "it is no plain file"
    elif "?" in file:
        reason = "a file has no options, and no ? in its name"
    elif "\0" in file:
        reason = "its name has a NUL"
    elif len(os.path.basename(file).encode(errors="surrogatepass")) > FILE_BYTES_MAX:
        reason = f"its file's name is longer than {FILE_BYTES_MAX} bytes"
    elif len(os.path.abspath(file).encode(errors="surrogatepass")) > PATH_BYTES_MAX:
        reason = f"its file's path is longer than {PATH_BYTES_MAX} bytes"
    elif os.path.isdir(file):
        reason = "it is a directory"
    if reason:
        raise UnsupportedDatabase(redacted_url(url), reason)
    return file


def not_there(name: str, file: str) -> Problem | None:
    """The message for a SQLite file that does not exist; None where it does."""
    if os.path.exists(file):
        return None
    folder = os.path.dirname(os.path.abspath(file))
    return SchemaMissing(name) if os.path.isdir(folder) else FolderMissing(name, folder)
