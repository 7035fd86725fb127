"""Rows under their columns, a page at a time, in bounded memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from . import terminal
from .visible import visible_line

GAP = "  "


class Table:
    """Columns that get wider where a later page needs it; nothing is cut.

    columns   their heads
    numbers   those whose values stand to the right
    """

    def __init__(self, columns: Sequence[str], numbers: Sequence[str] = ()) -> None:
        self._columns = columns
        self._right = [name in numbers for name in columns]
        self._widths = [len(name) for name in columns]
        self._begun = False

    def write(self, rows: Sequence[Sequence[Any]]) -> None:
        """A page of rows; the heads come before the first one. Raises BrokenPipeError where the reader has left."""
        cells = self._fitted(rows)
        if not self._begun:
            self._begun = True
            terminal.write_styled(f"{self._line(self._columns)}\n", "bold")
        terminal.write("".join(f"{self._line(row)}\n" for row in cells))

    def lines(self, rows: Sequence[Sequence[Any]]) -> list[str]:
        """The heads, and the rows under them."""
        cells = self._fitted(rows)
        return [self._line(self._columns), *map(self._line, cells)]

    def _fitted(self, rows: Sequence[Sequence[Any]]) -> list[list[str]]:
        """The rows' cells as they are shown, with columns wide enough for them."""
        shown = visible_line if sys.stdout.isatty() else str  # a value that has a newline would make a row of its own
        cells = [["" if cell is None else shown(str(cell)) for cell in row] for row in rows]
        for row in cells:
            self._widths = [max(width, cells_of(cell)) for width, cell in zip(self._widths, row, strict=True)]
        return cells

    def _line(self, row: Sequence[str]) -> str:
        padded = []
        for cell, width, right in zip(row, self._widths, self._right, strict=True):
            blanks = " " * (width - cells_of(cell))
            padded.append(blanks + cell if right else cell + blanks)
        return GAP.join(padded).rstrip()


def cells_of(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
