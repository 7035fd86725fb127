"""Where a run lost its lanes, and of which calls they were made again: what a second run has to repeat for its bits.

What a row is depends on the call that computed it. So a lane is known by its tokens and one number: how many of them,
from the first on, one call processed; each token after them had a call of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..machine.events import CallCompleted, Event, LanesRebuilt
from ..machine.thinned import ThinnedCall


class Rebuild(NamedTuple):
    """A place at which lanes changed to rows that calls of other shapes had made.

    processed   tokens that the lanes held there, before and after
    scored      whether the score row of the last of them was not consumed yet, and so was made again with it
    prefilled   how many of them one call processed; see `LanesRebuilt`
    """

    processed: int
    scored: bool
    prefilled: int


def rebuilds(events: Iterable[Event]) -> list[Rebuild]:
    """Those of a whole log, in order. A rebuild that came to the same rows again is none of them."""
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
