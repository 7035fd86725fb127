"""What a grammar costs the jobs beside it: every step's mask is made on the thread that all of them wait for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, thread_time

from ...fsm.errors import GrammarTooCostly
from ...fsm.limits import MASK_MS_MAX, MASKS_OVER_MS_MAX

STEP_S, OVER_S = MASK_MS_MAX / 1000, MASKS_OVER_MS_MAX / 1000

StepStart = tuple[float, float | None]


@dataclass(slots=True)
class Spending:
    """What the masks of one parser have cost, under one tenure.

    steps    masks made;  wall_s  the time that passed meanwhile;  longest_s  at the longest of them
    over_s   the processor's time that steps have taken beyond MASK_MS_MAX each, added up; at most MASKS_OVER_MS_MAX
    wall, cpu   the clocks

    What counts is the processor's time on this thread, which is the same on a busy machine. Asking for it takes longer
    than asking what time it is, so it is asked for once a step has been long by the clock.
    """

    steps: int = 0
    wall_s: float = 0.0
    longest_s: float = 0.0
    over_s: float = 0.0
    wall: Callable[[], float] = perf_counter
    cpu: Callable[[], float] = thread_time

    def begin(self) -> StepStart:
        """Begin a step; what `end` wants to know."""
        return self.wall(), self.cpu() if self.longest_s > STEP_S else None

    def end(self, begun: StepStart) -> None:
        """End it. Errors: GrammarTooCostly where it was one too many."""
        wall, cpu = begun
        took = self.wall() - wall
        self.steps, self.wall_s = self.steps + 1, self.wall_s + took
        if took > self.longest_s:
            self.longest_s = took
        if took > STEP_S and cpu is not None:
            self.over_s += max(0.0, self.cpu() - cpu - STEP_S)
            if self.over_s > OVER_S:
                raise GrammarTooCostly(f"{self}, on this machine")

    def __str__(self) -> str:
        return (
            f"{self.steps} masks took {self.wall_s:.1f} s, the longest of them {self.longest_s * 1000:.0f} ms,"
            f" and {self.over_s:.1f} s of the processor beyond {MASK_MS_MAX} ms each"
        )
