"""Which database, and opening it. No model is loaded: commands that only read a log import nothing heavy."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..fsm.errors import DatabaseUnavailable, FolderMissing

if TYPE_CHECKING:
    from typing import TypeAlias

    from ..store.engine import DatabaseStore
    from ..store.memory.log import MemoryStore

    AnyStore: TypeAlias = DatabaseStore | MemoryStore

DATABASE_DEFAULT = "sqlite:///decodelog.db"
SQLITE_PREFIX = "sqlite:///"
_SQLITE = (SQLITE_PREFIX, "sqlite+pysqlite:///")


def database_url(given: str | None) -> str:
    """The database of this invocation: `given`, else DECODELOG_DB, else a file in the working directory."""
    return given or os.environ.get("DECODELOG_DB") or DATABASE_DEFAULT


def sqlite_file(url: str) -> Path | None:
    """The file of a SQLite URL; None for another database."""
    return next((Path(url.removeprefix(prefix)) for prefix in _SQLITE if url.startswith(prefix)), None)


def now_ms() -> int:
    """The wall clock, milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def open_database(url: str, create: bool = False) -> DatabaseStore | MemoryStore:
    """Open a database whose schema is current; with `create`, a SQLite file that does not exist yet is made.

    Errors: SchemaMissing, SchemaOutdated, SchemaNewer, UnsupportedDatabase; and the store's where it cannot be opened.
    """
    from ..store.engine import open_store

    if create and (file := sqlite_file(url)) is not None:
        from ..store.database.names import parsed

        parsed(url)  # refuses names that no file can have
        if not file.exists():
            _create(url, file)
    return open_store(url, clock=now_ms)


@contextmanager
def opened(given: str | None, create: bool = False) -> Iterator[DatabaseStore | MemoryStore]:
    """`open_database` for as long as the block lasts; `given` as in `database_url`."""
    store = open_database(database_url(given), create)
    try:
        yield store
    finally:
        store.close()


def _create(url: str, file: Path) -> None:
    """Build the schema in a new file beside it and link that into place: whoever finds the file finds it whole."""
    from ..store.database import schema
    from ..store.database.sqlite_file import check_no_log

    if not file.parent.is_dir():
        raise FolderMissing(url, str(file.parent.absolute()))
    check_no_log(url, os.path.abspath(file))
    new = file.with_name(f".{secrets.token_hex(4)}.new")
    try:
        schema.upgrade(f"{SQLITE_PREFIX}{new}")
        os.link(new, file)
    except FileExistsError:
        return  # Another process was first, and its file is just as good.
    except OSError as error:
        raise DatabaseUnavailable(url, f"its file cannot be made ({error})") from error
    finally:
        for left in file.parent.glob(f"{new.name}*"):
            left.unlink(missing_ok=True)
