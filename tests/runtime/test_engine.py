"""The crank: one durable append a turn, faults kept to their own job, and the same bytes after any interruption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import cranks
import pytest
from cranks import WORKER, admit, assert_audited, claim, engine, finish, model, result, run, state_of, transcript, turn
from databases import AnyStore
from score_rows import interval

from decodelog.fsm.errors import NotAdmissible, Terminal
from decodelog.fsm.evidence.receipt import Selection
from decodelog.fsm.evidence.rng import unit_draw
from decodelog.fsm.machine.events import (
    AttemptStarted,
    CallCompleted,
    DecisionMade,
    Event,
    LanesRebuilt,
    OutputCommitted,
)
from decodelog.fsm.machine.state import State
from decodelog.fsm.machine.states import Status
from decodelog.fsm.machine.transition import CloseRequest, CommitOutput, CompleteCall, IssueDecision, StartAttempt
from decodelog.fsm.ports import Outcome
from decodelog.fsm.reading.emission import Emission
from decodelog.fsm.request.finish import FinishReason
from decodelog.runtime.families.scripted.script import Fault
from decodelog.runtime.families.session import Prefill
from decodelog.runtime.loop.engine import Engine
from decodelog.service.jobs.compose import check_job

SAMPLED: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95, "top_k": 80, "ignore_eos": True}
SEEDED: dict[str, Any] = {"seed": 11, "spread": 2.0, "period": 64}


@pytest.fixture(autouse=True, params=[False, True], ids=["in-place", "beside"])
def beside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test holds with the append between two calls, and with the append beside the next call."""
    monkeypatch.setattr(cranks, "BESIDE", request.param)


def events(store: AnyStore, job: str) -> list[Event]:
    return [event for record in store.read(job) for event in record.events]


@pytest.mark.contract("FSM-2", "LOG-1", "FSM-5")
def test_a_step_is_one_append_of_its_facts_keyed_by_its_receipt(store: AnyStore) -> None:
    job = admit(store, model("ab"))
    finish(engine(store, model("ab"), job))
    admission, attempt, *steps = store.read(job)
    assert [event.tag for event in admission.events] == ["request.admitted"]
    assert [event.tag for event in attempt.events] == ["attempt.started"]
    facts = ["call.completed", "decision.made", "output.committed"]
    assert [[event.tag for event in step.events] for step in steps] == [facts, facts, [*facts, "request.closed"]]
    for step in steps:
        assert step.key == next(event.receipt.receipt_id for event in step.events if isinstance(event, DecisionMade))
    assert_audited(store)


@pytest.mark.contract("FSM-7", "OUT-3", "FSM-8")
def test_finish_reasons_and_frontiers_of_ordinary_ends(store: AnyStore) -> None:
    hello = model("Hello, world.")
    assert run(store, hello)["finish_reason"] == "eos"
    assert run(store, hello)["text"] == "Hello, world."
    length = run(store, hello, max_new_tokens=4)
    assert (length["finish_reason"], length["text"], length["usage"]["completion_tokens"]) == ("length", "Hell", 4)
    stopped = run(store, hello, stop=["lo, w"])
    assert (stopped["finish_reason"], stopped["text"]) == ("stop_string", "Hel")
    assert run(store, hello, stop=["lo, w"], include_stop=True)["text"] == "Hello, w"
    by_id = run(store, hello, stop_token_ids=[ord(",")])
    assert (by_id["finish_reason"], by_id["text"]) == ("stop_token", "Hello")
    ignored = run(store, model("ab"), ignore_eos=True, max_new_tokens=5)
    assert (ignored["finish_reason"], ignored["usage"]["completion_tokens"]) == ("length", 5)
    for row in store.rows():
        state = state_of(store, row.job)
        assert state.frontier.processed == state.frontier.prompt + state.frontier.output - 1
        assert state.frontier.suffix == "CLOSED_UNPROCESSED"


@pytest.mark.contract("FSM-7")
def test_a_stop_or_an_eos_on_the_last_allowed_token_is_not_a_length(store: AnyStore) -> None:
    hello = model("Hello")
    assert run(store, hello, stop=["lo"], max_new_tokens=5)["finish_reason"] == "stop_string"
    assert run(store, hello, max_new_tokens=6)["finish_reason"] == "eos"
    assert run(store, hello, max_new_tokens=5)["finish_reason"] == "length"


