"""The policy: parity, edges, ties, faults, and no row that depends on its batch mates."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from score_rows import GREEDY, far_from_the_edge, logits, one, processed, random_rows, same_distribution, shapes
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from decodelog.fsm.errors import NonFiniteScores, SchemaViolation, WrongDraw, WrongScores
from decodelog.runtime.policy import transforms
from decodelog.runtime.policy.decide import decide, row_facts
from decodelog.runtime.policy.edits import Beside
from decodelog.runtime.policy.group import group_rows
from decodelog.runtime.policy.kinds import Temperature, TopK, TopP
from decodelog.runtime.policy.plan import Plan
from decodelog.runtime.policy.scores import Logits, LogProbabilities, Probabilities, VocabularyAxis
from decodelog.runtime.policy.select import draw, probabilities, settle, summarise

# ---- parity with the transformers library -----------------------------------------------------------------------

temperatures = st.floats(0.05, 20)
nuclei = st.floats(0.01, 0.999)


@pytest.mark.contract("POL-2")
@given(shapes, temperatures)
def test_temperature_equals_transformers(shape, value):
    rows = random_rows(*shape)
    same_distribution(processed(rows, Temperature(value)), TemperatureLogitsWarper(value)(None, rows))


@pytest.mark.contract("POL-2")
@given(shapes, st.integers(1, 400))
def test_top_k_equals_transformers(shape, value):
    rows = random_rows(*shape)
    same_distribution(processed(rows, TopK(value)), TopKLogitsWarper(value)(None, rows))


@pytest.mark.contract("POL-2")
@given(shapes, nuclei)
def test_top_p_equals_transformers(shape, value):
    rows = random_rows(*shape)
    assume(far_from_the_edge(rows, value))
    same_distribution(processed(rows, TopP(value)), TopPLogitsWarper(value)(None, rows))


@pytest.mark.contract("POL-2")
@given(shapes, temperatures, st.integers(1, 400), nuclei, st.permutations([0, 1, 2]))
def test_every_order_of_all_three_equals_transformers_in_that_order(shape, warmth, k, p, order):
    rows = random_rows(*shape)
    mine = [Temperature(warmth), TopK(k), TopP(p)]
    library = [TemperatureLogitsWarper(warmth), TopKLogitsWarper(k), TopPLogitsWarper(p)]
    theirs = rows
    for index in order:
        if index == 2:
            assume(far_from_the_edge(theirs, p))
        theirs = library[index](None, theirs)
    same_distribution(processed(rows, *[mine[index] for index in order]), theirs)


@pytest.mark.contract("POL-2")
@given(shapes, st.floats(0.2, 5), st.integers(1, 300), nuclei, st.floats(0, 1, exclude_max=True))
@settings(max_examples=50)
def test_a_plan_decides_what_its_transforms_do_one_by_one(shape, warmth, k, p, unit):
    rows = random_rows(*shape)
    plan = Plan.of(warmth, k, p)
    expected = processed(rows, *plan.transforms)
    for row, selection in enumerate(decide(logits(rows), [plan] * len(rows), [unit] * len(rows))):
        assert selection.support == (expected[row] > -math.inf).sum()
        assert selection.logprob == pytest.approx(expected[row, selection.token].item(), abs=1e-9)


# ---- the edges of every number -----------------------------------------------------------------------------------

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
def test_each_numeric_edge_has_one_meaning(row):
    settings_, support, *_ = row.split()
    plan = Plan.of(
        **{
            name: float(value) if name != "top_k" else int(value)
            for name, value in (pair.split("=") for pair in settings_.split(","))
        }
    )
    selection = one([1.0, 4.0, 2.0, 3.0, 0.0], plan, 0.5 if plan.stochastic else None)
    assert selection.support == int(support)
    if selection.support == 1:
        assert (selection.token, selection.start, selection.end, selection.logprob) == (1, 0.0, 1.0, 0.0)


@pytest.mark.contract("POL-3")
@pytest.mark.parametrize(
    "make",
    [
        lambda: Temperature(-0.1),
        lambda: Temperature(math.inf),
        lambda: Temperature(math.nan),
        lambda: Temperature(True),
        lambda: TopK(0),
        lambda: TopK(1.0),
        lambda: TopK(True),
        lambda: TopP(-1e-9),
        lambda: TopP(1.0000001),
        lambda: TopP(math.nan),
        lambda: Plan("beam"),
        lambda: Plan("sample", (), -1),
    ],
)
def test_a_number_without_a_meaning_is_refused(make):
    with pytest.raises(SchemaViolation, match=r"^policy\."):
        make()


@pytest.mark.contract("POL-3")
@given(shapes, st.sampled_from([0.0, 1e-300, 1e-8]), st.floats(0, 1, exclude_max=True))
def test_the_best_token_survives_every_cut(shape, p, unit):
    """A top-p of 0, and of almost 0 in half precision."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        row = random_rows(*shape)[0].to(dtype)
        selection = one(row, Plan.of(top_p=p), unit)
        assert (selection.token, selection.support) == (int(row.argmax()), 1)


