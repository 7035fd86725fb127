"""The policy: edges of every number, ties, scores that are refused, and the shape of the work."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from score_rows import GREEDY, interval, logits, one, plans, processed, random_rows, ranking, shapes, tied_rows

from decodelog.fsm.errors import SchemaViolation, WrongScores
from decodelog.runtime.policy.cuts import Temperature, TopK, TopP
from decodelog.runtime.policy.decide import decide, row_facts
from decodelog.runtime.policy.edits import BannedTokens
from decodelog.runtime.policy.group import CutStep, EditStep, group_rows
from decodelog.runtime.policy.kinds import Beside
from decodelog.runtime.policy.plan import Plan
from decodelog.runtime.policy.ranking import rank
from decodelog.runtime.policy.scores import Logits, VocabularyAxis

# ---- the edges of every number ---------------------------------------------------------------------------------------

NO_FAMILY: Any = "beam"
EDGES = """
    plan                            support  why
    temperature=0                   5        greedy: no transform
    temperature=1e-300              1        as greedy
    temperature=9e-6                1        as greedy
    temperature=1                   5        off
    temperature=1e300               5        nearly uniform
    top_k=0                         5        off
    top_k=1                         1        best alone
    top_k=2                         2        .
    top_k=5                         5        the vocabulary
    top_k=1000000000                5        off above the vocabulary
    top_p=0                         1        best alone
    top_p=1e-300                    1        best alone
    top_p=1                         5        off
    top_p=0.9999999999999999        5        nearly off
    top_k=3,top_p=0                 1        .
    temperature=1e-300,top_p=1      1        .
    temperature=1e300,top_p=0.5     3        half of a uniform five
"""


@pytest.mark.contract("POL-3")
@pytest.mark.parametrize("row", EDGES.strip().splitlines()[1:])
def test_each_numeric_edge_has_one_meaning(row: str) -> None:
    settings_, support, *_ = row.split()
    pairs = (pair.split("=") for pair in settings_.split(","))
    numbers: dict[str, Any] = {name: float(value) if name != "top_k" else int(value) for name, value in pairs}
    plan = Plan.of(**numbers)
    selection = one([1.0, 4.0, 2.0, 3.0, 0.0], plan, 0.5 if plan.stochastic else None)
    assert selection.support == int(support)
    if selection.support == 1:
        assert (selection.token, selection.start, selection.end, selection.logprob) == (1, 0.0, 1.0, 0.0)


@pytest.mark.contract("POL-3")
@pytest.mark.parametrize(
    "make",
    [
        lambda: Plan(NO_FAMILY),
        lambda: Plan("sample", (), -1),
    ],
)
def test_a_plan_without_a_meaning_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(SchemaViolation, match=r"^policy\."):
        make()


@pytest.mark.contract("POL-3")
@given(shapes, st.sampled_from([0.0, 1e-300, 1e-8]), st.floats(0, 1, exclude_max=True))
def test_the_best_token_survives_every_cut(shape: tuple[int, int, int], p: float, unit: float) -> None:
    """A top-p of 0, and of almost 0 in half precision."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        row = random_rows(*shape)[0].to(dtype)
        selection = one(row, Plan.of(top_p=p), unit)
        assert (selection.token, selection.support) == (int(row.argmax()), 1)


@pytest.mark.contract("POL-3")
@given(shapes, st.floats(0, 1e-4), st.floats(0, 1, exclude_max=True))
def test_a_tiny_temperature_is_greedy_in_half_precision(
    shape: tuple[int, int, int], warmth: float, unit: float
) -> None:
    """Scores near 30 in float16, temperature 1e-4."""
    row = (random_rows(*shape)[0] + 30).to(torch.float16)
    best, second = row.double().topk(2).values
    assume(best > second)
    plan = Plan("sample", (Temperature(warmth),))
    selection = one(row, plan, unit)
    assert selection.token == int(row.argmax())
    assert all(map(math.isfinite, (selection.logprob, selection.logprob_raw, interval(selection)[1])))


