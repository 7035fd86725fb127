"""Row locks of PostgreSQL: whatever waits for several jobs' rows takes them in one order, and a claim never waits.

The jobs' rows lie in the table in another order than their ids say, as they do once they were updated. So a statement
that takes them as it finds them meets the deadlock that is set up here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from databases import database_store
from sqlalchemy import event, update
from steps import Writer, admit

from decodelog.fsm.ports import Caution, Command, Outcome
from decodelog.fsm.reading.snapshot import Keep
from decodelog.store.archive.restore import Restorable
from decodelog.store.coordination.inbox import LEFT_MS
from decodelog.store.database.tables import inbox
from decodelog.store.engine import DatabaseStore

pytestmark = pytest.mark.contract("LOG-7")

HOUR_MS = 3_600_000
OWNER = "owner"
# In the order of their ids. The names are in the opposite one, and so are the rows in the table.
JOBS = ("job-e", "job-d", "job-c", "job-b", "job-a")
LOCK = "SELECT id FROM jobs WHERE job = %s FOR UPDATE"


class Ground:
    """A database with five jobs of one owner, and a session beside it that can hold rows of them."""

    def __init__(self, url: str) -> None:
        store = database_store(url)
        assert isinstance(store, DatabaseStore)
        self.store = store
        self.writers = {job: admit(store, job) for job in JOBS}
        self.rival = psycopg.connect(url)
        self.watch = psycopg.connect(url, autocommit=True)

    def owned(self) -> None:
        """The owner holds all jobs."""
        assert {claim.job for claim in self.store.claim(OWNER, HOUR_MS, len(JOBS))} == set(JOBS)
        self.writers = {job: replace(writer, fence=1) for job, writer in self.writers.items()}

    def shuffle(self) -> None:
        """Have the rows lie in the opposite order of their ids: a row that is updated moves to the end."""
        for job in reversed(JOBS):
            self.watch.execute("UPDATE jobs SET fence = fence WHERE job = %s", (job,))
        lying = [job for (job,) in self.watch.execute("SELECT job FROM jobs ORDER BY ctid")]
        assert lying == list(reversed(JOBS))

    def hold(self, job: str) -> None:
        self.rival.execute(LOCK, (job,))

    def waits(self, thread: threading.Thread) -> bool:
        """Whether the work comes to wait for the rival; False where it ends without."""
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        while thread.is_alive():
            if self.watch.execute(blocked, (self.rival.info.backend_pid,)).fetchone() != (0,):
                return True
            time.sleep(0.01)
        return False

    def close(self) -> None:
        self.rival.close()
        self.watch.close()
        self.store.close()


PLANS = ("enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan")


@pytest.fixture
def ground(postgres_url: str) -> Iterator[Ground]:
    """With plans that take the rows as they lie; of few rows an index may give them in their order by chance."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for plan in PLANS:
            connection.execute(f"ALTER DATABASE decodelog SET {plan} = off")  # of every session from here on
        made = Ground(postgres_url)
        yield made
        made.close()
        for plan in PLANS:
            connection.execute(f"ALTER DATABASE decodelog RESET {plan}")


