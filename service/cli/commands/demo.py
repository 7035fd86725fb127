"""demo: see it happen."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from ....fsm.errors import UnwritableOutput
from ...jobs.models import home, lasting_name
from .. import terminal
from ..edge import FAILED
from . import options

MODEL = "smollm2-135m-instruct"
STYLES = ("cyan", "magenta", "green")

Model = Annotated[str, typer.Option("--model", metavar="NAME|DIR", help="The model that answers.")]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", min=8, max=100_000, metavar="N", help="Tokens at most.")]
Keep = Annotated[
    str | None,
    typer.Option("--keep", metavar="DIR", help="Keep both databases in a new folder.", show_default=False),
]


def demo(
    max_new_tokens: MaxNewTokens = 120, keep: Keep = None, model: Model = MODEL, json: options.Json = False
) -> None:
    from ...lab.demo import demonstrate

    narrator = Narrator(silent=json)
    with nullcontext(_new_folder(keep)) if keep else tempfile.TemporaryDirectory(prefix="decodelog-demo-") as folder:
        name = _fetched(model, narrator)
        narrator.tell(f"The model: {name}. The logs: {folder}")
        outcome = demonstrate(name, max_new_tokens, Path(folder), narrator)
    if keep:
        narrator.tell(f"Both logs are kept. Look: decodelog events {outcome.job} --db sqlite:///{folder}/killed.db")
    narrator.tell("The answer above, beside the uninterrupted one:")
    if json:
        terminal.write_json(outcome.as_json())
    else:
        terminal.write_styled(outcome.line(), "bold green" if outcome.ok else "bold red")
        terminal.write("\n")
    if not outcome.ok:
        raise typer.Exit(FAILED)


class Narrator:
    """Words on standard error, the streamed text on standard output, in one colour for each process."""

    def __init__(self, silent: bool) -> None:
        self._silent = silent
        self._in_line = False

    def tell(self, words: str) -> None:
        if self._in_line:
            terminal.write("\n")
            self._in_line = False
        terminal.say(f"· {words}", style="dim")

    def text(self, text: str, attempt: int) -> None:
        if text and not self._silent:
            terminal.write_styled(text, STYLES[(attempt - 1) % len(STYLES)])
            self._in_line = True


def _fetched(model: str, narrator: Narrator) -> str:
    """The model's name or absolute directory, once it is on this machine."""
    from ....runtime.model.artifacts import fetch_model
    from ....runtime.model.releases import RELEASES

    name = lasting_name(model)
    if name in RELEASES:
        fetch_model(name, home(), report=narrator.tell)
    return name


def _new_folder(path: str) -> str:
    folder = Path(path)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UnwritableOutput(path, error.strerror or str(error)) from error
    return str(folder.resolve())
