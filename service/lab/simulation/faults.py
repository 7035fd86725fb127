"""What goes wrong in a simulation, and how often: drawn from the seed like everything else, and bounded."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Final

KINDS: Final = {
    "kill": "a process dies where it stands",
    "pause": "a process is stopped, perhaps for longer than its lease, and goes on as if nothing had happened",
    "stop": "a worker is told to end, and ends after the turn at hand",
    "clock": "the database's clock or a worker's jumps, forward or backward",
    "before": "a statement fails, and has changed nothing",
    "after": "a statement fails for its caller, and is done all the same",
    "outage": "the database answers nobody for a while",
    "heartbeat": "a heartbeat fails",
    "bell": "a waiter is not woken",
    "mistaken": "a live worker is taken for dead",
    "call": "a model call raises, before or after it has computed its rows",
    "scores": "a score row is not finite",
    "reader": "the reader of a job raises",
}
RATES: Final = (0.002, 0.01, 0.03)
COUNT_MAX: Final = 10


class Faults:
    """The faults of one schedule. Some kinds do not occur in it at all, and after `left` faults there are no more.

    happened   how often each kind struck
    """

    def __init__(self, draws: Random) -> None:
        self.draws = draws
        self.happened: Counter[str] = Counter()
        self.left = draws.randint(0, COUNT_MAX)
        self._kinds = frozenset(kind for kind in KINDS if draws.random() < 0.5)
        self._rate = draws.choice(RATES)

    def strike(self, kind: str, weight: float = 1.0) -> bool:
        """Whether a fault of this kind happens here and now; `weight` is how much more likely than ordinarily."""
        if self.draws.random() >= self._rate * weight or kind not in self._kinds or not self.left:
            return False
        self.left -= 1
        self.happened[kind] += 1
        return True

    def strike_process(self) -> str:
        """The kind of fault that happens to the process that is here and now, if any; else empty."""
        if self.draws.random() >= self._rate:
            return ""
        kind = self.draws.choice(("kill", "pause", "stop", "clock"))
        return kind if self.strike(kind, 1 / self._rate) else ""
