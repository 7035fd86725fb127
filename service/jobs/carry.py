"""Carry jobs to their end: run them in this process, or follow whoever runs them and take over should they die."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from ...fsm.errors import LostTenure, Problem, Transient
from ...fsm.machine.state import State
from ...fsm.ports import Store
from ...fsm.reading.emission import Emission
from ...runtime.loop.worker import Pace
from ..streams.reading import FOLLOW_S
from ..streams.turns import Turns
from .compose import Say, new_worker, unsaid
from .models import Models

Published = SimpleQueue[tuple[str, Sequence[Emission]] | None]


def carry(
    store: Store,
    models: Models,
    jobs: Sequence[str],
    turns: Turns,
    form: str = "prefill",
    snapshots: Path | None = None,
    say: Say = unsaid,
) -> None:
    """Return when `jobs` have ended and `turns` has been handed all of them.

    Somebody asked for these jobs (see `Caution`): no stall of theirs is waited out or counted.
    The worker runs in a thread of its own and never waits for the reader. What `turns` raises, and a signal's
    exception, stop the worker after its turn and are raised again: the jobs are released as they stand.
    Errors: what keeps this process from running a job (another artifact, a model that is not here, the store's).
    """
    published: Published = SimpleQueue()
    refusals: list[Problem] = []

    def sink(name: str, emissions: Sequence[Emission], state: State) -> None:
        published.put((name, emissions))

    def notice(name: str, problem: Problem) -> None:
        if not isinstance(problem, LostTenure):  # somebody else goes on with it, and the log has their text
            refusals.append(problem)

    worker = new_worker(store, models, sink, notice, form, Pace(lanes_max=models.lanes), snapshots, say=say)
    with ThreadPoolExecutor(1, "worker") as threads:
        running = threads.submit(worker.run, jobs, drain=True, asked=True)
        running.add_done_callback(lambda _: published.put(None))
        try:
            _hand_over(published, turns)
        finally:
            worker.stop()
    _raise_first(running, refusals)
    turns.catch_up()


def _hand_over(published: Published, turns: Turns) -> None:
    """Until the worker returns: hand on what it publishes, and while it is silent, what others append."""
    while True:
        # How long a database is waited for is the worker's to say; what is not read now is read later.
        with suppress(Transient):
            try:
                item = published.get(timeout=FOLLOW_S)
            except Empty:
                turns.catch_up()
                continue
            if item is None:
                return
            turns.take(*item)


def _raise_first(running: Future[None], refusals: Sequence[Problem]) -> None:
    running.result()
    if refusals:
        raise refusals[0]
