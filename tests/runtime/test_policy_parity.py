"""Each transform, alone and in any order, does what the transformers library does, or its plain formula."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from score_rows import chosen, far_from_the_edge, logits, past_of, processed, random_rows, same_distribution, shapes
from torch import Tensor
from transformers import (
    ForcedBOSTokenLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from decodelog.fsm.request.transforms.edits import Scope
from decodelog.runtime.policy.cuts import MinP, Temperature, TopK, TopP, TypicalP
from decodelog.runtime.policy.decide import decide
from decodelog.runtime.policy.edits import (
    AllowedTokens,
    BannedTokens,
    ForcedTokens,
    FrequencyPenalty,
    LogitBias,
    MinNewTokens,
    NoRepeatNgram,
    PresencePenalty,
    RepetitionPenalty,
    edit,
)
from decodelog.runtime.policy.history import History
from decodelog.runtime.policy.kinds import Beside
from decodelog.runtime.policy.kinds import Kind as Transform
from decodelog.runtime.policy.plan import Plan

INF = math.inf
NO_IDS: Any = None
"""Instead of the tokens before a row, where the library does not look at them."""
temperatures = st.floats(0.05, 20)
nuclei = st.floats(0.01, 0.999)
probabilities = st.floats(0.01, 0.99)
SCOPES: tuple[Scope, ...] = ("prompt", "output", "both")


Texts = list[tuple[list[int], list[int]]]
"""Prompt and output of each row."""


@st.composite
def written(draw: st.DrawFn, size: int, least: int = 0) -> tuple[list[int], list[int]]:
    """Prompt and output of one row over a small part of the vocabulary, so that tokens repeat."""
    tokens = st.lists(st.integers(0, min(size, 6) - 1), min_size=least, max_size=20)
    return draw(tokens), draw(tokens)


@st.composite
def rows_and_texts(draw: st.DrawFn, least: int = 0) -> tuple[Tensor, Texts]:
    """float32 rows, and for each a prompt and an output; those of the library all have one length."""
    seed, count, size = draw(shapes)
    length = draw(st.integers(least, 25))
    split = draw(st.integers(0, length))
    token = st.integers(0, min(size, 5) - 1)
    texts = [draw(st.lists(token, min_size=length, max_size=length)) for _ in range(count)]
    return random_rows(seed, count, size), [(text[:split], text[split:]) for text in texts]


def pasts_of(transform: Transform, texts: Texts) -> list[History | None]:
    return [past_of(Plan("sample", (transform,)), prompt, output) for prompt, output in texts]


def ids_of(texts: Texts) -> Any:
    return torch.tensor([[*prompt, *output] for prompt, output in texts], dtype=torch.int64).reshape(len(texts), -1)


# ---- one transform ---------------------------------------------------------------------------------------------------


@pytest.mark.contract("POL-2")
@given(shapes, temperatures)
def test_temperature_equals_transformers(shape: tuple[int, int, int], value: float) -> None:
    rows = random_rows(*shape)
    same_distribution(processed(rows, Temperature(value)), TemperatureLogitsWarper(value)(NO_IDS, rows))


@pytest.mark.contract("POL-2")
@given(shapes, st.integers(1, 400))
def test_top_k_equals_transformers(shape: tuple[int, int, int], value: int) -> None:
    rows = random_rows(*shape)
    same_distribution(processed(rows, TopK(value)), TopKLogitsWarper(value)(NO_IDS, rows))


@pytest.mark.contract("POL-2")
@given(shapes, nuclei)
def test_top_p_equals_transformers(shape: tuple[int, int, int], value: float) -> None:
    rows = random_rows(*shape)
    assume(far_from_the_edge(rows, value))
    same_distribution(processed(rows, TopP(value)), TopPLogitsWarper(value)(NO_IDS, rows))


@pytest.mark.contract("POL-2")
@given(shapes, probabilities, st.floats(0.3, 3))
def test_min_p_equals_transformers(shape: tuple[int, int, int], value: float, warmth: float) -> None:
    rows = random_rows(*shape)
    warm = TemperatureLogitsWarper(warmth)(NO_IDS, rows)
    chances = warm.double().softmax(-1)
    assume(((chances / chances.amax(-1, keepdim=True) - value).abs() > 1e-5).all())
    same_distribution(processed(rows, Temperature(warmth), MinP(value)), MinPLogitsWarper(value)(NO_IDS, warm))


def typical_far_from_the_edge(rows: Tensor, value: float) -> bool:
    """Whether float32 and float64 agree on the ranking and on where it is cut."""
    logs = rows.double().log_softmax(-1)
    deviation = (-logs + (logs.exp() * logs).sum(-1, keepdim=True)).abs()
    ranked = deviation.sort(-1)
    mass = logs.exp().gather(-1, ranked.indices).cumsum(-1)
    gaps = ranked.values.diff(dim=-1)
    return bool((gaps > 1e-4).all() and ((mass - value).abs() > 1e-4).all())


@pytest.mark.contract("POL-2")
@given(st.tuples(st.integers(0, 10**6), st.integers(1, 3), st.integers(2, 30)), probabilities)
def test_typical_p_equals_transformers(shape: tuple[int, int, int], value: float) -> None:
    rows = random_rows(*shape)
    assume(typical_far_from_the_edge(rows, value))
    same_distribution(processed(rows, TypicalP(value)), TypicalLogitsWarper(value)(NO_IDS, rows))


@pytest.mark.contract("POL-2")
@given(rows_and_texts(least=1), st.floats(0.1, 10))
def test_repetition_penalty_equals_transformers(drawn: tuple[Tensor, Texts], value: float) -> None:
    rows, texts = drawn
    ids, mine = ids_of(texts), RepetitionPenalty(value, "both")
    same_distribution(
        processed(rows, mine, pasts=pasts_of(mine, texts)), RepetitionPenaltyLogitsProcessor(value)(ids, rows)
    )
    of_output = RepetitionPenaltyLogitsProcessor(value, prompt_ignore_length=len(texts[0][0]))(ids, rows)
    mine = RepetitionPenalty(value, "output")
    same_distribution(processed(rows, mine, pasts=pasts_of(mine, texts)), of_output)


@pytest.mark.contract("POL-2")
@given(rows_and_texts(), st.integers(1, 5))
def test_no_repeat_ngram_equals_transformers(drawn: tuple[Tensor, Texts], size: int) -> None:
    rows, texts = drawn
    mine = NoRepeatNgram(size, "both")
    theirs = NoRepeatNGramLogitsProcessor(size)(ids_of(texts), rows)
    assume((theirs > -INF).any(-1).all())
    same_distribution(processed(rows, mine, pasts=pasts_of(mine, texts)), theirs)


@pytest.mark.contract("POL-2")
@given(shapes, st.data())
def test_logit_bias_equals_transformers(shape: tuple[int, int, int], data: st.DataObject) -> None:
    rows = random_rows(*shape)
    token = st.integers(0, shape[2] - 1)
    biases = data.draw(st.dictionaries(token, st.floats(-50, 50), min_size=1, max_size=9))
    theirs = SequenceBiasLogitsProcessor([[[token], bias] for token, bias in biases.items()])
    same_distribution(
        processed(rows, LogitBias(tuple(biases.items()))),
        theirs(torch.zeros(len(rows), 1, dtype=torch.int64), rows),
    )


@pytest.mark.contract("POL-2")
@given(shapes, st.data())
def test_banned_and_allowed_tokens_equal_transformers(shape: tuple[int, int, int], data: st.DataObject) -> None:
    rows, size = random_rows(*shape), shape[2]
    banned = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 1))
    nothing = torch.zeros(len(rows), 1, dtype=torch.int64)
    for theirs in (SuppressTokensLogitsProcessor([*banned]), NoBadWordsLogitsProcessor([[token] for token in banned])):
        same_distribution(processed(rows, BannedTokens(tuple(banned))), theirs(nothing, rows))
    allowed = set(range(size)) - banned
    same_distribution(
        processed(rows, AllowedTokens(tuple(allowed))), SuppressTokensLogitsProcessor([*banned])(nothing, rows)
    )


@pytest.mark.contract("POL-2")
@given(shapes, st.data())
def test_a_forced_token_equals_transformers(shape: tuple[int, int, int], data: st.DataObject) -> None:
    rows = random_rows(*shape)
    token, step = data.draw(st.integers(0, shape[2] - 1)), data.draw(st.integers(0, 3))
    for output in range(5):
        plan = ForcedTokens(((step, token),))
        pasts = pasts_of(plan, [([1], [0] * output)] * len(rows))
        # The library forces the first token after a sequence of one.
        ids = torch.zeros(len(rows), 1 + abs(output - step), dtype=torch.int64)
        same_distribution(processed(rows, plan, pasts=pasts), ForcedBOSTokenLogitsProcessor(token)(ids, rows))


@pytest.mark.contract("POL-2", "OUT-3")
@given(shapes, st.data())
def test_min_new_tokens_equals_transformers(shape: tuple[int, int, int], data: st.DataObject) -> None:
    rows, size = random_rows(*shape), shape[2]
    ends = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 1))
    least, output = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 5))
    plan = MinNewTokens(least, tuple(ends))
    theirs = MinNewTokensLengthLogitsProcessor(3, least, [*ends])(torch.zeros(len(rows), 3 + output), rows)
    same_distribution(processed(rows, plan, pasts=pasts_of(plan, [([1, 1, 1], [0] * output)] * len(rows))), theirs)


# ---- many transforms -------------------------------------------------------------------------------------------------


@pytest.mark.contract("POL-2")
@given(shapes, temperatures, st.integers(1, 400), nuclei, st.permutations([0, 1, 2]))
def test_every_order_of_all_three_equals_transformers_in_that_order(
    shape: tuple[int, int, int], warmth: float, k: int, p: float, order: list[int]
) -> None:
    rows = random_rows(*shape)
    mine: list[Transform] = [Temperature(warmth), TopK(k), TopP(p)]
    library = [TemperatureLogitsWarper(warmth), TopKLogitsWarper(k), TopPLogitsWarper(p)]
    theirs = rows
    for index in order:
        if index == 2:
            assume(far_from_the_edge(theirs, p))
        theirs = library[index](NO_IDS, theirs)
    same_distribution(processed(rows, *[mine[index] for index in order]), theirs)


texts_of_one_length = st.lists(st.lists(st.integers(0, 4), min_size=6, max_size=6), min_size=1, max_size=3).map(
    lambda texts: [(text[:2], text[2:]) for text in texts]
)
LIBRARY: dict[str, tuple[Transform, Any]] = {
    "bias": (LogitBias(((0, 2.0), (1, -1.0))), SequenceBiasLogitsProcessor([[[0], 2.0], [[1], -1.0]])),
    "penalty": (RepetitionPenalty(1.7, "both"), RepetitionPenaltyLogitsProcessor(1.7)),
    "ngram": (NoRepeatNgram(2, "both"), NoRepeatNGramLogitsProcessor(2)),
    "banned": (BannedTokens((1,)), SuppressTokensLogitsProcessor([1])),
    "temperature": (Temperature(0.7), TemperatureLogitsWarper(0.7)),
    "top_k": (TopK(3), TopKLogitsWarper(3)),
    "top_p": (TopP(0.95), TopPLogitsWarper(0.95)),
    "min_p": (MinP(0.05), MinPLogitsWarper(0.05)),
    "typical_p": (TypicalP(0.7), TypicalLogitsWarper(0.7)),
}


def near_an_edge(name: str, rows: Tensor) -> bool:
    """Whether float32 may decide otherwise than float64 at this step."""
    if not (rows > -INF).any(-1).all():
        return True
    if name == "top_p":
        return not far_from_the_edge(rows, 0.95)
    chances = rows.double().softmax(-1)
    if name == "min_p":
        return bool(((chances / chances.amax(-1, keepdim=True) - 0.05).abs() < 1e-4).any())
    if name == "typical_p":
        return not all(typical_far_from_the_edge(row[row > -INF][None], 0.7) for row in rows)
    return False


@pytest.mark.contract("POL-2")
@given(st.tuples(st.integers(0, 10**6), texts_of_one_length), st.permutations(list(LIBRARY)))
@settings(max_examples=150)
def test_any_order_of_many_transforms_equals_transformers_in_that_order(
    drawn: tuple[int, Texts], order: list[str]
) -> None:
    """Edits after cuts, cuts after edits, temperature anywhere."""
    seed, texts = drawn
    rows = random_rows(seed, len(texts), 24)
    ids, theirs = ids_of(texts), rows
    for name in order:
        assume(not near_an_edge(name, theirs))
        theirs = LIBRARY[name][1](ids, theirs)
    assume((theirs > -INF).any(-1).all())
    mine = tuple(LIBRARY[name][0] for name in order)
    pasts = [past_of(Plan("sample", mine), *text) for text in texts]
    same_distribution(processed(rows, *mine, pasts=pasts), theirs)
    # The plan's kernels, which rank no more than they need and edit in one go, give the same.
    plan = Plan("sample", mine, 2)
    expected = theirs.double().log_softmax(-1)
    for row, selection in enumerate(chosen(decide(logits(rows), [plan] * len(rows), [0.4] * len(rows), pasts=pasts))):
        assert selection.support == (theirs[row] > -INF).sum()
        assert selection.logprob == pytest.approx(expected[row, selection.token].item(), abs=1e-4)
        for token, _, logprob, _ in selection.alternatives:
            assert logprob == pytest.approx(expected[row, token].item(), abs=1e-4)


@pytest.mark.contract("POL-2")
@pytest.mark.parametrize(
    "order", [("typical_p", "top_k"), ("top_p", "typical_p", "top_k"), ("typical_p", "top_p"), ("top_p", "typical_p")]
)
@given(st.integers(0, 10**6), st.floats(1.2, 2))
@settings(max_examples=40)
def test_cuts_after_the_best_token_was_left_out_equal_transformers(
    order: tuple[str, ...], seed: int, peak: float
) -> None:
    """One token stands out of a flat row, so that it is the least typical, and the ranking has a hole."""
    rows = random_rows(seed, 2, 24, spread=0.3)
    rows[:, seed % 24] += peak
    theirs = rows
    for name in order:
        assume(not near_an_edge(name, theirs))
        theirs = LIBRARY[name][1](NO_IDS, theirs)
    mine = tuple(LIBRARY[name][0] for name in order)
    same_distribution(processed(rows, *mine), theirs)
    for row, selection in enumerate(chosen(decide(logits(rows), [Plan("sample", mine)] * 2, [0.4] * 2))):
        assert selection.support == (theirs[row] > -INF).sum()
        assert selection.logprob == pytest.approx(theirs.log_softmax(-1)[row, selection.token].item(), abs=1e-4)


@pytest.mark.contract("POL-2")
@given(shapes, st.floats(0.2, 5), st.integers(1, 300), nuclei, st.floats(0, 1, exclude_max=True))
@settings(max_examples=50)
def test_a_plan_decides_what_its_transforms_do_one_by_one(
    shape: tuple[int, int, int], warmth: float, k: int, p: float, unit: float
) -> None:
    rows = random_rows(*shape)
    plan = Plan.of(warmth, k, p)
    expected = processed(rows, *plan.transforms)
    for row, selection in enumerate(chosen(decide(logits(rows), [plan] * len(rows), [unit] * len(rows)))):
        assert selection.support == (expected[row] > -math.inf).sum()
        assert selection.logprob == pytest.approx(expected[row, selection.token].item(), abs=1e-9)


# ---- penalties by their formula --------------------------------------------------------------------------------------


@pytest.mark.contract("POL-2")
@given(shapes, st.data(), st.floats(-2, 2), st.floats(-2, 2), st.floats(0.2, 4), st.booleans())
def test_frequency_and_presence_penalties_are_their_plain_formula(
    shape: tuple[int, int, int], data: st.DataObject, frequency: float, presence: float, warmth: float, late: bool
) -> None:
    """Score minus count times frequency, minus presence where the count is not 0; after a temperature they keep their
    size.
    """
    rows = random_rows(*shape)
    texts = [data.draw(written(shape[2])) for _ in range(len(rows))]
    for scope in SCOPES:
        edits = (FrequencyPenalty(frequency, scope), PresencePenalty(presence, scope))
        plan = (Temperature(warmth), *edits) if late else (*edits, Temperature(warmth))
        expected = rows.double() / warmth if late else rows.double()
        for row, (prompt, output) in enumerate(texts):
            counted = {"prompt": prompt, "output": output, "both": prompt + output}[scope]
            for token in set(counted):
                expected[row, token] -= frequency * counted.count(token) + presence
        expected = expected if late else expected / warmth
        pasts = [past_of(Plan("sample", plan), *text) for text in texts]
        same_distribution(processed(rows, *plan, pasts=pasts), expected)


@pytest.mark.contract("POL-2")
@given(st.data(), st.integers(1, 4), st.sampled_from(SCOPES))
def test_an_ngram_of_the_scope_is_not_completed_again(data: st.DataObject, size: int, scope: Scope) -> None:
    """By definition: the last tokens and the next one are no sequence that lies within the scope."""
    prompt, output = data.draw(written(9))
    within = {"prompt": prompt, "output": output, "both": prompt + output}[scope]
    there = {tuple(within[at : at + size]) for at in range(len(within) - size + 1)}
    text = prompt + output
    ends = text[len(text) - size + 1 :] if len(text) >= size - 1 else None
    expected = {token for token in range(9) if ends is not None and (*ends, token) in there}
    plan = NoRepeatNgram(size, scope)
    past = past_of(Plan("greedy", (plan,)), prompt, output)
    left = edit(logits(torch.zeros(1, 9)), [[plan]], [Beside(past)]).values[0]
    assert {token for token in range(9) if left[token] == -INF} == expected
