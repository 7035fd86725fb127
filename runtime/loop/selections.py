"""The score rows of one turn's calls, decided together: each job's selection, or what was raised over its row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ...fsm.evidence.rng import unit_draws
from ..faults import Raised, is_fault
from ..policy.decide import Decision, decide
from ..policy.kinds import Mask
from ..policy.scores import Logits, VocabularyAxis
from .batcher import Called
from .job import Job


def selections(rows: Sequence[Called], axis: VocabularyAxis) -> Sequence[Decision | Raised]:
    """Decide all rows at once; where that raises, row by row, to find whose fault it is: a decision moves nothing.

    A row is decided the same way alone and in any batch.
    """
    if not rows:
        return []
    try:
        return decide(
            Logits(_rows(rows), axis),
            [result.job.plan for result in rows],
            _draws(rows),
            axis,
            [result.job.history for result in rows],
            _masks([result.job for result in rows]),
            _noises(rows),
        )
    except BaseException as raised:
        if not is_fault(raised):
            raise
        if len(rows) == 1:
            return [Raised(raised)]
    return [selection for row in rows for selection in selections([row], axis)]


def _rows(results: Sequence[Called]) -> Tensor:
    """[rows, V]: the batch itself where every row is decided on, else a gather."""
    batch = results[0].batch
    if batch is None:
        raise RuntimeError("a decision needs a score row")
    if len(results) == batch.shape[0]:
        return batch
    return batch[[result.row for result in results]]


def _masks(jobs: Sequence[Job]) -> list[Mask | None] | None:
    """The tokens that each job's grammar allows; None for a job that has none, or for all of them."""
    if all(job.parser is None for job in jobs):
        return None
    return [None if job.parser is None else job.parser.allowed() for job in jobs]


def _draws(results: Sequence[Called]) -> list[float | None]:
    """Unit draws for the stochastic rows, addressed by (seed, choice, branch, step); None for the others."""
    stochastic = [index for index, result in enumerate(results) if result.job.plan.stochastic]
    units = _units(results, stochastic, 0)
    return [units.get(index) for index in range(len(results))]


def _noises(results: Sequence[Called]) -> list[dict[int, float] | None] | None:
    """What the transforms of each row draw, by their domains; None for a row whose transforms draw nothing, or all."""
    plans = [result.job.plan for result in results]
    if not (domains := frozenset[int]().union(*(plan.domains for plan in plans))):
        return None
    noises = [dict[int, float]() if plan.domains else None for plan in plans]
    for domain in domains:
        drawing = [index for index, plan in enumerate(plans) if domain in plan.domains]
        for index, unit in _units(results, drawing, domain).items():
            if (noise := noises[index]) is not None:
                noise[domain] = unit
    return noises


def _units(results: Sequence[Called], indexes: Sequence[int], domain: int) -> dict[int, float]:
    """Unit draws of some rows, by their indexes."""
    draws: dict[int, float] = {}
    by_algorithm: dict[str, list[int]] = defaultdict(list)
    for index in indexes:
        by_algorithm[results[index].job.state.spec.envelope.rng.algorithm].append(index)
    for algorithm, alike in by_algorithm.items():
        planes = [results[index].job.state.spec.envelope.rng for index in alike]
        steps = [results[index].job.state.frontier.output for index in alike]
        units = unit_draws(
            algorithm,
            np.array([plane.seed for plane in planes]),
            np.array([plane.choice for plane in planes]),
            0,
            np.array(steps),
            domain,
        )
        draws |= zip(alike, units.tolist(), strict=True)
    return draws