@pytest.mark.contract("FSM-8")
@pytest.mark.parametrize(("choice", "processed"), [("no_call", 0), ("prefill_only", 5)])
def test_no_output_is_a_typed_choice(store: AnyStore, choice: str, processed: int) -> None:
    job = admit(store, model(), max_new_tokens=0, zero_token_choice=choice)
    finish(engine(store, model(), job))
    state = state_of(store, job)
    assert result(store, job)["finish_reason"] == "length"
    assert state.frontier.processed == (len(state.spec.prompt) if processed else 0)
    assert state.frontier.output == 0
    assert_audited(store)


@pytest.mark.contract("POL-5", "POL-7")
@pytest.mark.parametrize("algorithm", ["philox4x32-10", "splitmix64"])
def test_a_sampled_job_is_the_same_alone_and_in_any_batch(store: AnyStore, algorithm: str) -> None:
    """A sampled job is the same alone and in any batch and differs by seed."""
    draft = {**SAMPLED, "rng_algorithm": algorithm, "max_new_tokens": 30}
    alone = run(store, model(**SEEDED), **draft, seed=42)["token_ids"]
    of = model(**SEEDED)
    mates = [admit(store, of, **draft, seed=seed) for seed in (1, 42, 3, 42)]
    greedy = admit(store, of, max_new_tokens=9, ignore_eos=True)
    finish(engine(store, of, *mates, greedy))
    tokens = [result(store, job)["token_ids"] for job in mates]
    assert tokens[1] == tokens[3] == alone
    assert len({tuple(each) for each in tokens}) == 3
    choices = [run(store, of, **draft, seed=42, choice=choice)["token_ids"] for choice in (0, 1, 2)]
    assert choices[0] == alone
    assert len({tuple(each) for each in choices}) == 3
    assert_audited(store)


@pytest.mark.contract("FSM-5", "POL-5")
def test_only_stochastic_decisions_consume_draws(store: AnyStore) -> None:
    of = model(**SEEDED)
    for draft, drawn in (({"ignore_eos": True, "max_new_tokens": 5}, False), ({**SAMPLED, "max_new_tokens": 5}, True)):
        job = admit(store, of, **draft)
        finish(engine(store, of, job))
        for event in events(store, job):
            if isinstance(event, DecisionMade):
                selection = event.receipt.selection
                assert (selection.unit_draw is not None) is drawn
                if drawn:
                    start, end = interval(selection)
                    assert selection.unit_draw is not None
                    assert start <= selection.unit_draw < end


@pytest.mark.contract("FSM-10", "CALL-9")
def test_a_call_that_fails_keeps_the_old_state_and_the_job_goes_on(store: AnyStore) -> None:
    whole = run(store, model("Hello"))
    shaken = run(store, model("Hello", (Fault(step=0, kind="raise", times=1), Fault(step=3, kind="raise", times=2))))
    assert shaken["token_ids"] == whole["token_ids"]
    assert shaken["text"] == whole["text"]
    assert shaken["usage"]["recomputed_tokens"] > 0
    assert_audited(store)


@pytest.mark.contract("FSM-10")
def test_past_the_retry_budget_a_job_fails_and_keeps_its_tokens(store: AnyStore) -> None:
    """Past the retry budget the job fails with the cause and its tokens stand."""
    failed = run(store, model("Hello", (Fault(step=2, kind="raise"),)), retry_budget=2)
    assert (failed["state"], failed["text"]) == ("FAILED", "He")
    assert failed["error"]["code"] == "call_failed"
    tags = [event.tag for event in events(store, failed["job"])]
    assert tags.count("call.failed") == 3
    assert_audited(store)


@pytest.mark.contract("FSM-10", "POL-7")
@pytest.mark.parametrize(
    ("kind", "cause"), [("nan", "non_finite_scores"), ("infinity", "non_finite_scores"), ("raise", "call_failed")]
)
def test_a_fault_is_its_own_jobs_alone_and_costs_its_batch_mates_nothing(
    store: AnyStore, kind: Literal["raise", "nan", "infinity"], cause: str
) -> None:
    of = model("Hello, world.", (Fault(step=8, kind=kind),))
    bad = admit(store, of, retry_budget=0)
    made = engine(store, of, bad)
    for _ in range(6):
        made.turn()
    # From here on three mates share the calls, and end before the step that is faulty.
    mates = [admit(store, of, retry_budget=0, max_new_tokens=7) for _ in range(3)]
    for mate in mates:
        made.adopt(claim(store, mate), WORKER)
    finish(made)
    failed = result(store, bad)
    assert (failed["state"], failed["text"], failed["error"]["code"]) == ("FAILED", "Hello, w", cause)
    for mate in mates:
        done = result(store, mate)
        assert (done["text"], done["finish_reason"]) == ("Hello, ", "length")
        assert done["usage"]["recomputed_tokens"] == 0
        assert not [event for event in events(store, mate) if event.tag == "call.failed"]
    assert_audited(store)


