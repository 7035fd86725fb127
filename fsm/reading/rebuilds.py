"""Where a run lost its lanes, and which calls rebuilt them: a second run must repeat these to get the same bits.

What a row is depends on the call that computed it. So a lane is known by its tokens and one number: how many of them,
from the first on, one call processed; each token after them had a call of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..machine.events import CallCompleted, Event, LanesRebuilt
from ..machine.thinned import ThinnedCall


class Rebuild(NamedTuple):
    """A place where a job's rows were replaced by ones from calls of other shapes.

    processed   tokens that the lanes held there, before and after
    scored      whether the score row of the last of them was not consumed yet, and so was made again with it
    prefilled   how many of them one call processed; see `LanesRebuilt`
    """

    processed: int
    scored: bool
    prefilled: int


def rebuilds(events: Iterable[Event]) -> list[Rebuild]:
    """The rebuilds of a whole log, in order, without those that gave the same rows again."""
    found: list[Rebuild] = []
    processed = prefilled = 0
    for event in events:
        if isinstance(event, CallCompleted | ThinnedCall):
            processed = event.lanes
            prefilled = prefilled or processed
        elif isinstance(event, LanesRebuilt):
            if event.prefilled != prefilled:
                found.append(Rebuild(processed, bool(event.scores), event.prefilled))
            prefilled = event.prefilled
    return found
