"""A row and its batch mates: neither a row's numbers nor its faults depend on what is decided beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from score_rows import GREEDY, chosen, logits, one, plans, random_rows, units

from decodelog.fsm.errors import NonFiniteScores
from decodelog.runtime.policy.decide import decide
from decodelog.runtime.policy.plan import Plan
from decodelog.runtime.policy.select import summarise


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.contract("POL-7")
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("size", [1, 2, 17, 256, 1000, 40_003])
@given(st.data())
@settings(max_examples=8)
def test_a_selection_is_the_same_alone_and_in_any_batch(size: int, data: st.DataObject) -> None:
    """Bit for bit."""
    count = data.draw(st.integers(1, 7))
    seed = data.draw(st.integers(0, 1000))
    rows = torch.from_numpy(np.random.default_rng(seed).normal(scale=3, size=(count, size)).astype(np.float32))
    batch = data.draw(st.lists(plans, min_size=count, max_size=count))
    noise = [data.draw(units) if plan.stochastic else None for plan in batch]
    together = decide(logits(rows), batch, noise)
    for row in range(count):
        assert (
            decide(logits(rows[row : row + 1]), batch[row : row + 1], noise[row : row + 1]) == together[row : row + 1]
        )
    order = data.draw(st.permutations(range(count)))
    mixed = decide(logits(rows[list(order)]), [batch[row] for row in order], [noise[row] for row in order])
    assert mixed == [together[row] for row in order]


@pytest.mark.contract("POL-7")
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("size", [1, 100, 257, 20_000, 49_152, 100_003])
def test_sums_of_a_row_do_not_depend_on_how_many_rows_there_are(size: int) -> None:
    """One long row alone may be split over threads, and then adds up in another order."""
    rows = torch.from_numpy(np.random.default_rng(size).normal(scale=3, size=(12, size)).astype(np.float32))
    together = summarise(rows)
    for row in range(len(rows)):
        for batch, one_row in zip(together, summarise(rows[row : row + 1]), strict=True):
            assert torch.equal(batch[row : row + 1], one_row)


@pytest.mark.contract("POL-7")
@pytest.mark.usefixtures("threads")
@given(
    st.integers(0, 10**6),
    st.integers(1, 9),
    st.sampled_from([1, 2, 3, 7, 8, 17, 255, 256, 257, 1000, 8192, 16_385, 49_152]),
    st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    st.sampled_from([0.0, 1e-3, 3.0, 1e4]),
)
@settings(max_examples=60)
def test_a_greedy_row_without_tensors_has_the_bits_of_one_with_them(
    seed: int, count: int, size: int, dtype: torch.dtype, spread: float
) -> None:
    """Alone, in a batch, next to a sampled row, and where alternatives are asked for, which takes the tensor path."""
    values = np.random.default_rng(seed).normal(scale=spread, size=(count, size))
    rows = torch.from_numpy(values).to(dtype)
    together = chosen(decide(logits(rows), [GREEDY] * count, [None] * count))
    told = decide(logits(rows), [Plan("greedy", (), 2)] * count, [None] * count)
    assert [selection._replace(alternatives=()) for selection in chosen(told)] == together
    for row in range(count):
        assert one(rows[row], GREEDY) == together[row]
        mixed = chosen(decide(logits(rows[[row, 0]]), [GREEDY, Plan.of()], [None, 0.5]))
        assert mixed[0] == together[row]
        assert mixed[1].margin == together[0].margin
        if mixed[1].token == together[0].token:
            assert mixed[1].logprob_raw == together[0].logprob_raw


@pytest.mark.contract("POL-7")
def test_eight_equal_rows_get_eight_equal_answers() -> None:
    """The same prompt in all slots at temperature 0."""
    row = random_rows(3, 1, 5000)
    answers = decide(logits(row.expand(8, -1)), [Plan.of(0.0, logprobs_top=5)] * 8, [None] * 8)
    assert len(set(answers)) == 1


@pytest.mark.contract("FSM-10")
@given(
    st.sampled_from([math.nan, math.inf, -math.inf]),
    st.lists(plans, min_size=3, max_size=3),
    st.sampled_from([1, 2, 9, 300]),
    st.data(),
)
def test_a_row_that_is_not_finite_is_a_fault_of_that_row_alone(
    bad: float, batch: list[Plan], size: int, data: st.DataObject
) -> None:
    """No token, and nothing else changes."""
    rows = torch.from_numpy(np.random.default_rng(1).normal(size=(3, size)).astype(np.float32))
    noise = [0.3 if plan.stochastic else None for plan in batch]
    clean = decide(logits(rows), batch, noise)
    spoiled = rows.clone()
    where = data.draw(st.one_of(st.just(slice(None)), st.integers(0, size - 1)))
    spoiled[1, where] = bad
    first, middle, last = decide(logits(spoiled), batch, noise)
    assert isinstance(middle, NonFiniteScores)
    assert (middle.code, [first, last]) == ("non_finite_scores", [clean[0], clean[2]])
