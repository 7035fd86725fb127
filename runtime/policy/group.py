"""Rows of a batch that go through together: their plans have one shape, and one number or edit a row each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from .kinds import Cut, Edit, Kind
from .plan import Family, Plan
from .scores import Logits

# On a CPU a group is no larger than what stays in the cache; elsewhere launches cost more than memory does.
_SCORES_PER_GROUP_CPU = 1 << 17


@dataclass(frozen=True, slots=True)
class CutStep:
    """One cut: its kernel, its numbers, [rows, 1] float64 each, and the noise that it draws (see `Kind`)."""

    kernel: Callable[..., Logits]
    numbers: tuple[Tensor, ...]
    domain: int


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
        narrowed=any(column[0].removes for column in columns),
    )


def _survivors(columns: Sequence[tuple[Kind, ...]], size: int) -> int:
    """How many of the best raw scores the first ranking cut looks at; 0 where it looks at others, or there is none."""
    for column in columns:
        first = column[0]
        if not isinstance(first, Cut) or not first.keeps_best:
            return 0
        if first.ranks:
            return first.most(column) or size
    return 0


def _start(columns: Sequence[tuple[Kind, ...]], survivors: int) -> Start:
    if survivors:
        return "ranked"
    given = any(not isinstance(column[0], Cut) or column[0].ranks for column in columns)
    return "given" if given else "relative"


def _steps(columns: Sequence[tuple[Kind, ...]], device: torch.device) -> tuple[Step, ...]:
    steps: list[Step] = []
    for column in columns:
        edits = tuple(each for each in column if isinstance(each, Edit))
        cuts = tuple(each for each in column if isinstance(each, Cut))
        if cuts:
            table = torch.tensor([each.numbers for each in cuts], dtype=torch.float64, device=device)
            steps.append(
                CutStep(
                    cuts[0].kernel(cuts), tuple(table[:, at : at + 1] for at in range(table.shape[1])), cuts[0].domain
                )
            )
        elif steps and isinstance(last := steps[-1], EditStep):
            steps[-1] = EditStep((*last.columns, edits))
        else:
            steps.append(EditStep((edits,)))
    return tuple(steps)
