"""Leases, over memory, SQLite and PostgreSQL, in the database's own time."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from databases import AnyStore, Clock, database_store
from sqlalchemy import update
from steps import admit, digest, write

from decodelog.fsm.limits import TENURES_STALLED_MAX
from decodelog.fsm.machine.events import AttemptStarted
from decodelog.fsm.machine.states import Status
from decodelog.fsm.ports import Append, Caution, Claim, ModelRef, Outcome
from decodelog.store.database import tables
from decodelog.store.engine import open_store
from decodelog.store.memory.log import MemoryStore

HOUR_MS = 3_600_000


def taken(claims: list[Claim]) -> list[tuple[str, int]]:
    return [(claim.job, claim.fence) for claim in claims]


@pytest.mark.contract("LOG-7")
def test_claims_take_free_live_jobs_oldest_first_and_raise_their_fence(store: AnyStore) -> None:
    for number in range(4):
        admit(store, f"job-{number}")
    end = admit(store, "job-4").last_step()
    store.append([end])
    assert taken(store.claim("worker-1", HOUR_MS, 2)) == [("job-0", 1), ("job-1", 1)]
    assert taken(store.claim("worker-2", HOUR_MS, 5)) == [("job-2", 1), ("job-3", 1)]
    assert store.claim("worker-3", HOUR_MS, 5) == []
    assert store.claim("worker-1", HOUR_MS, 5) == []
    row = store.row("job-2")
    assert (row.owner, row.fence) == ("worker-2", 1)
    assert store.row("job-4").owner is None


@pytest.mark.contract("LOG-7")
def test_a_claim_tells_where_the_log_ends_and_which_model_it_needs(store: AnyStore) -> None:
    writer = write(store, admit(store), 3)
    (claim,) = store.claim("worker-1", HOUR_MS, 1)
    assert (claim.job, claim.fence, claim.head, claim.model) == ("job-1", 1, writer.head, "scripted")


@pytest.mark.contract("LOG-7")
def test_claims_can_be_restricted_to_named_jobs(store: AnyStore) -> None:
    for number in range(3):
        admit(store, f"job-{number}")
    assert store.claim("worker-1", HOUR_MS, 5, jobs=[]) == []
    assert taken(store.claim("worker-1", HOUR_MS, 5, jobs=["job-2", "nobody"])) == [("job-2", 1)]


@pytest.mark.contract("LOG-7")
def test_the_lease_of_a_dead_worker_can_be_taken_at_once(store: AnyStore) -> None:
    admit(store, "job-0")
    admit(store, "job-1")
    store.claim("dead", HOUR_MS, 1)
    store.claim("alive", HOUR_MS, 1)
    assert store.owners() == {"dead", "alive"}
    assert taken(store.claim("worker-1", HOUR_MS, 5, dead=["dead"])) == [("job-0", 2)]
    assert store.owners() == {"worker-1", "alive"}


@pytest.mark.contract("LOG-7")
def test_a_live_job_is_waiting_until_it_ends_whoever_holds_it(store: AnyStore) -> None:
    assert not store.waiting(None, [])
    writers = [admit(store, f"job-{number}") for number in range(2)]
    store.claim("worker-1", HOUR_MS, 1)
    for jobs, exclude, waits in [
        (None, [], True),
        (None, ["job-0"], True),
        (None, ["job-0", "job-1"], False),
        ([], [], False),
        (["job-0"], [], True),
        (["job-0"], ["job-1"], True),
        (["job-1"], ["job-1"], False),
        (["nobody"], [], False),
    ]:
        assert store.waiting(jobs, exclude) is waits, (jobs, exclude)
    store.append([replace(writers[0], fence=1).last_step()])
    assert not store.waiting(["job-0"], [])
    assert not store.waiting(None, ["job-1"])
    assert store.waiting(None, ["job-0"])
    store.append([writers[1].last_step()])
    assert not store.waiting(None, [])


@pytest.mark.contract("LOG-7")
def test_asking_whether_jobs_wait_reads_the_index_of_live_jobs(sqlite_url: str) -> None:
    """However many jobs have ended, and without sorting."""
    store, statements = database_store(sqlite_url), list[str]()
    with store._database.single() as connection:
        driver: Any = connection.connection.dbapi_connection
    driver.set_trace_callback(statements.append)
    store.waiting(None, ["job-1"])
    driver.set_trace_callback(None)
    plan = [row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {statements[-1]}")]
    assert plan == ["SCAN jobs USING INDEX ix_jobs_live"]
    store.close()


@pytest.mark.contract("LOG-7")
def test_an_expired_lease_can_be_taken_and_its_holder_is_fenced(store: AnyStore) -> None:
    clock = Clock(store)
    zombie = admit(store)
    (claim,) = store.claim("zombie", 1000, 1)
    assert store.row("job-1").lease_until_ms == clock.now_ms + 1000
    assert store.claim("worker-1", HOUR_MS, 1) == []
    clock.pass_ms(999)
    assert store.claim("worker-1", HOUR_MS, 1) == []
    assert store.owners() == {"zombie"}
    clock.pass_ms(1)  # to the very end of it
    assert store.owners() == {"zombie"}
    assert taken(store.claim("worker-1", HOUR_MS, 1)) == [("job-1", 2)]
    (result,) = store.append([replace(zombie, fence=claim.fence).step()])
    assert result.outcome is Outcome.FENCED
    assert store.heartbeat("zombie", HOUR_MS) == frozenset()


@pytest.mark.contract("LOG-7")
def test_a_heartbeat_extends_and_returns_all_live_leases(store: AnyStore) -> None:
    """A heartbeat extends every live lease of its worker and tells which."""
    clock = Clock(store)
    writers = [admit(store, f"job-{number}") for number in range(3)]
    store.claim("worker-1", 500, 2)
    store.claim("worker-2", 500, 1)
    store.append([replace(writers[1], fence=1).last_step()])
    clock.pass_ms(499)
    assert store.heartbeat("worker-1", 1000) == {"job-0"}
    assert [store.row(f"job-{number}").lease_until_ms for number in range(3)] == [1_001_499, None, 1_000_500]
    clock.pass_ms(1)
    assert taken(store.claim("worker-3", HOUR_MS, 5)) == [("job-2", 2)]
    assert store.heartbeat("nobody", HOUR_MS) == frozenset()
    clock.pass_ms(998)
    assert store.claim("worker-3", HOUR_MS, 5) == []
    clock.pass_ms(1)
    assert taken(store.claim("worker-3", HOUR_MS, 5)) == [("job-0", 2)]


@pytest.mark.contract("LOG-7")
def test_a_job_that_has_ended_is_nobody_s_and_keeps_no_lease(store: AnyStore) -> None:
    writers = [admit(store, f"job-{number}") for number in range(2)]
    store.claim("worker-1", HOUR_MS, 2)
    store.append([replace(writers[0], fence=1).last_step()])
    row = store.row("job-0")
    assert (row.owner, row.lease_until_ms, row.fence) == (None, None, 1)
    assert store.owners() == {"worker-1"}
    store.append([replace(writers[1], fence=1).last_step()])
    assert store.owners() == frozenset()
    for claims in (store.claim("worker-2", HOUR_MS, 5), store.claim("worker-2", HOUR_MS, 5, dead=["worker-1"])):
        assert claims == []


@pytest.mark.contract("LOG-7")
def test_an_ended_row_that_names_an_owner_is_passed_over(
    database_url: str,
) -> None:
    """As a release of this program might leave it, or another program: a job that has ended is nobody's."""
    store = database_store(database_url)
    writer = admit(store)
    store.append([writer.last_step()])
    with store._database.transaction() as connection:
        connection.execute(update(tables.jobs).values(owner="worker-1", lease_until_ms=0))
    assert store.owners() == frozenset()
    assert store.heartbeat("worker-1", HOUR_MS) == frozenset()
    assert store.claim("worker-1", HOUR_MS, 5, dead=["worker-1"], caution=AT_ONCE) == []
    store.release("worker-1")
    assert store.row("job-1").owner == "worker-1"
    store.close()


