"""The command `decodelog`: data on standard output, everything else on standard error."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from ... import __version__
from . import interrupts, standard, terminal
from .commands import COMMANDS
from .edge import Commands, run_to_end
from .later import Later

SUMMARY = "Durable, replayable language-model generation: a kill loses no token, and a resume repeats none."

WIDTH_MAX = 120  # columns of help: longer lines are hard to read

EPILOG = (
    "Exit codes: 0 done; 1 a job failed or a check found a fault; 2 wrong use or a refused request; "
    "3 no fault, and not all proven; 130 interrupted."
    "\n\nBegin with: decodelog demo"
)


class Everything(Commands):
    """The group of all commands, each imported when it is needed."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update({name: Later(name, listed) for name, listed in COMMANDS.items()})


app = typer.Typer(
    name="decodelog",
    cls=Everything,
    help=SUMMARY,
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": WIDTH_MAX},
)


def show_version(asked: bool) -> None:
    if asked:
        terminal.write(f"decodelog {__version__}\n")
        raise typer.Exit()


@app.callback()
def decodelog(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


def main() -> None:
    """Run the command of this process's arguments, and exit. `entry.main` is the console script."""
    interrupts.begin()
    standard.prepare()
    # A model's threads wait for each other hundreds of times a token. Where they spin meanwhile, and other processes
    # want the cores too, a token takes ten times as long; waiting quietly costs a few percent on an idle machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    sys.exit(run_to_end(lambda: app(prog_name="decodelog")))


if __name__ == "__main__":
    main()
