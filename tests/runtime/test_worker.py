"""The worker loop: claims, commands, deadlines, refusals, and letting go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import pytest
from cranks import LEASE_MS, admit, assert_audited, claim, engine, model, result, state_of, transcript, turn
from databases import AnyStore, Clock, wall_clock_ms
from workers import ENDLESS, FAST, PATIENCE_S, running, wait_for, worker

from decodelog.fsm.errors import DatabaseLocked, LostTenure, Problem, UnknownModel
from decodelog.fsm.limits import TENURES_STALLED_MAX
from decodelog.fsm.machine.events import CallCompleted
from decodelog.fsm.machine.state import State
from decodelog.fsm.ports import Command, ModelRef
from decodelog.fsm.reading.emission import Emission
from decodelog.fsm.request.draft import draft_from
from decodelog.fsm.request.finish import FinishReason
from decodelog.runtime.families.scripted.model import ScriptedModel
from decodelog.runtime.loop import decisions
from decodelog.runtime.loop.context import Context
from decodelog.runtime.loop.job import Job
from decodelog.runtime.loop.pace import Pace
from decodelog.runtime.loop.worker import Worker
from decodelog.runtime.loop.writer import one_at_a_time
from decodelog.service.jobs.cancel import cancel
from decodelog.service.jobs.compose import check_job
from decodelog.service.jobs.submit import submit


@pytest.mark.contract("LOG-7")
def test_drain_runs_all_jobs_more_than_fit_at_once_and_releases_everything(store: AnyStore) -> None:
    of = model("Hello")
    jobs = [admit(store, of) for _ in range(5)]
    worker(store, of, pace=Pace(lease_ms=60_000, claim_ms=1, lanes_max=2)).run(drain=True)
    assert [result(store, job)["text"] for job in jobs] == ["Hello"] * 5
    assert not store.owners()
    assert_audited(store)


@pytest.mark.contract("LOG-7")
def test_two_workers_share_the_jobs_and_each_job_has_one_tenure(store: AnyStore) -> None:
    of = [model("Hello, world."), model("Hello, world.")]
    jobs = [admit(store, of[0]) for _ in range(6)]
    pace = Pace(lease_ms=60_000, claim_ms=1, idle_ms=5, lanes_max=2)
    workers = [worker(store, each, f"worker-{index}", pace) for index, each in enumerate(of)]
    with running(workers[0], drain=True) as one, running(workers[1], drain=True) as two:
        one.join(PATIENCE_S)
        two.join(PATIENCE_S)
    done = [result(store, job) for job in jobs]
    assert {each["text"] for each in done} == {"Hello, world."}
    assert {each["usage"]["attempts"] for each in done} == {1}
    assert_audited(store)


@pytest.mark.contract("LOG-8", "FSM-9")
def test_a_cancel_from_elsewhere_reaches_the_owner_once(store: AnyStore) -> None:
    of = model(**ENDLESS)
    job = admit(store, of, max_new_tokens=100_000, ignore_eos=True)
    with running(worker(store, of)):
        wait_for(lambda: store.row(job).output > 3)
        ended = cancel(store, job, "canceller")
        late = cancel(store, job, "canceller")
    assert ended is not None
    assert late is not None
    assert (ended.outcome, ended.effective) == ("cancelled", True)
    assert (late.outcome, late.effective) == ("cancelled", False)
    done = result(store, job)
    assert done["finish_reason"] == "cancelled"
    assert done["usage"]["completion_tokens"] == len(done["token_ids"]) == store.row(job).output
    assert_audited(store)


@pytest.mark.contract("LOG-8", "FSM-9")
def test_the_same_command_twice_is_one_command(store: AnyStore) -> None:
    job = admit(store, model(), max_new_tokens=5)
    command = Command("c" * 32, job, "cancel")
    assert store.post(command)
    assert not store.post(command)
    worker(store, model()).run(drain=True)
    assert result(store, job)["finish_reason"] == "cancelled"
    assert store.outcome(command.command_id) == "cancelled"
    assert not store.pending([job])


@pytest.mark.contract("LOG-8", "LOG-7")
def test_a_job_without_a_living_owner_is_cancelled_by_the_caller(store: AnyStore) -> None:
    """A job that waits or whose owner is gone is cancelled by the caller."""
    of = model("Hello")
    waiting, orphan = admit(store, of), admit(store, of)
    first = cancel(store, waiting, "canceller")
    assert first is not None
    assert first.effective
    (claim,) = store.claim("gone", 1, 1, [orphan])
    second = cancel(store, orphan, "canceller")
    assert second is not None
    assert second.effective
    assert store.row(orphan).fence > claim.fence
    assert {result(store, job)["usage"]["completion_tokens"] for job in (waiting, orphan)} == {0}
    assert_audited(store)


@pytest.mark.contract("LOG-8", "LOG-7")
def test_the_next_owner_answers_a_cancel_that_was_only_read(store: AnyStore) -> None:
    """A cancel that a replaced worker has read is answered by the next owner."""
    of = model(**ENDLESS)
    job = admit(store, of, max_new_tokens=100_000, ignore_eos=True)
    replaced = worker(store, of)
    replaced._claim(None)
    replaced._turn()
    command = Command("d" * 32, job, "cancel")
    store.post(command)
    (claim,) = store.claim("thief", LEASE_MS, 1, [job], dead=[replaced.name])
    replaced._turn()
    assert store.outcome(command.command_id) is None
    assert store.row(job).fence == claim.fence
    store.release("thief")
    worker(store, model(**ENDLESS), "worker-2").run(drain=True)
    assert store.outcome(command.command_id) == "cancelled"
    assert_audited(store)


@pytest.mark.contract("LOG-7")
def test_a_claim_whose_answer_was_lost_is_made_again(store: AnyStore) -> None:
    of = model("Hello")
    job = admit(store, of)
    made = worker(store, of)
    store.claim(made.name, LEASE_MS, 1)  # and nobody has heard of it
    made.run(drain=True)
    assert result(store, job)["text"] == "Hello"
    assert (store.row(job).fence, store.row(job).stalled) == (2, 0)


@pytest.mark.contract("LOG-7")
def test_a_job_taken_before_its_log_was_read_is_lost_not_broken(store: AnyStore) -> None:
    """A job that somebody else took before its log was read is lost and not broken."""
    of = model("Hello")
    job = admit(store, of)
    (late,) = store.claim("sleeper", LEASE_MS, 1)
    thief = engine(store, of, job, worker="thief")
    turn(thief, 2)
    with pytest.raises(LostTenure, match="its fence is 2"):
        Job.load(store, late)


@pytest.mark.contract("LOG-7")
def test_claims_come_less_often_where_there_is_nothing_and_never_in_step(store: AnyStore) -> None:
    one, other = (worker(store, model(), name, Pace(claim_ms=100, claim_ms_max=400)) for name in ("one", "other"))
    waits: list[list[tuple[float, float]]] = []
    for made in (one, other):
        waits.append([])
        for _ in range(4):
            made._due.clear()
            begin = time.monotonic() * 1000
            made._claim(None)
            waits[-1].append((made._due["claim"] - time.monotonic() * 1000, made._due["claim"] - begin))
    for wait in waits:
        for (shortest, longest), least in zip(wait, (100, 200, 400, 400), strict=True):
            assert shortest <= 1.5 * least + 2
            assert longest >= least - 2
    assert [one._spread(400) for _ in range(4)] != [other._spread(400) for _ in range(4)]


@pytest.mark.contract("LOG-7")
def test_a_claim_takes_a_few_jobs_and_the_next_one_follows_at_once(store: AnyStore) -> None:
    of = model("Hello")
    for _ in range(5):
        admit(store, of)
    made = worker(store, of, pace=Pace(claim_ms=60_000, claims_max=2))
    for held in (2, 4, 5):
        made._claim(None)
        assert len(made._held()) == held
    made._claim(None)
    assert len(made._held()) == 5


@pytest.mark.contract("CALL-9", "LOG-8", "FSM-9")
@pytest.mark.parametrize("beside", [True, False])
def test_a_cancel_that_comes_during_a_call_leaves_nothing_of_that_call(store: AnyStore, beside: bool) -> None:
    of = model(**ENDLESS)
    job = admit(store, of, max_new_tokens=100, ignore_eos=True)
    session, calls = of.session(1), []
    select = session.select

    def cancelling(ticket: Any) -> Any:
        calls.append(ticket)
        if len(calls) == 4:
            store.post(Command("a" * 32, job, "cancel"))
        return select(ticket)

    vars(session)["select"] = cancelling
    worker(store, of, pace=replace(FAST, beside=beside)).run(drain=True)
    done = result(store, job)
    assert (done["finish_reason"], done["usage"]["completion_tokens"], len(calls)) == ("cancelled", 3, 4)
    events = [event for record in store.read(job) for event in record.events]
    assert sum(isinstance(event, CallCompleted) for event in events) == 3
    assert store.outcome("a" * 32) == "cancelled"
    assert_audited(store)


@pytest.mark.contract("FSM-7", "CALL-9")
def test_a_deadline_closes_the_job_with_the_tokens_before_it(store: AnyStore) -> None:
    of = model(**ENDLESS)
    job = admit(store, of, max_new_tokens=100_000, ignore_eos=True, deadline_ms=300)

    def clock() -> int:
        """Comes to the deadline once there are tokens, however long that takes."""
        row = store.row(job)
        return row.created_ms + (300 if row.output >= 3 else 299)

    worker(store, of, clock=clock).run(drain=True)
    done = result(store, job)
    assert done["finish_reason"] == "timeout"
    assert 3 <= done["usage"]["completion_tokens"] == len(done["token_ids"]) < 100_000
    assert_audited(store)


@pytest.mark.contract("FSM-7")
def test_a_cancel_and_a_deadline_that_hold_together_are_both_recorded(store: AnyStore) -> None:
    of = model(**ENDLESS)
    job = admit(store, of, max_new_tokens=100_000, ignore_eos=True, deadline_ms=1)
    store.post(Command("f" * 32, job, "cancel"))
    time.sleep(0.01)
    worker(store, of).run(drain=True)
    assert state_of(store, job).due == (FinishReason.CANCELLED, FinishReason.TIMEOUT)


@pytest.mark.contract("LOG-8")
def test_a_cancel_without_time_to_wait_still_ends_a_job_that_nobody_holds(store: AnyStore) -> None:
    job = admit(store, model())
    ended = cancel(store, job, "canceller", timeout_s=0)
    assert ended is not None
    assert ended.effective
    held = admit(store, model())
    store.claim("alive", LEASE_MS, 1, [held])
    assert cancel(store, held, "canceller", timeout_s=0) is None
    assert [command.kind for command in store.pending([held])] == ["cancel"]


@pytest.mark.contract("ENV-9")
def test_a_job_that_cannot_run_here_is_left_for_others_with_its_reason(store: AnyStore) -> None:
    of, other = model("Hello"), model("Other")
    refused, good = admit(store, of), admit(store, other)
    heard: dict[str, Problem] = {}
    worker(store, other, notice=heard.__setitem__).run(drain=True)
    assert heard[refused].code == "not_admissible"
    assert result(store, good)["text"] == "Other"
    assert (store.row(refused).output, store.row(refused).owner) == (0, None)
    worker(store, of, "worker-2").run(drain=True)
    assert result(store, refused)["text"] == "Hello"


@pytest.mark.contract("ENV-9")
def test_an_unknown_model_is_a_reason_too(store: AnyStore) -> None:
    job = admit(store, model())
    heard: dict[str, Problem] = {}

    def load(wanted: ModelRef) -> NoReturn:
        raise UnknownModel(wanted.name, [])

    made = Worker("worker-1", store, load, check_job, wall_clock_ms, Context(notice=heard.__setitem__, pace=FAST))
    made.run(drain=True)
    assert heard[job].code == "unknown_model"


@pytest.mark.contract("LOG-7")
def test_an_expired_lease_is_taken_over_and_the_sleeper_cannot_commit(store: AnyStore) -> None:
    of = model("Hello, world.")
    job = admit(store, of)
    (claim,) = store.claim("sleeper", 1, 1, [job])
    time.sleep(0.01)
    worker(store, of).run(drain=True)
    assert store.row(job).fence > claim.fence
    assert result(store, job)["text"] == "Hello, world."
    assert not store.heartbeat("sleeper", LEASE_MS)


@pytest.mark.contract("LOG-7", "RES-4")
def test_a_stopped_worker_finishes_its_turn_and_the_next_one_goes_on(store: AnyStore) -> None:
    draft = {"max_new_tokens": 300, "ignore_eos": True, "temperature": 1.0, "seed": 1}
    of = model(**ENDLESS)
    expected = admit(store, of, **draft)
    worker(store, of).run(drain=True)
    job = admit(store, of, **draft)
    with running(worker(store, of)):
        wait_for(lambda: store.row(job).output > 3)
    assert store.row(job).owner is None
    stopped_at = len(transcript(store, job).token_ids)
    assert stopped_at < 300
    worker(store, model(**ENDLESS), "worker-2").run([job], drain=True)
    assert result(store, job)["token_ids"] == result(store, expected)["token_ids"]
    assert result(store, job)["usage"]["attempts"] == 2
    assert_audited(store)


@pytest.mark.contract("LOG-7")
def test_heartbeats_keep_a_long_job(store: AnyStore) -> None:
    of = model(**ENDLESS)
    job = admit(store, of, max_new_tokens=100_000, ignore_eos=True)
    clock = Clock(store)  # time passes as beats come, and not as the machine is fast or slow
    with running(worker(store, of, pace=Pace(lease_ms=300, claim_ms=1, inbox_ms=50))):
        wait_for(lambda: store.row(job).output > 0)
        for _ in range(4):
            clock.pass_ms(299)
            assert not store.claim("thief", 1_000, 1, [job])
            wait_for(lambda: store.row(job).lease_until_ms == clock.now_ms + 300)
    assert clock.now_ms - 1_000_000 > 3 * 300
    assert state_of(store, job).tenure.attempt == 1


@pytest.mark.contract("OUT-7")
def test_the_readers_of_several_models_are_entered_one_at_a_time() -> None:
    inside, most = [], []

    def sink(job: str, emissions: Sequence[Emission], state: State) -> None:
        inside.append(job)
        most.append(len(inside))
        time.sleep(0.005)
        inside.pop()

    publish = one_at_a_time(sink)
    threads = [threading.Thread(target=publish, args=(f"job-{number}", (), None)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


@pytest.mark.contract("LOG-7")
@pytest.mark.parametrize("bad", [0, 1])
def test_one_failed_close_keeps_no_engine_open_and_no_lease_held(store: AnyStore, bad: int) -> None:
    """Every engine is closed and every lease released where one close fails."""
    of = [model("Hello"), model("World")]
    jobs = [admit(store, each) for each in of]
    made = worker(store, of[0])
    for job, each in zip(jobs, of, strict=True):
        made._engines[store.row(job).wanted] = engine(store, each, worker=made.name)
        made._engines[store.row(job).wanted].adopt(claim(store, job, made.name), made.name)

    def broken() -> Any:
        raise DatabaseLocked("test", "busy")

    vars(made._engines[store.row(jobs[bad]).wanted])["close"] = broken
    with pytest.raises(DatabaseLocked):
        made._release()
    assert not made._engines[store.row(jobs[1 - bad]).wanted].jobs
    assert store.owners() == frozenset()


@pytest.mark.contract("LOG-8", "CALL-9")
def test_a_worker_with_two_models_heeds_commands_to_the_jobs_of_both(store: AnyStore) -> None:
    """Each turn of both takes longer than the time between two looks into the inbox."""
    models = {name: model(**ENDLESS) for name in ("one", "two")}
    jobs = [
        submit(store, of, name, draft_from({"prompt": "a", "max_new_tokens": 60, "ignore_eos": True}), 0).job
        for name, of in models.items()
    ]
    for of in models.values():
        session = of.session(1)
        vars(session)["select"] = partial(slowly, session.select)
    made = Worker(
        "worker-1",
        store,
        lambda wanted: models[wanted.name],
        check_job,
        wall_clock_ms,
        Context(pace=replace(FAST, inbox_ms=8)),
    )
    with running(made, drain=True) as thread:
        wait_for(lambda: all(store.row(job).output > 2 for job in jobs))
        for job in jobs:
            store.post(Command(job[:16] * 2, job, "cancel"))
        thread.join(PATIENCE_S)
    assert [store.row(job).finish for job in jobs] == ["cancelled"] * 2
    assert_audited(store)


@pytest.mark.contract("LOG-7")
def test_a_job_that_ends_its_workers_is_given_up_and_its_mates_not(
    store: AnyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a worker dies of need not be a signal; what it does not give back counts as a tenure that has stalled."""
    of = model("Hello")
    bad, good = admit(store, of, seed=66, temperature=1.0), admit(store, of)
    died = deaths(store, of, bad, monkeypatch)
    assert died >= TENURES_STALLED_MAX
    rows = {job: store.row(job) for job in (bad, good)}
    assert (rows[bad].finish, rows[good].finish) == ("poison_job", "eos")
    assert_audited(store)