@pytest.mark.contract("POL-3")
@given(shapes, st.floats(0, 1e-4), st.floats(0, 1, exclude_max=True))
def test_a_tiny_temperature_is_greedy_in_half_precision(shape, warmth, unit):
    """Scores near 30 in float16, temperature 1e-4."""
    row = (random_rows(*shape)[0] + 30).to(torch.float16)
    best, second = row.double().topk(2).values
    assume(best > second)
    plan = Plan("sample", (Temperature(warmth),))
    selection = one(row, plan, unit)
    assert selection.token == int(row.argmax())
    assert all(map(math.isfinite, (selection.logprob, selection.logprob_raw, selection.end)))


@pytest.mark.contract("POL-3")
@pytest.mark.parametrize(
    "plan", [GREEDY, *[Plan.of(t, k, p) for t, k, p in product([1e-5, 1.0, 1e300], [0, 2], [1.0, 0.5])]]
)
def test_the_largest_scores_do_not_overflow(plan):
    largest = torch.finfo(torch.float32).max
    selection = one([-largest, largest, 0.0, -1.0], plan, 0.25 if plan.stochastic else None)
    assert all(map(math.isfinite, (selection.logprob, selection.logprob_raw, selection.margin)))
    if plan.transforms[:1] != (Temperature(1e300),):
        assert selection.token == 1


@pytest.mark.contract("POL-3")
def test_half_precision_is_widened_before_anything_is_computed():
    row = torch.tensor([30.0, 29.98, 29.0])
    half = row.half()
    assert one(half, Plan.of(0.3), 0.4) == one(half.float(), Plan.of(0.3), 0.4)
    assert one(half.bfloat16(), Plan.of(0.3), 0.4) == one(half.bfloat16().float(), Plan.of(0.3), 0.4)


# ---- ties --------------------------------------------------------------------------------------------------------

tied_rows = st.lists(st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0, 2.0]), min_size=1, max_size=40)


