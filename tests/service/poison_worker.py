"""Workers that die of a job: forks of this process, one after the other, until one finds nothing left to do.

python poison_worker.py URL MODEL JOB            dies where the model is called for the job
python poison_worker.py URL MODEL NAME load      is killed while it loads the model of that name, if ever

Both print, as JSON, how each worker ended.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any

from decodelog.fsm.ports import ModelRef
from decodelog.runtime.families.scripted.model import load_scripted
from decodelog.runtime.loop.context import Context
from decodelog.runtime.loop.pace import Pace
from decodelog.runtime.loop.worker import Worker
from decodelog.runtime.model.port import ModelSession
from decodelog.service.database import now_ms, opened
from decodelog.service.jobs.compose import check_job
from decodelog.service.jobs.incarnation import dead_workers, new_worker_name

WORKERS_MAX = 12
PACE = Pace(lease_ms=60_000, claim_ms=5, claim_ms_max=5, stalled_ms=5, idle_ms=5)


class Deadly:
    """A model whose process is killed where it is called for one job."""

    def __init__(self, model: Any, job: str) -> None:
        self._model, self._job = model, job

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def session(self, width: int) -> ModelSession:
        session, job = self._model.session(width), self._job

        class Calls:
            def prepare(self, calls: Any) -> Any:
                if any(call.lane.request == job for call in calls):
                    os.kill(os.getpid(), signal.SIGKILL)
                return session.prepare(calls)

            def __getattr__(self, name: str) -> Any:
                return getattr(session, name)

        calls: ModelSession = Calls()
        return calls


def work(url: str, model: Any, poison: str, told: int) -> None:
    def load(wanted: ModelRef) -> Any:
        if told and wanted.name == poison:
            os.write(told, b"!")
            threading.Event().wait()  # until it is killed
        return Deadly(model, poison)

    with opened(url) as store:
        name = new_worker_name()
        Worker(name, store, load, check_job, now_ms, Context(dead=dead_workers, pace=PACE)).run(drain=True)


def main(url: str, directory: str, poison: str, place: str = "call") -> list[int]:
    from pathlib import Path

    model = load_scripted(Path(directory))
    ends: list[int] = []
    while len(ends) < WORKERS_MAX and 0 not in ends:
        heard, told = os.pipe()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                signal.alarm(60)
                work(url, model, poison, told if place == "load" else 0)
                code = 0
            finally:
                os._exit(code)
        os.close(told)
        if os.read(heard, 1):  # nothing where it has ended by itself
            os.kill(pid, signal.SIGKILL)
        os.close(heard)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return ends


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