@pytest.mark.contract("LOG-7")
def test_released_leases_are_free_at_once_and_only_those(store: AnyStore) -> None:
    for number in range(4):
        admit(store, f"job-{number}")
    store.claim("worker-1", HOUR_MS, 3)
    store.claim("worker-2", HOUR_MS, 1)
    store.release("worker-1", ["job-1", "job-3"])
    assert taken(store.claim("worker-3", HOUR_MS, 5)) == [("job-1", 2)]
    store.release("worker-1")
    assert taken(store.claim("worker-3", HOUR_MS, 5)) == [("job-0", 2), ("job-2", 2)]
    assert store.owners() == {"worker-2", "worker-3"}


@pytest.mark.contract("LOG-7")
def test_the_time_of_a_lease_is_the_database_s(database_url: str) -> None:
    store = open_store(database_url, clock=lambda: 0)
    admit(store)
    before_ms = time.time_ns() // 1_000_000
    store.claim("worker-1", 1000, 1)
    after_ms = time.time_ns() // 1_000_000
    assert before_ms + 998 <= (store.row("job-1").lease_until_ms or 0) <= after_ms + 1002
    store.close()


@pytest.mark.contract("LOG-7")
def test_no_job_is_claimed_twice_by_workers_that_race(store_url: str, store: AnyStore) -> None:
    """Four workers over connections of their own, on the same jobs at the same moment."""
    for number in range(40):
        admit(store, f"job-{number}")
    stores = [store] * 4 if store_url == "memory://" else [open_store(store_url) for _ in range(4)]
    claims: list[list[Claim]] = [[] for _ in stores]
    start = threading.Barrier(len(stores))

    def work(index: int) -> None:
        start.wait()
        while mine := stores[index].claim(f"worker-{index}", HOUR_MS, 3):
            claims[index] += mine

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [claim for mine in claims for claim in mine]
    # On PostgreSQL a worker skips what others are claiming and may leave early, so that jobs are left for the next one.
    everything += store.claim("worker-9", HOUR_MS, 40)
    assert sorted(taken(everything)) == sorted((f"job-{number}", 1) for number in range(40))
    for other in stores:
        other.close()


