"""Rows of a batch that go through together: their plans have one shape, and one number a row for each transform."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from .plan import Family, Plan, Temperature, TopK, Transform

# On a CPU a group is no larger than what stays in the cache; elsewhere launches cost more than memory does.
_SCORES_PER_GROUP_CPU = 1 << 17


@dataclass(frozen=True, slots=True)
class Group:
    """Rows whose plans differ in numbers only.

    rows          their indexes in the batch, ascending
    where         the same as an index into a tensor of the batch
    size          of the vocabulary
    family        greedy or sample
    transforms    what does something over this vocabulary, in order, each with its numbers [rows, 1] float64
    logprobs_top  best tokens to report, at most the vocabulary
    width         candidates to rank before the transforms; 0: none
    narrowed      whether the transforms leave nothing beyond those candidates
    """

    rows: tuple[int, ...]
    where: slice | Tensor
    size: int
    family: Family
    transforms: tuple[tuple[type[Transform], Tensor], ...]
    logprobs_top: int
    width: int
    narrowed: bool

    @property
    def plain(self) -> bool:
        """Whether the best raw score decides, and nothing else is asked."""
        return self.family == "greedy" and not self.transforms and not self.logprobs_top


@lru_cache(maxsize=256)
def group_rows(plans: tuple[Plan, ...], size: int, device: torch.device) -> tuple[Group, ...]:
    """Sort the rows of a batch by the shape of their plans over a vocabulary of `size`.

    Kept, since the same batch of plans comes again in most steps.
    """
    rows_by_shape = defaultdict(list)
    for row, plan in enumerate(plans):
        kinds = tuple(type(transform) for transform in plan.settled(size))
        rows_by_shape[plan.family, kinds, min(plan.logprobs_top, size)].append(row)
    step = max(1, _SCORES_PER_GROUP_CPU // size if device.type == "cpu" else len(plans))
    return tuple(
        _group(rows[start : start + step], plans, size, device)
        for rows in rows_by_shape.values()
        for start in range(0, len(rows), step)
    )


def _group(rows: list[int], plans: tuple[Plan, ...], size: int, device: torch.device) -> Group:
    first = plans[rows[0]]
    settled = [plans[row].settled(size) for row in rows]
    # For each transform, what it is in every row.
    columns = list(zip(*settled, strict=True))
    logprobs_top = min(first.logprobs_top, size)
    cuts = [column for column in columns if not isinstance(column[0], Temperature)]
    # Where top-k cuts first, only the largest k of the best can survive it.
    survivors = max((part.value for part in cuts[0] if isinstance(part, TopK)), default=size) if cuts else 0
    whole = rows == list(range(rows[0], rows[0] + len(rows)))
    return Group(
        rows=tuple(rows),
        where=slice(rows[0], rows[0] + len(rows)) if whole else torch.tensor(rows, device=device),
        size=size,
        family=first.family,
        transforms=tuple(
            (type(column[0]), torch.tensor([[part.value] for part in column], dtype=torch.float64, device=device))
            for column in columns
        ),
        logprobs_top=logprobs_top,
        width=max(logprobs_top, survivors),
        narrowed=bool(cuts),
    )
