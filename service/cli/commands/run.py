"""run, submit, resume: bringing a request to its end, or only into the log."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ....fsm.errors import ContentErased, DatabaseMoved
from ....fsm.errors.redaction import redacted_url
from ...database import now_ms, opened
from ...jobs.models import Models, home
from ...jobs.naming import NamedJobs, find
from .. import terminal
from ..draft_flags import DraftFlags, takes_draft
from ..edge import FAILED, Stopped, on_signals
from . import options
from .worker import work

if TYPE_CHECKING:
    from ....fsm.ports import Store
    from ....fsm.reading.emission import Emission
    from ....fsm.request.draft import Draft
    from ...database import AnyStore
    from ...jobs.family import Submission

LANES_MAX = 16  # jobs of a family at a time: each holds the keys and values of a whole context

All = Annotated[bool, typer.Option("--all", help="Every job that has not ended.")]


@takes_draft()
def run(
    flags: DraftFlags,
    cache_dir: options.CacheDir = None,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    draft = flags.draft()
    models = _models(draft.n)
    with opened(db, create=True) as store:
        found, created = _submit(store, models, flags, draft)
        what = "family" if found.is_family else "job"
        terminal.say(f"{what if created else f'attached to {what}'} {found.name}", style="dim")
        finish(store, models, found, db, json, cache_dir=cache_dir)


@takes_draft()
def submit(flags: DraftFlags, db: options.Database = None, json: options.Json = False) -> None:
    draft = flags.draft()
    with opened(db, create=True) as store:
        found, created = _submit(store, _models(draft.n), flags, draft)
        identity = store.row(found.jobs[0]).identity
    what = f"{'family' if found.is_family else 'job'} {found.name} is admitted"
    with terminal.acknowledging(f"{what}, and nobody reads standard output: do not submit it again"):
        if not json:
            terminal.write(f"{found.name}\n")
        elif found.is_family:
            terminal.write_json({"family": found.name, "jobs": found.jobs, "created": created})
        else:
            terminal.write_json({"job": found.name, "identity": identity, "created": created})


def resume(
    job: options.MaybeJobOrFamily = None,
    every: All = False,
    rebuild: options.Rebuild = "prefill",
    models: options.ModelFolders = None,
    cache_dir: options.CacheDir = None,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    if (job is None) is not every:
        raise typer.BadParameter("name one job, or give --all")
    form = options.rebuild_form(rebuild)
    with opened(db) as store:
        if job is not None:
            found = find(store, job)
            say_missing(found)
            finish(store, _models(len(found.jobs), models), found, db, json, form, cache_dir)
        else:
            unfinished = [row.job for row in store.rows() if not row.status.terminal]
            work(store, unfinished, json=json, drain=True, form=form, cache_dir=cache_dir, folders=models)


def _models(jobs: int, folders: Sequence[Path] | None = None) -> Models:
    return Models(home(), lanes=min(jobs, LANES_MAX), folders=folders or ())


def _submit(store: AnyStore, models: Models, flags: DraftFlags, draft: Draft) -> Submission:
    with terminal.progress(f"loading {flags.model}"):
        from ...jobs.family import submit_choices
        from ...jobs.registering import describe, ignored_defaults, told_defaults

        model, name = describe(store, models, flags.model)
        asked = submit_choices(store, model, name, draft, now_ms(), flags.idempotency_key, flags.retain_ms)
    if ignored := ignored_defaults(model.facts, draft):
        terminal.say(told_defaults(ignored), style="dim")
    return asked


def finish(
    store: Store,
    models: Models,
    found: NamedJobs,
    db: str | None,
    json: bool,
    form: str = "prefill",
    cache_dir: Path | None = None,
) -> None:
    """Bring a job or a family to its end, with its text on standard output; a job that failed fails this process."""
    from ...streams.reading import transcript_of
    from ..printer import final_line

    for job in found.jobs:
        row = store.row(job)
        if row.stalled and not row.status.terminal:
            terminal.say(f"{row.stalled} workers in turn ended without a token of job {job}", style="yellow")
    started = time.monotonic()
    try:
        with on_signals():
            _carry(store, models, found, json, form, cache_dir)
    except (ContentErased, DatabaseMoved):
        raise  # and nobody can go on with it
    except (Stopped, Exception) as end:
        newline = "\n" if sys.stdout.isatty() else ""
        what = "stopped" if isinstance(end, Stopped) else "this process cannot go on"
        kept = "its jobs are" if found.is_family else "the job is"
        terminal.say(
            f"{newline}{what}; {kept} kept. Go on with: {_resume_command(found.name, db, cache_dir)}", style="yellow"
        )
        raise
    results = [transcript_of(store, job).result() for job in found.jobs]
    for result in results:
        about = f"{result['job']} " if found.is_family else ""
        terminal.say(about + final_line(result, time.monotonic() - started), style="dim")
    if json:
        terminal.write_json(told(found, results))
    if any(result["state"] == "FAILED" for result in results):
        raise typer.Exit(FAILED)


def told(found: NamedJobs, results: list[dict[str, Any]]) -> dict[str, Any]:
    """A job's result as it is; those of a family in the order of their choices."""
    return {"family": found.name, "choices": results} if found.is_family else results[0]


def _carry(store: Store, models: Models, found: NamedJobs, json: bool, form: str, cache_dir: Path | None) -> None:
    from ...jobs.carry import carried
    from ..printer import Printer

    # Beside text on the same terminal, a line that is written over would be in its way.
    with terminal.progress("starting", shown=json or not sys.stdout.isatty()) as tell:
        printer = Printer(json, tell, len(found.jobs), _on_reader_gone(store, found.jobs))
        write = _headed(printer) if found.is_family else lambda job, each: printer(each)
        with closing(carried(store, models, found.jobs, form, cache_dir, terminal.warn)) as pieces:
            for job, emission in pieces:
                write(job, emission)


def _headed(write: Callable[[Emission], None]) -> Callable[[str, Emission], None]:
    """`write`, with a heading before the first text of each job and an empty line between two of them."""
    begun: list[str] = []

    def write_headed(job: str, emission: Emission) -> None:
        if job not in begun[-1:]:
            emission = emission._replace(text=("\n" if begun else "") + terminal.heading(job) + emission.text)
            begun.append(job)
        write(emission)

    return write_headed


def _on_reader_gone(store: Store, jobs: Sequence[str]) -> Callable[[], object] | None:
    """What the request asks for when its reader leaves: to cancel what still runs, or nothing."""
    from ...jobs.cancel import ask_to_end
    from ...streams.reading import transcript_of

    state = transcript_of(store, jobs[0]).state  # the jobs of a family have one request
    if state is None or state.spec.envelope.output.consumer_policy == "detach":
        return None
    return lambda: [ask_to_end(store, job) for job in jobs if not store.row(job).status.terminal]


def say_missing(found: NamedJobs) -> None:
    """Say that a submission was cut off before it had admitted all choices of its family."""
    if found.missing:
        kept = f"only {len(found.jobs)} of {found.missing + len(found.jobs)} choices of {found.name} were admitted"
        terminal.say(
            f"{kept}; submit it again under its idempotency key, if it has one, to add the others", style="yellow"
        )


def _resume_command(name: str, db: str | None, cache_dir: Path | None) -> str:
    options = {"--db": None if db is None else redacted_url(db), "--cache-dir": cache_dir}
    given = [f" {option} {shlex.quote(str(value))}" for option, value in options.items() if value]
    return f"decodelog resume {name}{''.join(given)}"