@pytest.mark.contract("LOG-2", "LOG-7")
def test_heartbeats_and_appends_of_one_worker_do_not_collide(store_url: str, store: AnyStore) -> None:
    writers = [admit(store, f"job-{number}") for number in range(8)]
    store.claim("worker-1", HOUR_MS, 8)
    writers = [replace(writer, fence=1) for writer in writers]
    begun, ended = threading.Event(), threading.Event()
    beats = []

    def beat() -> None:
        other = store if store_url == "memory://" else open_store(store_url)
        while not ended.is_set():
            beats.append(other.heartbeat("worker-1", HOUR_MS))
            begun.set()
        other.close()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        assert begun.wait(600)
        for turn in range(25):
            # In another order each time: what waits for locks must not depend on it.
            order = writers[turn % 8 :] + writers[: turn % 8]
            results = store.append([writer.step() for writer in order])
            assert {result.outcome for result in results} == {Outcome.APPENDED}
            writers = sorted((w.at(r.head) for w, r in zip(order, results, strict=True)), key=lambda w: w.job)
    finally:
        ended.set()
        thread.join()
    assert set(beats) == {frozenset(f"job-{number}" for number in range(8))}


NOT_NOW, AT_ONCE = Caution(1, HOUR_MS), Caution(1, 0)


