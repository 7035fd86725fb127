"""Rows of a batch that go through together: their plans have one shape, and one number or edit a row each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from .kinds import REMOVE, Cut, Edit, TopK, TopP, Transform, TypicalP
from .plan import Family, Plan

# On a CPU a group is no larger than what stays in the cache; elsewhere launches cost more than memory does.
_SCORES_PER_GROUP_CPU = 1 << 17


@dataclass(frozen=True, slots=True)
class CutStep:
    """One cut: its kind, its numbers [rows, 1] float64, and for top-k the largest of them."""

    kind: type[Cut]
    numbers: Tensor
    most: int | None = None


@dataclass(frozen=True, slots=True)
class EditStep:
    """Edits that follow each other, each with one of its kind a row."""

    columns: tuple[tuple[Edit, ...], ...]


Step = CutStep | EditStep
Start = Literal["ranked", "relative", "given"]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows whose plans differ in numbers and token lists only.

    rows          their indexes in the batch, ascending
    where         the same as an index into a tensor of the batch
    size          of the vocabulary
    family        greedy or sample
    steps         what does something over this vocabulary, in order
    logprobs_top  best tokens to report, at most the vocabulary
    width         candidates to rank by their raw scores; 0: none
    start         what the steps begin with: the ranked candidates, where nothing before the first cut that ranks could
                  change their order; the scores relative to the best, where no step ranks or edits; else the scores
    narrowed      whether some step can remove a token
    """

    rows: tuple[int, ...]
    where: slice | Tensor
    size: int
    family: Family
    steps: tuple[Step, ...]
    logprobs_top: int
    width: int
    start: Start
    narrowed: bool

    @property
    def plain(self) -> bool:
        """Whether the best raw score decides, and nothing else is asked."""
        return self.family == "greedy" and not self.steps and not self.logprobs_top


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
    # For each transform, what it is in every row.
    columns = list(zip(*(plans[row].settled(size) for row in rows), strict=True))
    logprobs_top = min(first.logprobs_top, size)
    survivors = _survivors(columns, size)
    whole = rows == list(range(rows[0], rows[0] + len(rows)))
    return Group(
        rows=tuple(rows),
        where=slice(rows[0], rows[0] + len(rows)) if whole else torch.tensor(rows, device=device),
        size=size,
        family=first.family,
        steps=_steps(columns, device),
        logprobs_top=logprobs_top,
        width=max(logprobs_top, survivors),
        start=_start(columns, survivors),
        narrowed=any(isinstance(column[0], REMOVE) for column in columns),
    )


def _survivors(columns: Sequence[tuple[Transform, ...]], size: int) -> int:
    """How many of the best raw scores the first ranking cut looks at; 0 where it looks at others, or there is none."""
    for column in columns:
        match column[0]:
            case TopK():
                return _most(column)
            case TopP():
                return size
            case TypicalP():
                return 0
        if isinstance(column[0], get_args(Edit)):
            return 0
    return 0


def _start(columns: Sequence[tuple[Transform, ...]], survivors: int) -> Start:
    if survivors:
        return "ranked"
    ranks_or_edits = (TopK, TopP, *get_args(Edit))
    return "given" if any(isinstance(column[0], ranks_or_edits) for column in columns) else "relative"


def _steps(columns: Sequence[tuple[Transform, ...]], device: torch.device) -> tuple[Step, ...]:
    steps: list[Step] = []
    for column in columns:
        if isinstance(column[0], get_args(Edit)):
            edits = (cast(tuple[Edit, ...], column),)
            if steps and isinstance(last := steps[-1], EditStep):
                steps[-1] = EditStep(last.columns + edits)
            else:
                steps.append(EditStep(edits))
        else:
            cuts = cast(tuple[Cut, ...], column)
            numbers = torch.tensor([[part.value] for part in cuts], dtype=torch.float64, device=device)
            steps.append(CutStep(type(cuts[0]), numbers, _most(column) if isinstance(cuts[0], TopK) else None))
    return tuple(steps)


def _most(column: Sequence[Transform]) -> int:
    return max(part.value for part in column if isinstance(part, TopK))
