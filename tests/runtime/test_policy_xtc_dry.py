"""XTC and DRY by their plain formulas, whatever stands before them, and as a function of the tokens before."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
import torch
from cranks import admit, assert_audited, engine, finish, model, result, run
from databases import AnyStore
from hypothesis import given, settings
from hypothesis import strategies as st
from score_rows import one, past_of, processed, random_rows, same_distribution, shapes, tied_rows

from decodelog.fsm import limits
from decodelog.fsm.evidence.rng import unit_draw
from decodelog.fsm.request.transforms import SEALED_ORDER
from decodelog.fsm.request.transforms import edits as definitions
from decodelog.runtime.policy.cuts import MinP, Temperature, TopK, TopP, Xtc
from decodelog.runtime.policy.edits import Dry
from decodelog.runtime.policy.history import Repeats
from decodelog.runtime.policy.kinds import Kind
from decodelog.runtime.policy.plan import Plan

INF = math.inf
BEFORE: list[tuple[Kind, ...]] = [
    (),
    (Temperature(0.7),),
    (Temperature(1.3), TopK(9)),
    (TopP(0.9),),
    (MinP(0.05), Temperature(2.0)),
]
texts = st.lists(st.integers(0, 4), max_size=60)


# ---- XTC -------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("POL-2")
@pytest.mark.parametrize("before", BEFORE)
@given(shapes, st.floats(0.01, 0.5), st.floats(0.01, 1), st.floats(0, 1, exclude_max=True))
@settings(max_examples=40)
def test_xtc_is_its_plain_formula_after_any_cuts(
    before: tuple[Kind, ...], shape: tuple[int, int, int], threshold: float, probability: float, unit: float
) -> None:
    rows = random_rows(*shape)
    left = processed(rows, *before)
    expected = left.clone()
    for row in expected:
        top = [token for token in range(len(row)) if row[token].exp() >= threshold]
        top.sort(key=row.tolist().__getitem__)
        if unit < probability:
            row[top[1:]] = -INF
    near = (left.exp() - threshold).abs() < 1e-9
    if not near.any():
        same_distribution(processed(rows, *before, Xtc(probability, threshold), units=[unit]), expected)


@pytest.mark.contract("POL-4")
@given(tied_rows, st.sampled_from([0.0, 0.05, 0.2]), st.integers(2, 40))
def test_of_equals_xtc_spares_the_one_that_ranks_lowest_ranked_or_not(
    row: list[float], threshold: float, k: int
) -> None:
    chances = torch.tensor([row]).double().softmax(-1)[0].tolist()
    top = [token for token in range(len(row)) if chances[token] >= threshold]
    if not top or any(abs(chance - threshold) < 1e-9 for chance in chances):
        return
    least = min(row[token] for token in top)
    spared = max(token for token in top if row[token] == least)
    alone = processed(torch.tensor([row]), Xtc(1.0, threshold), units=[0.0])[0]
    ranked = processed(torch.tensor([row]), TopK(len(row)), Xtc(1.0, threshold), units=[0.0])[0]
    assert [token for token in top if alone[token] > -INF] == [spared]
    assert torch.equal(alone, ranked)


@pytest.mark.contract("POL-5")
def test_xtc_is_off_by_its_own_draw_and_not_by_the_choices() -> None:
    row, plan = [0.0, 1.0, 0.5], Plan("sample", (Xtc(0.5, 0.1),))
    for unit in (0.1, 0.9):
        assert one(row, plan, unit, noise={1: 0.49}).support == 1
        assert one(row, plan, unit, noise={1: 0.5}) == one(row, Plan("sample"), unit)


@pytest.mark.contract("POL-5")
def test_each_transform_that_draws_has_a_domain_of_its_own() -> None:
    domains = [kind.domain for kind in SEALED_ORDER if kind.domain]
    assert domains
    assert len(set(domains)) == len(domains)


# ---- DRY -------------------------------------------------------------------------------------------------------------


def dry(allowed: int, window: int, breakers: tuple[int, ...] = ()) -> definitions.Dry:
    return definitions.Dry(
        kind="dry", multiplier=0.8, base=1.75, allowed_length=allowed, range=window, breaker_ids=breakers
    )


def plain(text: list[int], allowed: int, window: int, breakers: tuple[int, ...]) -> dict[int, int]:
    """Each length in turn: whether the last so many tokens stand somewhere before, and which token came then."""
    text, found = text[-window:], dict[int, int]()
    for length in range(allowed, len(text)):
        last = text[len(text) - length :]
        if set(last) & set(breakers):
            break
        for at in range(len(text) - length):
            if text[at : at + length] == last and text[at + length] not in breakers:
                found[text[at + length]] = length
    return found


@pytest.mark.contract("POL-2", "RES-4")
@given(texts, texts, st.integers(1, 4), st.integers(1, 30), st.sampled_from([(), (3,), (0, 2)]), st.data())
@settings(max_examples=300)
def test_lengths_of_repetitions_follow_from_the_last_tokens_alone(
    prompt: list[int], output: list[int], allowed: int, window: int, breakers: tuple[int, ...], data: st.DataObject
) -> None:
    memory = Repeats(window, breakers)
    memory.take(prompt, "prompt")
    while output:
        count = data.draw(st.integers(1, len(output)))
        memory.take(output[:count], "output")
        prompt, output = prompt + output[:count], output[count:]
        tokens, lengths = memory.longest(allowed)
        expected = plain(prompt, allowed, window, breakers)
        assert dict(zip(tokens.tolist(), lengths.tolist(), strict=True)) == expected
        assert dry(allowed, window, breakers).lengths(prompt) == expected


@pytest.mark.contract("POL-2")
@given(shapes, st.lists(st.integers(0, 1), min_size=2, max_size=30), st.integers(1, 3))
def test_dry_subtracts_its_plain_formula(shape: tuple[int, int, int], text: list[int], allowed: int) -> None:
    rows, kind = random_rows(*shape), Dry(0.8, 1.75, allowed, 100, ())
    expected = rows.double().clone()
    for token, length in plain(text, allowed, 100, ()).items():
        expected[:, token] -= min(0.8 * 1.75 ** (length - allowed), limits.SCORE_SHIFT_MAX)
    pasts = [past_of(Plan("sample", (kind,)), text, [])] * len(rows)
    same_distribution(processed(rows, kind, pasts=pasts), expected)


@pytest.mark.contract("POL-3")
def test_no_repetition_takes_more_than_the_largest_shift_of_a_score() -> None:
    for kind in (Dry(0.8, 100.0, 1, 8192, ()), Dry(10_000.0, 2.0, 1, 8192, ())):
        decision = one([0.0, 0.0, 0.0], Plan("greedy", (kind,)), prompt=[0] * 5000)
        assert (decision.token, decision.support) == (1, 3)
    assert definitions.dry_shift(0.8, 100.0, 5000) == limits.SCORE_SHIFT_MAX


@pytest.mark.contract("POL-2")
def test_a_token_of_dry_costs_the_same_at_any_length() -> None:
    memory, rng = Repeats(512, ()), np.random.default_rng(1)

    def cost() -> float:
        """Seconds for 500 tokens that repeat: the least of several tries."""
        spent = []
        for _ in range(5):
            start = time.process_time()
            for token in [7] * 500:
                memory.take((token,), "output")
                memory.longest(2)
            spent.append(time.process_time() - start)
        return min(spent)

    early = cost()
    for token in rng.integers(0, 3, 20_000).tolist():
        memory.take((token,), "output")
    assert cost() < 10 * early


# ---- in jobs ---------------------------------------------------------------------------------------------------------

SEEDED: dict[str, Any] = {"seed": 11, "spread": 2.0, "period": 4}
BENT: dict[str, Any] = {
    "temperature": 0.9,
    "top_k": 6,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.1,
    "dry_multiplier": 3.0,
    "dry_range": 16,
    "dry_allowed_length": 1,
    "dry_sequence_breakers": ["z"],
    "seed": 7,
    "ignore_eos": True,
    "max_new_tokens": 30,
}


@pytest.mark.contract("POL-7", "RES-4", "POL-5")
@pytest.mark.parametrize("turns", [1, 9, 21])
def test_a_taken_over_job_with_xtc_and_dry_ends_the_same(store: AnyStore, turns: int) -> None:
    of = model(**SEEDED)
    whole = run(store, of, **BENT)
    for off in ("xtc_probability", "dry_multiplier"):
        assert run(store, of, **{**BENT, off: 0})["token_ids"] != whole["token_ids"]
    draws = [unit_draw("philox4x32-10", 7, 0, 0, step, 1) < 0.5 for step in range(30)]
    assert True in draws[turns:]
    job = admit(store, of, **BENT)
    first = engine(store, of, job)
    for _ in range(turns):
        first.turn()
    finish(engine(store, model(**SEEDED), job, worker="next"))
    assert result(store, job)["token_ids"] == whole["token_ids"]
    assert_audited(store)


@pytest.mark.contract("POL-7", "POL-5")
def test_a_job_with_xtc_is_the_same_with_mates_and_without(store: AnyStore) -> None:
    of = model(**SEEDED)
    alone = run(store, of, **BENT)["token_ids"]
    others = [admit(store, of, **{**BENT, "seed": 8}), admit(store, of, temperature=1.0, seed=7, max_new_tokens=30)]
    job = admit(store, of, **BENT)
    splitmix = admit(store, of, **BENT, rng_algorithm="splitmix64")
    finish(engine(store, of, others[0], splitmix, job, others[1]))
    assert result(store, job)["token_ids"] == alone
    assert result(store, splitmix)["token_ids"] != alone
