"""Commands that are imported when they run or explain themselves, and help in plain lines.

The list of all commands needs none of them, nor what draws boxes: a shell asks for it at every press of a key.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from . import terminal

WHOLE = 1000  # characters, more than any line of help has


class Listed(NamedTuple):
    """What is known of a command before it is imported.

    room       the module of `commands` that has it, under its own name; a group of commands is called `app` there
    help       what it does, in one line; more about it in paragraphs behind that
    examples   whole command lines
    """

    room: str
    help: str
    examples: tuple[str, ...] = ()


class Later(TyperCommand):
    """A command of the list, which stands for the real one until that is asked to parse arguments."""

    def __init__(self, name: str, listed: Listed) -> None:
        super().__init__(name, help=listed.help, rich_markup_mode=None)
        self._listed = listed

    @cached_property
    def real(self) -> Any:
        """The command itself, with its parameters."""
        name, listed = str(self.name), self._listed
        module = import_module(f".commands.{listed.room}", __package__)
        holder = typer.Typer(rich_markup_mode=None)
        if hasattr(module, "app"):
            holder.add_typer(module.app, name=name, cls=Group)
        else:
            epilog = "\n\n".join(f"Example: {example}" for example in listed.examples)
            holder.command(name, cls=Sectioned, help=listed.help, epilog=epilog)(getattr(module, name))
        return get_group(holder).commands[name]

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.real.make_context(info_name, args, parent, **extra)


class Helped:
    """Commands that write their help as all data is written, so that a full disk or a closed pipe is told."""

    def get_help_option(self, ctx: Any) -> Any:
        if (option := super().get_help_option(ctx)) is not None:  # type: ignore[misc]
            option.callback = _show_help
        return option


def _show_help(ctx: Any, param: Any, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        terminal.write(f"{ctx.get_help()}\n")
        ctx.exit()


class Group(Helped, TyperGroup):
    """A group of commands whose list cuts nothing off."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(WHOLE)) for name, each in self.commands.items()])


class Sectioned(Helped, TyperCommand):
    """A command whose help has its options under the headings that they name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is None:
                continue
            if param.param_type_name == "argument":
                sections["Arguments"].append((str(param.metavar), record[1]))
            else:
                sections.setdefault(str(getattr(param, "rich_help_panel", None) or "Options"), []).append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)
