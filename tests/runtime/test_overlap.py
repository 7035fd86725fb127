"""One step ahead of the log: the call and decision that run beside an append, and what becomes of them if it fails."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, NoReturn

import pytest
from cranks import (
    admit,
    assert_audited,
    claim,
    context,
    engine,
    finish,
    model,
    patiently,
    result,
    run,
    transcript,
    turn,
)
from databases import AnyStore
from workers import PATIENCE_S

from decodelog.fsm.errors import DatabaseUnavailable
from decodelog.fsm.machine.events import CallCompleted
from decodelog.fsm.ports import Append, AppendResult, Durable, Outcome
from decodelog.fsm.reading.emission import Emission
from decodelog.fsm.request.finish import FinishReason
from decodelog.runtime.families.scripted.model import ScriptedModel
from decodelog.runtime.loop import retry as patience
from decodelog.runtime.loop.context import Sink
from decodelog.runtime.loop.engine import Engine
from decodelog.store.database import driver
from decodelog.store.engine import open_store

SEEDED: dict[str, Any] = {"seed": 11, "spread": 2.0, "period": 64}
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 5, "ignore_eos": True, "max_new_tokens": 12}


class Held:
    """A log whose appends wait to be let through before they are durable, or fail."""

    def __init__(self, store: AnyStore) -> None:
        self._store = store
        self.through = threading.Event()
        self.through.set()
        self.failure: BaseException | None = None
        self.begun = 0

    def begin(self, batch: Sequence[Append]) -> Durable:
        self.begun += 1
        durable = self._store.begin(batch) if self.failure is None else self._fail

        def wait() -> list[AppendResult]:
            assert self.through.wait(PATIENCE_S)
            return durable()

        return wait

    def _fail(self) -> NoReturn:
        assert self.failure is not None
        raise self.failure

    def append(self, batch: Sequence[Append]) -> list[AppendResult]:
        return self.begin(batch)()


def held_engine(store: AnyStore, of: ScriptedModel, *jobs: str, sink: Sink | None = None) -> tuple[Held, Engine]:
    log = Held(store)
    stand_in: Any = log
    made = Engine(patiently(stand_in), of, context(sink, beside=True))
    for job in jobs:
        made.adopt(claim(store, job), "tester")
    return log, made


@pytest.mark.contract("LOG-4", "OUT-7")
def test_a_call_runs_beside_the_append_and_nothing_of_it_is_seen_before(store: AnyStore) -> None:
    seen: list[Emission] = []
    job = admit(store, model("Hello"))
    log, made = held_engine(store, model("Hello"), job, sink=lambda job, emissions, state: seen.extend(emissions))
    turn(made, 2)
    log.through.clear()
    made.turn()
    # The crank is at the third token, with its append under way; a reader and the transcript are at the second.
    assert made.jobs[job].token == ord("l")
    assert made.jobs[job].state.frontier.output == 3
    known = made.jobs[job].durable.transcript.state
    assert known is not None
    assert known.frontier.output == store.row(job).output == 2
    turning = threading.Thread(target=made.turn)
    turning.start()
    until = time.monotonic() + PATIENCE_S
    lane = made.jobs[job].lane
    assert lane is not None
    while lane.length < len(made.jobs[job].state.spec.prompt) + 3:
        assert time.monotonic() < until, "the fourth call is not made while the third append is held"
    assert [emission.text for emission in seen] == [e.text for e in transcript(store, job).emissions] == ["H", "e"]
    assert turning.is_alive()
    log.through.set()
    turning.join(PATIENCE_S)
    finish(made)
    assert "".join(emission.text for emission in seen) == result(store, job)["text"] == "Hello"
    assert_audited(store)


@pytest.mark.contract("LOG-4", "CALL-9", "LOG-10")
@pytest.mark.parametrize("turns", range(1, 6))
def test_what_a_failed_append_invalidates_is_dropped(
    store: AnyStore, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a failed append invalidates is dropped and the job ends with the same bytes."""
    monkeypatch.setattr(patience, "FIRST_WAIT_S", 0.0)
    expected = run(store, model(**SEEDED), **SAMPLED)
    seen: list[Emission] = []
    job = admit(store, model(**SEEDED), **SAMPLED)
    log, made = held_engine(store, model(**SEEDED), job, sink=lambda job, emissions, state: seen.extend(emissions))
    turn(made, turns)
    log.failure = DatabaseUnavailable("test", "the disk is gone")
    made.turn()
    with pytest.raises(DatabaseUnavailable):
        made.turn()
    # The disk is back, and the crank has steps that would follow on what is not there: none of them is taken.
    log.failure, begun = None, log.begun
    with pytest.raises(DatabaseUnavailable):
        turn(made, 2)
    made.close()
    assert log.begun == begun
    assert not made.jobs
    assert seen == transcript(store, job).emissions
    assert len(transcript(store, job).token_ids) == turns
    finish(engine(store, model(**SEEDED), job, worker="second"))
    done = result(store, job)
    assert [done[key] for key in ("text", "token_ids")] == [expected[key] for key in ("text", "token_ids")]
    assert_audited(store)


