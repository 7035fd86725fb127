"""How things are measured here: sides of a comparison take turns, and the median of their turns counts."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Protocol

Figures = dict[str, float]


class Measure(Protocol):
    """One family of figures. `rounds` is how often each side has its turn; `note` hears what is going on."""

    def __call__(self, rounds: int, note: Callable[[str], None]) -> Figures: ...


def take_turns(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Run every side once a round, in an order that moves on by one each round; the figures of each side by round.

    Garbage of one side is collected before the next begins, and what then is left is set aside, as a process that runs
    jobs does with its model: no side pays for what others have loaded.
    """
    names = list(sides)
    figures: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        start = turn % len(names)
        for name in [*names[start:], *names[:start]]:
            gc.collect()
            gc.freeze()
            figures[name].append(sides[name]())
    return figures


def medians(figures: Mapping[str, Sequence[float]]) -> Figures:
    return {name: median(values) for name, values in figures.items()}


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the rounds' ratios: both sides of each were measured one after the other."""
    return median(a / b for a, b in zip(above, below, strict=True))
