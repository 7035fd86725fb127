"""Workers of tests: one with a fast pace, and one that runs in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from databases import wall_clock_ms

from decodelog.fsm.ports import Clock
from decodelog.runtime.loop.context import Context
from decodelog.runtime.loop.pace import Pace
from decodelog.runtime.loop.worker import Worker
from decodelog.service.jobs.compose import check_job

FAST = Pace(lease_ms=60_000, claim_ms=1, inbox_ms=0, idle_ms=5)
PATIENCE_S = 600.0  # far beyond what a busy machine needs: only what hangs comes to its end
ENDLESS: dict[str, Any] = {"seed": 3, "period": 64}


def worker(
    store: Any, of: Any, name: str = "worker-1", pace: Pace = FAST, clock: Clock = wall_clock_ms, **options: Any
) -> Worker:
    return Worker(name, store, lambda _: of, check_job, clock, Context(pace=pace, **options))


@contextmanager
def running(made: Worker, **options: Any) -> Iterator[threading.Thread]:
    """The worker in a thread; stopped and joined at the end, and its exception raised here."""
    raised: list[BaseException] = []

    def target() -> None:
        try:
            made.run(**options)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    try:
        yield thread
    finally:
        made.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert not raised, raised


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.01)
