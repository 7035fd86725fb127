"""What edits and cuts do at their edges, with ties, in the order given, and where they leave nothing."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from score_rows import logits, one, past_of, processed, random_rows, shapes, tied_rows

from decodelog.fsm.errors import NoTokenLeft, WrongScores
from decodelog.runtime.policy.cuts import MinP, Temperature, TopK, TopP, TypicalP
from decodelog.runtime.policy.decide import decide
from decodelog.runtime.policy.edits import (
    AllowedTokens,
    BannedTokens,
    ForcedTokens,
    FrequencyPenalty,
    LogitBias,
    MaskedTokens,
    MinNewTokens,
    NoRepeatNgram,
    PresencePenalty,
    RepetitionPenalty,
)
from decodelog.runtime.policy.kinds import Kind as Transform
from decodelog.runtime.policy.plan import Family, Plan

INF = math.inf


# ---- edges -----------------------------------------------------------------------------------------------------------

FAMILIES: list[tuple[Family, float | None]] = [("greedy", None), ("sample", 0.5)]
ROW = [1.0, 4.0, 2.0, 3.0, 4.0]
EDGES: dict[str, tuple[Transform, int]] = {
    "min_p 0 is off": (MinP(0), 5),
    "min_p tiny": (MinP(5e-324), 5),
    "min_p 1 keeps the best and its equals": (MinP(1), 2),
    "typical_p 0 keeps the most typical alone": (TypicalP(0), 1),
    "typical_p tiny": (TypicalP(5e-324), 1),
    "typical_p 1 is off": (TypicalP(1), 5),
    "repetition_penalty 1 is off": (RepetitionPenalty(1, "both"), 5),
    "repetition_penalty tiny": (RepetitionPenalty(5e-324, "both"), 5),
    "repetition_penalty huge": (RepetitionPenalty(1e300, "both"), 5),
    "frequency_penalty 0 is off": (FrequencyPenalty(0, "both"), 5),
    "frequency_penalty huge": (FrequencyPenalty(1e300, "both"), 5),
    "presence_penalty of the other sign": (PresencePenalty(-1e300, "both"), 5),
    "ngrams longer than the text are off": (NoRepeatNgram(9, "both"), 5),
    "ngrams of 1 bar what was there": (NoRepeatNgram(1, "both"), 2),
    "bias 0 changes nothing": (LogitBias(((3, 0.0),)), 5),
    "bias beyond float32": (LogitBias(((3, 1e300), (0, -1e300))), 5),
    "one allowed token": (AllowedTokens((2,)), 1),
    "min_new_tokens over": (MinNewTokens(2, (1, 4)), 5),
    "min_new_tokens not over": (MinNewTokens(4, (1, 4)), 3),
    "forced at another step": (ForcedTokens(((0, 2),)), 5),
    "forced now": (ForcedTokens(((3, 2),)), 1),
}


@pytest.mark.contract("POL-3")
@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_each_numeric_edge_of_an_edit_has_one_meaning(name: str, dtype: torch.dtype) -> None:
    transform, support = EDGES[name]
    row = torch.tensor(ROW, dtype=dtype)
    text: dict[str, Any] = {"prompt": [1, 3], "output": [3, 0, 1]}
    for family, unit in FAMILIES:
        selection = one(row, Plan(family, (transform,)), unit, **text)
        assert selection.support == support
        assert all(map(math.isfinite, (selection.logprob, selection.logprob_raw, selection.margin)))
    if "off" in name or "nothing" in name or ("over" in name.split()[-1:] and "not" not in name):
        assert one(row, Plan("sample", (transform,)), 0.7, **text) == one(row, Plan("sample"), 0.7)


CUTS = [TopK(1), TopK(7), TopP(0), TopP(1e-300), TopP(0.5), MinP(1), MinP(0.5), MinP(1e-300)]


@pytest.mark.contract("POL-3")
@given(shapes, st.sampled_from(CUTS), st.floats(1e-5, 50), st.sampled_from([torch.float16, torch.float32]))
def test_the_best_token_survives_every_cut_by_score_at_any_temperature(
    shape: tuple[int, int, int], cut: Transform, warmth: float, dtype: torch.dtype
) -> None:
    row = random_rows(*shape)[:1].to(dtype)
    plan = Plan("sample", (Temperature(warmth), cut)).settled(shape[2])
    assert processed(row, *plan)[0, int(row.argmax())] > -INF


@pytest.mark.contract("POL-3")
@given(shapes, st.sampled_from([TopP(0.5), MinP(0.2), TypicalP(0.5), LogitBias(((1, 3.0),))]))
def test_a_second_temperature_divides_what_the_first_has_divided(shape: tuple[int, int, int], after: Transform) -> None:
    rows = random_rows(*shape)
    twice = processed(rows, Temperature(2), Temperature(0.125), after)
    assert torch.equal(twice, processed(rows, Temperature(0.25), after))


@pytest.mark.contract("POL-3")
@given(shapes, st.sampled_from([0.0, 1e-300, 0.2, 0.9]), st.floats(1e-5, 50))
def test_the_most_typical_token_always_survives(shape: tuple[int, int, int], value: float, warmth: float) -> None:
    rows = random_rows(*shape)
    logs = (rows.double() / warmth).log_softmax(-1)
    deviation = (-logs + (logs.exp() * logs).nansum(-1, keepdim=True)).abs()
    left = processed(rows, Temperature(warmth), TypicalP(value))
    nearest = deviation.amin(-1)
    assert torch.allclose(deviation.masked_fill(left == -INF, INF).amin(-1), nearest, rtol=1e-6, atol=1e-6)


@pytest.mark.contract("POL-3")
@pytest.mark.parametrize("transform", [t for t, _ in EDGES.values()])
def test_no_edit_leaves_the_range_of_its_type(transform: Transform) -> None:
    """The largest scores there are, before any edit and both penalties."""
    largest = torch.finfo(torch.float32).max
    row = torch.tensor([largest, -largest, largest, 0.0, -largest])
    for family, unit in FAMILIES:
        selection = one(row, Plan(family, (transform,), 2), unit, [0, 1], [3, 4, 1])
        assert all(map(math.isfinite, (selection.logprob, selection.logprob_raw)))


# ---- ties ------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("POL-4")
@given(tied_rows, st.floats(0, 1), st.booleans())
def test_typical_p_keeps_the_shortest_prefix_of_its_ranking(row: list[float], p: float, ranked_before: bool) -> None:
    """Typical_p keeps the shortest prefix of its ranking and of equals the lowest ids."""
    values = torch.tensor([row])
    logs = values[0].double().log_softmax(-1)
    deviation = (-logs + (logs.exp() * logs).sum()).abs()
    ranking = sorted(range(len(row)), key=lambda token: (round(deviation[token].item(), 9), token))
    before = (TopK(len(row)),) if ranked_before else ()
    mine = processed(values, *before, TypicalP(p))[0]
    kept = [token for token in range(len(row)) if mine[token] > -INF]
    mass = logs.exp()[ranking].cumsum(-1)
    assert kept == sorted(ranking[: len(kept)])
    assert len(kept) == 1 or mass[len(kept) - 2] < p + 1e-9
    assert len(kept) == len(row) or mass[len(kept) - 1] > p - 1e-9


@pytest.mark.contract("POL-4")
@given(tied_rows, st.data())
def test_greedy_takes_the_best_edited_score_and_the_lowest_id(row: list[float], data: st.DataObject) -> None:
    """Greedy takes the best of the edited scores and of equals the lowest id."""
    token = st.integers(0, len(row) - 1)
    biases = data.draw(st.dictionaries(token, st.sampled_from([-2.0, 0.5, 1.5, 2.0]), max_size=6))
    banned = data.draw(st.sets(token, max_size=len(row) - 1))
    plan = Plan("greedy", (LogitBias(tuple(biases.items())), BannedTokens(tuple(banned))))
    edited = [score + biases.get(token, 0.0) for token, score in enumerate(row)]
    left = [token for token in range(len(row)) if token not in banned]
    selection = one(row, plan)
    assert selection.token == min(left, key=lambda token: (-edited[token], token))
    assert selection.support == len(left)
    assert (selection.unit_draw, selection.start, selection.end) == (None, None, None)


@pytest.mark.contract("POL-4")
def test_greedy_tells_scores_apart_that_weigh_the_same() -> None:
    """Scores so near that their probabilities are equal numbers: the better one is taken, not the lower id."""
    row = [1e-20, 3e-20, 2e-20]
    assert one(row, Plan("greedy", (BannedTokens(()),))).token == 1
    assert one(row, Plan("greedy", (BannedTokens((1,)),))).token == 2


@pytest.mark.contract("POL-3", "POL-4")
@given(shapes, st.floats(0, 1e-5, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_a_tiny_temperature_is_greedy_after_any_edit(shape: tuple[int, int, int], warmth: float, unit: float) -> None:
    row = random_rows(*shape)[0]
    edits = (LogitBias(((0, 3.0),)), PresencePenalty(2.0, "both"))
    cold = one(row, Plan("sample", (*edits, Temperature(warmth))), unit, [1, 0], [1])
    greedy = one(row, Plan("greedy", edits), None, [1, 0], [1])
    assert (cold.token, cold.support, cold.logprob) == (greedy.token, 1, 0.0)


# ---- order and faults ------------------------------------------------------------------------------------------------


@pytest.mark.contract("POL-2")
def test_transforms_are_applied_in_the_order_given() -> None:
    row = [3.0, 2.0, 1.0, 0.0]
    bias, cut = LogitBias(((2, 5.0),)), TopK(1)
    assert one(row, Plan("sample", (cut, bias)), 0.5).token == 0
    assert one(row, Plan("sample", (bias, cut)), 0.5).token == 2
    # A bias before the temperature is divided with the score, and after it is not.
    for plan, shift in (((bias, Temperature(2.0)), 2.5), ((Temperature(2.0), bias), 5.0)):
        logs = torch.tensor([1.5, 1.0, 0.5 + shift, 0.0], dtype=torch.float64).log_softmax(-1)
        assert torch.allclose(processed(torch.tensor([row]), *plan)[0], logs)


def test_a_removed_token_stays_removed_but_for_the_one_that_is_forced() -> None:
    row = [3.0, 2.0, 1.0]
    ban = BannedTokens((0,))
    for later in (LogitBias(((0, 1e4),)), RepetitionPenalty(1e-3, "both"), PresencePenalty(-1e4, "both"), TopK(2)):
        assert one(row, Plan("greedy", (ban, later)), None, [0], [0]).token == 1
    forced = one(row, Plan("greedy", (ban, ForcedTokens(((1, 0),)))), None, [0], [2])
    assert (forced.token, forced.support, forced.logprob) == (0, 1, 0.0)
    assert forced.logprob_raw < 0


@pytest.mark.contract("FSM-10", "POL-2")
@given(
    st.permutations([AllowedTokens((2, 3)), BannedTokens((2, 3, 4)), LogitBias(((2, 1.0),)), TopK(3), MinP(0.1)]),
    st.sampled_from(["greedy", "sample"]),
    st.integers(0, 3),
)
def test_a_row_without_a_token_left_is_a_fault_of_that_row_alone(
    order: list[Transform], family: Family, logprobs: int
) -> None:
    row = [0.0, 0.5, 1.0, 1.5, 2.0]
    mates = [Plan("greedy"), Plan("sample", (TopP(0.9),), 2)]
    plans = [mates[0], Plan(family, tuple(order), logprobs), mates[1]]
    units = [None, 0.3 if family == "sample" else None, 0.3]
    first, fault, last = decide(logits([row] * 3), plans, units)
    assert isinstance(fault, NoTokenLeft)
    assert fault.code == "no_token_left"
    assert [first, last] == decide(logits([row] * 2), mates, [None, 0.3])


@pytest.mark.contract("POL-2")
@given(shapes, st.data(), st.sampled_from([(), (Temperature(0.7), TopK(3)), (LogitBias(((0, 2.0),)), MinP(0.1))]))
def test_a_mask_of_the_step_is_a_list_of_allowed_tokens_of_each_row(
    shape: tuple[int, int, int], data: st.DataObject, later: Any
) -> None:
    """Whatever comes after it; an empty one is the row's own fault, also where no row has a token."""
    rows, size = random_rows(*shape), shape[2]
    masks = [np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size))) for _ in rows]
    masked = decide(
        logits(rows), [Plan("greedy", (MaskedTokens(), *later), 2)] * len(rows), [None] * len(rows), masks=masks
    )
    for row, mask in enumerate(masks):
        if mask.any():
            listed = Plan("greedy", (AllowedTokens(tuple(np.flatnonzero(mask).tolist())), *later), 2)
            assert masked[row] == one(rows[row], listed)
        else:
            assert isinstance(masked[row], NoTokenLeft)