@pytest.mark.contract("POL-4")
@given(tied_rows, st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_greedy_takes_the_lowest_of_equal_ids(row, dtype):
    selection = one(torch.tensor(row, dtype=dtype), GREEDY)
    assert selection.token == row.index(max(row))
    assert selection.margin == (max(row) - sorted(row)[-2] if len(row) > 1 else math.inf)


@pytest.mark.contract("POL-4")
@given(tied_rows, st.integers(1, 40), st.sampled_from([torch.float32, torch.float64, torch.float16]))
def test_top_k_keeps_exactly_k_and_of_equals_the_lowest_ids(row, k, dtype):
    mine = processed(torch.tensor([row], dtype=dtype), TopK(k))[0]
    expected = sorted(sorted(range(len(row)), key=lambda token: (-row[token], token))[:k])
    assert [token for token in range(len(row)) if mine[token] > -math.inf] == expected


@pytest.mark.contract("POL-4")
@given(tied_rows, st.floats(0.01, 1), st.sampled_from([torch.float32, torch.float64]))
def test_top_p_keeps_the_shortest_prefix_of_the_ranking(row, p, dtype):
    mine = processed(torch.tensor([row], dtype=dtype), TopP(p))[0]
    kept = [token for token in range(len(row)) if mine[token] > -math.inf]
    ranking = sorted(range(len(row)), key=lambda token: (-row[token], token))
    assert kept == sorted(ranking[: len(kept)])
    mass = np.cumsum(torch.tensor(row, dtype=torch.float64).softmax(-1).numpy()[ranking])
    assert len(kept) == 1 or mass[len(kept) - 2] < p + 1e-9
    assert len(kept) == len(row) or mass[len(kept) - 1] > p - 1e-9


@pytest.mark.contract("POL-4")
@given(st.lists(st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(-3, 3)), min_size=1))
def test_the_ranking_of_any_finite_scores_is_by_score_and_then_by_id(row):
    """Subnormal, neighbouring and equal numbers, and both zeros."""
    values = torch.tensor([[*row, -0.0, 0.0]])
    row = values[0].tolist()
    ranked = transforms.rank(logits(values))
    expected = sorted(range(len(row)), key=lambda token: (-row[token], token))
    assert ranked.tokens[0].tolist() == expected
    assert transforms.rank(logits(values), 2).tokens[0].tolist() == expected[:2]
    assert transforms.rank(logits(values.double())).tokens[0].tolist() == expected


@pytest.mark.contract("POL-4")
@given(st.floats(width=32, min_value=-(2.0**100), max_value=2.0**100), st.booleans())
def test_the_ranking_tells_neighbouring_numbers_apart(score, swapped):
    pair = torch.tensor([score, score]).nextafter(torch.tensor([score, math.inf]))
    row = pair.flip(0) if swapped else pair
    assert transforms.rank(logits(row[None])).tokens[0].tolist() == ([0, 1] if swapped else [1, 0])


@pytest.mark.contract("POL-4")
@given(tied_rows, st.integers(1, 50))
def test_alternatives_are_ranked_by_score_and_then_by_id(row, count):
    selection = one(row, Plan("greedy", (), count))
    ranking = sorted(range(len(row)), key=lambda token: (-row[token], token))
    assert [alternative.token for alternative in selection.alternatives] == ranking[:count]


# ---- the draw ----------------------------------------------------------------------------------------------------

units = st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2**-53, 0.5]))


@pytest.mark.contract("POL-5", "FSM-5")
@given(shapes, units, st.floats(0.1, 5), st.integers(0, 50))
def test_the_choice_is_the_first_token_whose_cumulated_probability_exceeds_the_draw(shape, unit, warmth, k):
    rows = random_rows(*shape)
    plan = Plan.of(warmth, k)
    for row, selection in enumerate(decide(logits(rows), [plan] * len(rows), [unit] * len(rows))):
        chances = processed(rows[row : row + 1], *plan.transforms)[0].exp()
        ends = chances.cumsum(-1)
        assert selection.start <= unit < selection.end
        assert selection.start == pytest.approx((ends[selection.token] - chances[selection.token]).item(), abs=1e-12)
        assert selection.end == pytest.approx(ends[selection.token].item(), abs=1e-12)
        if selection.end - selection.start > 1e-9:
            assert selection.logprob == pytest.approx(math.log(selection.end - selection.start), abs=1e-6)


@pytest.mark.contract("POL-5")
@given(shapes, st.sampled_from([Plan.of(1.3), Plan.of(0.7, 5), Plan.of(1.0, 0, 0.8), Plan.of(1.0, 7, 0.9)]))
@settings(max_examples=30)
def test_the_intervals_of_a_row_tile_the_unit_interval_in_order_of_token_id(shape, plan):
    row = random_rows(*shape)[0]
    at, token = 0.0, -1
    while at < 1.0:
        selection = one(row, plan, at)
        assert selection.start == at
        assert selection.token > token
        at, token = selection.end, selection.token
    assert at == 1.0


