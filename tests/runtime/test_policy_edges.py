"""Every row of the table of numeric edges, on the kernels: the number of an envelope does what the table says."""

from __future__ import annotations

import math
from typing import Any

import pytest
import transformers
from policy_edges import transform_of
from score_rows import one

from decodelog.fsm.request.edges import EDGES, Edge
from decodelog.fsm.request.transforms import SEALED_ORDER
from decodelog.fsm.request.transforms.definition import Effect
from decodelog.runtime.policy.plan import Plan
from decodelog.runtime.policy.plans import kernel_of

ROW = [1.0, 4.0, 2.0, 3.0, 4.0]
TEXT: dict[str, Any] = {"prompt": [1, 3], "output": [3, 0, 1]}
UNITS = (0.01, 0.4, 0.7, 0.99)


def most_typical() -> int:
    chances = [math.exp(score) for score in ROW]
    surprisal = [-math.log(chance / sum(chances)) for chance in chances]
    entropy = sum(chance / sum(chances) * each for chance, each in zip(chances, surprisal, strict=True))
    return min(range(len(ROW)), key=lambda token: abs(surprisal[token] - entropy))


@pytest.mark.contract("POL-3")
@pytest.mark.parametrize(
    "edge", [edge for edge in EDGES if edge.sealed is not Effect.REFUSED], ids=lambda edge: f"{edge.kind} {edge.words}"
)
def test_each_numeric_edge_does_what_the_table_says(edge: Edge) -> None:
    plan = Plan("sample", (kernel_of(transform_of(edge)),))
    chosen = [one(ROW, plan, unit, **TEXT, noise=dict.fromkeys(plan.domains, 0.0)) for unit in UNITS]
    tokens, support = {each.token for each in chosen}, chosen[0].support
    if edge.sealed is Effect.OFF:
        assert chosen == [one(ROW, Plan("sample"), unit) for unit in UNITS]
    elif edge.sealed is Effect.BEST:
        assert (tokens, support) == ({1}, 1)
    elif edge.sealed is Effect.BEST_AND_EQUALS:
        assert (tokens, support) == ({1, 4}, 2)
    elif edge.sealed is Effect.MOST_TYPICAL:
        assert (tokens, support) == ({most_typical()}, 1)
    elif edge.sealed is Effect.LEAST_OF_TOP:
        assert (tokens, support) == ({0, 3}, 3)
    elif edge.sealed is Effect.LEAST:
        assert (tokens, support) == ({0}, 1)
    elif edge.sealed is Effect.NONE_TWICE:
        assert (tokens, support) == ({2, 4}, 2)
    else:
        assert edge.sealed is Effect.ORDINARY
        assert support == len(ROW)
    for each in chosen:
        assert all(map(math.isfinite, (each.logprob, each.logprob_raw, each.margin)))


@pytest.mark.contract("POL-2")
def test_the_processors_that_the_transforms_name_are_the_librarys() -> None:
    named = {kind.processor for kind in SEALED_ORDER if kind.processor is not None}
    assert len(named) == 10
    assert all(issubclass(getattr(transformers, name), transformers.LogitsProcessor) for name in named)
