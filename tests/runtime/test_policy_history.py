"""Histories: a pure function of prompt and output, at a flat cost a token, and no row's business but its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from score_rows import chosen, logits, past_of, random_rows

from decodelog.fsm.request.transforms.edits import Scope
from decodelog.runtime.policy.cuts import MinP, Temperature, TopK, TopP, TypicalP, Xtc
from decodelog.runtime.policy.decide import decide, row_facts
from decodelog.runtime.policy.edits import (
    AllowedTokens,
    BannedTokens,
    Dry,
    ForcedTokens,
    FrequencyPenalty,
    LogitBias,
    MinNewTokens,
    NoRepeatNgram,
    PresencePenalty,
    RepetitionPenalty,
)
from decodelog.runtime.policy.group import group_rows
from decodelog.runtime.policy.history import Counts, Followers, History, Repeats
from decodelog.runtime.policy.kinds import Beside
from decodelog.runtime.policy.plan import Plan

SCOPES: tuple[Scope, ...] = ("prompt", "output", "both")
LOOKS_BACK = Plan(
    "greedy",
    tuple(FrequencyPenalty(0.5, scope) for scope in SCOPES)
    + tuple(NoRepeatNgram(size, scope) for size in (1, 2, 3) for scope in SCOPES)
    + (Dry(0.8, 1.75, 1, 8, (3,)),),
)
texts = st.lists(st.integers(0, 7), max_size=40)


def facts(past: History | None) -> Any:
    """All that a history says."""
    assert past is not None
    seen = {scope: past.memory(Counts, scope).seen() for scope in SCOPES}
    counts = {scope: sorted(zip(*(part.tolist() for part in parts), strict=True)) for scope, parts in seen.items()}
    after = {(size, scope): sorted(past.memory(Followers, size, scope).now()) for size in (2, 3) for scope in SCOPES}
    repeats = [part.tolist() for part in past.memory(Repeats, 8, (3,)).longest(1)]
    return past.output, counts, after, repeats


@pytest.mark.contract("POL-2", "RES-4")
@given(texts, texts, st.data())
def test_a_history_is_a_function_of_the_tokens_however_they_came(
    prompt: list[int], output: list[int], data: st.DataObject
) -> None:
    stepwise = History(LOOKS_BACK, prompt)
    for end in sorted(data.draw(st.lists(st.integers(0, len(output)), max_size=6))):
        stepwise.follow(*output[stepwise.output : end])
    stepwise.follow(*output[stepwise.output :])
    assert facts(stepwise) == facts(past_of(LOOKS_BACK, prompt, output))
    for scope, tokens in zip(SCOPES, (prompt, output, prompt + output), strict=True):
        ids, counts = stepwise.memory(Counts, scope).seen()
        assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == {each: tokens.count(each) for each in tokens}


def test_a_plan_that_does_not_look_back_has_no_history() -> None:
    assert History.of(Plan.of(0.5, 3, 0.9), [1]) is None
    assert History.of(Plan("greedy", (LogitBias(((1, 1.0),)), BannedTokens((2,)))), [1]) is None
    for transform in (MinNewTokens(2, (1,)), ForcedTokens(((0, 1),)), PresencePenalty(1.0, "prompt")):
        assert History.of(Plan("greedy", (transform,)), [1]) is not None


def test_many_different_tokens_are_all_remembered() -> None:
    past = past_of(LOOKS_BACK, list(range(1000)), list(range(500, 5000)))
    assert past is not None
    ids, counts = past.memory(Counts, "both").seen()
    assert len(ids) == 5000
    assert counts.sum() == 5500
    assert past.memory(Followers, 2, "both").now().tolist() == []


@pytest.mark.contract("POL-2")
def test_following_a_token_costs_the_same_at_any_length() -> None:
    rng = np.random.default_rng(1)
    past = History(LOOKS_BACK, [])

    def cost(count: int = 2000) -> float:
        """Seconds for `count` tokens: the least of several tries, each of them further on."""
        spent = []
        for _ in range(5):
            fresh = rng.integers(0, 500, count).tolist()
            start = time.process_time()
            for token in fresh:
                past.follow(token)
            spent.append(time.process_time() - start)
        return min(spent)

    early = cost()
    past.follow(*rng.integers(0, 500, 60_000).tolist())
    assert cost() < 10 * early


# ---- rows with a past and their mates ----------------------------------------------------------------------------

SIZES = (1, 17, 256, 5003)
scopes = st.sampled_from(SCOPES)
tokens = st.integers(0, 15)


def plans_over(size: int) -> SearchStrategy[Plan]:
    token = st.integers(0, min(size, 16) - 1)
    ids = st.sets(token, min_size=1, max_size=3).map(tuple)
    return st.builds(
        Plan,
        st.sampled_from(["greedy", "sample"]),
        st.lists(
            st.one_of(
                st.builds(Temperature, st.sampled_from([1e-7, 0.5, 1.0, 1.7])),
                st.builds(TopK, st.sampled_from([1, 3, 40])),
                st.builds(TopP, st.sampled_from([0.0, 0.7, 1.0])),
                st.builds(MinP, st.sampled_from([0.0, 0.1])),
                st.builds(TypicalP, st.sampled_from([0.0, 0.6])),
                st.builds(Xtc, st.just(0.5), st.sampled_from([0.0, 0.01, 0.2])),
                st.builds(RepetitionPenalty, st.sampled_from([0.5, 1.0, 1.3]), scopes),
                st.builds(FrequencyPenalty, st.sampled_from([-0.5, 0.7]), scopes),
                st.builds(PresencePenalty, st.sampled_from([0.0, 0.7]), scopes),
                st.builds(Dry, st.just(0.8), st.just(1.75), st.integers(1, 3), st.just(9), st.just((2,))),
                st.builds(NoRepeatNgram, st.integers(1, 3), scopes),
                st.builds(LogitBias, st.dictionaries(token, st.floats(-3, 3), max_size=3).map(lambda d: (*d.items(),))),
                st.builds(AllowedTokens, ids),
                st.builds(BannedTokens, ids),
                st.builds(ForcedTokens, st.dictionaries(st.integers(0, 9), token).map(lambda d: (*d.items(),))),
                st.builds(MinNewTokens, st.integers(1, 9), ids),
            ),
            max_size=5,
            unique_by=type,
        ).map(tuple),
        st.sampled_from([0, 2]),
    )


def told(decisions: Sequence[object]) -> list[object]:
    """Decisions as values: faults by their kind."""
    return [each if isinstance(each, tuple) else type(each) for each in decisions]


@pytest.mark.contract("POL-7", "POL-2")
@pytest.mark.parametrize("size", SIZES)
@given(st.data())
@settings(max_examples=30)
def test_a_row_with_a_past_is_the_same_alone_and_in_any_batch(size: int, data: st.DataObject) -> None:
    """Bit for bit, next to rows with other plans, other pasts and no token left."""
    count = data.draw(st.integers(1, 6))
    rows = random_rows(data.draw(st.integers(0, 1000)), count, size)
    token = st.integers(0, min(size, 16) - 1)
    batch = data.draw(st.lists(plans_over(size), min_size=count, max_size=count))
    pasts = [past_of(plan, data.draw(st.lists(token)), data.draw(st.lists(token))) for plan in batch]
    noise = [data.draw(st.floats(0, 1, exclude_max=True)) if plan.stochastic else None for plan in batch]
    coins = [{1: data.draw(st.floats(0, 1, exclude_max=True))} for _ in batch]
    together = told(decide(logits(rows), batch, noise, pasts=pasts, noises=coins))
    for row in range(count):
        alone = decide(logits(rows[[row]]), [batch[row]], [noise[row]], pasts=[pasts[row]], noises=[coins[row]])
        assert told(alone) == [together[row]]
    order = data.draw(st.permutations(range(count)))
    mixed = decide(
        logits(rows[list(order)]),
        [batch[row] for row in order],
        [noise[row] for row in order],
        pasts=[pasts[row] for row in order],
        noises=[coins[row] for row in order],
    )
    assert told(mixed) == [together[row] for row in order]


@pytest.mark.contract("POL-6")
@given(plans_over(64), st.lists(tokens), st.lists(tokens), st.integers(0, 1000), st.floats(0, 1, exclude_max=True))
def test_raw_values_move_with_no_setting_of_the_policy(
    plan: Plan, prompt: list[int], output: list[int], seed: int, unit: float
) -> None:
    """The row's own log-probabilities, margin and best tokens, whatever is done to it."""
    rows = random_rows(seed, 1, 64)
    raw = rows[0].double().log_softmax(-1)
    plan = Plan(plan.family, plan.transforms, 5)
    (selection,) = decide(
        logits(rows),
        [plan],
        [unit if plan.stochastic else None],
        pasts=[past_of(plan, prompt, output)],
        noises=[{1: 1 - unit}],
    )
    (plain,) = chosen(decide(logits(rows), [Plan("greedy", (), 5)], [None]))
    if isinstance(selection, tuple):
        assert selection.logprob_raw == pytest.approx(raw[selection.token].item(), abs=1e-12)
        assert selection.margin == plain.margin
        stage = [(each.token, each.logprob_raw) for each in selection.alternatives]
        assert stage == [(each.token, each.logprob_raw) for each in plain.alternatives]
        for each in selection.alternatives:
            if each.token == selection.token:
                assert (each.logprob_raw, each.logprob) == (selection.logprob_raw, selection.logprob)


@pytest.mark.contract("POL-2")
@given(st.lists(plans_over(50), min_size=1, max_size=4), st.lists(tokens), st.lists(tokens))
@settings(max_examples=60)
def test_edits_read_nothing_back_before_the_one_transfer(
    batch: list[Plan], prompt: list[int], output: list[int]
) -> None:
    """On the device without data any look at a value, or a size that depends on one, is an error."""
    scores = logits(torch.zeros(len(batch), 50, device="meta"))
    noise = [0.5 if plan.stochastic else None for plan in batch]
    beside = [Beside(past_of(plan, prompt, output), noise={1: 0.3}) for plan in batch]
    for group in group_rows(tuple(batch), 50, torch.device("meta")):
        assert row_facts(scores, group, noise, beside).shape[0] == len(group.rows)
