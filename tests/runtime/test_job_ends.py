"""How a job ends on the real engine: no call that is not needed, no lane that may be spoilt, no other tenure's end."""

from __future__ import annotations

from typing import Any

import pytest
from cranks import WORKER, admit, assert_audited, claim, engine, finish, model, result, turn
from databases import AnyStore
from test_known_faults import decoding
from test_overlap import held_engine

from decodelog.fsm.errors import BrokenInvariant, DatabaseUnavailable, LostTenure
from decodelog.fsm.evidence.receipt import Selection
from decodelog.fsm.machine.events import CallCompleted, RequestClosed
from decodelog.fsm.machine.transition import (
    CloseRequest,
    Command,
    CommitOutput,
    CompleteCall,
    FailRequest,
    IssueDecision,
    StartAttempt,
)
from decodelog.fsm.ports import Outcome
from decodelog.fsm.request.finish import FinishReason
from decodelog.runtime.families.scripted.script import Fault
from decodelog.runtime.families.session import Session
from decodelog.runtime.loop.job import Job


@pytest.mark.contract("CALL-5")
@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_a_text_costs_one_call_less_than_it_has_tokens(store: AnyStore, outputs: int) -> None:
    """So an output whose first token is the end costs no decode at all; counted by the decoder's own session."""
    of = decoding(lanes=1)
    (eos,) = of.facts.eos_ids
    ids = [*[ord("a")] * (outputs - 1), eos]
    forced = [{"step": step, "token_id": token} for step, token in enumerate(ids)]
    job = admit(store, of, forced_tokens=forced, max_new_tokens=8)
    finish(engine(store, of, job))
    done, session = result(store, job), of.session(1)
    assert isinstance(session, Session)
    assert (done["finish_reason"], done["usage"]["completion_tokens"]) == ("eos", outputs)
    assert session.work.prefill_tokens == done["usage"]["prompt_tokens"]
    assert session.work.decode_tokens == outputs - 1
    calls = [event for record in store.read(job) for event in record.events if isinstance(event, CallCompleted)]
    assert len(calls) == outputs
    assert not session.arena.lanes


SPOILT: dict[str, tuple[Fault, int, dict[str, Any]]] = {
    "a row with a NaN": (Fault(step=1, kind="nan"), 2, {}),
    "a row with an infinity": (Fault(step=1, kind="infinity"), 2, {}),
    "the first row": (Fault(step=0, kind="nan"), 1, {}),
    "a row that a repair makes": (Fault(step=2, kind="nan"), 3, {"max_new_tokens": 2, "final_cache": "repaired"}),
    "a row that nobody asked for": (
        Fault(step=0, kind="nan"),
        1,
        {"max_new_tokens": 0, "zero_token_choice": "prefill_only"},
    ),
    "a row that scores a prompt": (Fault(step=0, kind="nan"), 1, {"prompt_logprobs": 1}),
    "a row that the policy leaves nothing of": (
        Fault(step=99, kind="nan"),
        1,
        {"prompt": "A", "allowed_token_ids": [65], "no_repeat_ngram_size": 1},
    ),
}


@pytest.mark.contract("FSM-10")
@pytest.mark.parametrize("what", SPOILT)
def test_a_lane_that_may_be_spoilt_is_given_up_before_the_fault_is_durable(store: AnyStore, what: str) -> None:
    """Else a database that fails at this moment leaves a job that has not failed, with a lane that is kept."""
    fault, turns, draft = SPOILT[what]
    of = model("Hello", (fault,))
    job = admit(store, of, **draft)
    log, made = held_engine(store, of, job)
    turn(made, turns - 1)
    log.through.clear()
    made.turn()
    held = made.jobs[job]
    assert held.state.status.terminal
    assert not held.durable.ended
    assert held.lane is None
    log.through.set()
    made.flush()
    assert store.row(job).status == "FAILED"
    assert not made.jobs
    assert_audited(store)


@pytest.mark.contract("FSM-10", "CALL-9")
@pytest.mark.parametrize("what", ["a call that fails", "mates of one that fails"])
def test_a_call_that_failed_leaves_no_lane_to_go_on_with(store: AnyStore, what: str) -> None:
    of = model("Hello", (Fault(step=1, kind="raise", times=1),))
    jobs = [admit(store, of) for _ in range(1 + what.startswith("mates"))]
    log, made = held_engine(store, of, *jobs)
    turn(made, 1)
    log.through.clear()
    made.turn()
    lanes = [made.jobs[job].lane is None for job in jobs]
    failures = [made.jobs[job].state.tenure.failures for job in jobs]
    assert lanes == [bool(count) for count in failures]
    assert True in lanes
    log.through.set()
    finish(made)
    assert {result(store, job)["text"] for job in jobs} == {"Hello"}