def beside(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """The work on a thread of its own, and what comes of it."""
    told: list[object] = []

    def run() -> None:
        try:
            told.append(work())
        except Exception as problem:
            told.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, told


def late(job: str) -> Keep:
    """A snapshot of a tenure that is over: its row is locked, and nothing is written."""
    snapshot: Any = SimpleNamespace(state=SimpleNamespace(spec=SimpleNamespace(job=job)))
    return Keep(99, 0, snapshot)


def restorable(ground: Ground, job: str) -> Restorable:
    (rows,) = [list(log.rows) for log in ground.store.logs(job)]
    return Restorable(ground.store.row(job), rows)


def steps(ground: Ground, order: tuple[str, ...]) -> list[Outcome]:
    return [result.outcome for result in ground.store.append([ground.writers[job].step() for job in order])]


WORKS: dict[str, tuple[Callable[[Ground], Callable[[], object]], object]] = {
    "a heartbeat": (lambda ground: lambda: ground.store.heartbeat(OWNER, HOUR_MS), frozenset(JOBS)),
    "a release": (lambda ground: lambda: ground.store.release(OWNER), None),
    "a release of some": (lambda ground: lambda: ground.store.release(OWNER, JOBS[::-1]), None),
    "an append": (lambda ground: lambda: steps(ground, JOBS), [Outcome.APPENDED] * 5),
    "an append in another order": (lambda ground: lambda: steps(ground, JOBS[::-1]), [Outcome.APPENDED] * 5),
    "an append in no order": (
        lambda ground: lambda: steps(ground, (JOBS[4], JOBS[0], JOBS[3], JOBS[1], JOBS[2])),
        [Outcome.APPENDED] * 5,
    ),
    "snapshots": (lambda ground: lambda: ground.store.keep([late(job) for job in reversed(JOBS)]), None),
    "a restore": (
        lambda ground: (
            lambda logs: lambda: [each.outcome for each in ground.store.restore(logs)]
        )([restorable(ground, job) for job in reversed(JOBS)]),
        ["held"] * 5,
    ),
}  # fmt: skip


@pytest.mark.contract("LOG-2", "LOG-4")
@pytest.mark.parametrize("held", [0, 1, 2])
@pytest.mark.parametrize("name", WORKS)
def test_rows_are_locked_in_one_order_so_nothing_deadlocks(ground: Ground, name: str, held: int) -> None:
    """A rival has an early row and wants the last: whoever came to wait for the early one may not have the last."""
    make, expected = WORKS[name]
    ground.owned()
    work = make(ground)
    ground.shuffle()
    ground.hold(JOBS[held])
    thread, told = beside(work)
    assert ground.waits(thread), f"{name} did not lock job {JOBS[held]}: {told}"
    for job in JOBS[held + 1 :]:
        ground.hold(job)  # a deadlock here ends one of the two
    ground.rival.commit()
    thread.join()
    assert told == [expected]


@pytest.mark.contract("LOG-2", "LOG-4")
@pytest.mark.parametrize("name", WORKS)
def test_two_of_them_side_by_side_wait_for_each_other_and_both_end(ground: Ground, name: str) -> None:
    """Against a heartbeat, which goes over the same rows of the same owner."""
    make, expected = WORKS[name]
    ground.owned()
    work = make(ground)
    ground.shuffle()
    ground.hold(JOBS[0])
    other, beats = beside(lambda: ground.store.heartbeat(OWNER, HOUR_MS))
    assert ground.waits(other)
    thread, told = beside(work)
    ground.rival.commit()
    other.join()
    thread.join()
    assert told == [expected]
    assert beats in ([frozenset(JOBS)], [frozenset()])  # nothing is held once it is released


@pytest.mark.parametrize("caution", [None, Caution(1, 0)])
@pytest.mark.parametrize("held", JOBS)
def test_a_claim_takes_what_is_free_and_waits_for_no_row_that_another_has(
    ground: Ground, held: str, caution: Caution | None
) -> None:
    ground.shuffle()
    ground.hold(held)
    thread, told = beside(lambda: ground.store.claim("worker", HOUR_MS, 9, caution=caution))
    assert not ground.waits(thread)
    (claims,) = told
    assert isinstance(claims, list)
    assert [claim.job for claim in claims] == [job for job in JOBS if job != held]
    ground.rival.rollback()
    assert [claim.job for claim in ground.store.claim("worker", HOUR_MS, 9, caution=caution)] == [held]


def test_two_claims_at_once_share_the_jobs_and_neither_waits(ground: Ground) -> None:
    """The first of them has chosen and not yet committed."""
    ground.rival.execute("SELECT id FROM jobs ORDER BY id LIMIT 2 FOR UPDATE SKIP LOCKED")
    thread, told = beside(lambda: ground.store.claim("worker", HOUR_MS, 2))
    assert not ground.waits(thread)
    (claims,) = told
    assert isinstance(claims, list)
    assert [claim.job for claim in claims] == list(JOBS[2:4])


def test_a_suspect_that_another_is_claiming_is_passed_over(ground: Ground) -> None:
    ground.watch.execute("UPDATE jobs SET stalled = 1 WHERE job IN (%s, %s)", JOBS[:2])
    ground.hold(JOBS[0])
    thread, told = beside(lambda: ground.store.claim("worker", HOUR_MS, 1, caution=Caution(1, 0)))
    assert not ground.waits(thread)
    (claims,) = told
    assert isinstance(claims, list)
    assert [claim.job for claim in claims] == [JOBS[1]]


@pytest.mark.contract("LOG-8")
def test_commands_that_another_is_answering_are_left_to_it(ground: Ground) -> None:
    """Of a job that has ended; so a worker's look at its inbox never waits."""
    writer = ground.writers[JOBS[0]]
    for command in ("a", "b"):
        ground.store.post(Command(command, writer.job, "cancel"))
    ground.store.append([writer.cancel()])
    with ground.store._database.transaction() as connection:
        connection.execute(update(inbox).values(posted_ms=inbox.c.posted_ms - LEFT_MS))
    ground.rival.execute("SELECT id FROM inbox WHERE command_id = 'a' FOR UPDATE")
    thread, told = beside(lambda: ground.store.pending(list(JOBS)))
    assert not ground.waits(thread)
    assert told == [[]]
    recorded = "SELECT command_id FROM inbox WHERE outcome IS NULL"
    assert ground.watch.execute(recorded).fetchall() == [("a",)]
    ground.rival.rollback()
    ground.store.pending(list(JOBS))
    assert ground.watch.execute(recorded).fetchall() == []


@pytest.mark.contract("LOG-4")
def test_a_heartbeat_or_a_release_is_one_statement(database_url: str) -> None:
    """A heartbeat and a release are one statement for any number of jobs."""
    store = database_store(database_url)
    assert isinstance(store, DatabaseStore)
    for job in JOBS:
        admit(store, job)
    store.claim(OWNER, HOUR_MS, 9)
    statements: list[str] = []

    def seen(connection: object, cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    engine = store._database._transactions
    event.listen(engine, "before_cursor_execute", seen)
    assert store.heartbeat(OWNER, HOUR_MS) == set(JOBS)
    assert len([each for each in statements if "jobs" in each]) == 1
    statements.clear()
    store.release(OWNER)
    assert len([each for each in statements if "jobs" in each]) == 1
    assert store.owners() == frozenset()
    event.remove(engine, "before_cursor_execute", seen)
    store.close()


def test_an_append_checks_the_fence_in_the_statement_that_takes_it(ground: Ground) -> None:
    """A claim that commits while an append waits for the row: the append sees the row as it is by then."""
    ground.owned()
    zombie: Writer = ground.writers[JOBS[0]]
    ground.hold(JOBS[0])
    thread, told = beside(lambda: ground.store.append([zombie.step()])[0].outcome)
    assert ground.waits(thread)
    ground.rival.execute("UPDATE jobs SET fence = fence + 1, owner = 'another' WHERE job = %s", (JOBS[0],))
    ground.rival.commit()
    thread.join()
    assert told == [Outcome.FENCED]
    assert ground.store.row(JOBS[0]).head == zombie.head
