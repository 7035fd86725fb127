"""Carry one job to its end: run it in this process, or follow whoever runs it and take over should they die."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue

from ..fsm.emission import Emission
from ..fsm.errors import LostTenure, Problem
from ..fsm.ports import Store
from ..fsm.state import State
from ..runtime.worker import Pace
from .compose import new_worker
from .models import Models
from .reading import FOLLOW_S
from .stream import Stream

PACE = Pace(lanes_max=1)


def carry(store: Store, models: Models, job: str, stream: Stream, form: str = "prefill") -> None:
    """Return when `job` has ended and `stream` has been handed all of it.

    The worker runs in a thread of its own and never waits for the reader. What `stream` raises, and a signal's
    exception, stop the worker after its turn and are raised again: the job is released as it stands.
    Errors: what keeps this process from running the job (another artifact, a model that is not here, the store's).
    """
    published: SimpleQueue[Sequence[Emission] | None] = SimpleQueue()
    refusals: list[Problem] = []

    def sink(name: str, emissions: Sequence[Emission], state: State) -> None:
        published.put(emissions)

    def notice(name: str, problem: Problem) -> None:
        if not isinstance(problem, LostTenure):  # somebody else goes on with it, and the log has their text
            refusals.append(problem)

    worker = new_worker(store, models, sink, notice, form, PACE)
    with ThreadPoolExecutor(1, "worker") as threads:
        running = threads.submit(worker.run, [job], True)
        running.add_done_callback(lambda _: published.put(None))
        try:
            _hand_over(published, stream)
        finally:
            worker.stop()
    _raise_first(running, refusals)
    stream.catch_up()


def _hand_over(published: SimpleQueue[Sequence[Emission] | None], stream: Stream) -> None:
    """Until the worker returns: hand on what it publishes, and while it is silent, what others append."""
    while True:
        try:
            emissions = published.get(timeout=FOLLOW_S)
        except Empty:
            stream.catch_up()
            continue
        if emissions is None:
            return
        stream.take(emissions)


def _raise_first(running: Future[None], refusals: Sequence[Problem]) -> None:
    running.result()
    if refusals:
        raise refusals[0]
