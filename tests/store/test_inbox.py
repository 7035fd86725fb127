"""The inbox, over memory, SQLite and PostgreSQL."""

from __future__ import annotations

import pytest
from steps import admit

from decodelog.fsm.errors import UnknownJob
from decodelog.fsm.ports import Command, Outcome


@pytest.mark.contract("LOG-8")
def test_commands_wait_in_the_order_of_their_arrival_until_they_are_settled(store):
    for job in ("job-1", "job-2", "job-3"):
        admit(store, job)
    commands = [Command("b", "job-2", "cancel"), Command("a", "job-1", "cancel"), Command("c", "job-2", "deadline")]
    assert [store.post(command) for command in commands] == [True, True, True]
    assert store.pending({"job-1", "job-2", "job-3"}) == commands
    assert store.pending(["job-2"]) == [commands[0], commands[2]]
    assert store.pending(["job-3"]) == []
    assert store.outcome("b") is None
    store.settle("b", "closed")
    assert store.outcome("b") == "closed"
    assert store.pending(["job-1", "job-2"]) == commands[1:]


@pytest.mark.contract("LOG-8")
def test_posting_a_command_again_changes_nothing(store):
    admit(store)
    assert store.post(Command("a", "job-1", "cancel"))
    assert not store.post(Command("a", "job-1", "cancel"))
    assert len(store.pending(["job-1"])) == 1
    store.settle("a", "closed")
    assert not store.post(Command("a", "job-1", "cancel"))
    assert store.pending(["job-1"]) == []


@pytest.mark.contract("LOG-8", "FSM-9")
def test_a_command_is_settled_once(store):
    admit(store)
    store.post(Command("a", "job-1", "cancel"))
    store.settle("a", "terminal")
    store.settle("a", "closed")
    assert store.outcome("a") == "terminal"
    store.settle("unknown", "closed")
    assert store.outcome("unknown") is None


@pytest.mark.contract("LOG-8")
def test_a_command_to_no_job_is_refused(store):
    with pytest.raises(UnknownJob):
        store.post(Command("a", "nobody", "cancel"))
    assert store.pending(["nobody"]) == []


@pytest.mark.contract("LOG-8", "FSM-9", "LOG-10")
def test_a_command_to_a_job_that_has_ended_is_answered_by_its_end(store):
    """A worker may die between the end of a job and its answer, and nobody would claim the job again."""
    writer = admit(store)
    store.post(Command("a", "job-1", "cancel"))
    assert (store.outcome("a"), len(store.pending(["job-1"]))) == (None, 1)
    (result,) = store.append([writer.cancel()])
    assert result.outcome is Outcome.APPENDED
    assert (store.outcome("a"), store.pending(["job-1"])) == ("cancelled", [])
    store.post(Command("b", "job-1", "cancel"))
    store.settle("b", "refused: terminal (cancelled)")
    assert store.outcome("b") == "refused: terminal (cancelled)"
