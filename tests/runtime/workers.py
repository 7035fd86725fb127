"""Workers of tests: one with a fast pace, and one that runs in a thread."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

from databases import wall_clock_ms

from decodelog.runtime.worker import Pace, Worker
from decodelog.service.compose import admit_job

FAST = Pace(lease_ms=2_000, claim_ms=1, inbox_ms=0, idle_ms=5)
ENDLESS = {"seed": 3, "period": 64}


def worker(store, of, name="worker-1", pace=FAST, **options):
    return Worker(name, store, lambda _: of, admit_job, wall_clock_ms, pace=pace, **options)


@contextmanager
def running(made, **options):
    """The worker in a thread; stopped and joined at the end, and its exception raised here."""
    raised = []

    def target():
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
        thread.join(60)
        assert not thread.is_alive()
        assert not raised, raised


def wait_for(condition, seconds=30.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.01)
