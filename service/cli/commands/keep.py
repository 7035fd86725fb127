"""seal, erase, sweep: how long logs stay, and how much of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ....fsm.errors import ContentErased, Problem, SealRefused, WholeNameNeeded
from ...advice import advised, advised_facts
from ...database import opened
from ...jobs.naming import find
from .. import terminal
from ..durations import milliseconds
from ..edge import FAILED, REFUSED, report
from . import options

if TYPE_CHECKING:
    from ....fsm.ports import Named
    from ...retention.erase import Erased
    from ...retention.seal import Sealed
    from ...retention.sweep import Due, Refused, Uncached

_NAMES = typer.Argument(metavar="JOB", help="Names of jobs or families, or their beginnings.", show_default=False)
_CACHE_DIR = typer.Option(
    "--cache-dir",
    metavar="DIR",
    exists=True,
    file_okay=False,
    help="Also remove the caches that were kept here.",
    show_default=False,
)
MaybeNames = Annotated[list[str] | None, _NAMES]
Names = Annotated[list[str], _NAMES]
CacheDir = Annotated[Path | None, _CACHE_DIR]
Every = Annotated[bool, typer.Option("--all", help="Every job that has ended.")]
OlderThan = Annotated[
    str | None,
    typer.Option("--older-than", metavar="TIME", help="Of --all: ended so long ago, like 7d.", show_default=False),
]
SealAfter = Annotated[
    str | None,
    typer.Option("--seal-after", metavar="TIME", help="Also seal what ended so long ago, like 1d.", show_default=False),
]
PAST = {"erase": "erased", "seal": "sealed", "uncache": "rid of its cache"}

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask, and take the beginnings of names, too.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what is due, and change nothing.")]


def seal(
    job: MaybeNames = None,
    every: Every = False,
    older_than: OlderThan = None,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    if bool(job) is every:
        raise typer.BadParameter("name jobs, or give --all")
    if older_than is not None and not every:
        raise typer.BadParameter("it goes with --all", param_hint="--older-than")
    from ...retention.erase import check_ended
    from ...retention.sweep import seal_all

    with JobReport(json) as told, opened(db) as store:
        if job:
            jobs = named(store, job)
            rows = [store.row(name) for name in jobs]
            check_ended(rows)
            for row in rows:
                if row.erased_ms is not None:
                    raise ContentErased(row.job)
        else:
            jobs = store.unsealed(0 if older_than is None else milliseconds(older_than, "--older-than"))
        seal_all(store, jobs, told.hear)


def erase(
    job: Names,
    yes: Yes = False,
    dry_run: DryRun = False,
    cache_dir: CacheDir = None,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    from ...retention.erase import check_ended, forks_of
    from ...retention.sweep import Due, erase_all

    with opened(db) as store, ExitStack() as stack:
        jobs = named(store, job)
        rows = [store.row(name) for name in jobs]
        check_ended(rows)
        if dry_run:
            return tell_due(Due([row.job for row in rows if row.erased_ms is None], [], []), json)
        if not yes:
            confirm(store, job, jobs)
        told = stack.enter_context(JobReport(json))
        told.forks, told.scrubbed = forks_of(store, jobs), False
        told.scrubbed = erase_all(store, jobs, told.hear, cache_dir)


def confirm(log: Named, given: Sequence[str], jobs: Sequence[str]) -> None:
    """Ask at the terminal before erasing these jobs. Errors: WholeNameNeeded where there is no terminal."""
    if terminal.can_ask():
        for name in jobs:
            terminal.say(name)
        what = "this job" if len(jobs) == 1 else f"these {len(jobs)} jobs"
        if not terminal.ask(f"Erase prompt, output and request of {what} for good?"):
            terminal.say("nothing was erased")
            raise typer.Exit(REFUSED)
        return
    for each in given:
        if each != (name := find(log, each).name):
            raise WholeNameNeeded(each, name)


def sweep(
    seal_after: SealAfter = None,
    dry_run: DryRun = False,
    cache_dir: CacheDir = None,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    from ...retention.sweep import due
    from ...retention.sweep import sweep as sweep_jobs

    after_ms = None if seal_after is None else milliseconds(seal_after, "--seal-after")
    if not dry_run:
        with JobReport(json) as told, opened(db) as store:
            told.scrubbed = False
            told.scrubbed = sweep_jobs(store, after_ms, told.hear, cache_dir)
        return
    with opened(db) as store:
        found = due(store, after_ms, cache_dir)
    tell_due(found, json)


def tell_due(found: Due, json: bool) -> None:
    """Say what would be done, without doing it."""
    if json:
        terminal.write_json({"due": found._asdict()})
    else:
        for what, names in found._asdict().items():
            terminal.write("".join(f"{name} would be {PAST[what]}\n" for name in names))


def named(store: Named, names: list[str]) -> list[str]:
    """Every job that these names find, each once, in order."""
    return list(dict.fromkeys(each for name in names for each in find(store, name).jobs))


class JobReport:
    """What became of each job, one a line as it happens, or as one JSON value at the end.

    A problem in the middle ends the report after what was done before it: exit code 1, as something has changed.
    """

    def __init__(self, json: bool) -> None:
        self.scrubbed = True
        self.forks: dict[str, list[str]] = {}
        self._json = json
        self._jobs: list[dict[str, Any]] = []
        self._refused = False

    def __enter__(self) -> JobReport:
        return self

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if problem is None:
            self._end()
        elif isinstance(problem, Problem) and self._jobs:
            if self._json:
                terminal.write_json(self._facts() | {"error": advised_facts(problem)})
            else:
                report(advised_facts(problem), as_json=False)
                terminal.say("what is told above is done; run the same command again for the rest")
            raise typer.Exit(FAILED) from problem

    def hear(self, what: Erased | Sealed | Uncached | Refused) -> None:
        from ...retention.seal import Sealed
        from ...retention.sweep import Refused, Uncached

        if isinstance(what, Refused):
            self._refused = True
            self._jobs.append({"job": what.job, "refused": advised_facts(what.problem)})
            reason = what.problem.reason if isinstance(what.problem, SealRefused) else advised(what.problem)
            words = f"{what.job} is not {PAST[what.what]}: {reason}"
        elif isinstance(what, Uncached):
            self._jobs.append({"job": what.job, "uncached": True})
            words = f"{what.job} is {PAST['uncache']}"
        elif isinstance(what, Sealed):
            self._jobs.append({"job": what.job, "sealed": what.done, "tokens": what.tokens, "bytes": what.after})
            bytes_said = f"{what.tokens} tokens, {what.before:,} bytes before and {what.after:,} after"
            words = f"{what.job} is sealed: {bytes_said}" if what.done else f"{what.job} was sealed already"
        else:
            forks = self.forks.get(what.job, [])
            self._jobs.append({"job": what.job, "erased": what.done} | ({"forks": forks} if forks else {}))
            words = f"{what.job} is erased" if what.done else f"{what.job} was erased already"
            words += "".join(
                f"\n{fork} is a fork of it, and keeps its prompt and the output before it" for fork in forks
            )
        if not self._json:
            terminal.write(f"{words}\n")

    def _facts(self) -> dict[str, Any]:
        return {"jobs": self._jobs, "scrubbed": self.scrubbed}

    def _end(self) -> None:
        """The JSON value, and exit code 1 where something was refused or not finished."""
        if self._json:
            terminal.write_json(self._facts())
        if not self.scrubbed:
            terminal.say(
                "other readers still see what was erased, and the database keeps bytes of it for them; "
                "run the same command again when they are gone",
                style="yellow",
            )
        if self._refused or not self.scrubbed:
            raise typer.Exit(FAILED)
