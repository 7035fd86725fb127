"""Score rows, and ways to decide them, for the tests of the policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from decodelog.fsm.evidence.receipt import Selection
from decodelog.runtime.policy.decide import decide
from decodelog.runtime.policy.edits import edit
from decodelog.runtime.policy.history import History
from decodelog.runtime.policy.kinds import Beside, Cut, Edit
from decodelog.runtime.policy.kinds import Kind as Transform
from decodelog.runtime.policy.plan import Plan
from decodelog.runtime.policy.scores import Logits, VocabularyAxis
from decodelog.runtime.policy.select import finished

GREEDY = Plan("greedy")
shapes = st.tuples(st.integers(0, 10**6), st.integers(1, 4), st.integers(2, 300))
tied_rows = st.lists(st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0, 2.0]), min_size=1, max_size=40)
units = st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2**-53, 0.5]))
plans = st.builds(
    Plan.of,
    st.sampled_from([0.0, 1e-7, 0.3, 1.0, 1.7]),
    st.sampled_from([0, 1, 3, 40, 10**6]),
    st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    st.sampled_from([0, 2, 9]),
)


def logits(rows: Tensor | list[list[float]]) -> Logits:
    values = rows if isinstance(rows, Tensor) else torch.tensor(rows)
    return Logits(values, VocabularyAxis(values.shape[1], "test"))


def past_of(plan: Plan, prompt: list[int], output: list[int]) -> History | None:
    """The history of a row with these tokens before it."""
    past = History.of(plan, prompt)
    if past is not None:
        past.follow(*output)
    return past


def one(
    row: Tensor | list[float],
    plan: Plan,
    unit: float | None = None,
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    noise: Mapping[int, float] | None = None,
) -> Selection:
    """Decide one row that has no fault, after the tokens of prompt and output."""
    values = row if isinstance(row, Tensor) else torch.tensor(row)
    past = past_of(plan, prompt or [], output or [])
    (selection,) = decide(logits(values[None]), [plan], [unit], pasts=[past], noises=[noise])
    assert isinstance(selection, Selection)
    return selection


def chosen(decisions: Sequence[object]) -> list[Selection]:
    """Decisions of rows none of which has a fault."""
    selections = [each for each in decisions if isinstance(each, Selection)]
    assert len(selections) == len(decisions)
    return selections


def interval(selection: Selection) -> tuple[float, float]:
    """The part of the unit interval that a drawn token has."""
    assert selection.start is not None
    assert selection.end is not None
    return selection.start, selection.end


def ranking(scores: Logits) -> list[int]:
    """The tokens of the one row, best first."""
    assert scores.tokens is not None
    tokens: list[int] = scores.tokens[0].tolist()
    return tokens


def random_rows(seed: int, count: int, size: int, spread: float = 3.0) -> Tensor:
    """float32 rows without two equal scores in a row."""
    rng = np.random.default_rng(seed)
    # Float32 normals repeat now and then; a step far below their spacing in probability tells repeats apart.
    rows = rng.normal(scale=spread, size=(count, size)) + np.arange(size) * 1e-6
    return torch.from_numpy(rows.astype(np.float32))


def processed(
    rows: Tensor, *plan: Transform, pasts: list[History | None] | None = None, units: Sequence[float] = ()
) -> Tensor:
    """[B, V] float64 log-probabilities after the transforms, -inf where removed: all rows with the same numbers.

    units  the draws that a transform takes
    """
    scores = logits(rows)
    for transform in plan:
        if isinstance(transform, Cut):
            numbers = (*transform.numbers, *(units if transform.domain else ()))
            columns = [torch.full((len(rows), 1), number, dtype=torch.float64) for number in numbers]
            scores = transform.kernel([transform])(scores, *columns)
        elif isinstance(transform, Edit):
            beside = [Beside(past) for past in pasts or [None] * len(rows)]
            scores = edit(scores, [[transform] * len(rows)], beside)
    scores = finished(scores)
    values = scores.values.log_softmax(-1)
    if scores.tokens is None:
        return values
    return torch.full(rows.shape, -math.inf, dtype=torch.float64).scatter_(1, scores.tokens, values)


def same_distribution(mine: Tensor, theirs: Tensor) -> None:
    theirs = theirs.double().log_softmax(-1)
    assert torch.equal(mine > -math.inf, theirs > -math.inf)
    assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def far_from_the_edge(rows: Tensor, value: float) -> bool:
    """Whether no cumulated probability is so near to `value` that float32 may put it on the other side."""
    mass = rows.double().softmax(-1).sort(descending=True).values.cumsum(-1)
    return bool(((mass - value).abs() > 1e-5).all())
