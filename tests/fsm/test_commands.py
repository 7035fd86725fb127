"""What comes of a command: the words of a refusal, what cancels and failed calls leave, several in one proposal."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from jobs import Live, call, decision, selection
from situations import admitted, cancelled, closed, decided, failed, held, pending, prefilled

from decodelog.fsm.errors import BrokenInvariant, IllegalTransition, ReceiptConflict, Terminal
from decodelog.fsm.evidence.receipt import Receipt
from decodelog.fsm.machine.states import Status
from decodelog.fsm.machine.transition import (
    CloseRequest,
    CommitOutput,
    FailCall,
    FailRequest,
    IssueDecision,
    transition,
    transitions,
)
from decodelog.fsm.request.finish import FinishReason

# ---- what the rejections say -----------------------------------------------------------------------------------------


@pytest.mark.contract("FSM-5")
def test_another_receipt_for_a_decided_step_is_a_conflict_that_names_both() -> None:
    for live, step in ((decided(), 1), (pending(), 1), (prefilled(), 0)):
        with pytest.raises(ReceiptConflict) as caught:
            transition(live.state, CommitOutput(b"\x07" * 32))
        conflict = caught.value
        assert (conflict.step, conflict.held, conflict.offered) == (step, held(live.state).hex(), "07" * 32)


@pytest.mark.contract("FSM-5")
def test_the_same_receipt_again_is_nothing_and_gives_the_recorded_outcome() -> None:
    live = decided(9)
    assert isinstance(live.state.receipt, Receipt)
    commit = CommitOutput(live.state.receipt.receipt_id)
    first = live.do(commit)
    for _ in range(3):
        again = live.do(commit)
        assert (again.events, again.states, again.state) == ((), (), first.state)
    assert live.state.frontier.output == 2
    assert live.state.ending is not None
    assert live.state.ending.finish is FinishReason.STOP_TOKEN


@pytest.mark.contract("FSM-9")
def test_what_comes_after_the_end_is_told_how_the_job_ended() -> None:
    for live, state, reason in (
        (closed(), "CLOSED", "stop_token"),
        (cancelled(), "CLOSED", "cancelled"),
        (failed(), "FAILED", "non_finite_scores"),
    ):
        for command in (call(live.state), CloseRequest(FinishReason.CANCELLED), CommitOutput(b"\x07" * 32)):
            with pytest.raises(Terminal) as caught:
                transition(live.state, command)
            assert (caught.value.state, caught.value.reason) == (state, reason)


@pytest.mark.contract("FSM-1")
def test_an_illegal_trigger_is_named_with_the_state_it_met() -> None:
    with pytest.raises(IllegalTransition) as caught:
        transition(decided().state, decision(60))
    assert (caught.value.state, caught.value.trigger) == ("DECIDED", "decision.made")


# ---- cancel is ordered with commits ----------------------------------------------------------------------------------


@pytest.mark.contract("FSM-9")
@pytest.mark.parametrize("make", [admitted, prefilled, decided, pending], ids=lambda make: make.__name__)
def test_a_cancel_closes_with_exactly_the_tokens_committed_before_it(make: Callable[[], Live]) -> None:
    live = make()
    tokens = live.transcript.token_ids
    output = live.state.frontier.output
    live.do(CloseRequest(FinishReason.CANCELLED))
    assert live.transcript.token_ids == tokens
    assert live.state.frontier.output == output == len(tokens)
    assert (live.state.receipt, live.state.scores) == (None, b"")
    assert live.transcript.text == "".join(f"<{token}>" for token in tokens)


# ---- retry budget ----------------------------------------------------------------------------------------------------


@pytest.mark.contract("FSM-10")
@pytest.mark.parametrize("budget", [0, 1, 3])
@pytest.mark.parametrize("make", [Live.admit, None], ids=["prefill", "decode"])
def test_failed_calls_move_nothing_and_beyond_the_budget_fail_the_job(
    budget: int, make: Callable[[], Live] | None
) -> None:
    """Failed calls move nothing until the budget is spent and then fail the job with their cause."""
    live = Live.admit(retry_budget=budget)
    if make is None:
        live.turn(50)
    before = live.state
    for failures in range(1, budget + 1):
        assert [event.tag for event in live.do(FailCall("call_failed", f"try {failures}")).events] == ["call.failed"]
        assert live.state.tenure.failures == failures
        assert (live.state.status, live.state.frontier, live.state.scores) == (before.status, before.frontier, b"")
        assert live.state.digest() == before.digest()
    live.do(FailCall("roster_incomplete", "the last straw"))
    assert live.state.status is Status.FAILED
    assert live.state.ending == (None, "roster_incomplete", "the last straw")
    assert live.state.frontier.output == before.frontier.output
    assert live.state.frontier.processed == before.frontier.processed


@pytest.mark.contract("FSM-10")
def test_only_a_call_that_succeeds_refills_the_budget() -> None:
    live = Live.admit(retry_budget=2)
    live.attempt()
    for step in range(4):
        live.do(FailCall("call_failed"))
        live.do(FailCall("call_failed"))
        live.attempt(step + 2)
        if step:
            live.rebuild()
        assert live.state.tenure.failures == 2
        live.do(call(live.state))
        assert live.state.tenure.failures == 0
        live.do(decision(50 + step), CommitOutput())
    live.do(FailCall("call_failed"), FailCall("call_failed"), FailCall("session_closed"))
    assert live.state.ending is not None
    assert live.state.ending.cause == "session_closed"


@pytest.mark.contract("FSM-10")
def test_a_numeric_fault_fails_the_job_alone_and_commits_no_token() -> None:
    live = pending()
    output = live.state.frontier.output
    live.do(FailCall("non_finite_scores"), FailRequest("non_finite_scores", "a NaN"))
    assert (live.state.status, live.state.frontier.output) == (Status.FAILED, output)
    assert live.state.scores == b""


# ---- several commands as one proposal --------------------------------------------------------------------------------


@pytest.mark.contract("FSM-2")
def test_one_append_carries_the_four_facts_as_four_events() -> None:
    live = pending()
    proposal = live.turn(9)
    assert [event.tag for event in proposal.events] == [
        "call.completed",
        "decision.made",
        "output.committed",
        "request.closed",
    ]
    assert [state.status.value for state in proposal.states] == ["PREFILLED", "DECIDED", "PENDING", "CLOSED"]


@pytest.mark.contract("FSM-2", "FSM-9")
def test_commands_after_the_one_that_ends_the_job_are_left_out() -> None:
    state = decided(9).state
    proposal = transitions(state, [CommitOutput(), call(state), decision(60), CommitOutput()])
    assert [event.tag for event in proposal.events] == ["output.committed", "request.closed"]
    assert transitions(state, []).events == ()


@pytest.mark.contract("FSM-2")
def test_a_rejected_command_rejects_the_whole_proposal() -> None:
    live = pending()
    state, events = live.state, list(live.events)
    with pytest.raises(IllegalTransition):
        live.do(call(state), decision(60), decision(61))
    assert (live.state, live.events) == (state, events)


@pytest.mark.contract("FSM-5")
@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_selection_that_no_receipt_can_hold_is_a_typed_error(token: int) -> None:
    with pytest.raises(BrokenInvariant, match="does not fit"):
        transition(prefilled().state, IssueDecision(selection(token), b""))
