"""snapshot, restore: a job as one file, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...database import opened
from ...jobs.models import Models, home
from ...jobs.naming import find_job
from .. import terminal
from . import options

Form = Annotated[
    str,
    typer.Option(
        "--form",
        metavar="FORM",
        help="pending-suffix: as the job stands; repaired: after a call over the token that was not processed yet.",
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.", show_default=False)]
Force = Annotated[bool, typer.Option("--force", help="Replace the file where it is there already.")]
Tensors = Annotated[bool, typer.Option("--tensors/--no-tensors", help="With the cache's rows, or without the model.")]
Rebuild = Annotated[
    str | None,
    typer.Option(
        "--rebuild",
        metavar="HOW",
        help="How rows that are kept nowhere come back: prefill, in one call; reexecute, by the recorded calls again "
        "(bit-exact, slower).",
        show_default="prefill",
    ),
]
File = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="What `decodelog snapshot` or `export` wrote.", show_default=False),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME|DIR",
        help="Where the jobs' model lies here; it must be the same one. Else what the file says is taken with care.",
        show_default=False,
    ),
]
Kept = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        metavar="DIR",
        file_okay=False,
        help="Where caches of running jobs are kept: read for a snapshot, and filled by a restore.",
        show_default=False,
    ),
]


def snapshot(
    job: options.JobName,
    out: Out,
    form: Form = "pending-suffix",
    tensors: Tensors = True,
    force: Force = False,
    rebuild: Rebuild = None,
    cache_dir: Kept = None,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    from ...archive.export import check_writable
    from ...archive.snapshot import FORMS, REPAIRED, How, take
    from ...jobs.incarnation import new_worker_name

    if form not in FORMS:
        raise typer.BadParameter(f"it is one of {', '.join(FORMS)}", param_hint="--form")
    if form == REPAIRED and not tensors:
        raise typer.BadParameter("a repaired snapshot has tensors", param_hint="--no-tensors")
    if not tensors and (rebuild is not None or cache_dir is not None):
        unused = "--cache-dir" if rebuild is None else "--rebuild"
        raise typer.BadParameter("without tensors no row is brought back", param_hint=unused)
    how = How(form, options.rebuild_form("prefill" if rebuild is None else rebuild), cache_dir, force)
    with opened(db) as store:
        name = find_job(store, job)
        check_writable(out, force)  # a model takes long to load
        with terminal.progress("loading the model"):
            model = Models(home(), lanes=1).load(*store.row(name).wanted) if tensors else None
            taken = take(store, model, name, out, new_worker_name(), how)
    if json:
        terminal.write_json({"file": str(out)} | taken._asdict())
    else:
        terminal.write(
            f"{taken.job}: {taken.form}, {taken.state} at event {taken.sequence}, {taken.processed} tokens processed, "
            f"{taken.unprocessed} not; rows of {taken.rows}, {taken.recomputed} computed again; digest {taken.digest}\n"
        )


def restore(
    file: File,
    model: Model = None,
    cache_dir: Kept = None,
    key: options.PublicKey = None,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    from ....fsm.errors import UnsupportedDatabase
    from ....store.engine import DatabaseStore
    from ...archive.restore import bring, proven
    from ...signing import public_key

    wanted = None if key is None else public_key(key)
    with proven(file, wanted) as found, opened(db, create=True) as store:  # no database is made for a file that is none
        if not isinstance(store, DatabaseStore):
            raise UnsupportedDatabase("memory://", "what is restored there ends with this process")
        done = bring(store, found, cache_dir, model)
    with terminal.acknowledging(f"all {len(done)} jobs of {file} are in the database"):
        if json:
            terminal.write_json([each._asdict() for each in done])
            return
        for each in done:
            rows = f", rows of {each.rows} tokens" if each.rows else ""
            terminal.write(f"{each.job}: {each.outcome}, {each.state} at event {each.sequence}{rows}\n")
