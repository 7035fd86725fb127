"""An ordinary step in one go is what its three commands lead to one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import EOS, Live, call, selection
from test_load import choices, histories

from decodelog.fsm.errors import Problem
from decodelog.fsm.machine import token_step as ordinary
from decodelog.fsm.machine.fold import fold_all
from decodelog.fsm.machine.state import State
from decodelog.fsm.machine.states import Status
from decodelog.fsm.machine.transition import (
    Command,
    CommitOutput,
    CompleteCall,
    IssueDecision,
    TakeStep,
    transitions,
)
from decodelog.fsm.output.standing import Standing

pytestmark = pytest.mark.contract("FSM-2", "FSM-4", "FSM-6")


def outcome(state: State, *commands: Command) -> Any:
    try:
        made = transitions(state, commands)
        return made.events, made.state
    except Problem as problem:
        return type(problem), str(problem)


calls = st.sampled_from([None, None, None, None, "tokens", "lanes", "scores"])


@given(histories(), choices, calls)
def test_in_any_state_both_ways_give_the_same_events_state_and_errors(
    live: Live, choice: IssueDecision, wrong: str | None
) -> None:
    for state in live.states:
        made = call(state) if not state.status.terminal else CompleteCall(1, 5, b"s" * 32)
        if wrong is not None:
            changed = {"tokens": made.tokens + 1, "lanes": made.lanes + 1, "scores": made.scores[1:]}
            facts: dict[str, Any] = {"tokens": made.tokens, "lanes": made.lanes, "scores": made.scores}
            made = CompleteCall(**{**facts, wrong: changed[wrong]})
        assert outcome(state, TakeStep(made, choice)) == outcome(state, made, choice, CommitOutput())


@given(histories(), choices)
def test_what_it_gives_folds_to_its_states(live: Live, choice: IssueDecision) -> None:
    for state in live.states:
        if state.status is Status.PENDING and not state.due and not state.tenure.failures:
            proposal = transitions(state, [TakeStep(call(state), choice)])
            assert fold_all(proposal.events, state) == proposal.state


def test_it_is_taken_for_an_ordinary_step_and_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the way that is tested here would be one that nobody goes."""
    taken: list[bool] = []
    step = ordinary.step

    def watched(*arguments: Any) -> Any:
        made = step(*arguments)
        taken.append(made is not None)
        return made

    monkeypatch.setattr(ordinary, "step", watched)
    live = Live.admit()
    live.turn(50)
    live.turn(51)
    assert taken == [False, True]
    transitions(live.state, [TakeStep(call(live.state), IssueDecision(selection(EOS), b"x"))])
    assert taken == [False, True, True]
    structured = TakeStep(call(live.state), IssueDecision(selection(50), b"x", structure=Standing.COMPLETE))
    with pytest.raises(Problem):
        transitions(live.state, [structured])
    assert len(taken) == 3


@pytest.mark.parametrize(
    "wrong",
    [{"tokens": 0}, {"tokens": 2}, {"lanes": 3}, {"lanes": 5}, {"scores": b"s" * 31}, {"scores": b"s" * 33}],
    ids=str,
)
def test_an_ordinary_step_processes_exactly_the_pending_token(wrong: dict[str, Any]) -> None:
    """A call that did not process the one pending token is no ordinary step."""
    live = Live.admit()
    live.turn(50)
    assert live.state.frontier.processed == 3
    choice, right = IssueDecision(selection(51), b"x"), call(live.state)
    assert ordinary.step(live.state, *right, choice.selection, b"x", False, 0) is not None
    made = right._replace(**wrong)
    assert ordinary.step(live.state, *made, choice.selection, b"x", False, 0) is None
    refused = outcome(live.state, made, choice, CommitOutput())
    assert issubclass(refused[0], Problem)
    assert outcome(live.state, TakeStep(made, choice)) == refused
