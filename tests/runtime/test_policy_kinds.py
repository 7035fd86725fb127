"""Scores of the wrong kind are an error of every operation, and never a number."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from decodelog.fsm.errors import WrongDraw, WrongScores
from decodelog.runtime.policy import cuts, edits, ranking, select
from decodelog.runtime.policy.cuts import Xtc
from decodelog.runtime.policy.decide import decide
from decodelog.runtime.policy.edits import BannedTokens, LogitBias, MaskedTokens, RepetitionPenalty, edit
from decodelog.runtime.policy.kinds import Beside
from decodelog.runtime.policy.plan import Family, Plan
from decodelog.runtime.policy.scores import Logits, LogProbabilities, Probabilities, Scores, VocabularyAxis, require
from decodelog.runtime.policy.select import best, draw, finished, probabilities

pytestmark = pytest.mark.contract("POL-1")

AXIS = VocabularyAxis(2, "test")
NUMBER = torch.tensor([[1.0]], dtype=torch.float64)
HALF = torch.tensor([[0.5]], dtype=torch.float64)
GREEDY = Plan("greedy")


def of(kind: type[Any]) -> Any:
    """The same two numbers, which would do for any kind."""
    return kind(torch.tensor([[-0.25, -1.75]], dtype=torch.float64).exp_(), AXIS)


Operation = Callable[[Any], object]
TAKES: dict[str, tuple[type[Scores], Operation]] = {
    "temperature": (Logits, lambda scores: cuts.temperature(scores, NUMBER)),
    "top_k": (Logits, lambda scores: cuts.top_k(scores, NUMBER)),
    "top_k with its largest": (Logits, lambda scores: cuts.top_k(scores, NUMBER, 1)),
    "top_p": (Logits, lambda scores: cuts.top_p(scores, HALF)),
    "min_p": (Logits, lambda scores: cuts.min_p(scores, HALF)),
    "typical_p": (Logits, lambda scores: cuts.typical_p(scores, HALF)),
    "xtc": (Logits, lambda scores: cuts.xtc(scores, HALF, HALF, HALF)),
    "edit": (Logits, lambda scores: edit(scores, [[LogitBias(((0, 1.0),))]], [Beside()])),
    "edit that removes": (Logits, lambda scores: edit(scores, [[BannedTokens((1,))]], [Beside()])),
    "edit of nothing": (Logits, lambda scores: edit(scores, [], [Beside()])),
    "finished": (Logits, finished),
    "probabilities": (Logits, probabilities),
    "best": (Logits, lambda scores: best(scores, of(Probabilities))),
    "best ": (Probabilities, lambda scores: best(of(Logits), scores)),
    "draw": (Probabilities, lambda scores: draw(scores, HALF)),
    "decide": (Logits, lambda scores: decide(scores, [GREEDY], [None])),
    "decide by a draw": (Logits, lambda scores: decide(scores, [Plan("sample")], [0.5])),
}
INSIDE = {"in_order_of_token", "rank", "values_of"}
"""Steps of those operations, which have looked already."""


@pytest.mark.parametrize("given", [Logits, LogProbabilities, Probabilities])
@pytest.mark.parametrize("name", TAKES)
def test_an_operation_takes_its_own_kind_and_refuses_each_other(name: str, given: type[Scores]) -> None:
    kind, operation = TAKES[name]
    if given is kind:
        operation(of(given))
        return
    with pytest.raises(WrongScores) as caught:
        operation(of(given))
    told = str(caught.value)
    assert f"{name.split()[0]} takes {kind.__name__} and was given {given.__name__}" in told


@pytest.mark.parametrize("module", [cuts, ranking, edits, select])
def test_every_operation_over_scores_is_among_them(module: ModuleType) -> None:
    kinds = {kind.__name__ for kind in (Logits, LogProbabilities, Probabilities)}
    over_scores = {
        name
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
        and not name.startswith("_")
        and any(parameter.annotation in kinds for parameter in inspect.signature(function).parameters.values())
    }
    assert over_scores
    assert over_scores <= {name.split()[0] for name in TAKES} | INSIDE


def test_scores_over_another_vocabulary_are_refused_whatever_differs_of_it() -> None:
    scores = of(Logits)
    assert require(scores, Logits, "test", AXIS) is scores
    for axis in (VocabularyAxis(2, "other"), VocabularyAxis(3, "test")):
        with pytest.raises(WrongScores, match="over"):
            require(scores, Logits, "test", axis)
        with pytest.raises(WrongScores, match="over"):
            decide(scores, [GREEDY], [None], axis=axis)


@pytest.mark.parametrize(
    ("plans", "draws", "options"),
    [
        ([GREEDY] * 2, [None] * 2, {}),
        ([], [], {}),
        ([GREEDY], [None] * 2, {}),
        ([GREEDY], [], {}),
        ([GREEDY], [None], {"pasts": []}),
        ([GREEDY], [None], {"pasts": [None, None]}),
        ([GREEDY], [None], {"masks": []}),
        ([GREEDY], [None], {"masks": [None, None]}),
        ([Plan("greedy", (MaskedTokens(),))], [None], {"masks": [np.ones(3, bool)]}),
        ([Plan("greedy", (MaskedTokens(),))], [None], {"masks": [np.ones((1, 2), bool)]}),
        ([Plan("greedy", (MaskedTokens(),))], [None], {"masks": [None]}),
        ([GREEDY], [None], {"noises": []}),
        ([Plan("sample", (Xtc(0.5, 0.1),))], [0.5], {"noises": [None]}),
        ([Plan("sample", (Xtc(0.5, 0.1),))], [0.5], {"noises": [{2: 0.5}]}),
        ([Plan("greedy", (RepetitionPenalty(2.0, "both"),))], [None], {"pasts": [None]}),
    ],
)
def test_what_a_decision_reads_beside_its_rows_is_one_of_each_a_row(
    plans: list[Plan], draws: list[float | None], options: dict[str, Any]
) -> None:
    with pytest.raises(WrongScores):
        decide(of(Logits), plans, draws, **options)


@pytest.mark.parametrize("values", [torch.zeros(1, 3), torch.zeros(2, 2), torch.zeros(2), torch.zeros(1, 1, 2)])
def test_rows_of_another_shape_are_refused(values: torch.Tensor) -> None:
    with pytest.raises(WrongScores, match="rows of 2 scores"):
        decide(Logits(values, AXIS), [GREEDY], [None])


def test_rows_that_are_ranked_already_are_no_rows_of_a_model() -> None:
    ranked = ranking.rank(of(Logits))
    with pytest.raises(WrongScores, match="ranked scores"):
        decide(ranked, [GREEDY], [None])


@pytest.mark.contract("POL-5")
@pytest.mark.parametrize(
    ("family", "unit"),
    [("greedy", 0.5), ("greedy", 0.0), ("sample", None), ("sample", 1.0), ("sample", -1e-9), ("sample", float("nan"))],
)
@pytest.mark.parametrize("edits_too", [False, True])
def test_a_draw_is_given_where_it_is_consumed_and_is_in_its_range(
    family: Family, unit: float | None, edits_too: bool
) -> None:
    plan = Plan(family, (LogitBias(((0, 1.0),)),) if edits_too else ())
    with pytest.raises(WrongDraw):
        decide(of(Logits), [plan], [unit])
    for good in (0.0, 1 - 2**-53) if family == "sample" else (None,):
        decide(of(Logits), [plan], [good])
