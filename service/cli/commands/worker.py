"""worker: run whatever jobs there are."""

from __future__ import annotations

import signal
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ....fsm.errors import LostTenure
from ...advice import advised
from ...database import opened
from ...jobs.listing import ended, line
from ...jobs.models import Models, home
from .. import terminal
from ..edge import FAILED, INTERRUPTED, on_signals
from . import options

if TYPE_CHECKING:
    from ....fsm.errors import Problem
    from ....fsm.machine.state import State
    from ....fsm.ports import Store
    from ....fsm.reading.emission import Emission

Drain = Annotated[bool, typer.Option("--drain", help="End when no job is left to run.")]


def worker(
    drain: Drain = False,
    lanes: options.Lanes = options.LANES,
    rebuild: options.Rebuild = "prefill",
    cache_dir: options.CacheDir = None,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    form = options.rebuild_form(rebuild)
    with opened(db, create=True) as store:
        terminal.say("working; Ctrl-C ends after the step at hand and leaves unfinished jobs to others", style="dim")
        work(store, json=json, drain=drain, form=form, lanes=lanes, cache_dir=cache_dir)


def work(
    store: Store,
    jobs: Collection[str] | None = None,
    *,
    json: bool,
    drain: bool,
    form: str,
    lanes: int = options.LANES,
    cache_dir: Path | None = None,
) -> None:
    """Run `jobs`, or all there are. Exits with 1 where one failed or could not be run here, as Ctrl-C does with 130."""
    from ....runtime.loop.worker import Pace
    from ...jobs.compose import new_worker

    watch = Watch(json)
    worker = new_worker(
        store, Models(home(), lanes), watch.see, watch.hear, form, Pace(lanes_max=lanes), cache_dir, say=terminal.warn
    )
    stopped: list[int] = []

    def stop(number: int, frame: object) -> None:
        stopped.append(number)
        worker.stop()

    with on_signals(stop), terminal.progress("waiting for jobs", shown=not sys.stdout.isatty()) as watch.tell:
        worker.run(jobs, drain)
    if stopped:
        terminal.say("stopped; unfinished jobs are kept. Go on with: decodelog resume --all", style="yellow")
        if stopped[0] == signal.SIGINT:
            raise typer.Exit(INTERRUPTED + signal.SIGINT)
    elif watch.failed:
        raise typer.Exit(FAILED)


class Watch:
    """Prints a line for each job that ends, and counts what went wrong."""

    def __init__(self, json: bool) -> None:
        self.tell: terminal.Progress = lambda text: None
        self.failed = 0
        self._json = json
        self._tokens = 0
        self._jobs: set[str] = set()

    def see(self, job: str, emissions: Sequence[Emission], state: State) -> None:
        self._tokens += sum(len(emission.tokens) for emission in emissions)
        self._jobs.add(job)
        if state.ending is not None:
            self._jobs.discard(job)
            self.failed += state.ending.finish is None
            listing = ended(state)
            terminal.write_json(listing) if self._json else terminal.write(f"{line(listing)}\n")
        self._say()

    def hear(self, job: str, problem: Problem) -> None:
        # A job that another worker took over goes on there; nothing of it has failed.
        self.failed += not isinstance(problem, LostTenure)
        terminal.say(f"job {job} is left to others: {advised(problem)}", style="yellow")
        self._jobs.discard(job)
        self._say()

    def _say(self) -> None:
        self.tell(f"jobs in hand: {len(self._jobs)}; tokens so far: {self._tokens}")
