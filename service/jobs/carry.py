"""Carry jobs to their end: run them in this process, or follow whoever runs them and take over should they die."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from ...fsm.errors import LostTenure, Problem, Transient
from ...fsm.machine.state import State
from ...fsm.ports import Store
from ...fsm.reading.emission import Emission
from ..streams.reading import FOLLOW_S
from ..streams.turns import Turns
from .beside import begin
from .models import Models
from .voice import Say, unsaid

Published = SimpleQueue[tuple[str, Sequence[Emission]] | None]
Carried = tuple[str, Emission]


def carried(
    store: Store,
    models: Models,
    jobs: Sequence[str],
    form: str = "prefill",
    cache_dir: Path | None = None,
    say: Say = unsaid,
) -> Generator[Carried, None, None]:
    """Bring `jobs` to their end, and give their text as it becomes durable: one job after the other, with its name.

    Somebody asked for these jobs (see `Caution`): no stall of theirs is waited out or counted.
    The worker runs in a thread of its own and never waits for the reader. A reader that closes the iterator, or leaves
    it by an exception, stops the worker after its turn: the jobs are released as they stand.
    Errors: what keeps this process from running a job (another artifact, a model that is not here, the store's).
    """
    with closing(watched(store, models, jobs, form, cache_dir, say)) as items:
        yield from (item for item in items if item is not None)


def watched(
    store: Store,
    models: Models,
    jobs: Sequence[str],
    form: str = "prefill",
    cache_dir: Path | None = None,
    say: Say = unsaid,
) -> Generator[Carried | None, None, None]:
    """`carried`, with a None at least every `FOLLOW_S` seconds in which there is nothing to give."""
    handed: deque[Carried] = deque()
    turns = Turns(store, jobs, lambda job, emission: handed.append((job, emission)))
    if all(store.row(job).status.terminal for job in jobs):
        turns.catch_up()
        yield from handed
        return
    from ...runtime.loop.pace import Pace
    from .compose import new_worker

    published: Published = SimpleQueue()
    refusals: list[Problem] = []

    def sink(name: str, emissions: Sequence[Emission], state: State) -> None:
        published.put((name, emissions))

    def notice(name: str, problem: Problem) -> None:
        if not isinstance(problem, LostTenure):  # somebody else goes on with it, and the log has their text
            refusals.append(problem)

    worker = new_worker(store, models, sink, notice, form, Pace(lanes_max=models.lanes), cache_dir, say=say)
    running = begin(worker, store, jobs, drain=True, asked=True)
    running.add_done_callback(lambda _: published.put(None))
    try:
        while _taken(published, turns):
            while handed:
                yield handed.popleft()
            yield None
    finally:
        worker.stop()
        wait([running])
    _raise_first(running, refusals)
    turns.catch_up()
    yield from handed


def _taken(published: Published, turns: Turns) -> bool:
    """Take over what the worker publishes, and while it is silent, what others append; False when it has returned."""
    # How long a database is waited for is the worker's to say; what is not read now is read later.
    with suppress(Transient):
        try:
            item = published.get(timeout=FOLLOW_S)
        except Empty:
            turns.catch_up()
            return True
        if item is None:
            return False
        turns.take(*item)
    return True


def _raise_first(running: Future[None], refusals: Sequence[Problem]) -> None:
    running.result()
    if refusals:
        raise refusals[0]