def tenures(store: AnyStore, *arguments: Any, **options: Any) -> list[Claim]:
    """Claims, each with its tenure recorded, as a worker does before anything else."""
    claims = store.claim(*arguments, **options)
    for job, fence, head, *_ in claims:
        output = store.row(job).output
        event = AttemptStarted(fence, f"fence {fence}", ())
        status = Status.PENDING if output else Status.ADMITTED
        store.append([Append(job, head, fence, digest("tenure", job, fence), (event,), status, output)])
    return claims


def stalls(claims: list[Claim]) -> list[tuple[str, int]]:
    return [(claim.job, claim.stalled) for claim in claims]


@pytest.mark.contract("LOG-7")
def test_a_claim_counts_stalled_tenures(store: AnyStore) -> None:
    writer = admit(store)
    assert stalls(tenures(store, "worker-0", HOUR_MS, 1)) == [("job-1", 0)]
    for count in (1, 2):
        dead = f"worker-{count - 1}"
        assert stalls(tenures(store, f"worker-{count}", HOUR_MS, 1, dead=[dead], caution=AT_ONCE)) == [("job-1", count)]
    assert store.row("job-1").stalled == 2
    store.release("worker-2")
    assert stalls(tenures(store, "worker-3", HOUR_MS, 1, caution=AT_ONCE)) == [("job-1", 2)]
    assert stalls(tenures(store, "worker-3", HOUR_MS, 1, dead=["worker-3"], caution=AT_ONCE)) == [("job-1", 2)]
    write(store, replace(writer, head=store.row("job-1").head, fence=5), 1)
    assert stalls(tenures(store, "worker-4", HOUR_MS, 1, dead=["worker-3"], caution=AT_ONCE)) == [("job-1", 0)]
    assert store.row("job-1").stalled == 0


@pytest.mark.contract("LOG-7")
def test_jobs_that_stall_come_one_at_a_time_and_others_before_them(store: AnyStore) -> None:
    for number in range(4):
        admit(store, f"job-{number}")
    tenures(store, "worker-0", HOUR_MS, 2)
    for job in ("job-0", "job-1"):  # both come alone already where the claim itself finds out that they stall
        assert stalls(tenures(store, "worker-1", HOUR_MS, 9, dead=["worker-0"], caution=AT_ONCE)) == [(job, 1)]
    store.release("worker-1")
    assert stalls(tenures(store, "worker-2", HOUR_MS, 9, caution=AT_ONCE._replace(suspects=0))) == [
        ("job-2", 0), ("job-3", 0),
    ]  # fmt: skip
    admit(store, "job-4")
    assert stalls(tenures(store, "worker-2", HOUR_MS, 9, caution=AT_ONCE)) == [("job-0", 1)]
    assert stalls(tenures(store, "worker-3", HOUR_MS, 9)) == [("job-1", 1), ("job-4", 0)]


@pytest.mark.contract("LOG-7")
def test_ordinary_jobs_are_taken_while_those_that_stall_are_left_alone(store: AnyStore) -> None:
    for number in range(3):
        admit(store, f"job-{number}")
    store.claim("worker-0", HOUR_MS, 1)
    assert stalls(store.claim("worker-1", HOUR_MS, 9, dead=["worker-0"], caution=NOT_NOW)) == [("job-0", 1)]
    assert stalls(store.claim("worker-2", HOUR_MS, 9, dead=["worker-1"], caution=NOT_NOW)) == [
        ("job-1", 0), ("job-2", 0),
    ]  # fmt: skip


