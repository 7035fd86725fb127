"""One finish reason by the declared order, every trigger recorded, and frontiers that say what was processed."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import EOS, Live, call, crank, decision

from decodelog.fsm.errors import BrokenInvariant
from decodelog.fsm.machine.next_step import Step, close_reason, due_reasons, next_step
from decodelog.fsm.machine.state import Ending, State
from decodelog.fsm.machine.states import Status, Suffix
from decodelog.fsm.machine.transition import CloseRequest, CommitOutput, FailRequest, transition
from decodelog.fsm.request.finish import DEFAULT_ORDER, FROM_OUTSIDE, HELD_BACK, FinishReason, rank

CANCELLED, TIMEOUT, _, STOP_STRING, STOP_TOKEN, _, END, LENGTH, CONTEXT_LIMIT = FinishReason

pytestmark = pytest.mark.contract("FSM-7")


def finish(state: State) -> FinishReason | None:
    assert state.ending is not None
    return state.ending.finish


# ---- the order ------------------------------------------------------------------------------------------------


def test_the_default_order_is_the_contract_s() -> None:
    assert " > ".join(DEFAULT_ORDER) == (
        "cancelled > timeout > structured_error > stop_string > stop_token > structured_complete > eos > length"
        " > context_limit"
    )


@pytest.mark.parametrize(("higher", "lower"), list(combinations(DEFAULT_ORDER, 2)))
def test_of_two_triggers_the_one_declared_first_is_the_reason(higher: FinishReason, lower: FinishReason) -> None:
    assert rank({lower, higher}, DEFAULT_ORDER) == (higher, lower)
    assert rank({lower, higher}, DEFAULT_ORDER[::-1]) == (lower, higher)


@given(st.sets(st.sampled_from(FinishReason)), st.permutations(list(FinishReason)))
def test_every_trigger_that_held_is_recorded_once_in_the_declared_order(
    held: set[FinishReason], order: list[FinishReason]
) -> None:
    ranked = rank(held, order)
    assert sorted(ranked) == sorted(held)
    assert [order.index(reason) for reason in ranked] == sorted(order.index(reason) for reason in held)


COMMITTED = (STOP_STRING, STOP_TOKEN, END, LENGTH, CONTEXT_LIMIT)
HELD = [held for size in range(1, 6) for held in combinations(COMMITTED, size)]


def last_token(held: tuple[FinishReason, ...], **options: Any) -> Live:
    """A job whose second token, not yet committed, makes exactly these reasons hold."""
    live = Live.admit(
        prompt=[1, 40],
        max_new=2 if LENGTH in held else 6,
        context=3 if CONTEXT_LIMIT in held else 60,
        stop=["end"] if STOP_STRING in held else [],
        stop_ids=[9] if STOP_TOKEN in held else [],
        eos=[9] if END in held else [],
        **options,
    )
    live.turn(50, b"the e")
    live.do(call(live.state), decision(9, b"nd"))
    return live


@pytest.mark.parametrize("held", HELD, ids=lambda held: "+".join(held))
def test_all_triggers_of_a_commit_are_recorded_and_the_first_decides(
    held: tuple[FinishReason, ...],
) -> None:
    """Every set of triggers of one commit is recorded and its first is the reason."""
    live = last_token(held)
    live.do(CommitOutput())
    assert live.state.ending == Ending(held[0])
    assert live.state.due == held
    assert live.state.frontier.output == 2


@pytest.mark.parametrize("held", HELD, ids=lambda held: "+".join(held))
@pytest.mark.parametrize("interruption", [CANCELLED, TIMEOUT])
def test_an_interruption_that_meets_a_finished_commit_is_ranked_with_it(
    interruption: FinishReason, held: tuple[FinishReason, ...]
) -> None:
    due = transition(last_token(held).state, CommitOutput()).states[0]
    ended = transition(due, CloseRequest(interruption)).state
    assert (finish(ended), ended.due) == (interruption, (interruption, *held))


@pytest.mark.parametrize("held", HELD, ids=lambda held: "+".join(held))
def test_a_request_can_declare_another_order(held: tuple[FinishReason, ...]) -> None:
    order = [reason.value for reason in reversed(FinishReason)]
    live = last_token(held, order=order)
    due = transition(live.state, CommitOutput()).states[0]
    ended = transition(due, CloseRequest(CANCELLED)).state
    assert (finish(ended), ended.due) == (held[-1], (*reversed(held), CANCELLED))
    live.do(CommitOutput())
    assert (finish(live.state), live.state.due) == (held[-1], tuple(reversed(held)))


@pytest.mark.parametrize("reason", FinishReason)
def test_only_an_interruption_ends_a_job_for_which_nothing_is_due(reason: FinishReason) -> None:
    live = Live.admit()
    live.turn(50)
    if reason in FROM_OUTSIDE:
        assert finish(transition(live.state, CloseRequest(reason)).state) is reason
    else:
        with pytest.raises(BrokenInvariant, match="FSM-7"):
            transition(live.state, CloseRequest(reason))


# ---- the last allowed token ------------------------------------------------------------------------------------


def test_a_stop_that_completes_on_the_last_allowed_token_is_a_stop() -> None:
    live = Live.admit(max_new=2, stop=["end"])
    live.turn(50, b"the e")
    live.turn(51, b"nd")
    assert (finish(live.state), live.state.due) == (STOP_STRING, (STOP_STRING, LENGTH))
    assert live.transcript.text == "the "


def test_an_eos_on_the_last_allowed_token_is_an_eos() -> None:
    live = Live.admit(max_new=2)
    live.turn(50)
    live.turn(EOS)
    assert (finish(live.state), live.state.due) == (END, (END, LENGTH))


def test_a_stop_one_byte_short_on_the_last_allowed_token_is_a_length() -> None:
    """A stop that is one byte short on the last allowed token is a length and shows it."""
    live = Live.admit(max_new=2, stop=["ends"])
    live.turn(50, b"the e")
    live.turn(51, b"nd")
    assert (finish(live.state), live.state.due) == (LENGTH, (LENGTH,))
    assert live.transcript.text == "the end"


@pytest.mark.parametrize("token", [EOS, 9], ids=["eos", "stop id"])
def test_before_the_least_number_of_tokens_only_the_limits_end_a_job(token: int) -> None:
    options: dict[str, Any] = {"stop_ids": [9], "stop": ["!"], "min_new": 3}
    live = Live.admit(**options)
    for _ in range(2):
        live.turn(token, b"!")
        assert live.state.status is Status.PENDING
    live.turn(token, b"!")
    assert finish(live.state) is STOP_STRING
    assert live.transcript.text == "!!"

    live = Live.admit(**options, context=4)
    live.turn(token, b"!")
    assert live.state.status is Status.PENDING
    live.turn(token, b"!")
    assert (finish(live.state), live.state.due) == (CONTEXT_LIMIT, (CONTEXT_LIMIT,))


EARLY: dict[FinishReason, tuple[dict[str, Any], tuple[int, bytes]]] = {
    STOP_STRING: ({"stop": ["!"]}, (50, b"!")),
    STOP_TOKEN: ({"stop_ids": [9]}, (9, b"x")),
    END: ({}, (EOS, b"x")),
    FinishReason.STRUCTURED_COMPLETE: ({"termination.detectors": [{"kind": "json_value"}]}, (50, b"[1]")),
}


@pytest.mark.contract("OUT-3", "FSM-7")
@pytest.mark.parametrize("reason", sorted(HELD_BACK))
def test_what_is_held_back_ends_a_job_from_the_minimum_on_and_not_before(reason: FinishReason) -> None:
    options, token = EARLY[reason]
    live = Live.admit(min_new=3, **options)
    for _ in range(2):
        live.turn(*token)
        assert (live.state.status, live.state.due) == (Status.PENDING, ())
    live.turn(*token)
    assert (finish(live.state), live.state.due) == (reason, (reason,))


def test_what_is_not_held_back_may_end_a_job_before_the_minimum() -> None:
    """All that is not held back ends a job before the minimum or cannot come before it."""
    assert EARLY.keys() == HELD_BACK
    assert set(FinishReason) - HELD_BACK == {
        *FROM_OUTSIDE,
        CONTEXT_LIMIT,
        LENGTH,  # max_new_tokens is at least min_new_tokens
        FinishReason.STRUCTURED_ERROR,  # a grammar takes no minimum
    }
    for reason in FROM_OUTSIDE:
        live = Live.admit(min_new=3)
        live.turn(50)
        assert finish(transition(live.state, CloseRequest(reason)).state) is reason


def test_an_eos_that_is_ignored_ends_nothing() -> None:
    live = Live.admit(ignore_eos=True, max_new=2)
    live.turn(EOS)
    assert live.state.status is Status.PENDING
    live.turn(EOS)
    assert live.state.due == (LENGTH,)


# ---- how much was processed ------------------------------------------------------------------------------------


@pytest.mark.contract("FSM-3", "FSM-8")
def test_a_context_of_two_takes_a_prompt_of_one_and_exactly_two_outputs() -> None:
    live = Live.admit(context=2, prompt=[0], max_new=100)
    crank(live, lambda step: decision(50 + step))
    assert finish(live.state) is CONTEXT_LIMIT
    assert live.state.due == (CONTEXT_LIMIT,)
    assert live.state.frontier == (1, 2, 2, 1, Suffix.CLOSED_UNPROCESSED)
    assert live.state.spec.rows == 2


@pytest.mark.contract("FSM-3", "FSM-8")
@given(st.integers(1, 6), st.integers(0, 5), st.integers(1, 12))
def test_context_and_budget_end_a_job_at_the_reserved_count(prompt: int, room: int, budget: int) -> None:
    """The context and the budget end a job at the same count that was reserved."""
    live = Live.admit(context=prompt + room, prompt=[1] * prompt, max_new=budget)
    crank(live, lambda step: decision(50 + step))
    outputs = min(budget, room + 1)
    frontier = live.state.frontier
    assert (frontier.output, frontier.processed, frontier.unprocessed) == (outputs, prompt + outputs - 1, 1)
    assert live.state.spec.rows == frontier.processed <= prompt + room
    expected = [LENGTH] * (outputs == budget) + [CONTEXT_LIMIT] * (outputs == room + 1)
    assert live.state.due == tuple(expected)


@pytest.mark.contract("FSM-3", "FSM-8")
@pytest.mark.parametrize("outputs", [1, 2, 5])
@pytest.mark.parametrize("last", [(EOS, b""), (9, b"x"), (60, b"STOP")], ids=["eos", "stop_token", "stop_string"])
def test_after_an_ordinary_stop_the_last_token_is_unprocessed(outputs: int, last: tuple[int, bytes]) -> None:
    live = Live.admit(stop_ids=[9], stop=["STOP"])
    crank(live, lambda step: decision(*last) if step == outputs - 1 else decision(50))
    prompt = len(live.state.spec.prompt)
    assert live.state.frontier == (prompt, outputs, prompt + outputs - 1, 1, Suffix.CLOSED_UNPROCESSED)


@pytest.mark.contract("FSM-3", "FSM-8")
def test_no_output_without_a_call_processes_nothing() -> None:
    live = Live.admit(max_new=0, zero="no_call")
    assert (next_step(live.state), close_reason(live.state)) == (Step.CLOSE, LENGTH)
    with pytest.raises(BrokenInvariant):
        transition(live.state, call(live.state))
    crank(live, lambda step: decision(50))
    assert [event.tag for event in live.events] == ["request.admitted", "request.closed"]
    assert (finish(live.state), live.state.due) == (LENGTH, (LENGTH,))
    assert live.state.frontier == (3, 0, 0, 3, Suffix.CLOSED_UNPROCESSED)


@pytest.mark.contract("FSM-3", "FSM-8")
def test_zero_output_after_a_prefill_decides_nothing() -> None:
    """No output after a prefill processes the prompt and decides nothing."""
    live = Live.admit(max_new=0, zero="prefill_only")
    assert (next_step(live.state), close_reason(live.state)) == (Step.CALL, None)
    live.do(call(live.state))
    assert (next_step(live.state), close_reason(live.state)) == (Step.CLOSE, LENGTH)
    with pytest.raises(BrokenInvariant):
        transition(live.state, decision(50))
    crank(live, lambda step: decision(50))
    assert [event.tag for event in live.events] == ["request.admitted", "call.completed", "request.closed"]
    assert (finish(live.state), live.state.due) == (LENGTH, (LENGTH,))
    assert live.state.frontier == (3, 0, 3, 0, Suffix.EMPTY)
    assert live.transcript.result()["usage"]["completion_tokens"] == 0


@pytest.mark.contract("FSM-8")
@pytest.mark.parametrize("zero", ["no_call", "prefill_only"])
def test_a_cancelled_job_without_output_records_what_else_held(zero: str) -> None:
    """A job without output that is cancelled says so and records what else held."""
    live = Live.admit(max_new=0, zero=zero)
    held = due_reasons(live.state)
    assert held == ((LENGTH,) if zero == "no_call" else ())
    live.do(CloseRequest(CANCELLED))
    assert (finish(live.state), live.state.due) == (CANCELLED, (CANCELLED, *held))


# ---- what is to be done next ------------------------------------------------------------------------------------


@pytest.mark.contract("FSM-6", "FSM-8")
def test_each_state_owes_one_next_step() -> None:
    live = Live.admit()
    found = [next_step(live.state)]
    for command in (call(live.state), decision(50), CommitOutput(), FailRequest("cause")):
        live.do(command)
        found.append(next_step(live.state))
    assert found == [Step.CALL, Step.DECIDE, Step.COMMIT, Step.CALL, Step.NOTHING]
    closed = Live.admit(stop_ids=[9])
    states = closed.turn(9).states
    assert [next_step(state) for state in states] == [Step.DECIDE, Step.COMMIT, Step.CLOSE, Step.NOTHING]
    assert close_reason(states[2]) is STOP_TOKEN


@pytest.mark.contract("FSM-7")
def test_the_declared_order_decides_between_a_stop_and_a_cancel() -> None:
    """A declared order decides between a stop that was reached and a cancel."""
    order = [FinishReason.STOP_STRING, *(each for each in FinishReason if each is not FinishReason.STOP_STRING)]
    live = Live.admit(stop=["b"], order=[each.value for each in order], final_cache="repaired")
    live.turn(50, b"ab")
    for reason in set(FinishReason) - FROM_OUTSIDE:
        with pytest.raises(BrokenInvariant):
            live.do(CloseRequest(reason))  # no end of its own before the repair
    live.do(CloseRequest(FinishReason.CANCELLED))
    assert live.state.ending is not None
    assert live.state.ending.finish is FinishReason.STOP_STRING
    assert live.state.due == (FinishReason.STOP_STRING, FinishReason.CANCELLED)
