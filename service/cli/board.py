"""Lines at the foot of a terminal that are drawn over while things go on, beside whatever else is written there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Final

from . import standard
from .table import cells_of
from .visible import visible_line

LOOK_S: Final = 0.2
ERASED: Final = "\x1b[{}A\x1b[J"
"""Up so many lines, and from there nothing any more."""


class Board:
    """A board on a stream. `lines` says what is there to be seen now."""

    def __init__(self, stream: IO[str], lines: Callable[[], Sequence[str]]) -> None:
        self._stream = stream
        self._lines = lines
        self._drawn = 0
        self._lock = threading.Lock()
        self._over = threading.Event()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw on a thread as long as the block lasts, and leave nothing; where there is no terminal, do nothing.

        `lines` is made of values that exist: whoever works is never kept waiting by a terminal.
        """
        if not self._stream.isatty():
            yield
            return
        drawing = threading.Thread(target=self._draw_on, name="decodelog board", daemon=True)
        drawing.start()
        try:
            yield
        finally:
            self._over.set()
            drawing.join()
            self._put("")

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take the board away while something else is written to the terminal; it is back at the next look."""
        with self._lock:
            self._erase("")
            yield

    def draw(self) -> None:
        """Draw what is to be seen now over what was drawn before. Errors: those of `lines`."""
        columns, rows = _size(self._stream)
        lines = [cut(visible_line(line), columns) for line in self._lines()][: max(rows - 1, 1)]
        self._put("".join(f"{line}\n" for line in lines))

    def _draw_on(self) -> None:
        while not self._over.is_set():
            self.draw()
            self._over.wait(LOOK_S)

    def _put(self, text: str) -> None:
        with self._lock:
            self._erase(text)

    def _erase(self, text: str) -> None:
        """Write over what is drawn; the lock is held. A terminal that is gone is nobody's concern."""
        with suppress(OSError, ValueError):
            before = ERASED.format(self._drawn) if self._drawn else ""
            self._drawn = text.count("\n")
            if before or text:
                standard.write(self._stream, before + text)
                type(self._stream).flush(self._stream)


def cut(line: str, columns: int) -> str:
    """As much of a line as stands on one of the terminal's."""
    if cells_of(line) <= columns:
        return line
    kept = line[:columns]
    while cells_of(kept) > columns:
        kept = kept[:-1]
    return kept


def _size(stream: IO[str]) -> os.terminal_size:
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return os.terminal_size((80, 24))
    return size if size.columns else os.terminal_size((80, 24))
