"""The commands that pages and files of the tree show, and whether the command line takes them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typer.main import get_command

from decodelog.service.cli.app import app

SHELL = ("bash", "console")
ENDS = ("&", "&&", "|", ">")  # of what is given to a command in a line of a shell


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page in these languages, in order."""
    fenced = rf"^```(?:{'|'.join(languages)})\n(.*?)^```$"
    return re.findall(fenced, page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def shown(page: Path) -> Iterator[list[str]]:
    """The arguments of each `decodelog` in the shell blocks of a page."""
    for line in "".join(blocks(page, *SHELL)).replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        for at, word in enumerate(words):
            begins = at == 0 or words[at - 1] in ENDS or "=" in words[at - 1]
            if begins and (word == "decodelog" or word.endswith("/bin/decodelog")):
                rest = words[at + 1 :]
                yield rest[: next((end for end, other in enumerate(rest) if other in ENDS), len(rest))]


def real(command: Any) -> Any:
    """The command itself, where the list has one that is imported when it runs."""
    return getattr(command, "real", command)


def check(given: Sequence[str]) -> None:
    """ValueError where there is no such command, or it does not take this; a file that is named need not be there."""
    command, rest = get_command(app), list(given)
    while commands := getattr(command, "commands", None):
        if not rest or rest[0] not in commands:
            raise ValueError(f"no command: {' '.join(given)}")
        command = real(commands[rest.pop(0)])
    try:
        command.make_context("decodelog", rest)
    except Exception as error:  # of several classes, which depend on the version of typer
        if "does not exist" not in str(error):
            raise ValueError(f"{' '.join(given)}: {error}") from error
