"""The standard streams: present, in UTF-8 and safe for a terminal, whatever this process was started with."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import IO, TextIO, cast

from ...fsm.errors import OutputFailed
from .visible import coloured

LINES = 25


class Closed(io.TextIOBase):
    """Stands for a standard stream that was closed: what is written there goes nowhere."""

    encoding = "utf-8"

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)


def prepare() -> None:
    """Make standard output and error fit to be written to; doing it again changes nothing.

    Where standard input was closed, `sys.stdin` stays None.
    """
    for number in range(3):
        if not _is_open(number):  # else the next file to be opened, a database perhaps, would be taken for the stream
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or cast(TextIO, Closed(1))
    sys.stderr = sys.stderr or cast(TextIO, Closed(2))
    _use_utf8()
    for stream in (sys.stdout, sys.stderr):
        _guard(stream)
    _set_width()


def write(stream: IO[str], text: str) -> None:
    """Write text that is already safe, bypassing the guard."""
    type(stream).write(stream, text)


@contextmanager
def typed_failures() -> Iterator[None]:
    """Give failures of standard output typed errors: BrokenPipeError where its reader has left; OutputFailed."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        abandon_stdout()
        raise OutputFailed(error.strerror or str(error)) from error


def abandon_stdout() -> None:
    """After it has failed: what is still buffered goes nowhere, so that the exit does not raise again."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return


def _guard(stream: TextIO) -> None:
    """Let only colours through to a terminal in what other code writes (help, usage, warnings, tracebacks)."""
    typed: Callable[[], AbstractContextManager[None]] = typed_failures if stream is sys.stdout else nullcontext
    obeys = stream.isatty()

    def guarded(text: str) -> int:
        with typed():
            return type(stream).write(stream, coloured(text) if obeys else text)

    def flush() -> None:
        with typed():
            type(stream).flush(stream)

    stream.write, stream.flush = guarded, flush  # type: ignore[method-assign]


def _use_utf8() -> None:
    """Text is written as it is in the log, whatever the locale."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace" if stream is sys.stderr else "strict")


def _set_width() -> None:
    """COLUMNS counts on every kind of terminal."""
    if os.environ.get("COLUMNS", "").strip("0") == "":
        os.environ.pop("COLUMNS", None)  # nothing can be written in no columns, and some write nothing then
    if os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        os.environ.setdefault("LINES", str(LINES))  # such a terminal's columns are asked for only beside its lines


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
