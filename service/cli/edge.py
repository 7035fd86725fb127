"""The edge of the command line: every expected way to end becomes one clear line and an exit code.

0 is done. 1: a job failed, an audit found a fault, a comparison or a check failed, or the output could not be written.
2: wrong use, or a request that was refused; nothing was changed. 3: no fault was found, but not everything could be
proven. 128 and a signal's number: interrupted; jobs are kept and can be resumed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import typer

from ...fsm.errors import OutputFailed, Problem, SchemaViolation
from ...fsm.errors.redaction import redacted, redacted_facts
from ..advice import advised_facts
from ..extras import missing_extra
from . import interrupts, standard, terminal
from .later import Group

FAILED = 1
REFUSED = 2
UNPROVEN = 3
INTERRUPTED = 128
DEBUG = "DECODELOG_DEBUG"

UsageError: type[Any] = typer.BadParameter.__mro__[1]  # the library's own class is not public


class Stopped(KeyboardInterrupt):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = INTERRUPTED + number


class Commands(Group):
    """The group of all commands; it handles whatever they raise."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["json"] = "--json" in args
        ctx.meta["arguments"] = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        as_json: bool = ctx.meta["json"]
        try:
            check_arguments(ctx.meta["arguments"])
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except UsageError as error:
            error.message = redacted(error.message)
            if not as_json:
                error.message = terminal.safe(sys.stderr, error.message)
                raise
            command = error.ctx.command_path if error.ctx is not None else "decodelog"
            message = f"{error.format_message().rstrip('.')}; see `{command} --help`"
            report({"code": "wrong_use", "message": message}, as_json)
            raise typer.Exit(REFUSED) from error
        except BaseException as error:
            raise typer.Exit(concluded(error, as_json)) from error


def run_to_end(command: Callable[[], object]) -> int:
    """Run the whole command line; its exit code, once all that it wrote has gone where it should."""
    code: Any = 0
    try:
        interrupts.undo()
        command()
    except SystemExit as end:
        code = end.code or 0
    except BaseException as error:  # outside any command: help, or the version
        code = concluded(error, "--json" in sys.argv)
    interrupts.over()
    return int(code) if terminal.flushed() else FAILED


def concluded(error: BaseException, as_json: bool) -> int:
    """Report how an interrupted or failed command ended; its exit code. Unexpected errors are raised again."""
    if isinstance(error, KeyboardInterrupt):
        return getattr(error, "exit_code", interrupts.EXIT_CODE)
    if interrupts.seen():  # which a library has turned into an error of its own
        return interrupts.EXIT_CODE
    if isinstance(error, BrokenPipeError):
        standard.abandon_stdout()
        return INTERRUPTED + signal.SIGPIPE
    if isinstance(error, OutputFailed):
        report(error.facts(), as_json=False)
        return FAILED
    if isinstance(error, ModuleNotFoundError):
        error = missing_extra(error) or error
    if isinstance(error, Problem):
        report(advised_facts(error), as_json)
        return REFUSED
    if isinstance(error, SystemExit | GeneratorExit) or DEBUG in os.environ:
        raise error
    advice = f"see `decodelog doctor` and `decodelog audit --all`, or set {DEBUG}=1 to see where"
    message = f"{type(error).__name__}: {error}; {advice}"
    report({"code": "unexpected", "message": message}, as_json)
    return FAILED


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse an argument that is not UTF-8: it could be neither stored nor shown as it was given."""
    for index, argument in enumerate(arguments, 1):
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raise SchemaViolation(f"argument {index}", "it is not UTF-8") from error


def report(facts: dict[str, Any], as_json: bool) -> None:
    """Report an error with `code`, `message` and its fields; in words where nobody reads the JSON."""
    facts = redacted_facts(facts)
    if as_json and not terminal.is_closed():
        with suppress(BrokenPipeError, OutputFailed):
            return terminal.write_json({"error": facts})
    terminal.say_error(facts["code"], facts["message"])


def told_damage(damage: Problem | None) -> dict[str, Any]:
    """The field of a JSON value that tells of damage after the part that it shows."""
    return {} if damage is None else {"damage": advised_facts(damage)}


def end_with(damage: Problem | None, as_json: bool) -> None:
    """End with the error that was met after the part that is shown: in words, unless the JSON value has it."""
    if damage is not None:
        if as_json:
            raise typer.Exit(REFUSED)
        raise damage


def stop_here(number: int, frame: object) -> None:
    """A signal handler that ends a wait."""
    raise Stopped(number)


@contextmanager
def on_signals(handler: Callable[[int, object], None] = stop_here) -> Iterator[None]:
    """SIGINT and SIGTERM reach `handler`; the second one ends the process at once, which loses nothing either."""

    def first(number: int, frame: object) -> None:
        for each in handled:
            signal.signal(each, signal.SIG_DFL)
        handler(number, frame)

    handled = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, first) for number in handled]
    try:
        yield
    finally:
        for number, old in zip(handled, before, strict=True):
            signal.signal(number, old)
