"""Running schedules by their seeds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

from .verdict import verdict
from .world import World


@dataclass(frozen=True, slots=True)
class Schedule:
    """What came of one seed: what is wrong, what struck, how long it took, and a digest of all that happened."""

    seed: int
    found: tuple[str, ...]
    happened: Counter[str]
    virtual_ms: int
    digest: str

    @property
    def again(self) -> str:
        return f"decodelog torture --simulate 1 --seed {self.seed}"


@dataclass(slots=True)
class Report:
    """Many schedules: those in which something is wrong, what struck in all, and the digest of their digests."""

    schedules: int = 0
    seconds: float = 0.0
    happened: Counter[str] = field(default_factory=Counter)
    failures: list[Schedule] = field(default_factory=list)
    digest: str = ""


def schedule(seed: int, make: Callable[[int], World] = World) -> Schedule:
    """Run one; equal seeds give equal digests, in any process."""
    world = make(seed)
    world.run()
    found = verdict(world)
    lines = [repr(world.scheduler.trace)]
    for row in world.store.rows():
        lines += [f"{row.job} {row.head} {row.finish}"]
    digest = sha256("\n".join(lines).encode()).hexdigest()
    return Schedule(seed, tuple(found), world.faults.happened, world.scheduler.now_ms, digest)


def simulate(count: int, seed: int, hear: Callable[[Schedule], None] = lambda schedule: None) -> Report:
    """Run `count` schedules from `seed` on; `hear` is told of each that fails."""
    report, begin = Report(), time.monotonic()
    for number in range(seed, seed + count):
        done = schedule(number)
        report.schedules += 1
        report.happened += done.happened
        report.digest = sha256(f"{report.digest} {done.digest}".encode()).hexdigest()
        if done.found:
            report.failures.append(done)
            hear(done)
    report.seconds = time.monotonic() - begin
    return report