def test_a_mask_that_is_missing_or_of_another_size_is_refused() -> None:
    plan = Plan("greedy", (MaskedTokens(),))
    for masks in (None, [None], [np.ones(3, dtype=bool)], [np.ones(2, dtype=bool)] * 2):
        with pytest.raises(WrongScores, match="mask"):
            decide(logits([[0.0, 1.0]]), [plan], [None], masks=masks)


def test_a_row_that_looks_back_must_bring_its_history() -> None:
    plan = Plan("greedy", (PresencePenalty(1.0, "both"),))
    with pytest.raises(WrongScores, match="history"):
        decide(logits([[0.0, 1.0]]), [plan], [None])
    with pytest.raises(WrongScores, match="2 pasts"):
        decide(logits([[0.0, 1.0]]), [plan], [None], pasts=[None, None])


def test_the_scores_are_left_as_they_were() -> None:
    rows = random_rows(8, 2, 64)
    for dtype, (transform, _) in itertools.product((torch.float32, torch.float64, torch.float16), EDGES.values()):
        given_rows = rows.to(dtype)
        before = given_rows.clone()
        plan = Plan("sample", (transform,))
        decide(logits(given_rows), [plan] * 2, [0.5] * 2, pasts=[past_of(plan, [1, 3], [3, 0, 1])] * 2)
        assert torch.equal(given_rows, before)