@pytest.mark.contract("POL-5")
def test_draws_are_consumed_by_sampled_rows_only():
    rows = logits([[0.0, 1.0], [1.0, 0.0]])
    greedy, sampled = decide(rows, [GREEDY, Plan.of()], [None, 0.3])
    assert (greedy.unit_draw, greedy.start, greedy.end) == (None, None, None)
    assert sampled.unit_draw == 0.3
    for plan, unit in [(GREEDY, 0.3), (Plan.of(), None), (Plan.of(), 1.0), (Plan.of(), -1e-9), (Plan.of(), math.nan)]:
        with pytest.raises(WrongDraw):
            decide(rows, [GREEDY, plan], [None, unit])


@pytest.mark.contract("POL-4", "POL-5")
def test_a_decision_is_frozen_in_numbers():
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


# ---- log-probabilities -------------------------------------------------------------------------------------------


@pytest.mark.contract("POL-6")
@given(shapes, st.sampled_from([GREEDY, Plan.of(), Plan.of(0.5, 0, 0.9), Plan.of(2.0, 3)]), units)
def test_raw_log_probabilities_are_those_of_the_row_before_any_transform(shape, plan, unit):
    rows = random_rows(*shape)
    expected = rows.double().log_softmax(-1)
    for row, selection in enumerate(
        decide(logits(rows), [plan] * len(rows), [unit if plan.stochastic else None] * len(rows))
    ):
        assert selection.logprob_raw == pytest.approx(expected[row, selection.token].item(), abs=1e-12)


@pytest.mark.contract("POL-6")
def test_raw_log_probabilities_do_not_move_with_the_sampling_settings():
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
def test_alternatives_agree_with_the_choice_and_with_both_distributions(shape, plan, unit, count):
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
def test_alternatives_do_not_change_the_choice():
    rows = random_rows(5, 3, 90)
    for plan in (GREEDY, Plan.of(0.8), Plan.of(0.8, 5), Plan.of(0.8, 5, 0.7), Plan.of(0.8, 0, 0.7)):
        unit = 0.77 if plan.stochastic else None
        without = decide(logits(rows), [plan] * 3, [unit] * 3)
        told = decide(logits(rows), [Plan(plan.family, plan.transforms, 20)] * 3, [unit] * 3)
        assert [selection._replace(alternatives=()) for selection in told] == without


# ---- one row and its mates ---------------------------------------------------------------------------------------

plans = st.builds(
    Plan.of,
    st.sampled_from([0.0, 1e-7, 0.3, 1.0, 1.7]),
    st.sampled_from([0, 1, 3, 40, 10**6]),
    st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    st.sampled_from([0, 2, 9]),
)


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.contract("POL-7")
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("size", [1, 2, 17, 256, 1000, 40_003])
@given(st.data())
@settings(max_examples=8)
def test_a_selection_is_the_same_alone_and_in_any_batch(size, data):
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
def test_sums_of_a_row_do_not_depend_on_how_many_rows_there_are(size):
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
def test_a_greedy_row_without_tensors_has_the_bits_of_one_with_them(seed, count, size, dtype, spread):
    """Alone, in a batch, next to a sampled row, and where alternatives are asked for, which takes the tensor path."""
    values = np.random.default_rng(seed).normal(scale=spread, size=(count, size))
    rows = torch.from_numpy(values).to(dtype)
    together = decide(logits(rows), [GREEDY] * count, [None] * count)
    told = decide(logits(rows), [Plan("greedy", (), 2)] * count, [None] * count)
    assert [selection._replace(alternatives=()) for selection in told] == together
    for row in range(count):
        assert one(rows[row], GREEDY) == together[row]
        mixed = decide(logits(rows[[row, 0]]), [GREEDY, Plan.of()], [None, 0.5])
        assert mixed[0] == together[row]
        assert mixed[1].margin == together[0].margin
        if mixed[1].token == together[0].token:
            assert mixed[1].logprob_raw == together[0].logprob_raw