@pytest.mark.contract("FSM-6", "RES-4")
def test_a_recorded_receipt_is_committed_after_a_crash(store: AnyStore) -> None:
    """A recorded receipt is committed after a crash and nothing is drawn again."""
    of = model(**SEEDED)
    expected = run(store, of, **SAMPLED, seed=5, max_new_tokens=8)
    job = admit(store, of, **SAMPLED, seed=5, max_new_tokens=8)
    # A worker that died between decision and commit: its receipt is in the log and is not the policy's own choice.
    first = claim(store, job)
    first.record(store, StartAttempt(first.durable.claim.fence, WORKER))
    drawn = expected["token_ids"][0]
    choice = next(token for token in range(65, 91) if token != drawn)
    draw = unit_draw("philox4x32-10", 5, 0, 0, 0)
    first.record(
        store,
        CompleteCall(len(first.state.spec.prompt), len(first.state.spec.prompt), bytes(32)),
        IssueDecision(Selection(choice, 3, -1.0, -1.0, 0.5, draw, 0.0, 1.0), bytes([choice])),
    )
    assert store.row(job).status is Status.DECIDED
    finish(engine(store, of, job, worker="second"))
    done = result(store, job)
    assert done["token_ids"][0] == choice
    assert done["usage"]["completion_tokens"] == 8
    kinds = [type(event) for event in events(store, job)]
    assert kinds.index(OutputCommitted) < kinds.index(LanesRebuilt)
    assert_audited(store)


@pytest.mark.contract("RES-4", "FSM-1", "OUT-7")
@pytest.mark.parametrize("form", ["prefill", "reexecute"])
@pytest.mark.parametrize("turns", [0, 1, 2, 7])
def test_a_job_taken_over_after_any_turn_ends_as_if_nothing_had_happened(
    store: AnyStore, form: str, turns: int
) -> None:
    of = model(**SEEDED)
    draft = {**SAMPLED, "seed": 9, "max_new_tokens": 12, "stop": ["zq"]}
    expected = run(store, of, **draft)
    job = admit(store, of, **draft)
    turn(first := engine(store, of, job), turns)
    first.close()
    seen = list(transcript(store, job).emissions)
    finish(engine(store, model(**SEEDED), job, worker="second", form=form))
    done = result(store, job)
    assert {key: done[key] for key in ("text", "token_ids", "finish_reason")} == {
        key: expected[key] for key in ("text", "token_ids", "finish_reason")
    }
    assert transcript(store, job).emissions[: len(seen)] == seen
    rebuilt = [event for event in events(store, job) if isinstance(event, LanesRebuilt)]
    processed = len(state_of(store, job).spec.prompt) + turns - 1
    assert [(event.form, event.tokens) for event in rebuilt] == ([(form, processed)] if turns else [])
    assert done["usage"]["recomputed_tokens"] == (processed if turns else 0)
    assert_audited(store)


@pytest.mark.contract("RES-4")
def test_reexecution_repeats_the_calls_also_after_a_prefill(store: AnyStore) -> None:
    """Reexecution repeats the calls that made the lanes also after a prefill."""
    of = model(**SEEDED)
    job = admit(store, of, **SAMPLED, seed=2, max_new_tokens=12)
    calls: list[int | str] = []

    def recording(made: Engine) -> Engine:
        session = made.model.session(1)
        prepare = session.prepare

        def recorded(asked: Any) -> Any:
            calls.extend(len(call.tokens) if isinstance(call, Prefill) else 1 for call in asked)
            return prepare(asked)

        vars(session)["prepare"] = recorded
        return made

    for turns, form in ((3, "prefill"), (4, "prefill"), (2, "reexecute")):
        made = recording(engine(store, model(**SEEDED), job, worker=f"{turns}", form=form))
        calls.append(form)
        turn(made, turns)
    prompt = len(state_of(store, job).spec.prompt)
    assert calls == [
        *("prefill", prompt, 1, 1),
        *("prefill", prompt + 2, 1, 1, 1),
        *("reexecute", prompt + 2, 1, 1, 1, 1),
    ]


