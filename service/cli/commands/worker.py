"""worker: run whatever jobs there are."""

from __future__ import annotations

import signal
import sys
import time
from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ....fsm.errors import LostTenure, ModelNotHere
from ...advice import advised
from ...database import opened
from ...jobs.listing import ended, line, out_of, rate
from ...jobs.models import Models, home
from .. import terminal
from ..board import Board
from ..edge import FAILED, INTERRUPTED, on_signals
from . import options

if TYPE_CHECKING:
    from ....fsm.errors import Problem
    from ....fsm.machine.state import State
    from ....fsm.ports import Store
    from ....fsm.reading.emission import Emission

RATED_LOOKS = 16  # that a lane's rate is over, some seconds

Drain = Annotated[bool, typer.Option("--drain", help="End when no job is left to run.")]


def worker(
    drain: Drain = False,
    models: options.ModelFolders = None,
    lanes: options.Lanes = options.LANES,
    rebuild: options.Rebuild = "prefill",
    cache_dir: options.CacheDir = None,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    form = options.rebuild_form(rebuild)
    with opened(db, create=True) as store:
        terminal.say("working; Ctrl-C ends after the step at hand and leaves unfinished jobs to others", style="dim")
        work(store, json=json, drain=drain, form=form, lanes=lanes, cache_dir=cache_dir, folders=models)


def work(
    store: Store,
    jobs: Collection[str] | None = None,
    *,
    json: bool,
    drain: bool,
    form: str,
    lanes: int = options.LANES,
    cache_dir: Path | None = None,
    folders: Sequence[Path] | None = None,
) -> None:
    """Run `jobs`, or all there are. Exits with 1 where one failed or could not be run here, as Ctrl-C does with 130."""
    from ....runtime.loop.pace import Pace
    from ...jobs.compose import new_worker

    watch = Watch(json)
    models = Models(home(), lanes, folders=folders or ())
    worker = new_worker(store, models, watch.see, watch.hear, form, Pace(lanes_max=lanes), cache_dir, say=watch.warn)
    stopped: list[int] = []

    def stop(number: int, frame: object) -> None:
        stopped.append(number)
        worker.stop()

    with on_signals(stop), watch.board.shown():
        worker.run(jobs, drain)
    if stopped:
        terminal.say("stopped; unfinished jobs are kept. Go on with: decodelog resume --all", style="yellow")
        if stopped[0] == signal.SIGINT:
            raise typer.Exit(INTERRUPTED + signal.SIGINT)
    elif watch.failed:
        raise typer.Exit(FAILED)


class Lane:
    """How far a job in hand is: its newest state, and where it was a while ago."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._marks = deque([(time.monotonic(), state.frontier.output)], maxlen=RATED_LOOKS)

    def line(self) -> str:
        """What the board says of it; the rate is over the looks before this one."""
        now, spec, output = time.monotonic(), self.state.spec, self.state.frontier.output
        then, before = self._marks[0]
        self._marks.append((now, output))
        shown = f"{out_of(output, spec.envelope.termination.max_new_tokens):>14} tokens"
        return f"{spec.job}  {shown}  {rate(output - before, round((now - then) * 1000)):>8}/s"


class Watch:
    """Prints a line for each job that ends, counts what went wrong, and has a line for each lane on a terminal."""

    def __init__(self, json: bool) -> None:
        self.failed = 0
        self.board = Board(sys.stderr, self.lines)
        self._json = json
        self._tokens = 0
        self._lanes: dict[str, Lane] = {}

    def see(self, job: str, emissions: Sequence[Emission], state: State) -> None:
        self._tokens += sum(len(emission.tokens) for emission in emissions)
        if state.ending is None:
            if (lane := self._lanes.get(job)) is None:
                self._lanes[job] = Lane(state)
            else:
                lane.state = state
            return
        self._lanes.pop(job, None)
        self.failed += state.ending.finish is None
        listing = ended(state)
        with self.board.aside():
            terminal.write_json(listing) if self._json else terminal.write(f"{line(listing)}\n")

    def hear(self, job: str, problem: Problem) -> None:
        # A job that another worker took over goes on there; nothing of it has failed.
        self.failed += not isinstance(problem, LostTenure)
        which = "jobs of one model are" if isinstance(problem, ModelNotHere) else f"job {job} is"
        self._lanes.pop(job, None)
        self.warn(f"{which} left to others: {advised(problem)}")

    def warn(self, text: str) -> None:
        with self.board.aside():
            terminal.warn(text)

    def lines(self) -> list[str]:
        """What the board shows: a line for each lane, and one for all of them."""
        lanes = list(self._lanes.values())
        return [*(lane.line() for lane in lanes), f"jobs in hand: {len(lanes)}; tokens so far: {self._tokens}"]
