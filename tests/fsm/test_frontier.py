"""P + |U| = L + O after everything that moves a frontier, and nothing else passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodelog.fsm.errors import BrokenInvariant
from decodelog.fsm.machine.frontier import Frontier
from decodelog.fsm.machine.states import Suffix

pytestmark = pytest.mark.contract("FSM-3")

EMPTY, PENDING, CLOSED = Suffix
counts = st.integers(0, 5)
prompts = st.integers(1, 100)


@given(counts, counts, counts, counts, st.sampled_from(Suffix))
def test_exactly_balanced_frontiers_with_a_true_tag_pass(
    prompt: int, output: int, processed: int, unprocessed: int, suffix: Suffix
) -> None:
    frontier = Frontier(prompt, output, processed, unprocessed, suffix)
    if processed + unprocessed == prompt + output and (unprocessed == 0) == (suffix is EMPTY):
        assert frontier.checked() is frontier
    else:
        with pytest.raises(BrokenInvariant, match="FSM-3"):
            frontier.checked()


@pytest.mark.parametrize(
    "frontier", [Frontier(3, 0, -1, 4, PENDING), Frontier(3, 0, 4, -1, PENDING)], ids=["processed", "unprocessed"]
)
def test_a_negative_count_is_refused_even_where_the_sum_is_right(frontier: Frontier) -> None:
    with pytest.raises(BrokenInvariant, match="FSM-3"):
        frontier.checked()


@given(prompts, st.integers(0, 20), st.booleans())
def test_one_token_is_unprocessed_after_a_commit_and_none_after_a_call(prompt: int, outputs: int, called: bool) -> None:
    """One token is unprocessed after each commit and none after each call."""
    frontier = Frontier.admitted(prompt)
    assert frontier == (prompt, 0, 0, prompt, PENDING)
    frontier = frontier.after_call(prompt, prompt)
    for output in range(1, outputs + 1):
        assert (frontier.unprocessed, frontier.suffix, frontier.processed) == (0, EMPTY, prompt + output - 1)
        frontier = frontier.after_commit()
        assert (frontier.unprocessed, frontier.suffix, frontier.output) == (1, PENDING, output)
        if output < outputs or called:
            frontier = frontier.after_call(1, prompt + output)
    ended = frontier.after_close()
    assert ended.processed == (prompt + outputs if called or not outputs else prompt + outputs - 1)
    assert ended.suffix is (CLOSED if ended.unprocessed else EMPTY)


@given(prompts, st.integers(-3, 103), st.integers(-3, 103))
def test_a_call_that_processed_or_left_anything_else_is_refused(prompt: int, processed: int, lanes: int) -> None:
    frontier = Frontier.admitted(prompt)
    if (processed, lanes) == (prompt, prompt):
        assert frontier.after_call(processed, lanes).processed == prompt
    else:
        with pytest.raises(BrokenInvariant, match="FSM-3"):
            frontier.after_call(processed, lanes)


def test_a_prompt_of_no_tokens_is_refused() -> None:
    with pytest.raises(BrokenInvariant, match="FSM-3"):
        Frontier.admitted(0)
