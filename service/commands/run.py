"""run, submit, resume: bringing a request to its end, or only into the log."""

from __future__ import annotations

import secrets
import shlex
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from .. import terminal
from ..database import now_ms, opened
from ..draft_flags import DraftFlags, takes_draft
from ..edge import FAILED, Stopped, on_signals
from ..models import Models, home, lasting_name
from ..naming import find_job
from . import options
from .worker import work

if TYPE_CHECKING:
    from ...fsm.ports import Store
    from ..submit import Submitted

All = Annotated[bool, typer.Option("--all", help="Every job that has not ended.")]


@takes_draft
def run(flags: DraftFlags, db: options.Database = None, json: options.Json = False) -> None:
    """Generate text durably, streaming it to standard output."""
    models = Models(home(), lanes=1)
    with opened(db, create=True) as store:
        submitted = _submit(store, models, flags)
        terminal.say(f"{'job' if submitted.created else 'attached to job'} {submitted.job}", style="dim")
        finish(store, models, submitted.job, db, json)


@takes_draft
def submit(flags: DraftFlags, db: options.Database = None, json: options.Json = False) -> None:
    """Put a request into the log for a worker, and print its job."""
    with opened(db, create=True) as store:
        submitted = _submit(store, Models(home(), lanes=1), flags)
    if json:
        identity = submitted.envelope.identity
        terminal.write_json({"job": submitted.job, "identity": identity, "created": submitted.created})
    else:
        terminal.write(f"{submitted.job}\n")


def resume(
    job: options.MaybeJob = None,
    every: All = False,
    rebuild: options.Rebuild = "prefill",
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    """Bring a job to its end and print its text, or --all of them."""
    if (job is None) is not every:
        raise typer.BadParameter("name one job, or give --all")
    form = options.rebuild_form(rebuild)
    with opened(db) as store:
        if job is not None:
            finish(store, Models(home(), lanes=1), find_job(store, job), db, json, form)
        else:
            unfinished = [row.job for row in store.rows() if not row.status.terminal]
            work(store, unfinished, json=json, drain=True, form=form)


def _submit(store: Store, models: Models, flags: DraftFlags) -> Submitted:
    draft, name = flags.draft(), lasting_name(flags.model)
    with terminal.progress(f"loading {flags.model}"):
        from ..submit import submit as submit_draft

        return submit_draft(store, models.load(name), name, draft, now_ms(), flags.idempotency_key)


def finish(store: Store, models: Models, job: str, db: str | None, json: bool, form: str = "prefill") -> None:
    """Bring `job` to its end, with its text on standard output, and end this process as the job ended."""
    from ..printer import final_line
    from ..reading import transcript_of

    started = time.monotonic()
    try:
        with on_signals():
            _carry(store, models, job, json, form)
    except (Stopped, Exception) as end:
        newline = "\n" if sys.stdout.isatty() else ""
        what = "stopped" if isinstance(end, Stopped) else "this process cannot go on"
        terminal.say(f"{newline}{what}; the job is kept. Go on with: {_resume_command(job, db)}", style="yellow")
        raise
    result = transcript_of(store, job).result()
    terminal.say(final_line(result, time.monotonic() - started), style="dim")
    if json:
        terminal.write_json(result)
    if result["state"] == "FAILED":
        raise typer.Exit(FAILED)


def _carry(store: Store, models: Models, job: str, json: bool, form: str) -> None:
    from ..printer import Printer
    from ..stream import Stream

    # Beside text on the same terminal, a line that is written over would be in its way.
    with terminal.progress("starting", shown=json or not sys.stdout.isatty()) as tell:
        stream = Stream(store, job, Printer(json, tell, _on_reader_gone(store, job)))
        if store.row(job).status.terminal:
            stream.catch_up()
            return
        from ..carry import carry

        carry(store, models, job, stream, form)


def _on_reader_gone(store: Store, job: str) -> Callable[[], object] | None:
    """What the job's request asks for when its reader leaves: a cancel, or nothing."""
    from ...fsm.ports import CANCEL, Command
    from ..reading import transcript_of

    state = transcript_of(store, job).state
    if state is None or state.spec.envelope.output.consumer_policy == "detach":
        return None
    return lambda: store.post(Command(secrets.token_hex(16), job, CANCEL))


def _resume_command(job: str, db: str | None) -> str:
    return f"decodelog resume {job}" + (f" --db {shlex.quote(db)}" if db else "")
