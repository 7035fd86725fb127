"""The file of a SQLite database: created for its owner alone, and checked to be in its place for as long as it is open.

SQLite goes on for hours with files that nobody can open any more: when a database is removed or replaced, processes
that have it open keep the old files, and what they commit then is lost with them.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from ...fsm.errors import (
    DatabaseFull,
    DatabaseLocked,
    DatabaseMoved,
    DatabaseUnavailable,
    FileReadOnly,
    FolderMissing,
    LogLeftBehind,
    Problem,
)

OWNER_ONLY: Final = 0o600
PROBE: Final = "SELECT 1 FROM sqlite_master LIMIT 1"
_CLOSED: Final = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}
_NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT}


Identity = tuple[int, int]
"""Which file it is, whatever its name: the device, and the number there."""


class SqliteFile:
    """One file, and the connections to it.

    name     what messages call the database
    create   whether a file that is not there is made
    frozen   read without a lock: this process may not write there, and nobody has it open
    """

    def __init__(self, path: str, name: str, create: bool = False) -> None:
        self.path = os.path.abspath(path)
        self.folder = os.path.dirname(self.path)
        self._log_path = f"{self.path}-wal"
        self.frozen = False
        self._name = name
        self._create = create
        self._identity: Identity | None = None
        self._log: Identity | None = None
        self._stamp: tuple[int, int] | None = None

    def connect(self, timeout_s: float) -> sqlite3.Connection:
        """A new connection to the file that this process has opened before. Never makes a file but the first.

        Errors: DatabaseMoved, LogLeftBehind, FolderMissing, FileReadOnly, DatabaseFull, DatabaseUnavailable;
        sqlite3.Error.
        """
        if self._create and self._identity is None:
            self._make()
        before = identity(self.path)
        self._held_to(before)
        connection = self._opened(timeout_s)
        if identity(self.path) != before:
            connection.close()
            raise DatabaseMoved(self._name, "it was replaced while it was being opened")
        self._identity = before
        if self._log is None and not self.frozen:
            self._log = identity(self._log_path)
        return connection

    def check(self) -> None:
        """DatabaseMoved unless the file's name still leads to the files that this process writes. Two calls of stat."""
        if self._identity is None:
            return
        self._held_to(identity(self.path))
        if self.frozen:
            return
        log = identity(self._log_path)
        if self._log is None:
            self._log = log
        elif log != self._log:
            raise DatabaseMoved(self._name, "its write-ahead log was removed or replaced")

    def forget_log(self) -> None:
        """Every connection is closed: the write-ahead log may go with them, and the next connection makes another."""
        self._log = None
        self.frozen = False

    def unfrozen(self) -> bool:
        """Whether a writer has appeared since the file was opened to be read without a lock."""
        return self.frozen and (self._stamp != stamp(self.path) or bool(size(self._log_path)))

    def problem(self, code: int, reason: str) -> Problem | None:
        """What the file system shows to be the cause of an error of SQLite; None where it shows nothing.

        code   SQLite's, without its extension
        """
        try:
            self.check()
        except DatabaseMoved as moved:
            return moved
        if self.unfrozen():
            return DatabaseLocked(self._name, "it was written while it was read as it lay")
        if code not in _CLOSED:
            return None
        if not os.path.isdir(self.folder):
            return FolderMissing(self._name, self.folder)
        if lacking := self._lacking():
            return FileReadOnly(self._name, f"{lacking} ({reason})")
        return FileReadOnly(self._name, reason) if code == sqlite3.SQLITE_READONLY else None

    def _held_to(self, here: Identity | None) -> None:
        if self._identity is not None and here != self._identity:
            what = "it is gone" if here is None else "another file is in its place"
            raise DatabaseMoved(self._name, what)

    def _make(self) -> None:
        """The file, empty, for its owner alone; the write-ahead log and its index take its mode over."""
        check_no_log(self._name, self.path)
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OWNER_ONLY))
        except FileExistsError:
            return
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FolderMissing(self._name, self.folder) from error
        except OSError as error:
            reason = f"no file can be made in {self.folder}: {error.strerror}"
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise FileReadOnly(self._name, reason) from error
            raise (DatabaseFull if error.errno in _NO_ROOM else DatabaseUnavailable)(self._name, reason) from error

    def _opened(self, timeout_s: float) -> sqlite3.Connection:
        """Open it to write, or to read beside writers, or without a lock if there are no writers."""
        connection = self._open("mode=rw", timeout_s)
        try:
            connection.execute(PROBE).fetchone()
        except sqlite3.Error as error:
            connection.close()
            lacking = self._lacking()
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _CLOSED or not lacking:
                raise
            if size(self._log_path):
                raise FileReadOnly(self._name, f"{lacking}, and its write-ahead log must be read") from error
            self._stamp, self.frozen = stamp(self.path), True
            return self._open("mode=ro&immutable=1", timeout_s)
        self.frozen = False
        return connection

    def _open(self, how: str, timeout_s: float) -> sqlite3.Connection:
        where = f"file://{quote(os.fsencode(self.path))}?{how}"
        return sqlite3.connect(where, uri=True, timeout=timeout_s, check_same_thread=False)

    def _lacking(self) -> str:
        """The right that this process lacks; empty where it has those that writing takes."""
        for path, kind in ((self.path, "the file"), (self.folder, "the folder")):
            if not Path(path).exists():
                continue
            for right, word in ((os.R_OK, "read"), (os.W_OK, "write to")):
                if not os.access(path, right, effective_ids=os.access in os.supports_effective_ids):
                    return f"no right to {word} {kind} {path}"
        return ""


def identity(path: str) -> Identity | None:
    """Which file is at `path`; None where there is none that can be seen."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def check_no_log(name: str, path: str) -> None:
    """LogLeftBehind where a new file at `path` would find the write-ahead log of an earlier one.

    SQLite takes any log for that of the file beside it, and would write the log's pages into the new file.
    """
    for log in (f"{path}-wal", f"{path}-journal"):
        if size(log) and not os.path.exists(path):  # asked last: who makes the file makes its log after it
            raise LogLeftBehind(name, log)


def stamp(path: str) -> tuple[int, int] | None:
    """When the file was written last, and its size."""
    with suppress(OSError):
        found = os.stat(path)
        return found.st_mtime_ns, found.st_size
    return None


def size(path: str) -> int:
    """Of a file, in bytes; 0 where there is none."""
    found = stamp(path)
    return 0 if found is None else found[1]