@pytest.mark.contract("LOG-7")
def test_a_job_that_is_asked_for_is_taken_at_once_and_not_counted(store: AnyStore) -> None:
    for number in range(3):
        admit(store, f"job-{number}")
    store.claim("worker-0", HOUR_MS, 2)
    for job in ("job-0", "job-1"):
        assert stalls(store.claim("worker-1", HOUR_MS, 9, dead=["worker-0"], caution=NOT_NOW)) == [(job, 1)]
    assert store.claim("worker-2", HOUR_MS, 9, ["job-0", "job-1"], dead=["worker-1"], caution=NOT_NOW) == []
    later, now = (caution._replace(asked=True) for caution in (NOT_NOW, AT_ONCE))
    # The count is of the two that died before, however often somebody asks; and what stalls is still taken alone.
    dead = "worker-1"
    for number in range(2, 6):
        for job in ("job-0", "job-1"):
            assert stalls(store.claim(f"asker-{number}", HOUR_MS, 9, [job], dead=[dead], caution=later)) == [(job, 2)]
        dead = f"asker-{number}"
    assert stalls(store.claim("asker-9", HOUR_MS, 9, dead=[dead], caution=now)) == [("job-0", 2)]
    for worker, last, count in (("worker-5", "asker-9", 2), ("worker-6", "worker-5", 3)):
        assert stalls(store.claim(worker, HOUR_MS, 1, ["job-0"], dead=[last], caution=AT_ONCE)) == [("job-0", count)]


@pytest.mark.contract("LOG-7")
def test_jobs_of_models_that_have_no_room_are_left_to_others(store: AnyStore) -> None:
    for number, of in enumerate(["full", "free", "full", "free"]):
        admit(store, f"job-{number}", model=of)
    store.claim("dead", HOUR_MS, 1)
    full, both = [ModelRef("full")], [ModelRef("full"), ModelRef("free")]
    assert taken(store.claim("worker-1", HOUR_MS, 9, barred=full)) == [("job-1", 1), ("job-3", 1)]
    assert store.claim("worker-1", HOUR_MS, 9, dead=["dead"], caution=AT_ONCE, barred=both) == []
    assert taken(store.claim("worker-2", HOUR_MS, 9)) == [("job-2", 1)]


