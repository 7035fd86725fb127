"""A cancel is carried out by the job's owner, by the caller where there is none, and by nobody twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from commandline import decodelog
from databases import database_store
from sqlalchemy import select

from decodelog.fsm.errors import DatabaseUnavailable, LostTenure, Problem
from decodelog.fsm.machine.transition import CloseRequest, StartAttempt
from decodelog.fsm.ports import Command
from decodelog.fsm.request.finish import FinishReason
from decodelog.runtime.loop.job import Job
from decodelog.runtime.loop.pace import Pace
from decodelog.service.jobs.cancel import ask_to_end, cancel, cancel_all
from decodelog.service.jobs.compose import new_worker
from decodelog.service.jobs.incarnation import new_worker_name
from decodelog.service.jobs.models import Models
from decodelog.service.streams.reading import transcript_of
from decodelog.store.database.tables import inbox
from decodelog.store.engine import DatabaseStore

LEASE_MS = 60_000
PACE = Pace(claim_ms=0, inbox_ms=0)


@pytest.fixture
def log(database_url: str) -> Iterator[DatabaseStore]:
    """An open database."""
    with closing(database_store(database_url)) as store:
        yield store


@pytest.fixture
def job(database_url: str, long_model: Path) -> str:
    """The name of a job that would never end by itself."""
    request = ("submit", "--model", long_model, "--prompt", "Go", "--max-new-tokens", "until_context")
    return decodelog(*request, db=database_url).stdout.strip()


@pytest.mark.contract("LOG-8")
def test_an_owner_that_does_not_answer_is_waited_for_and_keeps_the_command(log: DatabaseStore, job: str) -> None:
    owner = new_worker_name()  # this process, so it is alive
    log.claim(owner, LEASE_MS, 1, [job])
    assert cancel(log, job, "caller", timeout_s=0.1) is None
    (command,) = log.pending([job])
    assert (command.job, command.kind, log.row(job).owner) == (job, "cancel", owner)


@pytest.mark.contract("LOG-7", "LOG-8", "FSM-9")
def test_the_caller_fences_an_owner_that_is_gone(log: DatabaseStore, job: str, long_model: Path) -> None:
    machine, pid, started, random = new_worker_name().rsplit("/", 3)
    gone = f"{machine}/{pid}/{int(started) - 1}/{random}"  # this process's number, in an earlier process
    (claim,) = log.claim(gone, LEASE_MS, 1, [job])
    zombie = Job.load(log, claim)
    told = cancel(log, job, new_worker_name(), timeout_s=5)
    assert told is not None
    assert (told.outcome, told.effective, log.row(job).finish) == ("cancelled", True, "cancelled")
    head = log.row(job).head
    with pytest.raises(LostTenure):
        zombie.record(log, StartAttempt(claim.fence, gone))
    assert log.row(job).head == head
    assert log.pending([job]) == []


@pytest.mark.contract("FSM-9", "LOG-8")
def test_a_cancel_that_its_owner_could_not_carry_out_waits_for_the_next(log: DatabaseStore, job: str) -> None:
    losses: list[Problem] = []
    worker = new_worker(log, Models(Path(), 1), notice=lambda name, problem: losses.append(problem), pace=PACE)
    worker._claim(None)
    while not any(engine.jobs for engine in worker._engines.values()):  # its model is loaded beside the crank
        worker._bring_in()
    worker._turn()
    log.claim("another", LEASE_MS, 1, [job], dead=[worker.name])
    log.post(Command("command", job, "cancel"))
    while not losses:  # what became of a turn's append is known in a later one
        worker._turn()
    assert [type(loss) for loss in losses] == [LostTenure]
    assert log.outcome("command") is None

    log.release("another")
    while log.outcome("command") is None:
        worker._claim(None)
        worker._turn()
    assert log.outcome("command") == log.row(job).finish == "cancelled"
    assert len(transcript_of(log, job).token_ids) == log.row(job).output


def answers(log: DatabaseStore) -> list[str | None]:
    """What is recorded of each command, in the order of their arrival."""
    with log._database.single() as connection:
        return list(connection.scalars(select(inbox.c.outcome).order_by(inbox.c.id)))


@pytest.mark.contract("FSM-9", "LOG-8")
def test_a_cancel_after_the_end_only_records_its_refusal(log: DatabaseStore, job: str) -> None:
    """A cancel after the end changes nothing and its refusal is recorded."""
    assert cancel(log, job, new_worker_name()) == (job, "cancelled", True)
    assert answers(log) == ["cancelled"]
    head = log.row(job).head
    assert cancel(log, job, new_worker_name()) == (job, "cancelled", False)
    assert answers(log) == ["cancelled", "refused: terminal (cancelled)"]
    ask_to_end(log, job)  # by somebody who does not wait, or dies at once
    assert answers(log)[2:] == ["refused: terminal (cancelled)"]
    assert log.row(job).head == head
    assert log.pending([job]) == []


@pytest.mark.contract("FSM-9", "LOG-8")
def test_a_cancel_after_another_end_says_which(log: DatabaseStore, job: str) -> None:
    worker = new_worker_name()
    (claim,) = log.claim(worker, LEASE_MS, 1, [job])
    Job.load(log, claim).record(log, CloseRequest(FinishReason.TIMEOUT))
    assert cancel(log, job, new_worker_name()) == (job, "timeout", False)
    assert answers(log) == ["refused: terminal (timeout)"]


@pytest.mark.contract("FSM-9", "LOG-8")
def test_a_cancel_that_another_end_overtakes_was_not_effective(log: DatabaseStore, job: str) -> None:
    """It came in time, and the job ended otherwise before it was carried out."""
    (claim,) = log.claim(new_worker_name(), LEASE_MS, 1, [job])
    command = ask_to_end(log, job)
    Job.load(log, claim).record(log, CloseRequest(FinishReason.TIMEOUT))
    assert log.outcome(command.command_id) == "timeout"
    assert cancel_all(log, [job], new_worker_name()) == [(job, "timeout", False)]


@pytest.mark.contract("LOG-7", "LOG-8")
@pytest.mark.parametrize("problem", [DatabaseUnavailable("test", "gone"), LostTenure("j", "fenced", "another has it")])
def test_a_cancel_that_fails_gives_the_job_back(
    log: DatabaseStore, job: str, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody could take it until the caller's lease is over."""

    def fails(*_: object) -> None:
        assert log.row(job).owner == "caller"
        raise problem

    monkeypatch.setattr(Job, "record", fails)
    with suppress(DatabaseUnavailable):
        assert cancel(log, job, "caller", timeout_s=0) is None
    row = log.row(job)
    assert (row.owner, row.lease_until_ms, row.finish) == (None, None, None)
    monkeypatch.undo()
    assert [each.job for each in log.claim("worker", LEASE_MS, 1)] == [job]