@pytest.mark.contract("POL-7")
def test_eight_equal_rows_get_eight_equal_answers():
    """The same prompt in all slots at temperature 0."""
    row = random_rows(3, 1, 5000)
    answers = decide(logits(row.expand(8, -1)), [Plan.of(0.0, logprobs_top=5)] * 8, [None] * 8)
    assert len(set(answers)) == 1


# ---- faults ------------------------------------------------------------------------------------------------------


@pytest.mark.contract("FSM-10")
@given(
    st.sampled_from([math.nan, math.inf, -math.inf]),
    st.lists(plans, min_size=3, max_size=3),
    st.sampled_from([1, 2, 9, 300]),
    st.data(),
)
def test_a_row_that_is_not_finite_is_a_fault_of_that_row_alone(bad, batch, size, data):
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


@pytest.mark.contract("POL-1")
def test_scores_of_another_kind_are_refused():
    axis = VocabularyAxis(2, "test")
    number = torch.tensor([[1.0]], dtype=torch.float64)
    values = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    for kind in (LogProbabilities, Probabilities):
        for operation in (transforms.temperature, transforms.top_k, transforms.top_p):
            with pytest.raises(WrongScores, match=f"takes Logits and was given {kind.__name__}"):
                operation(kind(values, axis), number)
        for operation in (settle, probabilities):
            with pytest.raises(WrongScores):
                operation(kind(values, axis))
        with pytest.raises(WrongScores):
            decide(kind(values, axis), [GREEDY], [None])
    for kind in (LogProbabilities, Logits):
        with pytest.raises(WrongScores, match="draw takes Probabilities"):
            draw(kind(values, axis), number * 0)


@pytest.mark.contract("POL-1")
def test_scores_over_another_vocabulary_are_refused():
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
        decide(transforms.rank(scores), [GREEDY], [None])


# ---- shape of the work -------------------------------------------------------------------------------------------


@pytest.mark.contract("POL-2")
@given(st.lists(plans, min_size=1, max_size=4))
@settings(max_examples=20)
def test_nothing_is_read_back_before_the_one_transfer(batch):
    """On the device without data any look at a value, or a size that depends on one, is an error."""
    scores = logits(torch.zeros(len(batch), 50, device="meta"))
    noise = [0.5 if plan.stochastic else None for plan in batch]
    for group in group_rows(tuple(batch), 50, torch.device("meta")):
        assert row_facts(scores, group, noise, [Beside()] * len(batch)).shape[0] == len(group.rows)


def test_rows_whose_plans_differ_in_numbers_only_go_together():
    batch = (Plan.of(0.5, 5), GREEDY, Plan.of(0.7, 9), Plan.of(0.0), Plan.of(0.7, 10**6), Plan.of(0.9))
    assert [group.rows for group in group_rows(batch, 100, torch.device("cpu"))] == [(0, 2), (1, 3), (4, 5)]
    assert len(group_rows((GREEDY,) * 10, 1 << 16, torch.device("cpu"))) == 5


def test_the_scores_are_left_as_they_were():
    rows = random_rows(8, 4, 64)
    for dtype in (torch.float32, torch.float64, torch.float16):
        given_rows = rows.to(dtype)
        before = given_rows.clone()
        for plan in (GREEDY, Plan.of(0.5), Plan.of(0.5, 5), Plan.of(0.5, 0, 0.5), Plan.of(1.0, 3, 0.5, 4)):
            decide(logits(given_rows), [plan] * 4, [0.5 if plan.stochastic else None] * 4)
            assert torch.equal(given_rows, before)


def test_an_empty_batch_has_no_decisions():
    assert decide(logits(torch.zeros(0, 9)), [], []) == []
