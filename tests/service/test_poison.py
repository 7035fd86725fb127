"""A job that its workers die of: given up after a few of them, and nothing beside it is held up or blamed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import TEXT, decodelog, jobs

from decodelog.fsm.limits import TENURES_STALLED_MAX
from decodelog.fsm.ports import Caution
from decodelog.service.database import opened

WORKERS = Path(__file__).with_name("poison_worker.py")
SUBMIT = ("submit", "--prompt", "Go", "--max-new-tokens", "12", "--model")


@pytest.mark.contract("LOG-7", "LOG-10")
def test_a_job_that_kills_each_worker_is_given_up_and_the_others_finish(database_url: str, short_model: Path) -> None:
    before = [decodelog(*SUBMIT, short_model, db=database_url).stdout.strip() for _ in range(2)]
    poison = decodelog(*SUBMIT, short_model, db=database_url).stdout.strip()
    after = [decodelog(*SUBMIT, short_model, db=database_url).stdout.strip() for _ in range(2)]
    command = [sys.executable, str(WORKERS), database_url, str(short_model), poison]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=600)
    assert done.returncode == 0, done.stderr
    # The first one to die had the job as any other; each of the next took it because the one before had died.
    assert json.loads(done.stdout) == [-9] * TENURES_STALLED_MAX + [0]
    rows = {row.job: row for row in jobs(database_url)}
    assert [rows[job].finish for job in before + after] == ["length"] * 4
    assert (rows[poison].status.value, rows[poison].finish, rows[poison].stalled) == (
        "FAILED", "poison_job", TENURES_STALLED_MAX,
    )  # fmt: skip
    shown = decodelog("show", poison, "--json", db=database_url).json
    assert shown["error"]["code"] == "poison_job"
    assert f"{TENURES_STALLED_MAX} workers in a row" in shown["error"]["message"]
    assert decodelog("audit", "--all", db=database_url).code == 0
    assert decodelog("show", before[0], "--json", db=database_url).json["text"] == TEXT.encode()[:12].decode()


@pytest.mark.contract("LOG-7", "LOG-10")
def test_a_model_whose_loading_kills_workers_ends_its_job_alone(
    database_url: str, short_model: Path, tmp_path: Path
) -> None:
    """Nobody dies of a job later than here, and none earlier counts: its tenure is not even recorded."""
    heavy = tmp_path / "heavy"
    shutil.copytree(short_model, heavy)
    before = decodelog(*SUBMIT, short_model, db=database_url).stdout.strip()
    poison = decodelog(*SUBMIT, heavy, db=database_url).stdout.strip()
    after = decodelog(*SUBMIT, short_model, db=database_url).stdout.strip()
    name = {row.job: row.model for row in jobs(database_url)}[poison]
    command = [sys.executable, str(WORKERS), database_url, str(short_model), name, "load"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=100)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [-9] * TENURES_STALLED_MAX + [0]
    rows = {row.job: row for row in jobs(database_url)}
    assert [rows[job].finish for job in (before, after)] == ["length"] * 2
    assert (rows[poison].finish, rows[poison].stalled) == ("poison_job", TENURES_STALLED_MAX)
    assert decodelog("audit", "--all", db=database_url).code == 0


@pytest.mark.contract("LOG-7", "LOG-10")
def test_a_job_nearly_given_up_resumes_at_once_when_asked_for(database_url: str, short_model: Path) -> None:
    """A job that was nearly given up goes on at once where somebody asks for it."""
    job = decodelog(*SUBMIT, short_model, db=database_url).stdout.strip()
    with opened(database_url) as store:
        for number in range(TENURES_STALLED_MAX + 1):
            store.claim(f"worker-{number}", 1, 1, dead=store.owners(), caution=Caution(1, 0))
        store.claim("last", 1, 1, [job], dead=store.owners(), caution=Caution(1, 3_600_000, asked=True))
        assert store.row(job).stalled == TENURES_STALLED_MAX + 1
    resumed = decodelog("resume", job, "--json", db=database_url)
    assert (resumed.code, resumed.json["finish_reason"]) == (0, "length")
    assert f"{TENURES_STALLED_MAX + 1} workers in turn ended without a token of job {job}" in resumed.stderr


@pytest.mark.contract("LOG-7")
def test_a_job_under_suspicion_is_shown_as_such(database_url: str, short_model: Path) -> None:
    from decodelog.fsm.machine.transition import StartAttempt
    from decodelog.runtime.loop.job import Job

    job = decodelog(*SUBMIT, short_model, db=database_url).stdout.strip()
    with opened(database_url) as store:
        for number in range(3):
            (claim,) = store.claim(f"worker-{number}", 60_000, 1, dead=[f"worker-{number - 1}"])
            Job.load(store, claim).record(store, StartAttempt(claim.fence, f"worker-{number}"))
    assert decodelog("jobs", "--json", db=database_url).json[0]["stalled"] == 2
    assert "stalled   2 tenures in a row ended without a token" in decodelog("show", job, db=database_url).stdout
    (line,) = [line for line in decodelog("jobs", db=database_url).stdout.splitlines() if job in line]
    assert "ADMITTED (stalled 2)" in " ".join(line.split())
