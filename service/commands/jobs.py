"""jobs, show, cancel: looking at jobs, and ending one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from ...fsm.errors import Terminal
from .. import terminal
from ..database import opened
from ..edge import FAILED
from ..listing import listed
from ..naming import find_job
from . import options

Wait = Annotated[float, typer.Option("--wait", min=0.0, metavar="S", help="Seconds to wait for the job's owner.")]


def jobs(db: options.Database = None, json: options.Json = False) -> None:
    """List all jobs, oldest first."""
    with opened(db) as store:
        rows = store.rows()
    if json:
        terminal.write_json([listed(row) for row in rows])
        return
    columns = ("JOB", "STATE", "FINISH", "IN", "OUT", "CREATED", "MODEL")
    terminal.write_table(
        columns,
        [
            (row.job, row.status.value, row.finish, row.prompt, row.output, _when(row.created_ms), row.model)
            for row in rows
        ],
    )


def show(job: options.JobName, db: options.Database = None, json: options.Json = False) -> None:
    """Print one job: how it stands, its usage, and its text so far."""
    from ..printer import ending
    from ..reading import transcript_of

    with opened(db) as store:
        row = store.row(find_job(store, job))
        result = transcript_of(store, row.job).result()
    if json:
        terminal.write_json(result)
        return
    usage = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in result["usage"].items())
    facts = {
        "job": row.job,
        "state": f"{result['state']} ({ending(result)})" if row.status.terminal else result["state"],
        "model": row.model,
        "identity": row.identity,
        "created": _when(row.created_ms),
        "usage": usage,
        "key": row.idempotency_key,
        "owner": row.owner,
    }
    terminal.write("".join(f"{name:<9} {value}\n" for name, value in facts.items() if value is not None))
    terminal.write(f"\n{result['text']}\n")


def cancel(job: options.JobName, wait: Wait = 30.0, db: options.Database = None, json: options.Json = False) -> None:
    """End a job now, with exactly the tokens it has."""
    from ..cancel import cancel as cancel_job
    from ..incarnation import new_worker_name

    with opened(db) as store:
        name = find_job(store, job)
        cancelled = cancel_job(store, name, new_worker_name(), wait)
        row = store.row(name)
    if cancelled is None:
        terminal.say("its owner has not answered yet; the cancel is kept, and carried out when it does", style="yellow")
    elif cancelled.outcome != "cancelled":
        raise Terminal(state=row.status.value, reason=cancelled.outcome)
    if json:
        terminal.write_json(listed(row))
    elif cancelled is not None:
        terminal.write(f"{name} is cancelled with {row.output} tokens\n")
    if cancelled is None:
        raise typer.Exit(FAILED)


def _when(milliseconds: int) -> str:
    """Local time, to the second."""
    return datetime.fromtimestamp(milliseconds / 1000).isoformat(" ", "seconds")
