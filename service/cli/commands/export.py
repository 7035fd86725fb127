"""export, verify: a log in a file, and proving it without a database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...database import opened
from ...jobs.naming import find
from .. import terminal
from . import options
from .audit import tell

Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.", show_default=False)]
Redact = Annotated[bool, typer.Option("--redact", help="Leave all content out; the chain and its head stay.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the file where it is there already.")]
Key = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE",
        dir_okay=False,
        help="Sign the file with this private key: Ed25519 in PEM, mode 0600.",
        show_default=False,
    ),
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="What `decodelog export` wrote.", show_default=False)]


def export(
    out: Out,
    job: options.MaybeJobOrFamily = None,
    every: options.AllJobs = False,
    force: Force = False,
    redact: Redact = False,
    key: Key = None,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    from ...archive.export import export as export_jobs
    from ...signing import signer

    if (job is not None) == every:
        raise typer.BadParameter("name one job, or give --all")
    sign = None if key is None else signer(key)
    with opened(db) as store:
        written = export_jobs(store, None if job is None else find(store, job).jobs, out, force, redact, sign)
    if json:
        terminal.write_json({"file": str(out)} | written._asdict())
    else:
        signed = f", signed with {written.signed_by}" if written.signed_by else ""
        terminal.write(f"{written.jobs} jobs, {written.appends} appends, digest {written.digest}{signed}\n")


def verify(file: File, key: options.PublicKey = None, json: options.Json = False) -> None:
    from ...inspect.audit import verify as verify_file
    from ...signing import public_key

    tell(verify_file(file, None if key is None else public_key(key)), json)
