"""A program's worker: in a background thread, or in the caller's thread until no job is left."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from ...fsm.errors import LostTenure, ModelNotHere, Transient
from ...fsm.ports import ModelRef
from ..extras import extras_named
from ..jobs.beside import begin
from .job import Job

LOOK_S: Final = 0.2
"""How often it is looked whether a job has ended elsewhere."""

AHEAD: Final = 4
"""Jobs that are submitted ahead for each lane."""

if TYPE_CHECKING:
    from ...fsm.errors import Problem
    from ...fsm.machine.state import State
    from ...fsm.reading.emission import Emission
    from ...runtime.loop.worker import Worker
    from .log import Log

T = TypeVar("T")
S = TypeVar("S", bound="Job | Problem")


class Wanted(Collection[str]):
    """The jobs that a worker is to run; one thread changes it while the worker's reads it."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()

    def add(self, name: str) -> None:
        self._names = (*self._names, name)

    def remove(self, name: str) -> None:
        self._names = tuple(each for each in self._names if each != name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Working:
    """A worker over all jobs of a log, or over those alone that it is given `in_order`.

    left     jobs that this process cannot run and leaves to others, with the reason
    tokens   output tokens that this worker has made visible so far
    """

    def __init__(self, log: Log, cache_dir: Path | None, rebuild: str = "prefill", asked: bool = False) -> None:
        """With `asked` it runs the jobs of `in_order` alone, as jobs that somebody asked for (see `Caution`)."""
        self.left: dict[str, Problem] = {}
        self._missed: dict[ModelRef, Problem] = {}
        self.tokens = 0
        self._news = threading.Event()
        self._log = log
        self._cache_dir = cache_dir
        self._rebuild = rebuild
        self._asked = Wanted() if asked else None
        self._worker: Worker | None = None
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
        while True:
            with suppress(Transient):  # how long to wait for a database is up to the worker
                row = self._log.store.row(job)
                if row.status.terminal:
                    return
                if row.owner is None and (missed := self._missed.get(row.wanted)) is not None:
                    raise missed
                if row.owner is None and job in self.left:
                    raise self.left[job]
            if self._running is None or self._running.done():
                if self._running is not None:
                    self._running.result()
                raise RuntimeError(f"the worker does not run, and job {job} has not ended")
            self._news.wait(LOOK_S)
            self._news.clear()

    def in_order(self, submitted: Iterable[tuple[T, S]]) -> Iterator[tuple[T, S]]:
        """Give each pair in its order, once its job has ended; what is no job is not waited for.

        Pairs are read ahead, so that no lane waits for the next job. Errors: those of `wait`.
        """
        waiting: deque[tuple[T, S]] = deque()
        for pair in submitted:
            waiting.append(pair)
            if self._asked is not None and isinstance(job := pair[1], Job):
                self._asked.add(job.name)
            if len(waiting) >= AHEAD * self._log.models.lanes:
                yield self._ended(waiting.popleft())
        while waiting:
            yield self._ended(waiting.popleft())

    def _ended(self, pair: tuple[T, S]) -> tuple[T, S]:
        if isinstance(job := pair[1], Job):
            self.wait(job.name)
            if self._asked is not None:
                self._asked.remove(job.name)
        return pair

    def _see(self, job: str, emissions: Sequence[Emission], state: State) -> None:
        self.tokens += sum(len(emission.tokens) for emission in emissions)
        if state.ending is not None:
            self._news.set()

    def _hear(self, job: str, problem: Problem) -> None:
        if not isinstance(problem, LostTenure | Transient):  # another worker goes on with it, or it is tried again
            self.left[job] = problem
            if isinstance(problem, ModelNotHere):  # which is said once for all jobs of that model
                self._missed[ModelRef(problem.name, problem.artifact)] = problem
            self._news.set()

    def __enter__(self) -> Self:
        self._running = begin(self._new(), self._log.store, self._asked, asked=self._asked is not None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and raise what has ended the worker, unless the block itself raises."""
        self.stop()
        if self._running is not None:
            wait([self._running])
            if kind is None:
                self._running.result()

    def _new(self) -> Worker:
        with extras_named():
            from ...runtime.loop.pace import Pace
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
