"""What the command line writes: data to standard output, everything said to people to standard error."""

from __future__ import annotations

import io
import json
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from ...fsm.errors import OutputFailed
from ...fsm.errors.redaction import redacted
from . import standard
from .visible import visible, visible_line

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_MAX, LINES_MAX = 10_000, 1_000  # of a table: a terminal may wrap its lines, and nothing is cut


class Notices:
    """Standard error as it is at the moment. A notice that cannot be written is dropped."""

    encoding = "utf-8"

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            standard.write(sys.stderr, text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr.isatty()

    def fileno(self) -> int:
        return sys.stderr.fileno()


class Look(io.StringIO):
    """What is about to be written to standard output, with colours where that is a terminal."""

    def isatty(self) -> bool:
        return sys.stdout.isatty()


@cache
def people() -> Console:
    """Those who read standard error."""
    from rich.console import Console

    return Console(file=cast(IO[str], Notices()), highlight=False, emoji=False)


class Progress(Protocol):
    """A line that says how far something is."""

    def __call__(self, text: str) -> None: ...


def write(text: str) -> None:
    """Data, at once: exact in a pipe or a file, safe on a terminal. Errors: BrokenPipeError where its reader has left;
    OutputFailed.
    """
    _put(visible(text) if sys.stdout.isatty() else text)


def write_json(value: Any) -> None:
    """One JSON value, on one line."""
    write(json_line(value))


def json_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain) + "\n"


def write_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Rows under their columns; numbers to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numbers = bool(rows) and all(isinstance(row[index], int | None) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", no_wrap=True)
    shown = visible_line if sys.stdout.isatty() else str
    for row in rows:
        table.add_row(*["" if cell is None else Text(shown(str(cell))) for cell in row])
    # Without a number of lines the width would not count on a terminal that says it is dumb.
    look = Look()
    Console(file=look, highlight=False, markup=False, emoji=False, width=WIDTH_MAX, height=LINES_MAX).print(table)
    _put(look.getvalue())


def heading(name: str) -> str:
    """What stands before each of several texts, as `tail` writes it before each of several files."""
    return f"==> {name} <==\n"


def write_styled(text: str, style: str) -> None:
    """Data with a look, where standard output is a terminal."""
    from rich.console import Console

    look, shown = Look(), safe(sys.stdout, text)
    wide = Console(file=look, highlight=False, emoji=False, width=WIDTH_MAX, height=LINES_MAX)  # COLUMNS may say 0
    wide.print(shown, style=style, markup=False, end="", soft_wrap=True)
    _put(look.getvalue())


def say(text: str, style: str | None = None) -> None:
    """A notice for people; passwords are left out."""
    people().print(safe(sys.stderr, redacted(text)), style=style, markup=False, soft_wrap=True)


def warn(text: str) -> None:
    """A warning: something is wrong, but work goes on."""
    say(text, style="yellow")


def say_error(code: str, message: str) -> None:
    """What went wrong, in one line."""
    people().print(f"error[{code}]:", style="bold red", markup=False, end=" ", soft_wrap=True)
    people().print(safe(sys.stderr, redacted(" ".join(message.split()))), markup=False, soft_wrap=True)


def ask(question: str) -> bool:
    """Whether somebody answers yes. Ask only where `can_ask`."""
    people().print(safe(sys.stderr, f"{question} [y/N] "), markup=False, end="", soft_wrap=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def can_ask() -> bool:
    """Whether somebody reads questions at a terminal, and answers there."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


@contextmanager
def acknowledging(words: str) -> Iterator[None]:
    """For output that acknowledges something durable. Where standard output cannot be written, `words` go to standard
    error, so that nobody does it again for want of an answer. A reader that has left is no failure.
    """
    if is_closed():
        say(words, style="yellow")
    try:
        yield
    except BrokenPipeError:
        standard.abandon_stdout()
        say(words, style="yellow")
    except OutputFailed:
        say(words, style="yellow")
        raise


@contextmanager
def progress(text: str, shown: bool = True) -> Iterator[Progress]:
    """A line that is written over as things go on, where standard error is a terminal; else nothing."""
    if not shown or not people().is_terminal:
        yield lambda text: None
        return
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    spinner = Spinner("dots", Text(safe(sys.stderr, text)))
    # By default it takes over standard output too, and the data would go to the terminal.
    with Live(spinner, console=people(), transient=True, redirect_stdout=False, redirect_stderr=False):
        yield lambda text: spinner.update(text=Text(safe(sys.stderr, text)))


def flushed() -> bool:
    """Flush standard output; False after reporting a failure. A reader that has left is none."""
    try:
        with standard.typed_failures():
            sys.stdout.flush()
    except BrokenPipeError:
        standard.abandon_stdout()
    except OutputFailed as problem:
        say_error(problem.code, str(problem))
        return False
    return True


def is_closed() -> bool:
    """Whether this process was started without a standard output."""
    return isinstance(sys.stdout, standard.Closed)


def reader_left() -> bool:
    """Whether standard output is closed, or a pipe or a socket that nobody reads any more; False where that cannot be
    known.
    """
    if is_closed():
        return True
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)  # an error counts as an event too
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False


def _put(text: str) -> None:
    """The one place that writes to standard output. The text is exact or safe already."""
    if not text:
        return
    with standard.typed_failures():
        standard.write(sys.stdout, text)
        sys.stdout.flush()


def safe(stream: IO[str], text: str) -> str:
    """The text made safe for this stream."""
    return visible(text) if stream.isatty() else text


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)