@pytest.mark.contract("LOG-7", "LOG-10")
def test_kills_over_a_job_that_was_asked_for_are_not_counted(store: AnyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for a job may be killed over it as often as that takes."""
    of = model("Hello")
    job = admit(store, of)
    assert deaths(store, of, job, monkeypatch, asked=True, at_most=2 * TENURES_STALLED_MAX) == 2 * TENURES_STALLED_MAX
    assert (store.row(job).finish, store.row(job).stalled) == ("eos", 0)
    assert_audited(store)


def slowly(select: Callable[[Any], Any], ticket: Any) -> Any:
    time.sleep(0.005)
    return select(ticket)


def deaths(
    store: AnyStore,
    of: ScriptedModel,
    bad: str,
    monkeypatch: pytest.MonkeyPatch,
    asked: bool = False,
    at_most: int = 10**9,
) -> int:
    """How many workers in turn died of a job, at most so many, until one found nothing left to do."""
    decided, dead = decisions._decided, set[str]()

    def broken(result: Any, *others: Any) -> Any:
        if result.job.name == bad and len(dead) < at_most:
            raise MemoryError
        return decided(result, *others)

    monkeypatch.setattr(decisions, "_decided", broken)
    pace = replace(FAST, stalled_ms=1, lease_ms=60_000)
    for number in range(3 * TENURES_STALLED_MAX):
        made = worker(store, of, f"worker-{number}", pace=pace, dead=lambda owners: owners & dead)
        try:
            made.run([bad] if asked else None, drain=True, asked=asked)
        except MemoryError:
            dead.add(made.name)
            assert (made.name in store.owners()) is not asked  # who asked has seen it, and gives the job back
        else:
            break
    return len(dead)
