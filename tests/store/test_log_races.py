"""Two at once, and processes that die in the middle: exactly one wins, and the log is the old or the new one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from databases import AnyStore
from steps import IDENTITY, Writer, admit, envelope, step_events

from decodelog.fsm.errors import IdempotencyConflict
from decodelog.fsm.ports import Outcome
from decodelog.store.engine import open_store
from decodelog.store.reading.audit import audit_rows


def together(*works: Callable[[], object]) -> list[Any]:
    """Run each in a thread of its own, from the same moment on; what they returned."""
    start = threading.Barrier(len(works))
    results: list[object] = [None] * len(works)

    def run(index: int, work: Callable[[], object]) -> None:
        start.wait()
        results[index] = work()

    threads = [threading.Thread(target=run, args=(index, work)) for index, work in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.fixture
def stores(store_url: str, store: AnyStore) -> Iterator[list[AnyStore]]:
    """Three stores over one database, or the one in memory three times."""
    others = [store, store] if store_url == "memory://" else [open_store(store_url), open_store(store_url)]
    yield [store, *others]
    for other in others:
        other.close()


@pytest.mark.contract("LOG-1", "LOG-2")
def test_of_different_appends_at_one_place_exactly_one_is_taken(stores: list[AnyStore]) -> None:
    writers = [admit(stores[0], f"job-{number}") for number in range(4)]
    for turn in range(8):
        # Each in another order, so that they meet in the middle.
        batches = [[writers[(index + shift) % 4].step(f"by {shift}") for index in range(4)] for shift in range(3)]
        results = together(*[lambda s=s, b=b: s.append(b) for s, b in zip(stores, batches, strict=True)])
        outcomes: dict[str, list[Outcome]] = {}
        for batch, answers in zip(batches, results, strict=True):
            for append, answer in zip(batch, answers, strict=True):
                outcomes.setdefault(append.job, []).append(answer.outcome)
        assert {tuple(sorted(found)) for found in outcomes.values()} == {("appended", "conflict", "conflict")}
        writers = [writer.at(stores[0].row(writer.job).head) for writer in writers]
        assert {writer.head.sequence for writer in writers} == {4 + 3 * turn}
    assert audit_rows(stores[0]).ok


@pytest.mark.contract("LOG-1", "LOG-2")
def test_of_equal_appends_one_is_taken_and_the_others_are_duplicates(stores: list[AnyStore]) -> None:
    """Of equal appends exactly one is taken and the others are its duplicates."""
    writer = admit(stores[0])
    for _ in range(8):
        append = writer.step()
        results = together(*[lambda s=s, a=append: s.append([a])[0] for s in stores])
        assert sorted(result.outcome for result in results) == ["appended", "duplicate", "duplicate"]
        assert len({result.head for result in results}) == 1
        writer = writer.at(results[0].head)
    assert stores[0].row("job-1").head == writer.head


@pytest.mark.contract("LOG-7")
def test_an_append_that_races_with_a_claim_is_taken_before_it_or_fenced(stores: list[AnyStore]) -> None:
    writers = [admit(stores[0], f"job-{number}") for number in range(20)]
    for writer in writers:
        (result,), claims = together(
            partial(stores[0].append, [writer.step()]),
            partial(stores[1].claim, "worker-2", 60_000, 1, jobs=[writer.job]),
        )
        # PostgreSQL's claim skips a row that is just being appended to.
        expected = {Outcome.APPENDED} if not claims else {Outcome.APPENDED, Outcome.FENCED}
        assert result.outcome in expected
        if claims:
            assert claims[0].head.sequence == (4 if result.outcome is Outcome.APPENDED else 1)


@pytest.mark.contract("ENV-8")
def test_submissions_under_one_key_end_in_one_job(stores: list[AnyStore]) -> None:
    for turn in range(5):
        names = [f"job-{turn}-{index}" for index in range(3)]
        submit = [
            lambda s=s, n=n, k=f"key-{turn}": s.admit(n, IDENTITY, "scripted", 5, envelope(n), k)
            for s, n in zip(stores, names, strict=True)
        ]
        admissions = together(*submit)
        assert sorted(admission.created for admission in admissions) == [False, False, True]
        assert len({admission.job for admission in admissions}) == 1
    assert len(stores[0].rows()) == 5


@pytest.mark.contract("ENV-8")
def test_of_requests_under_one_key_one_is_admitted(stores: list[AnyStore]) -> None:
    """Of different requests under one key one is admitted and the others are refused."""

    def submit(store: AnyStore, index: int) -> bool | str:
        try:
            return store.admit(f"job-{index}", str(index) * 64, "scripted", 5, envelope(f"job-{index}"), "key").created
        except IdempotencyConflict:
            return "conflict"

    outcomes = together(*[lambda s=s, i=i: submit(s, i) for i, s in enumerate(stores)])
    assert sorted(map(str, outcomes)) == ["True", "conflict", "conflict"]
    assert len(stores[0].rows()) == 1


# ---- killed ----

# Appends steps to three jobs for ever, and says what was acknowledged only after it was.
CHILD = """
import sys
sys.path.insert(0, sys.argv[2])
from steps import Writer
from decodelog.store.engine import open_store

store = open_store(sys.argv[1])
writers = [Writer(row.job, row.head, row.fence, row.output) for row in store.rows()]
while True:
    results = store.append([writer.step() for writer in writers])
    writers = [writer.at(result.head) for writer, result in zip(writers, results)]
    print(writers[0].output, flush=True)
"""


CHILD_NAME = "a child that is killed"


def gone_from(url: str) -> None:
    """Wait until PostgreSQL is no longer at the transaction of the child, which it may be after that is gone."""
    if not url.startswith("postgresql"):
        return
    with psycopg.connect(url, autocommit=True) as connection:
        at_it = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        while connection.execute(at_it, (CHILD_NAME,)).fetchone() != (0,):
            time.sleep(0.01)


@pytest.mark.contract("LOG-1", "LOG-2", "LOG-4")
@pytest.mark.parametrize("delay_ms", [0, 1, 3, 7, 13])
def test_a_kill_during_an_append_leaves_the_old_log_or_the_new_one(database_url: str, delay_ms: int) -> None:
    """Never a mixture: the three jobs of a batch stand at one step, and it is the acknowledged one or the next."""
    store = open_store(database_url)
    for number in range(3):
        admit(store, f"job-{number}")
    command = [sys.executable, "-c", CHILD, database_url, str(Path(__file__).parent)]
    named = os.environ | {"PGAPPNAME": CHILD_NAME}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=named) as child:
        assert child.stdout is not None
        acknowledged = [child.stdout.readline() for _ in range(5)]
        time.sleep(delay_ms / 1000)
        os.kill(child.pid, signal.SIGKILL)
        acknowledged += child.stdout.readlines()
    steps = int(acknowledged[-1])
    gone_from(database_url)
    rows = store.rows()
    heads = [row.head for row in rows]
    (sequence,) = {head.sequence for head in heads}
    assert sequence in (1 + 3 * steps, 1 + 3 * (steps + 1))
    output = (sequence - 1) // 3
    for number in range(3):
        records = list(store.read(f"job-{number}"))
        expected = [step_events(f"job-{number}", step)[1] for step in range(output)]
        assert [record.events for record in records[1:]] == expected
    assert audit_rows(store).ok
    # And the next process goes on from there.
    (result,) = store.append([Writer("job-0", heads[0], 0, output).step()])
    assert result.outcome is Outcome.APPENDED
    store.close()
