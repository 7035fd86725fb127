"""A worker of a program: beside it in a thread, or in its own thread until no job is left."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from ...fsm.errors import LostTenure
from ..extras import extras_named

LOOK_S: Final = 0.2
"""How often it is looked whether a job has ended elsewhere."""

if TYPE_CHECKING:
    from ...fsm.errors import Problem
    from ...fsm.machine.state import State
    from ...fsm.reading.emission import Emission
    from ...runtime.loop.worker import Worker
    from .log import Log


class Working:
    """A worker over all jobs of a log.

    left     jobs that were left to others, with the reason: those that this process cannot run
    tokens   output tokens that this worker has made visible so far
    """

    def __init__(self, log: Log, cache_dir: Path | None, rebuild: str) -> None:
        self.left: dict[str, Problem] = {}
        self.tokens = 0
        self._news = threading.Event()
        self._log = log
        self._cache_dir = cache_dir
        self._rebuild = rebuild
        self._worker: Worker | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None

    def drain(self) -> None:
        """Run every job in this thread until none is left that this process can run. Errors: the store's."""
        self._new().run(drain=True)

    def stop(self) -> None:
        """Return after the turn at hand, and give the jobs back as they stand. Safe in a signal handler."""
        if self._worker is not None:
            self._worker.stop()

    def wait(self, job: str) -> None:
        """Return when the job has ended, here or elsewhere.

        Errors: why this process cannot run it, and what has ended this worker.
        """
        while not self._log.store.row(job).status.terminal:
            if job in self.left:
                raise self.left[job]
            if self._running is not None and self._running.done():
                self._running.result()
                raise RuntimeError(f"the worker was stopped, and job {job} has not ended")
            self._news.wait(LOOK_S)
            self._news.clear()

    def _see(self, job: str, emissions: Sequence[Emission], state: State) -> None:
        self.tokens += sum(len(emission.tokens) for emission in emissions)
        if state.ending is not None:
            self._news.set()

    def _hear(self, job: str, problem: Problem) -> None:
        if not isinstance(problem, LostTenure):  # somebody else goes on with it
            self.left[job] = problem
            self._news.set()

    def __enter__(self) -> Self:
        self._thread = ThreadPoolExecutor(1, "decodelog worker")
        self._running = self._thread.submit(self._new().run)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and raise what has ended the worker, unless the block itself raises."""
        self.stop()
        if self._thread is not None:
            self._thread.shutdown()
        if self._running is not None and kind is None:
            self._running.result()

    def _new(self) -> Worker:
        with extras_named():
            from ...runtime.loop.worker import Pace
            from ..jobs.compose import new_worker

        log = self._log
        self._worker = new_worker(
            log.store,
            log.models,
            sink=self._see,
            notice=self._hear,
            form=self._rebuild,
            pace=Pace(lanes_max=log.models.lanes),
            cache_dir=self._cache_dir,
            say=log.say,
        )
        return self._worker
