"""The draw and the log-probabilities: which token a number chooses, and what is told of the choice."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from score_rows import GREEDY, chosen, interval, logits, one, processed, random_rows, shapes, units

from decodelog.fsm.errors import WrongDraw
from decodelog.runtime.policy.cuts import Temperature, TopK
from decodelog.runtime.policy.decide import decide
from decodelog.runtime.policy.plan import Plan

# ---- the draw --------------------------------------------------------------------------------------------------------


@pytest.mark.contract("POL-5", "FSM-5")
@given(shapes, units, st.floats(0.1, 5), st.integers(0, 50))
def test_the_choice_is_the_first_token_whose_sum_exceeds_the_draw(
    shape: tuple[int, int, int], unit: float, warmth: float, k: int
) -> None:
    """The choice is the first token whose cumulated probability exceeds the draw."""
    rows = random_rows(*shape)
    plan = Plan.of(warmth, k)
    for row, selection in enumerate(chosen(decide(logits(rows), [plan] * len(rows), [unit] * len(rows)))):
        chances = processed(rows[row : row + 1], *plan.transforms)[0].exp()
        ends = chances.cumsum(-1)
        start, end = interval(selection)
        assert start <= unit < end
        assert start == pytest.approx((ends[selection.token] - chances[selection.token]).item(), abs=1e-12)
        assert end == pytest.approx(ends[selection.token].item(), abs=1e-12)
        if end - start > 1e-9:
            assert selection.logprob == pytest.approx(math.log(end - start), abs=1e-6)


@pytest.mark.contract("POL-5")
@given(shapes, st.sampled_from([Plan.of(1.3), Plan.of(0.7, 5), Plan.of(1.0, 0, 0.8), Plan.of(1.0, 7, 0.9)]))
@settings(max_examples=30)
def test_a_rows_intervals_tile_the_unit_interval_in_id_order(shape: tuple[int, int, int], plan: Plan) -> None:
    """The intervals of a row tile the unit interval in order of token id."""
    row = random_rows(*shape)[0]
    at, token = 0.0, -1
    while at < 1.0:
        selection = one(row, plan, at)
        assert selection.start == at
        assert selection.token > token
        at, token = interval(selection)[1], selection.token
    assert at == 1.0


@pytest.mark.contract("POL-5")
def test_draws_are_consumed_by_sampled_rows_only() -> None:
    rows = logits([[0.0, 1.0], [1.0, 0.0]])
    greedy, sampled = chosen(decide(rows, [GREEDY, Plan.of()], [None, 0.3]))
    assert (greedy.unit_draw, greedy.start, greedy.end) == (None, None, None)
    assert sampled.unit_draw == 0.3
    for plan, unit in [(GREEDY, 0.3), (Plan.of(), None), (Plan.of(), 1.0), (Plan.of(), -1e-9), (Plan.of(), math.nan)]:
        with pytest.raises(WrongDraw):
            decide(rows, [GREEDY, plan], [None, unit])


@pytest.mark.contract("POL-4", "POL-5")
def test_a_decision_is_frozen_in_numbers() -> None:
    """Replay is exact: this row, plan and draw give these values for ever."""
    row = [0.5, -1.25, 2.0, 2.0, 0.0, -3.0]
    selection = one(row, Plan.of(0.7, 4, 0.95, logprobs_top=3), 0.625)
    assert (selection.token, selection.support, selection.unit_draw) == (3, 3, 0.625)
    assert selection.margin == 0.0
    expected = {
        "start": (math.exp(-1.5 / 0.7) + 1) / (math.exp(-1.5 / 0.7) + 2),
        "logprob": -math.log(math.exp(-1.5 / 0.7) + 2),
        "logprob_raw": 2 - math.log(sum(map(math.exp, row))),
    }
    for name, value in expected.items():
        assert getattr(selection, name) == pytest.approx(value, abs=1e-15)
    assert selection.end == 1.0
    assert [alternative.token for alternative in selection.alternatives] == [2, 3, 0]


# ---- log-probabilities -----------------------------------------------------------------------------------------------


@pytest.mark.contract("POL-6")
@given(shapes, st.sampled_from([GREEDY, Plan.of(), Plan.of(0.5, 0, 0.9), Plan.of(2.0, 3)]), units)
def test_raw_log_probabilities_are_those_of_the_row_before_any_transform(
    shape: tuple[int, int, int], plan: Plan, unit: float
) -> None:
    rows = random_rows(*shape)
    expected = rows.double().log_softmax(-1)
    for row, selection in enumerate(
        chosen(decide(logits(rows), [plan] * len(rows), [unit if plan.stochastic else None] * len(rows)))
    ):
        assert selection.logprob_raw == pytest.approx(expected[row, selection.token].item(), abs=1e-12)


@pytest.mark.contract("POL-6")
def test_raw_log_probabilities_do_not_move_with_the_sampling_settings() -> None:
    """The same row with temperature 0.5 and top-p 0.9, and with neither."""
    row = [1.0, 0.0, -1.0, -2.0]
    shaped = one(row, Plan.of(0.5, 0, 0.9, logprobs_top=4), 0.1)
    plain = one(row, Plan.of(1.0, 0, 1.0, logprobs_top=4), 0.1)
    assert shaped.token == plain.token
    assert shaped.logprob_raw == plain.logprob_raw == plain.logprob
    assert shaped.logprob > shaped.logprob_raw
    assert [(a.token, a.logprob_raw) for a in shaped.alternatives] == [
        (a.token, a.logprob_raw) for a in plain.alternatives
    ]
    assert [alternative.logprob for alternative in shaped.alternatives][2:] == [-math.inf, -math.inf]


@pytest.mark.contract("POL-6")
@given(
    shapes,
    st.sampled_from(
        [
            GREEDY,
            Plan.of(),
            Plan.of(0.5),
            Plan.of(0.5, 0, 0.9),
            Plan.of(2.0, 3),
            Plan("greedy", (Temperature(0.5), TopK(3))),
        ]
    ),
    units,
    st.integers(1, 6),
)
def test_alternatives_agree_with_the_choice_and_with_both_distributions(
    shape: tuple[int, int, int], plan: Plan, unit: float, count: int
) -> None:
    rows = random_rows(*shape)[:1]
    selection = one(rows[0], Plan(plan.family, plan.transforms, count), unit if plan.stochastic else None)
    raw, after = rows[0].double().log_softmax(-1), processed(rows, *plan.settled(rows.shape[1]))[0]
    assert len(selection.alternatives) == min(count, rows.shape[1])
    for token, logprob_raw, logprob, _ in selection.alternatives:
        assert logprob_raw == pytest.approx(raw[token].item(), abs=1e-12)
        assert logprob == pytest.approx(after[token].item(), abs=1e-12)
        if token == selection.token:
            assert (logprob_raw, logprob) == (selection.logprob_raw, selection.logprob)


@pytest.mark.contract("POL-6")
def test_alternatives_do_not_change_the_choice() -> None:
    rows = random_rows(5, 3, 90)
    for plan in (GREEDY, Plan.of(0.8), Plan.of(0.8, 5), Plan.of(0.8, 5, 0.7), Plan.of(0.8, 0, 0.7)):
        unit = 0.77 if plan.stochastic else None
        without = decide(logits(rows), [plan] * 3, [unit] * 3)
        told = decide(logits(rows), [Plan(plan.family, plan.transforms, 20)] * 3, [unit] * 3)
        assert [selection._replace(alternatives=()) for selection in chosen(told)] == without