ENDS: dict[str, Command] = {
    "a cancel": CloseRequest(FinishReason.CANCELLED),
    "a timeout": CloseRequest(FinishReason.TIMEOUT),
    "a failure": FailRequest("poison_job", "as it was found"),
    "a tenure": StartAttempt(7, "the same worker"),
}


@pytest.mark.contract("LOG-1", "LOG-7", "FSM-9")
@pytest.mark.parametrize("what", ENDS)
def test_equal_commands_under_two_fences_are_two(store: AnyStore, what: str) -> None:
    """The late one is refused, and not taken for a repetition of its own: who was replaced has not ended the job."""
    job = admit(store, model())
    zombie = claim(store, job)
    second = claim(store, job, "second", dead=(WORKER,))
    command = ENDS[what]
    appends = [held.durable.append_of(held.propose(command), held.state) for held in (zombie, second)]
    assert appends[0].entries == appends[1].entries
    assert appends[0].key != appends[1].key
    second.record(store, command)
    head = store.row(job).head
    with pytest.raises(LostTenure) as caught:
        zombie.record(store, command)
    assert caught.value.outcome in (Outcome.FENCED, Outcome.TERMINAL)
    assert store.row(job).head == head
    # The owner's own repetition, of which the answer was lost, is one.
    (again,) = store.append([appends[1]])
    assert (again.outcome, again.head) == (Outcome.DUPLICATE, head)


@pytest.mark.contract("LOG-1", "FSM-9")
def test_equal_commands_of_two_jobs_or_at_two_places_are_two(store: AnyStore) -> None:
    cancel = CloseRequest(FinishReason.CANCELLED)
    jobs = [claim(store, admit(store, model())) for _ in range(2)]
    keys = [held.durable.append_of(held.propose(cancel), held.state).key for held in jobs]
    jobs[0].record(store, StartAttempt(jobs[0].durable.claim.fence, WORKER))
    keys.append(jobs[0].durable.append_of(jobs[0].propose(cancel), jobs[0].state).key)
    keys.append(jobs[0].durable.append_of(jobs[0].propose(FailRequest("poison_job", "")), jobs[0].state).key)
    assert len(set(keys)) == 4
    assert len({bytes(key) for key in keys}) == 4
    jobs[1].record(store, cancel)
    (last,) = list(store.read(jobs[1].name))[-1].events
    assert isinstance(last, RequestClosed)


@pytest.mark.contract("FSM-10", "LOG-10")
def test_a_fault_whose_append_fails_leaves_nothing_of_the_spoilt_row(store: AnyStore) -> None:
    """The job has not failed then: its next owner calls again, and what it finds is its own."""
    of = model("Hello", (Fault(step=1, kind="nan", times=1),))
    job = admit(store, of)
    log, made = held_engine(store, of, job)
    turn(made, 1)
    log.failure = DatabaseUnavailable("test", "the disk is gone")
    made.turn()
    assert made.jobs[job].lane is None
    with pytest.raises(DatabaseUnavailable):
        made.flush()
    made.close()
    assert (store.row(job).finish, store.row(job).output) == (None, 1)
    finish(engine(store, model("Hello"), job, worker="second"))
    assert result(store, job)["text"] == "Hello"
    assert_audited(store)


@pytest.mark.contract("LOG-1", "LOG-2")
def test_only_a_receipts_commit_is_keyed_by_it(store: AnyStore) -> None:
    """Else whichever of the two comes second would be taken for a repetition of the first."""
    held = claim(store, admit(store, model()))
    held.record(store, StartAttempt(held.durable.claim.fence, WORKER))
    held.record(store, CompleteCall(held.state.frontier.unprocessed, held.state.frontier.prompt, b"s" * 32))
    decide = held.propose(IssueDecision(Selection(65, 300, -0.5, -0.25, 1.5), b"A"))
    append = held.durable.append_of(decide, held.state)
    held.durable.take_over(decide, store.append([append])[0])
    held.advance(decide)
    receipt = held.state.receipt
    assert receipt is not None
    assert append.key == receipt.receipt_id
    assert held.durable.append_of(held.propose(CommitOutput()), held.state).key == receipt.receipt_id
    for end in (CloseRequest(FinishReason.CANCELLED), FailRequest("poison_job", "as it was found")):
        assert held.durable.append_of(held.propose(end), held.state).key != receipt.receipt_id


@pytest.mark.contract("LOG-3")
def test_a_log_that_ends_elsewhere_than_its_row_says_is_broken(store: AnyStore) -> None:
    """A log that ends elsewhere than its row says is broken under its own fence."""
    job = admit(store, model())
    (claimed,) = store.claim(WORKER, 60_000, 1, [job])
    assert Job.load(store, claimed).durable.head == claimed.head
    for head in (claimed.head._replace(sequence=7), claimed.head._replace(chain=b"x" * 32)):
        with pytest.raises(BrokenInvariant, match="its row says"):
            Job.load(store, claimed._replace(head=head))