@pytest.mark.contract("LOG-7", "FSM-9", "LOG-1")
def test_a_worker_that_was_replaced_cannot_append_and_lets_go(store: AnyStore) -> None:
    of = model("Hello, world.")
    job = admit(store, of)
    zombie = engine(store, of, job)
    turn(zombie)
    finish_other = engine(store, model("Hello, world."), job, worker="second")
    (loss,) = turn(zombie)
    assert (loss.job, loss.outcome) == (job, Outcome.FENCED.value)
    assert not zombie.jobs
    finish(finish_other)
    assert result(store, job)["text"] == "Hello, world."
    assert_audited(store)


@pytest.mark.contract("FSM-9")
def test_after_the_end_a_late_result_and_a_late_cancel_are_refused(store: AnyStore) -> None:
    of = model("Hi")
    job = admit(store, of)
    held = claim(store, job)
    held.record(store, StartAttempt(held.durable.claim.fence, WORKER), CloseRequest(FinishReason.CANCELLED))
    with pytest.raises(Terminal):
        held.propose(CloseRequest(FinishReason.CANCELLED))
    with pytest.raises(Terminal):
        held.propose(CommitOutput())
    assert store.row(job).finish == "cancelled"


@pytest.mark.contract("CALL-9", "FSM-9")
def test_a_cancel_during_a_call_drops_its_result_alone(store: AnyStore) -> None:
    """A cancel during a call drops its result and keeps what was committed."""
    of = model("Hello, world.")
    job, mate = admit(store, of), admit(store, of)
    made = engine(store, of, job, mate)
    for _ in range(3):
        made.turn()
    made.turn(lambda: {job: [FinishReason.CANCELLED]})
    finish(made)
    cancelled = result(store, job)
    assert (cancelled["finish_reason"], cancelled["text"]) == ("cancelled", "Hel")
    assert cancelled["usage"]["completion_tokens"] == 3
    assert result(store, mate)["text"] == "Hello, world."
    assert sum(isinstance(event, CallCompleted) for event in events(store, job)) == 3
    assert_audited(store)


@pytest.mark.contract("OUT-8")
def test_a_reader_that_fails_is_left_and_the_job_goes_on(store: AnyStore) -> None:
    def sink(job: str, emissions: Sequence[Emission], state: State) -> None:
        raise BrokenPipeError

    job = admit(store, model("Hello"))
    finish(engine(store, model("Hello"), job, sink=sink))
    assert result(store, job)["text"] == "Hello"


@pytest.mark.contract("OUT-8", "FSM-9")
def test_a_job_bound_to_its_reader_ends_as_cancelled(store: AnyStore) -> None:
    """A job that is not to outlive its reader ends as cancelled with what is committed."""
    seen: list[Emission] = []

    def sink(name: str, emissions: Sequence[Emission], state: State) -> None:
        if name == job:
            seen.extend(emissions)
            if len(seen) == 3:
                raise BrokenPipeError

    job, mate = admit(store, model("Hello, world."), consumer_policy="cancel"), admit(store, model("Hello, world."))
    finish(engine(store, model("Hello, world."), job, mate, sink=sink))
    done = result(store, job)
    assert done["finish_reason"] == "cancelled"
    assert 3 <= done["usage"]["completion_tokens"] <= 5  # one step may be under way, and one more be computed
    assert "Hello, world.".startswith(done["text"])
    assert len(seen) == 3
    assert result(store, mate)["text"] == "Hello, world."
    assert_audited(store)


@pytest.mark.contract("OUT-7", "LOG-4")
def test_nothing_is_published_before_it_can_be_read_back(store: AnyStore) -> None:
    seen: list[Emission] = []

    def sink(job: str, emissions: Sequence[Emission], state: State) -> None:
        durable = transcript(store, job).emissions
        assert durable[-len(emissions) :] == list(emissions)
        seen.extend(emissions)

    job = admit(store, model("Hello, wörld."), stop=["never", "ld!"])
    made = engine(store, model("Hello, wörld."), job, sink=sink)
    finish(made)
    assert "".join(emission.text for emission in seen) == result(store, job)["text"] == "Hello, wörld."
    assert seen == transcript(store, job).emissions


@pytest.mark.contract("ENV-9")
def test_another_artifact_refuses_the_job_and_what_it_ran_on_is_recorded(store: AnyStore) -> None:
    of, other = model("Hello"), model("Other")
    job = admit(store, of)
    held = claim(store, job)
    with pytest.raises(NotAdmissible, match="artifact"):
        check_job(held, other)
    check_job(held, of)
    store.release(WORKER)
    finish(engine(store, of, job))
    (attempt,) = [event for event in events(store, job) if isinstance(event, AttemptStarted)]
    assert attempt.facts == of.recorded
