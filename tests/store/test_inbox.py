"""The inbox, over memory, SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from databases import AnyStore, Clock, database_store
from sqlalchemy import insert, select, update
from steps import admit

from decodelog.fsm.errors import UnknownJob
from decodelog.fsm.ports import Command, Outcome
from decodelog.store.coordination.inbox import LEFT_MAX, LEFT_MS
from decodelog.store.database.tables import inbox
from decodelog.store.engine import DatabaseStore


@pytest.mark.contract("LOG-8")
def test_commands_wait_in_order_until_they_are_settled(store: AnyStore) -> None:
    """Commands wait in the order of their arrival until they are settled."""
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
def test_posting_a_command_again_changes_nothing(store: AnyStore) -> None:
    admit(store)
    assert store.post(Command("a", "job-1", "cancel"))
    assert not store.post(Command("a", "job-1", "cancel"))
    assert len(store.pending(["job-1"])) == 1
    store.settle("a", "closed")
    assert not store.post(Command("a", "job-1", "cancel"))
    assert store.pending(["job-1"]) == []


@pytest.mark.contract("LOG-8", "FSM-9")
def test_a_command_is_settled_once(store: AnyStore) -> None:
    admit(store)
    store.post(Command("a", "job-1", "cancel"))
    store.settle("a", "terminal")
    store.settle("a", "closed")
    assert store.outcome("a") == "terminal"
    store.settle("unknown", "closed")
    assert store.outcome("unknown") is None


@pytest.mark.contract("LOG-8")
def test_a_command_to_no_job_is_refused(store: AnyStore) -> None:
    with pytest.raises(UnknownJob):
        store.post(Command("a", "nobody", "cancel"))
    assert store.pending(["nobody"]) == []


@pytest.mark.contract("LOG-8", "FSM-9", "LOG-10")
def test_a_command_to_a_job_that_has_ended_is_answered_by_its_end(store: AnyStore) -> None:
    """A worker may die between the end of a job and its answer, and nobody would claim the job again."""
    writer = admit(store)
    store.post(Command("a", "job-1", "cancel"))
    assert (store.outcome("a"), len(store.pending(["job-1"]))) == (None, 1)
    (result,) = store.append([writer.cancel()])
    assert result.outcome is Outcome.APPENDED
    assert (store.outcome("a"), store.pending(["job-1"])) == ("cancelled", [])


@pytest.mark.contract("LOG-8", "FSM-9")
def test_a_command_after_the_end_is_refused_with_its_reason(
    store: AnyStore,
) -> None:
    """Whatever becomes of who posted it: nobody answers it later with the end, as if it had brought that about."""
    writer = admit(store)
    store.append([writer.cancel()])
    assert store.post(Command("late", "job-1", "cancel"))
    assert store.outcome("late") == "refused: terminal (cancelled)"
    assert store.pending(["job-1"]) == []
    for answer in ("cancelled", "closed"):
        store.settle("late", answer)
        assert store.outcome("late") == "refused: terminal (cancelled)"
    assert not store.post(Command("late", "job-1", "cancel"))
    other = admit(store, "job-2")
    store.post(Command("in time", "job-2", "cancel"))
    store.append([other.last_step()])
    assert not store.post(Command("in time", "job-2", "cancel"))
    assert store.outcome("in time") == "length"
    store.post(Command("after", "job-2", "cancel"))
    assert store.outcome("after") == "refused: terminal (length)"


Left = tuple[DatabaseStore, Callable[[], dict[str, str | None]]]


@pytest.fixture
def left(database_url: str) -> Iterator[Left]:
    """A store with a job that ended before a command to it was answered and one that is live, and the outcomes."""
    store = database_store(database_url)
    writer = admit(store, "job-1")
    admit(store, "job-2")
    store.post(Command("a", "job-1", "cancel"))
    store.append([writer.cancel()])

    def recorded() -> dict[str, str | None]:
        with store._database.single() as connection:
            return dict(connection.execute(select(inbox.c.command_id, inbox.c.outcome)).all())

    yield store, recorded
    store.close()


def age(store: DatabaseStore, ms: int = LEFT_MS) -> None:
    with store._database.transaction() as connection:
        connection.execute(update(inbox).values(posted_ms=inbox.c.posted_ms - ms))


@pytest.mark.contract("LOG-8", "FSM-9", "LOG-10")
def test_whoever_looks_answers_what_nobody_answered_before_the_job_ended(left: Left) -> None:
    """Each look would meet it again; but not before those who are about to answer had their time."""
    store, recorded = left
    live = Command("live", "job-2", "cancel")
    store.post(live)
    assert store.pending(["job-2"]) == [live]
    assert recorded() == {"a": None, "live": None}
    age(store)
    assert store.pending(["job-2"]) == [live]
    assert recorded() == {"a": "cancelled", "live": None}
    store.settle("a", "late")
    assert store.outcome("a") == "cancelled"


@pytest.mark.contract("LOG-8")
def test_a_command_to_an_ended_job_is_answered_when_old_enough(left: Left) -> None:
    """A command to an ended job is answered once it is as old as that and no earlier."""
    store, recorded = left
    with store._database.single() as connection:
        (posted,) = connection.scalars(select(inbox.c.posted_ms))
    Clock(store, posted)
    age(store, LEFT_MS - 1)
    store.pending([])
    assert recorded() == {"a": None}
    age(store, 1)
    store.pending([])
    assert recorded() == {"a": "cancelled"}


@pytest.mark.contract("LOG-8")
def test_of_many_that_are_left_each_look_answers_some_until_none_is_left(left: Left) -> None:
    store, recorded = left
    store.settle("a", "cancelled")
    rows = [
        {"command_id": f"c{number}", "job_id": 1, "kind": "cancel", "posted_ms": 0}
        for number in range(2 * LEFT_MAX + 1)
    ]
    with store._database.transaction() as connection:
        connection.execute(insert(inbox), rows)
    counts = []
    for _ in range(4):
        assert store.pending(["job-1", "job-2"]) == []
        counts.append(sum(outcome is None for outcome in recorded().values()))
    assert counts == [LEFT_MAX + 1, 1, 0, 0]


@pytest.mark.contract("LOG-8", "LOG-10")
def test_a_look_that_is_killed_before_its_answers_leaves_them_to_the_next(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, recorded = left
    age(store)

    def killed(ids: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "_answer", killed)
        with pytest.raises(KeyboardInterrupt):
            store.pending([])
    assert (recorded(), store.outcome("a")) == ({"a": None}, "cancelled")
    store.pending([])
    assert recorded() == {"a": "cancelled"}
