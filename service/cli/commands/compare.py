"""compare: whether two jobs are the same run, and if not, where and at which level they diverge."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import terminal
from ..edge import FAILED
from . import options

Other = Annotated[
    str | None, typer.Argument(metavar="[OTHER]", help="Another job; left out with --reexecute.", show_default=False)
]
Reexecute = Annotated[bool, typer.Option("--reexecute", help="Compare with the same request run again, in memory.")]
From = Annotated[
    str,
    typer.Option(
        "--level",
        metavar="LEVEL",
        help="The first level that counts, of state, tensor, policy, decision, sequence and resume; those before may "
        "differ. Sealed jobs have the last two.",
    ),
]


def compare(
    job: options.JobName,
    other: Other = None,
    reexecute: Reexecute = False,
    level: From = "state",
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    from ....fsm.reading.compare import LEVELS
    from ...api.log import open as open_log
    from ...inspect.compare import plain, told

    if level not in LEVELS:
        raise typer.BadParameter(f"it is one of {', '.join(LEVELS)}", param_hint="--level")
    if (other is None) is not reexecute:
        raise typer.BadParameter("name another job, or give --reexecute")

    with open_log(db, create=False, lanes=1) as log, terminal.progress("running it again", shown=reexecute):
        verdict = log.job(job).compare(None if other is None else log.job(other), level)
    if json:
        terminal.write_json(plain(verdict))
    else:
        terminal.write(f"{told(verdict)}\n")
    if verdict.found is not None:
        raise typer.Exit(FAILED)