@pytest.mark.contract("POL-3")
@pytest.mark.parametrize(
    "plan", [GREEDY, *[Plan.of(t, k, p) for t, k, p in product([1e-5, 1.0, 1e300], [0, 2], [1.0, 0.5])]]
)
def test_the_largest_scores_do_not_overflow(plan: Plan) -> None:
    largest = torch.finfo(torch.float32).max
    selection = one([-largest, largest, 0.0, -1.0], plan, 0.25 if plan.stochastic else None)
    assert all(map(math.isfinite, (selection.logprob, selection.logprob_raw, selection.margin)))
    if plan.transforms[:1] != (Temperature(1e300),):
        assert selection.token == 1


@pytest.mark.contract("POL-3")
def test_half_precision_is_widened_before_anything_is_computed() -> None:
    row = torch.tensor([30.0, 29.98, 29.0])
    half = row.half()
    assert one(half, Plan.of(0.3), 0.4) == one(half.float(), Plan.of(0.3), 0.4)
    assert one(half.bfloat16(), Plan.of(0.3), 0.4) == one(half.bfloat16().float(), Plan.of(0.3), 0.4)


# ---- ties ------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("POL-4")
@given(tied_rows, st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_greedy_takes_the_lowest_of_equal_ids(row: list[float], dtype: torch.dtype) -> None:
    selection = one(torch.tensor(row, dtype=dtype), GREEDY)
    assert selection.token == row.index(max(row))
    assert selection.margin == (max(row) - sorted(row)[-2] if len(row) > 1 else math.inf)


@pytest.mark.contract("POL-4")
@given(tied_rows, st.integers(1, 40), st.sampled_from([torch.float32, torch.float64, torch.float16]))
def test_top_k_keeps_exactly_k_and_of_equals_the_lowest_ids(row: list[float], k: int, dtype: torch.dtype) -> None:
    mine = processed(torch.tensor([row], dtype=dtype), TopK(k))[0]
    expected = sorted(sorted(range(len(row)), key=lambda token: (-row[token], token))[:k])
    assert [token for token in range(len(row)) if mine[token] > -math.inf] == expected


@pytest.mark.contract("POL-4")
@given(tied_rows, st.floats(0.01, 1), st.sampled_from([torch.float32, torch.float64]))
def test_top_p_keeps_the_shortest_prefix_of_the_ranking(row: list[float], p: float, dtype: torch.dtype) -> None:
    mine = processed(torch.tensor([row], dtype=dtype), TopP(p))[0]
    kept = [token for token in range(len(row)) if mine[token] > -math.inf]
    ranking = sorted(range(len(row)), key=lambda token: (-row[token], token))
    assert kept == sorted(ranking[: len(kept)])
    mass = np.cumsum(torch.tensor(row, dtype=torch.float64).softmax(-1).numpy()[ranking])
    assert len(kept) == 1 or mass[len(kept) - 2] < p + 1e-9
    assert len(kept) == len(row) or mass[len(kept) - 1] > p - 1e-9


@pytest.mark.contract("POL-4")
@given(st.lists(st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(-3, 3)), min_size=1))
def test_the_ranking_of_any_finite_scores_is_by_score_and_then_by_id(row: list[float]) -> None:
    """Subnormal, neighbouring and equal numbers, and both zeros."""
    values = torch.tensor([[*row, -0.0, 0.0]])
    row = values[0].tolist()
    ranked = rank(logits(values))
    expected = sorted(range(len(row)), key=lambda token: (-row[token], token))
    assert ranking(ranked) == expected
    assert ranking(rank(logits(values), 2)) == expected[:2]
    assert ranking(rank(logits(values.double()))) == expected


@pytest.mark.contract("POL-4")
@given(st.floats(width=32, min_value=-(2.0**100), max_value=2.0**100), st.booleans())
def test_the_ranking_tells_neighbouring_numbers_apart(score: float, swapped: bool) -> None:
    pair = torch.tensor([score, score]).nextafter(torch.tensor([score, math.inf]))
    row = pair.flip(0) if swapped else pair
    assert ranking(rank(logits(row[None]))) == ([0, 1] if swapped else [1, 0])


