"""A grammar's mask in the policy: what is removed cannot be chosen, and what is raw stays the whole row's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from score_rows import chosen

from decodelog.fsm.errors import NonFiniteScores
from decodelog.runtime.policy.decide import decide
from decodelog.runtime.policy.edits import MaskedTokens
from decodelog.runtime.policy.plan import Plan
from decodelog.runtime.policy.scores import Logits, VocabularyAxis

pytestmark = pytest.mark.contract("OUT-5", "POL-2")

PLANS = [
    Plan("greedy"),
    Plan("greedy", (), 3),
    Plan.of(0.7),
    Plan.of(1.0, top_k=4, top_p=0.9, logprobs_top=3),
    Plan.of(1.3, top_p=0.5),
]


def masked(plan: Plan) -> Plan:
    """The same after a mask."""
    return Plan(plan.family, (MaskedTokens(), *plan.transforms), plan.logprobs_top)


MASKED = [masked(plan) for plan in PLANS]


def rows_of(seed: int, count: int, size: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(scale=3, size=(count, size)).astype(np.float32))


def masks_of(seed: int, count: int, size: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    masks = rng.random((count, size)) < rng.random((count, 1))
    masks[np.arange(count), rng.integers(size, size=count)] = True
    return list(masks)


def logits(rows: torch.Tensor) -> Logits:
    return Logits(rows, VocabularyAxis(rows.shape[1], "test"))


@given(st.integers(0, 10**6), st.integers(2, 60), st.sampled_from(PLANS), st.floats(0, 1, exclude_max=True))
def test_a_masked_row_is_decided_as_the_row_of_what_is_allowed_alone(
    seed: int, size: int, plan: Plan, unit: float
) -> None:
    (row,), (mask,) = rows_of(seed, 1, size), masks_of(seed + 1, 1, size)
    draws = [unit if plan.stochastic else None]
    (found,) = chosen(decide(logits(row[None]), [masked(plan)], draws, masks=[mask]))
    # The reference sees no other token at all: the allowed ones, moved together in the order of their ids.
    kept = np.flatnonzero(mask)
    (alone,) = chosen(decide(logits(row[torch.from_numpy(kept)][None]), [plan], draws))
    assert (found.token, found.support) == (kept[alone.token], alone.support)
    assert found.logprob == pytest.approx(alone.logprob, abs=1e-9)
    assert found.start == pytest.approx(alone.start, abs=1e-9)
    assert found.end == pytest.approx(alone.end, abs=1e-9)
    raw = row.double().log_softmax(-1)
    assert found.logprob_raw == pytest.approx(float(raw[found.token]), abs=1e-9)
    # The alternatives are the model's, with what the mask made of them.
    (unmasked,) = chosen(decide(logits(row[None]), [plan], draws))
    assert found.margin == unmasked.margin
    assert [best[:2] for best in found.alternatives] == [best[:2] for best in unmasked.alternatives]
    assert all(mask[best.token] or best.logprob == -math.inf for best in found.alternatives)


@pytest.mark.contract("POL-7")
@given(st.integers(0, 10**6), st.integers(5, 40))
def test_masks_change_no_other_row_and_a_row_alone_is_the_row_in_a_batch(seed: int, size: int) -> None:
    count = 2 * len(PLANS)
    rows, plans = rows_of(seed, count, size), PLANS * 2
    draws = [0.37 if plan.stochastic else None for plan in plans]
    masks = [mask if index % 3 else None for index, mask in enumerate(masks_of(seed + 1, count, size))]
    plans = [plan if mask is None else masked(plan) for plan, mask in zip(plans, masks, strict=True)]
    together = decide(logits(rows), plans, draws, masks=masks)
    for index in range(count):
        one = slice(index, index + 1)
        assert together[index] == decide(logits(rows[one]), plans[one], draws[one], masks=masks[one])[0]
        if masks[index] is None:
            assert together[index] == decide(logits(rows[one]), plans[one], draws[one])[0]


def test_a_mask_of_all_tokens_changes_nothing() -> None:
    rows = rows_of(5, len(PLANS), 30)
    draws = [0.5 if plan.stochastic else None for plan in PLANS]
    whole = [np.ones(30, bool)] * len(PLANS)
    for found, plain in zip(
        chosen(decide(logits(rows), MASKED, draws, masks=whole)),
        chosen(decide(logits(rows), PLANS, draws)),
        strict=True,
    ):
        assert (found.token, found.support, found.margin) == (plain.token, plain.support, plain.margin)
        assert found.logprob == pytest.approx(plain.logprob, abs=1e-12)


@pytest.mark.contract("FSM-10")
@pytest.mark.parametrize("fault", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("plan", PLANS)
def test_a_row_that_is_not_finite_is_a_fault_also_behind_a_mask(fault: float, plan: Plan) -> None:
    """A row that is not finite is a numeric fault also where the mask hides it."""
    rows = rows_of(1, 2, 8)
    rows[0, 3] = fault
    mask = np.ones(8, bool)
    mask[3] = False
    draw = 0.5 if plan.stochastic else None
    plan = masked(plan)
    spoiled, sound = decide(logits(rows), [plan, plan], [draw, draw], masks=[mask, mask])
    assert isinstance(spoiled, NonFiniteScores)
    assert sound == decide(logits(rows[1:]), [plan], [draw], masks=[mask])[0]


def test_one_allowed_token_is_chosen_with_certainty() -> None:
    mask = np.zeros(8, bool)
    mask[6] = True
    (found,) = chosen(decide(logits(rows_of(2, 1, 8)), [masked(Plan.of(1.0))], [0.99], masks=[mask]))
    assert (found.token, found.support, found.logprob) == (6, 1, 0.0)
    assert found.logprob_raw < 0


def test_the_scores_are_left_alone() -> None:
    rows = rows_of(3, 1, 8)
    before = rows.clone()
    decide(logits(rows), [masked(Plan("greedy"))], [None], masks=[np.arange(8) > 3])
    assert torch.equal(rows, before)
