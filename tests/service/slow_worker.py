"""A worker with a short lease and a slow model, in a process of its own, which says which jobs it has lost.

python slow_worker.py URL MODEL      ends with SIGTERM
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

from decodelog.fsm.errors import Problem
from decodelog.runtime.families.scripted.model import load_scripted
from decodelog.runtime.loop.context import Context
from decodelog.runtime.loop.pace import Pace
from decodelog.runtime.loop.worker import Worker
from decodelog.service.database import now_ms, opened
from decodelog.service.jobs.compose import check_job
from decodelog.service.jobs.incarnation import new_worker_name

LEASE_MS = 600
CALL_S = 0.01


def slow(model: Any) -> Any:
    """The model with calls that take a while."""
    session = model.session(1)
    prepare = session.prepare

    def wait(calls: Any) -> Any:
        time.sleep(CALL_S)
        return prepare(calls)

    session.prepare = wait
    return model


def hear(job: str, problem: Problem) -> None:
    print(f"{problem.code} {job}", flush=True)


def main(url: str, directory: str) -> None:
    model = slow(load_scripted(Path(directory)))
    with opened(url) as store:
        pace = Pace(lease_ms=LEASE_MS, claim_ms=20, claim_ms_max=20, idle_ms=20)
        worker = Worker(new_worker_name(), store, lambda _: model, check_job, now_ms, Context(notice=hear, pace=pace))
        signal.signal(signal.SIGTERM, lambda number, frame: worker.stop())
        print(worker.name, flush=True)
        worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
