"""Two runs at six levels: the first step that differs, and there the first level, is the verdict."""

from __future__ import annotations

from typing import Any

import pytest
from jobs import Live, call, crank, decision, drawn, prompt_tokens, selection

from decodelog.fsm.compare import LEVELS, Difference, compare, run_of
from decodelog.fsm.errors import BrokenInvariant
from decodelog.fsm.finish import FinishReason
from decodelog.fsm.transition import (
    CloseRequest,
    CommitOutput,
    CompleteCall,
    FailCall,
    IssueDecision,
    RebuildLanes,
    RecordPrompt,
)

pytestmark = pytest.mark.contract("RES-3")


def live(steps: int = 4, **options: Any) -> Live:
    """A job of so many steps, the third of which a test may have otherwise."""
    at = Live.admit(max_new=8, stop=["<53>"], **options)
    for step in range(steps):
        at.turn(50 + step)
    return at


def verdict(one: Live, other: Live, level: str = "state") -> tuple[int, str, str] | None:
    found = compare(run_of(one.events), run_of(other.events), level)
    return None if found is None else found[:3]


def with_third(**facts: Any) -> Live:
    at = live(2)
    scores = facts.pop("scores", None)
    piece = facts.pop("piece", b"<52>")
    token = facts.pop("token", 52)
    made = call(at.state)
    at.do(
        made._replace(scores=scores) if scores else made,
        IssueDecision(selection(token, **facts), piece),
        CommitOutput(),
    )
    return at


def test_a_run_is_the_same_as_itself_whatever_came_between_its_steps() -> None:
    eventful = Live.admit(max_new=8, stop=["<53>"], retry_budget=3)
    eventful.attempt()
    eventful.do(FailCall("call_failed", "a fault"))
    eventful.turn(50)
    eventful.attempt(3)
    eventful.do(RebuildLanes("prefill", eventful.state.frontier.processed))
    for step in (1, 2, 3):
        eventful.turn(50 + step)
    assert verdict(live(), live()) is verdict(live(retry_budget=3), eventful) is None


@pytest.mark.parametrize(
    ("facts", "level", "name"),
    [
        ({"scores": b"s" * 32}, "tensor", "scores"),
        ({"support": 299}, "policy", "support"),
        ({"margin": 1.25}, "policy", "margin"),
        ({"unit_draw": 0.5, "start": 0.25, "end": 0.75}, "policy", "draw"),
        ({"alternatives": drawn(52).alternatives}, "policy", "alternatives"),
        ({"token": 60}, "decision", "token"),
        ({"logprob": -0.125}, "decision", "logprob"),
        ({"logprob_raw": -0.125}, "decision", "logprob_raw"),
        ({"piece": b"<5>"}, "sequence", "bytes"),
        ({"scores": b"s" * 32, "token": 60, "piece": b"x"}, "tensor", "scores"),  # what is later cures nothing
    ],
)
def test_the_first_level_that_differs_is_the_verdict(facts: dict[str, Any], level: str, name: str) -> None:
    plain, other = with_third(), with_third(**facts)
    assert verdict(plain, other) == (2, level, name)
    for each in LEVELS[: LEVELS.index(level) + 1]:
        assert verdict(plain, other, each) == (2, level, name)
    beyond = LEVELS[LEVELS.index(level) + 1 :]
    if len(facts) == 1 and level == "tensor":
        assert all(verdict(plain, other, each) is None for each in beyond)


def test_another_prompt_or_another_policy_is_a_difference_at_the_first_step() -> None:
    assert verdict(live(), live(prompt=[1, 40, 42])) == (0, "state", "prompt")
    sampled = {"policy.family": "sample", "policy.transforms": [{"kind": "temperature", "value": 1.0}]}
    assert verdict(live(), live(**sampled)) == (0, "policy", "family")


def test_a_shorter_run_that_has_ended_differs_where_it_ends_and_one_that_goes_on_does_not() -> None:
    whole, part = live(4), live(2)
    assert verdict(whole, part) is verdict(part, whole) is None
    part.do(CloseRequest(FinishReason.CANCELLED))
    assert verdict(whole, part) == (2, "sequence", "tokens")
    ended = live(2)
    ended.do(CloseRequest(FinishReason.TIMEOUT))
    assert verdict(part, ended) == (2, "sequence", "finish")


def test_where_a_run_stands_in_the_end_is_the_last_level() -> None:
    """The same tokens and text, and one more call in one of them."""
    plain, repaired = (Live.admit(max_new=2, final_cache=cache) for cache in ("pending", "repaired"))
    for at in (plain, repaired):
        crank(at, lambda step: decision(50 + step))
    assert verdict(plain, repaired) == (2, "resume", "frontier")


def test_a_prompt_s_record_and_a_decision_that_is_not_committed_are_no_step() -> None:
    echoed = Live.admit(max_new=8, echo=True)
    echoed.do(RecordPrompt(prompt_tokens(echoed.state)))
    echoed.do(CompleteCall(3, 3, b"s" * 32), decision(50))
    assert len(run_of(echoed.events).steps) == 0
    with pytest.raises(BrokenInvariant, match="without events"):
        run_of([])


def test_a_difference_says_what_is_on_both_sides() -> None:
    found = compare(run_of(with_third().events), run_of(with_third(token=60).events))
    assert found == Difference(2, "decision", "token", 52, 60)