@pytest.mark.contract("LOG-4", "LOG-7")
def test_a_job_lost_while_the_crank_is_ahead_takes_only_itself_along(store: AnyStore) -> None:
    lost, mate = admit(store, model("Hello")), admit(store, model("Hello"))
    seen: list[tuple[str, Emission]] = []
    _, made = held_engine(
        store, model("Hello"), lost, mate, sink=lambda job, emissions, state: seen.extend((job, e) for e in emissions)
    )
    turn(made, 2)
    claim(store, lost, "second", dead=("tester",))
    made.turn()
    assert made.jobs[lost].token == made.jobs[mate].token == ord("l")
    losses = made.turn()
    assert [(loss.job, loss.outcome) for loss in losses] == [(lost, Outcome.FENCED.value)]
    assert list(made.jobs) == [mate]
    finish(made)
    assert result(store, mate)["text"] == "Hello"
    assert [e for job, e in seen if job == lost] == transcript(store, lost).emissions
    assert store.row(lost).output == 2
    assert_audited(store)


@pytest.mark.contract("LOG-4", "FSM-9", "CALL-9")
def test_a_cancel_stands_behind_the_step_that_is_under_way(store: AnyStore) -> None:
    job = admit(store, model("Hello"))
    log, made = held_engine(store, model("Hello"), job)
    turn(made, 2)
    log.through.clear()
    made.turn()
    threading.Timer(0.05, log.through.set).start()
    made.turn(lambda: {job: [FinishReason.CANCELLED]})
    # Once the end is on its way, no second end and no further step is made.
    made.turn(lambda: {job: [FinishReason.CANCELLED]})
    assert not made.jobs
    done = result(store, job)
    assert (done["finish_reason"], done["text"], done["usage"]["completion_tokens"]) == ("cancelled", "Hel", 3)
    calls = [event for record in store.read(job) for event in record.events if isinstance(event, CallCompleted)]
    assert len(calls) == 3
    assert_audited(store)


@pytest.mark.contract("LOG-4")
def test_letting_go_waits_for_the_append_that_is_under_way(store: AnyStore) -> None:
    job = admit(store, model("Hello"))
    log, made = held_engine(store, model("Hello"), job)
    turn(made, 2)
    log.through.clear()
    made.turn()
    threading.Timer(0.05, log.through.set).start()
    made.close()
    assert store.row(job).output == 3
    assert not made.jobs


