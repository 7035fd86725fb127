"""The same log and jobs for a program with an event loop: the same names, to be awaited.

Calls that block on a database or a model run in the loop's pool of threads; readers wait without a thread. So
readers cost no thread each, however many there are, and a task that reads is cancelled at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ...fsm.errors import Transient
from ...fsm.ports import JobRow
from ...fsm.reading.emission import Emission
from ..archive.restore import Back
from ..extras import extras_named
from ..inspect.audit import Report
from ..inspect.compare import Verdict
from ..jobs.cancel import Cancelled
from ..jobs.carry import watched
from ..jobs.voice import Say, unsaid
from ..streams.reading import FOLLOW_S, Follower, Numbered
from .job import Job, check_rebuild, folder
from .log import LANES, Log
from .values import Explanation, Result, result_of

if TYPE_CHECKING:
    from ...fsm.request.registration import Registered
    from ...runtime.model.port import Model
    from ...store.archive.bundle import Written
    from ..archive.snapshot import SnapshotReport

IDLE_ROUNDS: Final = 10
"""Rings, or rounds without one, that nobody has waited for, after which the thread that waits for rings ends."""


async def aopen(
    url: str | None = None,
    *,
    create: bool = True,
    models: Mapping[str, Model] | None = None,
    lanes: int = LANES,
    say: Say = unsaid,
) -> AsyncLog:
    """Open a log for the running event loop; see `open`. Use it as `async with await aopen(...) as log`."""
    from .log import open

    return AsyncLog(await asyncio.to_thread(partial(open, url, create=create, models=models, lanes=lanes, say=say)))


class AsyncLog:
    """`Log`, to be awaited. It belongs to the event loop that it was made in.

    log   the log itself, for what needs no waiting
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self._ringer = Ringer(log, asyncio.get_running_loop())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Wake readers that still wait, with an error, and close the log; see `Log.close`. Idempotent."""
        await asyncio.to_thread(self._ringer.close)
        await asyncio.to_thread(self.log.close)

    async def submit(self, model: str, **request: Any) -> AsyncJob:
        """See `Log.submit`."""
        return AsyncJob(self, await asyncio.to_thread(partial(self.log.submit, model, **request)))

    async def submit_choices(self, model: str, **request: Any) -> list[AsyncJob]:
        """See `Log.submit_choices`."""
        jobs = await asyncio.to_thread(partial(self.log.submit_choices, model, **request))
        return [AsyncJob(self, job) for job in jobs]

    async def submit_many(self, model: str, requests: Iterable[Mapping[str, Any]]) -> list[AsyncJob]:
        """See `Log.submit_many`."""
        return [AsyncJob(self, job) for job in await asyncio.to_thread(self.log.submit_many, model, requests)]

    async def job(self, name: str) -> AsyncJob:
        """See `Log.job`."""
        return AsyncJob(self, await asyncio.to_thread(self.log.job, name))

    async def jobs(self) -> list[AsyncJob]:
        """See `Log.jobs`."""
        return [AsyncJob(self, job) for job in await asyncio.to_thread(self.log.jobs)]

    async def rows(self) -> list[JobRow]:
        """See `Log.rows`."""
        return await asyncio.to_thread(self.log.rows)

    async def audit(self, jobs: Sequence[str] | None = None, reexecute: bool = False) -> Report:
        """See `Log.audit`."""
        return await asyncio.to_thread(self.log.audit, jobs, reexecute)

    async def export(self, path: Path | str, jobs: Sequence[str] | None = None, **options: bool) -> Written:
        """See `Log.export`."""
        return await asyncio.to_thread(partial(self.log.export, path, jobs, **options))

    async def restore(self, path: Path | str, **options: Any) -> list[Back]:
        """See `Log.restore`."""
        return await asyncio.to_thread(partial(self.log.restore, path, **options))

    async def register_model(self, model: Path | str, name: str | None = None) -> Registered:
        """See `Log.register_model`."""
        return await asyncio.to_thread(self.log.register_model, model, name)

    async def registered_models(self) -> list[Registered]:
        """See `Log.registered_models`."""
        return await asyncio.to_thread(self.log.registered_models)

    async def changed(self) -> None:
        """Return when the database may have changed; at the latest after `FOLLOW_S` seconds."""
        await self._ringer.ring()


class AsyncJob:
    """`Job`, to be awaited."""

    def __init__(self, log: AsyncLog, job: Job) -> None:
        self.log = log
        self.job = job
        self.name = job.name

    def __repr__(self) -> str:
        return f"<decodelog.AsyncJob {self.name}>"

    async def run(
        self, cache_dir: Path | str | None = None, rebuild: str = "prefill"
    ) -> AsyncGenerator[Emission, None]:
        """See `Job.run`. A task that is cancelled stops the worker after its step; the job can be gone on with."""
        check_rebuild(rebuild)
        loop, over = asyncio.get_running_loop(), Flag()
        items, done = asyncio.Queue[Emission | BaseException | None](), loop.create_future()
        log, kept = self.job.log, folder(cache_dir)

        def put(item: Emission | BaseException | None) -> None:
            loop.call_soon_threadsafe(items.put_nowait, item)

        def pump() -> None:
            try:
                with (
                    extras_named(),
                    closing(watched(log.store, log.models, [self.name], rebuild, kept, log.say)) as pieces,
                ):
                    for item in pieces:
                        if over.is_set():
                            break
                        if item is not None:
                            put(item[1])
                put(None)
            except BaseException as error:
                put(error)
            finally:
                loop.call_soon_threadsafe(done.set_result, None)

        # Not in the loop's pool: as many jobs as it has threads would keep everything else waiting.
        Thread(target=pump, name=f"decodelog run {self.name}", daemon=True).start()
        try:
            while (item := await items.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            over.set()
            await asyncio.shield(done)

    async def stream(self, after: int = 0, follow: bool = True) -> AsyncGenerator[Emission, None]:
        """See `Job.stream`."""
        follower = Follower(self.job.log.store, self.name)
        while True:
            for emission in await asyncio.to_thread(follower.poll_proven):
                if emission.sequence > after:
                    yield emission
            if follower.damage is not None:
                raise follower.damage
            if follower.ended or not follow:
                return
            await self.log.changed()

    async def result(self, timeout: float | None = None) -> Result:
        """See `Job.result`."""
        follower = Follower(self.job.log.store, self.name)
        await asyncio.to_thread(follower.poll)
        try:
            async with asyncio.timeout(timeout):
                while not follower.ended:
                    await self.log.changed()
                    await asyncio.to_thread(follower.poll)
        except TimeoutError:
            raise TimeoutError(f"job {self.name} has not ended in {timeout} s; is a worker running?") from None
        return result_of(self.name, follower.transcript)

    async def peek(self) -> Result:
        """See `Job.peek`."""
        return await asyncio.to_thread(self.job.peek)

    async def row(self) -> JobRow:
        """See `Job.row`."""
        return await asyncio.to_thread(lambda: self.job.row)

    async def state(self) -> str:
        """See `Job.state`."""
        return await asyncio.to_thread(lambda: self.job.state)

    async def events(self, start: int = 1) -> list[Numbered]:
        """The events that the job's log has from number `start` on."""
        return await asyncio.to_thread(lambda: list(self.job.events(start)))

    async def cancel(self, timeout: float = 30.0) -> Cancelled | None:
        """See `Job.cancel`."""
        return await asyncio.to_thread(self.job.cancel, timeout)

    async def fork(self, at: int, **request: Any) -> AsyncJob:
        """See `Job.fork`."""
        return AsyncJob(self.log, await asyncio.to_thread(partial(self.job.fork, at, **request)))

    async def audit(self, reexecute: bool = False) -> Report:
        """See `Job.audit`."""
        return await asyncio.to_thread(self.job.audit, reexecute)

    async def explain(self, step: int | None = None) -> Explanation:
        """See `Job.explain`."""
        return await asyncio.to_thread(self.job.explain, step)

    async def compare(self, other: AsyncJob | None = None, level: str = "state") -> Verdict:
        """See `Job.compare`."""
        return await asyncio.to_thread(self.job.compare, None if other is None else other.job, level)

    async def export(self, path: Path | str, **options: bool) -> Written:
        """See `Job.export`."""
        return await asyncio.to_thread(partial(self.job.export, path, **options))

    async def snapshot(self, path: Path | str, **options: Any) -> SnapshotReport:
        """See `Job.snapshot`."""
        return await asyncio.to_thread(partial(self.job.snapshot, path, **options))