@pytest.mark.contract("POL-4")
@given(tied_rows, st.integers(1, 50))
def test_alternatives_are_ranked_by_score_and_then_by_id(row: list[float], count: int) -> None:
    selection = one(row, Plan("greedy", (), count))
    ranking = sorted(range(len(row)), key=lambda token: (-row[token], token))
    assert [alternative.token for alternative in selection.alternatives] == ranking[:count]


# ---- scores that are refused -----------------------------------------------------------------------------------------


@pytest.mark.contract("POL-1")
def test_scores_over_another_vocabulary_are_refused() -> None:
    scores = logits([[0.0, 1.0]])
    assert decide(scores, [GREEDY], [None], axis=VocabularyAxis(2, "test"))
    for axis in (VocabularyAxis(2, "other"), VocabularyAxis(3, "test")):
        with pytest.raises(WrongScores, match="over"):
            decide(scores, [GREEDY], [None], axis=axis)
    with pytest.raises(WrongScores, match="rows of 3 scores"):
        decide(Logits(torch.zeros(1, 2), VocabularyAxis(3, "test")), [GREEDY], [None])
    with pytest.raises(WrongScores, match="2 rows"):
        decide(scores, [GREEDY, GREEDY], [None, None])
    with pytest.raises(WrongScores, match="ranked"):
        decide(rank(scores), [GREEDY], [None])


# ---- shape of the work -----------------------------------------------------------------------------------------------


@pytest.mark.contract("POL-2")
@given(st.lists(plans, min_size=1, max_size=4))
@settings(max_examples=20)
def test_nothing_is_read_back_before_the_one_transfer(batch: list[Plan]) -> None:
    """On the device without data any look at a value, or a size that depends on one, is an error."""
    scores = logits(torch.zeros(len(batch), 50, device="meta"))
    noise = [0.5 if plan.stochastic else None for plan in batch]
    for group in group_rows(tuple(batch), 50, torch.device("meta")):
        assert row_facts(scores, group, noise, [Beside()] * len(batch)).shape[0] == len(group.rows)


def test_rows_whose_plans_differ_in_numbers_only_go_together() -> None:
    batch = (Plan.of(0.5, 5), GREEDY, Plan.of(0.7, 9), Plan.of(0.0), Plan.of(0.7, 10**6), Plan.of(0.9))
    assert [group.rows for group in group_rows(batch, 100, torch.device("cpu"))] == [(0, 2), (1, 3), (4, 5)]
    assert len(group_rows((GREEDY,) * 10, 1 << 16, torch.device("cpu"))) == 5


def test_adjacent_edits_are_one_step_and_a_cut_between_makes_two() -> None:
    """Edits that follow each other are one step and a cut between them makes two."""
    one, other = BannedTokens((1,)), BannedTokens((2,))
    shapes = {
        (one, other): [EditStep],
        (one, other, TopK(5)): [EditStep, CutStep],
        (one, TopK(5), other): [EditStep, CutStep, EditStep],
        (TopK(5), one, other): [CutStep, EditStep],
    }
    for steps, kinds in shapes.items():
        (group,) = group_rows((Plan("sample", steps),) * 2, 50, torch.device("cpu"))
        assert [type(step) for step in group.steps] == kinds
        edits = [column for step in group.steps if isinstance(step, EditStep) for column in step.columns]
        assert edits == [(one, one), (other, other)]


def test_the_scores_are_left_as_they_were() -> None:
    rows = random_rows(8, 4, 64)
    for dtype in (torch.float32, torch.float64, torch.float16):
        given_rows = rows.to(dtype)
        before = given_rows.clone()
        for plan in (GREEDY, Plan.of(0.5), Plan.of(0.5, 5), Plan.of(0.5, 0, 0.5), Plan.of(1.0, 3, 0.5, 4)):
            decide(logits(given_rows), [plan] * 4, [0.5 if plan.stochastic else None] * 4)
            assert torch.equal(given_rows, before)


def test_an_empty_batch_has_no_decisions() -> None:
    assert decide(logits(torch.zeros(0, 9)), [], []) == []
