"""What the command line writes: data to standard output, everything said to people to standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console

WIDTH_MAX = 10_000  # where nobody looks at it, a line is as wide as its content


class Progress(Protocol):
    """A line that says how far something is."""

    def __call__(self, text: str) -> None: ...


def write(text: str) -> None:
    """Data, at once. Raises BrokenPipeError where its reader has left."""
    sys.stdout.write(text)
    sys.stdout.flush()


def write_json(value: Any) -> None:
    """One JSON value, on one line."""
    write(json_line(value))


def json_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain) + "\n"


def write_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Rows under their columns; numbers to the right. Nothing is cut, also where the terminal is narrow."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numbers = bool(rows) and all(isinstance(row[index], int | None) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*["" if cell is None else str(cell) for cell in row])
    console = Console(highlight=False, markup=False)
    console.width = WIDTH_MAX if not console.is_terminal else console.width
    console.print(table, overflow="ignore", crop=False)


def write_styled(text: str, style: str) -> None:
    """Data with a look, where standard output is a terminal."""
    Console(highlight=False).print(text, style=style, markup=False, end="", soft_wrap=True)


def say(text: str, style: str | None = None) -> None:
    """A notice for people."""
    Console(stderr=True, highlight=False).print(text, style=style, markup=False, soft_wrap=True)


def say_error(code: str, message: str) -> None:
    """What went wrong, in one line."""
    console = Console(stderr=True, highlight=False)
    console.print(f"error[{code}]:", style="bold red", markup=False, end=" ")
    console.print(" ".join(message.split()), markup=False, soft_wrap=True)


@contextmanager
def progress(text: str, shown: bool = True) -> Iterator[Progress]:
    """A line that is written over as things go on, where standard error is a terminal; else nothing."""
    console = Console(stderr=True, highlight=False)
    if not shown or not console.is_terminal:
        yield lambda text: None
        return
    with console.status(text) as status:
        yield lambda text: status.update(text)


def use_utf8() -> None:
    """Text is written as it is in the log, whatever the locale."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace" if stream is sys.stderr else "strict")


def abandon_stdout() -> None:
    """After its reader has left: what is still buffered goes nowhere, so that the exit does not raise again."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)