class Ringer:
    """Wakes all readers of an event loop when the database's bell rings: one thread for all, while there are any."""

    def __init__(self, log: Log, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log
        self._loop = loop
        self._waiting: set[asyncio.Future[None]] = set()
        self._thread: Thread | None = None
        self._closed = False

    async def ring(self) -> None:
        """Return at the next ring, or after `FOLLOW_S` seconds. Cancelled at once.

        Errors: RuntimeError where the log is closed.
        """
        if self._closed:
            raise RuntimeError("the log is closed; open it again to read on")
        rung = self._loop.create_future()
        self._waiting.add(rung)
        if self._thread is None:
            self._thread = Thread(target=self._listen, name="decodelog readers", daemon=True)
            self._thread.start()
        try:
            await rung
        finally:
            self._waiting.discard(rung)

    def close(self) -> None:
        """End the thread. Readers that still wait are woken, and told that the log is closed."""
        self._closed = True
        if (thread := self._thread) is not None:
            thread.join()

    def _listen(self) -> None:
        idle = 0
        try:
            with suppress(Transient), closing(self._log.store.bell()) as bell:  # readers get the same error themselves
                while not self._closed and not self._loop.is_closed() and idle < IDLE_ROUNDS:
                    bell.wait(FOLLOW_S)
                    idle = 0 if self._waiting else idle + 1
                    self._tell(self._wake)
        finally:
            self._tell(self._left)

    def _tell(self, what: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop was closed, and nothing waits in it
            self._loop.call_soon_threadsafe(what)

    def _wake(self) -> None:
        for rung in self._waiting:
            if not rung.done():
                rung.set_result(None)

    def _left(self) -> None:
        """The thread has ended. Waiting readers poll once more, and start another thread if they must wait again."""
        self._thread = None
        self._wake()
