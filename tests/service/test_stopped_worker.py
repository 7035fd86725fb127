"""A worker that is stopped for longer than its lease, and goes on when the job has been finished by another."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from commandline import PATIENCE_S, decodelog, wait_for
from databases import database_store

from decodelog.fsm.errors import DatabaseLocked
from decodelog.fsm.machine.events import AttemptStarted, LanesRebuilt
from decodelog.fsm.ports import Outcome
from decodelog.runtime.families.scripted.model import load_scripted
from decodelog.runtime.loop.context import Context
from decodelog.runtime.loop.pace import Pace
from decodelog.runtime.loop.worker import Worker
from decodelog.service.database import now_ms
from decodelog.service.jobs.compose import check_job
from decodelog.store.engine import DatabaseStore, open_store

WORKER = Path(__file__).with_name("slow_worker.py")
SUBMIT = ("submit", "--prompt", "Go", "--temperature", "9", "--seed", "3", "--ignore-eos", "--model")


@contextmanager
def working(url: str, model: Path) -> Iterator[subprocess.Popen[str]]:
    """A slow worker in a process of its own."""
    command = [sys.executable, str(WORKER), url, str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as running:
        try:
            yield running
        finally:
            running.kill()  # a stopped process ends by nothing less


def stop(running: subprocess.Popen[str], url: str) -> None:
    """Stop it where it does not hold the whole database; nobody could do anything then, and nothing could go wrong."""
    with closing(open_store(url, busy_timeout_ms=50)) as store:
        for _ in range(2000):
            running.send_signal(signal.SIGSTOP)
            try:
                store.release("nobody")
                return
            except DatabaseLocked:
                running.send_signal(signal.SIGCONT)
                time.sleep(0.003)
    raise TimeoutError("it always holds the database")


def take_over(store: DatabaseStore, model: Path, jobs: list[str]) -> None:
    """Another worker, in this process, waits for the lease to end and finishes the jobs."""
    loaded, pace = load_scripted(model), Pace(claim_ms=20, claim_ms_max=20, idle_ms=20)
    Worker("other", store, lambda _: loaded, check_job, now_ms, Context(pace=pace)).run(jobs, drain=True)


def facts(store: DatabaseStore, job: str) -> list[object]:
    """The job's events after its admission, whoever worked on it."""
    events = (event for record in store.read(job, after=1) for event in record.events)
    return [event for event in events if not isinstance(event, AttemptStarted | LanesRebuilt)]


@pytest.mark.contract("LOG-7", "LOG-1", "FSM-9")
def test_a_worker_that_slept_through_its_lease_commits_nothing_and_goes_on(
    database_url: str, short_model: Path
) -> None:
    job = decodelog(*SUBMIT, short_model, "--max-new-tokens", 80, db=database_url).stdout.strip()
    with closing(database_store(database_url)) as store, working(database_url, short_model) as sleeper:
        assert sleeper.stdout is not None
        name = sleeper.stdout.readline().strip()
        wait_for(database_url, lambda row: row.output >= 5)
        stop(sleeper, database_url)
        held = store.row(job)
        assert (held.owner, held.finish) == (name, None)
        take_over(store, short_model, [job])
        finished = store.row(job)
        assert (finished.finish, finished.output, finished.fence) == ("length", 80, held.fence + 1)
        other = decodelog(*SUBMIT, short_model, "--max-new-tokens", 5, db=database_url).stdout.strip()
        sleeper.send_signal(signal.SIGCONT)
        assert sleeper.stdout.readline() == f"lost_tenure {job}\n"
        until = time.monotonic() + PATIENCE_S
        while store.row(other).finish is None:
            assert time.monotonic() < until
            time.sleep(0.01)
        (attempt,) = [
            event for record in store.read(other) for event in record.events if isinstance(event, AttemptStarted)
        ]
        assert attempt.worker == name
        sleeper.send_signal(signal.SIGTERM)
        assert sleeper.wait(PATIENCE_S) == 0
        assert store.row(job) == finished
        assert [(each.fence, each.outcome) for each in store.refusals(job)] == [(held.fence, Outcome.TERMINAL)]
        alone = decodelog(*SUBMIT, short_model, "--max-new-tokens", 80, db=database_url).stdout.strip()
        take_over(store, short_model, [alone])
        # Receipts name their job; what was chosen, and how it ended, is the same.
        assert [type(event) for event in facts(store, job)] == [type(event) for event in facts(store, alone)]
        shown = [decodelog("show", each, "--json", db=database_url).json for each in (job, alone)]
        assert shown[0]["tokens"] == shown[1]["tokens"]
        assert decodelog("audit", "--all", db=database_url).code == 0
