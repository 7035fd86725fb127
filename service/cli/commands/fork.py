"""fork: a new job from a committed prefix of another."""

from __future__ import annotations

from typing import Annotated

import typer

from ...database import now_ms, opened
from ...jobs.models import Models, home
from ...jobs.naming import find_job
from .. import terminal
from ..draft_flags import DraftFlags, takes_draft
from . import options

At = Annotated[
    int, typer.Option("--at", min=0, metavar="STEP", help="Output tokens to keep: token STEP is the first new one.")
]


@takes_draft("model", "prompt", "prompt_file", "user", "system", "chat", "n")
def fork(
    flags: DraftFlags, job: options.JobName, at: At, db: options.Database = None, json: options.Json = False
) -> None:
    from ...jobs.fork import fork as fork_job

    retain_ms = flags.retain_ms
    with opened(db) as store:
        parent = find_job(store, job)
        with terminal.progress("loading the model"):
            model = Models(home(), lanes=1).load(*store.row(parent).wanted)
            made = fork_job(store, model, parent, at, flags.given(), now_ms(), flags.idempotency_key, retain_ms)
    with terminal.acknowledging(f"job {made.job} is admitted, and nobody reads standard output: do not fork it again"):
        if json:
            told = {"job": made.job, "identity": made.envelope.identity, "created": made.created}
            terminal.write_json(told | {"parent": {"job": parent, "step": at}})
        else:
            terminal.write(f"{made.job}\n")
