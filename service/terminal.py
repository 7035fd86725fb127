"""What the command line writes: data to standard output, everything said to people to standard error."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console

from ..fsm.redaction import redacted

WIDTH_MAX = 10_000  # of a table: a terminal may wrap its lines, and nothing is cut

PEOPLE = Console(stderr=True, highlight=False)


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
    """Rows under their columns; numbers to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numbers = bool(rows) and all(isinstance(row[index], int | None) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*["" if cell is None else str(cell) for cell in row])
    Console(highlight=False, markup=False, width=WIDTH_MAX).print(table)


def heading(name: str) -> str:
    """What stands before each of several texts, as `tail` writes it before each of several files."""
    return f"==> {name} <==\n"


def write_styled(text: str, style: str) -> None:
    """Data with a look, where standard output is a terminal."""
    Console(highlight=False).print(text, style=style, markup=False, end="", soft_wrap=True)


def say(text: str, style: str | None = None) -> None:
    """A notice for people; passwords are left out."""
    PEOPLE.print(redacted(text), style=style, markup=False, soft_wrap=True)


def say_error(code: str, message: str) -> None:
    """What went wrong, in one line."""
    PEOPLE.print(f"error[{code}]:", style="bold red", markup=False, end=" ")
    PEOPLE.print(redacted(" ".join(message.split())), markup=False, soft_wrap=True)


@contextmanager
def progress(text: str, shown: bool = True) -> Iterator[Progress]:
    """A line that is written over as things go on, where standard error is a terminal; else nothing."""
    if not shown or not PEOPLE.is_terminal:
        yield lambda text: None
        return
    from rich.live import Live
    from rich.spinner import Spinner

    spinner = Spinner("dots", text)
    # Unless it is told not to, it takes over standard output too, and the data would go to the terminal.
    with Live(spinner, console=PEOPLE, transient=True, redirect_stdout=False, redirect_stderr=False):
        yield lambda text: spinner.update(text=text)


def use_utf8() -> None:
    """Text is written as it is in the log, whatever the locale."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace" if stream is sys.stderr else "strict")


def reader_left() -> bool:
    """Whether standard output is a pipe or a socket that nobody reads any more; False where that cannot be known."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)  # an error is told unasked
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False


def abandon_stdout() -> None:
    """After its reader has left: what is still buffered goes nowhere, so that the exit does not raise again."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)