@pytest.mark.contract("LOG-1", "LOG-4", "OUT-7")
@pytest.mark.parametrize("beside", [False, True])
def test_an_append_whose_answer_is_lost_is_found_again_and_published_once(
    store: AnyStore, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "FIRST_WAIT_S", 0.0)
    of = model(**SEEDED)
    seen: dict[str, list[Emission]] = {}
    jobs = [admit(store, of, max_new_tokens=count, ignore_eos=True) for count in (2, 5, 9)]

    class Forgetful(Held):
        def begin(self, batch: Sequence[Append]) -> Durable:
            durable = super().begin(batch)
            self.begun += 1

            def wait() -> list[AppendResult]:
                results = durable()
                if self.begun % 4 < 2:
                    raise DatabaseUnavailable("test", "the answer is lost")
                return results

            return wait

        def append(self, batch: Sequence[Append]) -> list[AppendResult]:
            return self._store.append(batch)

    stand_in: Any = Forgetful(store)
    made = Engine(
        patiently(stand_in),
        of,
        context(lambda job, emissions, state: seen.setdefault(job, []).extend(emissions), beside=beside),
    )
    for job in jobs:
        made.adopt(claim(store, job), "tester")
    finish(made)
    assert [seen[job] for job in jobs] == [transcript(store, job).emissions for job in jobs]
    assert_audited(store)


@pytest.mark.contract("LOG-4", "LOG-7", "OUT-7", "POL-7")
@pytest.mark.parametrize("seed", [1, 2])
def test_turns_beside_and_in_place_keep_one_order(store: AnyStore, seed: int) -> None:
    """Turns beside and in place keep one order with jobs that come end and are lost."""
    rng = random.Random(seed)
    seen: dict[str, list[Emission]] = {}
    drafts = [{**SAMPLED, "seed": index, "max_new_tokens": rng.randint(1, 14)} for index in range(20)]
    jobs = [admit(store, model(**SEEDED), **draft) for draft in drafts]
    made = Engine(
        store, model(**SEEDED), context(lambda job, emissions, state: seen.setdefault(job, []).extend(emissions))
    )
    waiting = list(jobs)
    while made.jobs or waiting:
        for _ in range(min(rng.randint(0, 4), len(waiting))):
            made.adopt(claim(store, waiting.pop()), "tester")
        made._beside = rng.random() < 0.5
        if made.jobs and rng.random() < 0.15:
            store.claim("thief", 60_000, 1, [rng.choice(list(made.jobs))], dead=["tester"])
        for loss in made.turn():
            waiting.append(loss.job)
            store.release("thief", [loss.job])
    made.close()
    assert_audited(store)
    for job, draft in zip(jobs, drafts, strict=True):
        assert seen[job] == transcript(store, job).emissions
        assert result(store, job)["token_ids"] == run(store, model(**SEEDED), **draft)["token_ids"]


@pytest.mark.contract("LOG-7")
def test_appends_without_a_gap_do_not_keep_the_heartbeat_waiting(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite lets nobody queue for its write lock: on a slow disk, appends could follow each other past a lease."""
    commit, commits = driver.Transaction.commit, list[str]()

    def slow(self: driver.Transaction) -> None:
        time.sleep(0.005)
        commits.append(threading.current_thread().name)
        commit(self)

    monkeypatch.setattr(driver.Transaction, "commit", slow)
    store = open_store(sqlite_url)
    of = model(seed=3, period=64)
    made = engine(store, of, admit(store, of, max_new_tokens=10_000, ignore_eos=True), beside=True)
    ending, passed = threading.Event(), []

    def crank() -> None:
        while not ending.is_set():
            made.turn()

    cranking = threading.Thread(target=crank)
    cranking.start()
    for _ in range(20):
        begun = len(commits)
        while len(commits) == begun:
            assert cranking.is_alive()
            time.sleep(0.001)
        begun = len(commits)
        store.heartbeat("tester", 60_000)
        passed.append(len(commits) - begun)
    ending.set()
    cranking.join(PATIENCE_S)
    made.close()
    store.close()
    # In appends that went before it, not in seconds: a disk may be slow, and who starves is passed by very many.
    assert median(passed) <= 8
