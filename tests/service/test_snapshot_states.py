"""A snapshot of a job in each of the six states: whole, and continued elsewhere as it is continued here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import decodelog, script
from test_snapshot_files import Stage, output

from decodelog.fsm.evidence.receipt import Selection
from decodelog.fsm.machine.states import Status
from decodelog.fsm.machine.transition import CompleteCall, FailRequest, IssueDecision, StartAttempt
from decodelog.runtime.loop.job import Job
from decodelog.service.archive.restore import restore
from decodelog.service.inspect.audit import audit
from decodelog.service.jobs.incarnation import new_worker_name
from decodelog.service.streams.reading import transcript_of
from decodelog.store.database import schema
from decodelog.store.engine import DatabaseStore, open_store

pytestmark = pytest.mark.contract("RES-1", "RES-2", "RES-4")


def opened(url: str) -> DatabaseStore:
    store = open_store(url)
    assert isinstance(store, DatabaseStore)
    return store


@pytest.fixture
def scripted(database_url: str, tmp_path: Path) -> Iterator[Stage]:
    """A model without K/V rows, which says its text for ever."""
    model = script(tmp_path / "model", script={"text": "Grain by grain. ", "then": "repeat"})
    store = opened(database_url)
    yield Stage(store, str(model), {"prompt": "say", "max_new_tokens": 30})
    store.close()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[DatabaseStore]:
    """Another database, with nothing in it."""
    url = f"sqlite:///{tmp_path / 'other.db'}"
    schema.upgrade(url)
    store = opened(url)
    yield store
    store.close()


def brought(stage: Stage, job: str, state: Status, steps: int) -> None:
    """Bring a job to a state after so many tokens, as a worker leaves it that is killed between two appends."""
    if steps:
        stage.run(job, until=steps)
    if state in (Status.ADMITTED, Status.PENDING):
        return
    if state is Status.CLOSED:
        stage.run(job)
        return
    worker = new_worker_name()
    (claim,) = stage.store.claim(worker, 60_000, 1, [job])
    held = Job.load(stage.store, claim)
    held.record(stage.store, StartAttempt(claim.fence, worker))
    if state is Status.FAILED:
        held.record(stage.store, FailRequest("non_finite_scores", "a row"))
    else:
        place = held.state.frontier
        held.record(stage.store, CompleteCall(place.unprocessed, place.prompt + place.output, bytes(32)))
        if state is Status.DECIDED:
            # Not what the policy would choose: whoever goes on commits it all the same, and draws nothing again.
            held.record(stage.store, IssueDecision(Selection(ord("~"), 3, -1.0, -1.0, 0.5), b"~"))
    stage.store.release(worker)


@pytest.mark.contract("FSM-1", "FSM-6")
@pytest.mark.parametrize("steps", [0, 5])
@pytest.mark.parametrize("state", Status)
def test_every_state_is_taken_and_comes_back(
    scripted: Stage, other: DatabaseStore, tmp_path: Path, state: Status, steps: int
) -> None:
    """Also those that a job is in between two events of one turn only, after a crash."""
    job = scripted.submit()
    brought(scripted, job, state, steps if state is not Status.ADMITTED else 0)
    if state is Status.PENDING and not steps:
        brought(scripted, job, state, 1)
    reached = scripted.result(job)
    assert reached["state"] == state.value
    taken = scripted.take(job, tmp_path / job)
    assert (taken.state, taken.rows) == (state.value, 0)
    assert decodelog("verify", tmp_path / job).code == 0
    assert restore(other, tmp_path / job)[0].outcome == "created"
    there = scripted.elsewhere(other)
    assert there.result(job) == reached
    assert transcript_of(other, job).state == transcript_of(scripted.store, job).state
    for stage in (there, scripted):
        stage.run(job)
        done = stage.result(job)
        assert done["token_ids"][: len(reached["token_ids"])] == reached["token_ids"]
        assert done["state"] == ("FAILED" if state is Status.FAILED else "CLOSED")
        if state is Status.DECIDED:
            assert done["token_ids"][len(reached["token_ids"])] == ord("~")
        if state.terminal:
            assert done == reached
    assert output(there.result(job)) == output(scripted.result(job))
    assert audit(other).ok
