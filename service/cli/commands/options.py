"""Options that many commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Database = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="sqlite:///FILE or postgresql://HOST/NAME (DECODELOG_DB, else sqlite:///decodelog.db).",
        show_default=False,
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Write JSON.")]

COMPLETED = 100  # names that a shell is given


def jobs_beginning(ctx: typer.Context, incomplete: str) -> list[str]:
    """The newest names of jobs that begin so, for a shell; none where the database does not give them at once."""
    from ....fsm.errors import Problem
    from ...database import opened

    try:
        with opened(ctx.params.get("db")) as store:
            return store.names(incomplete, last=COMPLETED)[::-1]
    except Problem:
        return []


JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="A job's name, or a beginning that no other has.",
        show_default=False,
        autocompletion=jobs_beginning,
    ),
]

_NAME = typer.Argument(
    metavar="JOB",
    help="A job's or a family's name, or a beginning that no other has.",
    show_default=False,
    autocompletion=jobs_beginning,
)
JobOrFamily = Annotated[str, _NAME]
MaybeJobOrFamily = Annotated[str | None, _NAME]

AllJobs = Annotated[bool, typer.Option("--all", help="Every job.")]

From = Annotated[int, typer.Option("--from", min=1, metavar="SEQ", help="The first sequence number to show.")]

Rebuild = Annotated[
    str,
    typer.Option(
        "--rebuild",
        metavar="prefill|reexecute",
        help="How a killed job's cache comes back: one call, or the recorded calls again (bit-exact, slower).",
    ),
]


CacheDir = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        metavar="DIR",
        file_okay=False,
        help="Keep the caches of running jobs here, so that a resume computes almost nothing again.",
        show_default=False,
    ),
]


ModelFolders = Annotated[
    list[Path] | None,
    typer.Option(
        "--models",
        metavar="DIR",
        help="Look for jobs' models here too: a checkpoint, or a folder of checkpoints; repeatable (DECODELOG_MODELS).",
        show_default=False,
    ),
]

LANES = 8
Lanes = Annotated[int, typer.Option("--lanes", min=1, max=1024, metavar="N", help="Jobs to run at a time.")]

PublicKey = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE",
        dir_okay=False,
        help="The public key, in PEM, whose signature the file must have.",
        show_default=False,
    ),
]


def rebuild_form(text: str) -> str:
    """One of the two forms; anything else is wrong use."""
    if text not in ("prefill", "reexecute"):
        raise typer.BadParameter("it is prefill or reexecute", param_hint="--rebuild")
    return text
