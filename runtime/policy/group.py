"""Rows of a batch that can be worked on together: their plans have one shape, and one parameter a row."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .plan import Family, Plan, Temperature, TopK, Transform


@dataclass(frozen=True, slots=True)
class Group:
    """Rows whose plans differ in numbers only.

    rows          their indexes in the batch, ascending
    index         the same as a tensor; None: the whole batch
    size          of the vocabulary
    family        greedy or sample
    kinds         the transforms that do something over this vocabulary, in order
    parameters    [transforms, rows, 1] float64
    logprobs_top  best tokens to report, at most the vocabulary
    width         candidates to rank before the transforms; 0: none
    narrowed      whether the transforms leave nothing beyond those candidates
    """

    rows: tuple[int, ...]
    index: Tensor | None
    size: int
    family: Family
    kinds: tuple[type[Transform], ...]
    parameters: Tensor
    logprobs_top: int
    width: int
    narrowed: bool


@lru_cache(maxsize=256)
def group_rows(plans: tuple[Plan, ...], size: int, device: torch.device) -> tuple[Group, ...]:
    """Sort the rows of a batch by the shape of their plans over a vocabulary of `size`.

    Kept, since the same batch of plans comes again in most steps.
    """
    rows_by_shape = defaultdict(list)
    for row, plan in enumerate(plans):
        kinds = tuple(type(transform) for transform in plan.settled(size))
        rows_by_shape[plan.family, kinds, min(plan.logprobs_top, size)].append(row)
    return tuple(
        Group(
            rows=tuple(rows),
            index=None if len(rows) == len(plans) else torch.tensor(rows, device=device),
            size=size,
            family=family,
            kinds=kinds,
            parameters=_parameters([plans[row] for row in rows], size).to(device),
            logprobs_top=logprobs_top,
            width=max(logprobs_top, _width([plans[row] for row in rows], kinds, size)),
            narrowed=any(kind is not Temperature for kind in kinds),
        )
        for (family, kinds, logprobs_top), rows in rows_by_shape.items()
    )


def _parameters(plans: list[Plan], size: int) -> Tensor:
    numbers = [[transform.value for transform in plan.settled(size)] for plan in plans]
    return torch.tensor(numbers, dtype=torch.float64).T.unsqueeze(-1).contiguous()


def _width(plans: list[Plan], kinds: tuple[type[Transform], ...], size: int) -> int:
    """How many of the best candidates can survive: the largest k where top-k cuts first, else all."""
    cuts = [index for index, kind in enumerate(kinds) if kind is not Temperature]
    if not cuts:
        return 0
    if kinds[cuts[0]] is not TopK:
        return size
    return max(int(plan.settled(size)[cuts[0]].value) for plan in plans)