@pytest.mark.contract("LOG-7")
def test_looking_for_jobs_that_stall_does_not_go_through_all_that_wait(sqlite_url: str) -> None:
    store, statements = database_store(sqlite_url), list[str]()
    with store._database.single() as connection:
        driver: Any = connection.connection.dbapi_connection
    driver.set_trace_callback(statements.append)
    store.claim("worker-1", HOUR_MS, 8, dead=["dead"], caution=AT_ONCE)
    driver.set_trace_callback(None)
    chosen = [each for each in statements if each.startswith("SELECT")]
    plans = [" ".join(row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {each}")) for each in chosen]
    assert [
        index
        for plan, index in zip(plans, ("ix_jobs_suspects", "ix_jobs_owned", "ix_jobs_live"), strict=True)
        if index in plan
    ] == ["ix_jobs_suspects", "ix_jobs_owned", "ix_jobs_live"]
    assert "SEARCH jobs USING INTEGER PRIMARY KEY" in plans[1]
    store.close()


@pytest.mark.contract("LOG-7")
def test_a_stalling_job_is_left_alone_by_cautious_claims(store: AnyStore) -> None:
    admit(store)
    tenures(store, "worker-0", HOUR_MS, 1)
    tenures(store, "worker-1", HOUR_MS, 1, dead=["worker-0"], caution=NOT_NOW)
    assert tenures(store, "worker-2", HOUR_MS, 1, dead=["worker-1"], caution=NOT_NOW) == []
    assert stalls(tenures(store, "canceller", HOUR_MS, 1, dead=["worker-1"])) == [("job-1", 2)]
    assert stalls(tenures(store, "worker-2", HOUR_MS, 1, dead=["canceller"], caution=NOT_NOW)) == [("job-1", 3)]
    assert tenures(store, "worker-3", HOUR_MS, 1, dead=["worker-2"], caution=NOT_NOW) == []
    store.release("worker-2")
    assert stalls(tenures(store, "worker-3", HOUR_MS, 1, caution=NOT_NOW)) == [("job-1", 3)]


@pytest.mark.contract("LOG-7")
def test_the_delay_doubles_and_jobs_that_stall_together_come_back_apart() -> None:
    now, waits = [0], {"job-0": list[int](), "job-1": list[int]()}
    store = MemoryStore(lambda: now[0])
    for job, waited in waits.items():
        admit(store, job)
        tenures(store, "dead", HOUR_MS, 1, [job])
        for _ in range(TENURES_STALLED_MAX + 1):
            begin = now[0]
            while not tenures(store, "worker", HOUR_MS, 1, [job], dead=["dead"], caution=Caution(1, 100)):
                now[0] += 5
            store._jobs[job].owner = "dead"
            waited.append(now[0] - begin)
    for one, other, times in zip(*waits.values(), (0, 1, 2, 4, 8, 16), strict=True):
        assert all(100 * times <= wait <= 200 * times + 5 for wait in (one, other)), waits
    assert waits["job-0"] != waits["job-1"]


@pytest.mark.contract("LOG-7")
def test_a_claim_counts_what_died_before_its_tenure_was_recorded_too(store: AnyStore) -> None:
    """A process may die of a job while it loads the model, or compiles the grammar."""
    admit(store)
    for number in range(TENURES_STALLED_MAX + 1):
        claims = store.claim(f"worker-{number}", HOUR_MS, 1, dead=[f"worker-{number - 1}"], caution=AT_ONCE)
        assert stalls(claims) == [("job-1", number)]


@pytest.mark.contract("LOG-7")
def test_a_claim_whose_answer_was_lost_is_repeated_for_suspects_too(store: AnyStore) -> None:
    for number in range(2):
        admit(store, f"job-{number}")
    tenures(store, "worker-0", HOUR_MS, 2)
    assert stalls(tenures(store, "worker-1", HOUR_MS, 9, dead=["worker-0"], caution=NOT_NOW)) == [("job-0", 1)]
    for caution in (NOT_NOW, NOT_NOW._replace(suspects=0), AT_ONCE):
        again = store.claim("worker-1", HOUR_MS, 9, dead=["worker-1"], caution=caution)
        assert stalls(again) == [("job-0", 1)], caution


@pytest.mark.contract("LOG-7")
def test_a_stalling_job_comes_back_exactly_after_its_delay(store: AnyStore) -> None:
    clock = Clock(store)
    admit(store)
    tenures(store, "worker-0", HOUR_MS, 1)
    caution = Caution(1, 1000)
    assert stalls(tenures(store, "worker-1", HOUR_MS, 1, dead=["worker-0"], caution=caution)) == [("job-1", 1)]
    waited = 0
    while not store.claim("worker-2", HOUR_MS, 1, dead=["worker-1"], caution=caution):
        clock.pass_ms(1000 if not waited else 1)  # a delay, and up to as much again
        waited = clock.now_ms - 1_000_000
        assert waited <= 2000
    assert 1000 <= waited < 2000


@pytest.mark.contract("LOG-7")
def test_a_claim_takes_no_more_than_it_asks_for_whatever_is_suspected(store: AnyStore) -> None:
    for number in range(6):
        admit(store, f"job-{number}")
    tenures(store, "worker-0", HOUR_MS, 3)
    suspects = [("job-0", 1), ("job-1", 1), ("job-2", 1)]
    assert stalls(tenures(store, "worker-1", HOUR_MS, 4, dead=["worker-0"], caution=Caution(3, 0))) == suspects
    store.release("worker-1")
    two = Caution(2, 0)
    assert stalls(store.claim("worker-2", HOUR_MS, 1, caution=two)) == suspects[:1]
    assert stalls(store.claim("worker-2", HOUR_MS, 3, caution=two)) == suspects[1:]  # and nothing beside them
    assert stalls(store.claim("worker-2", HOUR_MS, 1, caution=two)) == [("job-3", 0)]
    assert stalls(store.claim("worker-3", HOUR_MS, 0, caution=two)) == []
