"""A siege: several workers share jobs while their database is taken from them, and a supervisor restarts them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from ....fsm.errors import DatabaseExhausted, DatabaseFull, DatabaseLocked, DatabaseUnavailable, Problem
from ....fsm.evidence.rng import PHILOX, unit_draw
from ....fsm.failpoints import Reached, unheard
from ....fsm.machine.state import State
from ....fsm.machine.states import Status
from ....fsm.reading.emission import Emission
from ....runtime.loop.pace import Pace
from ....store.engine import open_store
from ...database import now_ms
from ...jobs.compose import new_worker
from .campaign import Campaign, Kill, Rehearsal, Result
from .child import Body, Ended, Mark, Place, Running, start
from .scenes import HELD, SAMPLED, Scene, World
from .signals import held_back
from .verdict import Scan, after_end, after_kill

WORKERS = 2
JOBS, TOKENS = 6, 50
READING_S = 0.004  # of each token
PATIENCE_MS, BUSY_MS, LEASE_MS = 300, 80, 400
POLL_S = 0.01
RESTART_S = 0.2  # as a supervisor waits
BEGINS_MAX = 100
LATE_S = 60.0
AWAY = {error.__name__ for error in (DatabaseExhausted, DatabaseFull, DatabaseLocked, DatabaseUnavailable)}
"""What a worker may end with, to be started again."""

LONG: dict[str, Any] = {**SAMPLED, "max_new_tokens": TOKENS}


def share(world: World) -> None:
    """Run jobs to their ends beside other workers, as `decodelog worker --drain` does."""

    def read(job: str, emissions: Sequence[Emission], state: State) -> None:
        time.sleep(world.scene.reading_s)
        world.mark(job, emissions[-1].sequence)

    pace = Pace(lease_ms=LEASE_MS, claim_ms=20, idle_ms=10, lanes_max=JOBS // WORKERS, patience_ms=PATIENCE_MS)
    new_worker(world.store, world.models, read, pace=pace, at=world.at).run(world.scene.jobs, drain=True)


DRAFTS: tuple[dict[str, Any], ...] = (*({**LONG, "seed": seed} for seed in range(JOBS - 1)), HELD)
LOAD = Scene(
    "load", "several workers share six jobs", share, DRAFTS, Status.ADMITTED, reading_s=READING_S, tenures=None
)

Disturb = Callable[["Siege"], Iterator[float]]
"""Causes an outage step by step; it yields how many seconds are to pass before the next step, and may ask the siege."""


class Siege:
    """One load of jobs, the workers that run it, and the supervisor that restarts them.

    ended   how often a worker has ended with which error
    draw    a number in [0, 1) for each call; the seed decides
    hampered   run in each worker before it opens its database
    """

    def __init__(self, campaign: Campaign, rehearsed: Rehearsal, seed: int) -> None:
        self.campaign = campaign
        self.ended: Counter[str] = Counter()
        self.hampered: Callable[[], None] = lambda: None
        self.faults: list[str] = []
        self._rehearsed = rehearsed
        self._seed = seed
        self._draws = 0
        self._begun = 0
        self._told: dict[str, int] = {}
        self._workers: list[Running] = []
        self._others: list[Running] = []
        self._states: set[str] = set()
        self._last: Ended | None = None

    def draw(self) -> float:
        self._draws += 1
        return unit_draw(PHILOX, self._seed, 0, 0, self._draws)

    @property
    def over(self) -> bool:
        """Whether every worker has found that no job is left."""
        return not self._workers

    def run(self, name: str, disturb: Disturb, expected: Sequence[type[Problem]]) -> Result:
        """Lay the jobs out, have the workers run them while `disturb` causes outages, and check what became of them.

        An outage must have reached a worker: where errors are `expected`, one of them must have ended one.
        """
        campaign = self.campaign
        campaign.lay(LOAD)
        try:
            self._start()
            for pause_s in disturb(self):
                self._pass(time.monotonic() + pause_s)
            late = time.monotonic() + LATE_S
            while not self.over and time.monotonic() < late:
                self._pass(time.monotonic() + POLL_S)
            if not self.over:
                self.faults.append(f"a worker is still at it {LATE_S} s after the outage was over")
        except Problem as problem:
            self.faults.append(f"the logs could not be looked at: {problem}")
        finally:
            self._kill()
        campaign.ground.wait_idle()
        found = campaign.scan(LOAD)
        if self._last is not None:
            self.faults += after_end(LOAD, self._rehearsed.before, found, self._rehearsed.whole, self._last)
        names = [error.__name__ for error in expected]
        if names and not any(self.ended[each] for each in names):
            self.faults.append(f"no worker has ended with {' or '.join(names)}")
        if self._states <= {Status.CLOSED.value}:
            self.faults.append("the jobs were over before the outage began")
        state = "+".join(sorted(self._states)) or found.state
        return Result(Kill(campaign.ground.name, LOAD.name, Place(name, self._seed)), state, self.faults)

    def look(self) -> Scan:
        """Read the logs as they are at this moment, and hold them to the undisturbed ones and to what was shown."""
        for worker in self._workers:
            self._hear(worker)
        told = dict(self._told)
        found = self.campaign.scan(LOAD)
        ended = Ended(0, 0, [], told, "", 0.0)
        self.faults += after_kill(LOAD, ended, self._rehearsed.before, found, self._rehearsed.whole)
        self._states |= set(found.state.split("+"))
        return found

    def restart(self) -> None:
        """Kill the workers, and start others."""
        self._kill()
        self._start()

    def beside(self, body: Body, name: str) -> Running:
        """Start another process, which is no worker; it ends with the siege, where it has not before."""
        with held_back():
            self._others.append(start(body, self.campaign.folder, name=name))
        return self._others[-1]

    def _start(self) -> None:
        for _ in range(WORKERS):
            with held_back():
                self._workers.append(self._begin())

    def _pass(self, until: float) -> None:
        """Let time pass, and restart workers that ended because their database was away."""
        while True:
            for index, worker in enumerate(self._workers):
                if worker.ended():
                    with held_back():
                        self._workers[index : index + 1] = self._again(worker)
                    break
            left_s = until - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, POLL_S))

    def _kill(self) -> None:
        with held_back():
            for worker in self._workers:
                worker.end()
                self._hear(worker)
            for other in self._others:
                other.end()
            self._workers, self._others = [], []

    def _again(self, worker: Running) -> list[Running]:
        self._last = ended = worker.wait()
        self._hear(worker)
        if ended.well:
            return []
        self.ended[ended.error] += 1
        if ended.error not in AWAY:
            self.faults.append(f"a worker ended with {ended.code or -ended.signal}: {ended.last}")
            return []
        if self._begun >= BEGINS_MAX:
            self.faults.append(f"workers were started {self._begun} times, and end with {ended.last}")
            return []
        return [self._begin()]

    def _begin(self) -> Running:
        self._begun += 1
        return start(
            partial(self._work, self._begun > WORKERS, self.hampered), self.campaign.folder, name=f"{self._begun}-"
        )

    def _work(self, restarted: bool, hamper: Callable[[], None], at: Reached, mark: Mark) -> None:
        if restarted:
            time.sleep(RESTART_S)
        hamper()
        with closing(open_store(self.campaign.ground.url, clock=now_ms, busy_timeout_ms=BUSY_MS)) as store:
            LOAD.act(self.campaign.world(store, LOAD, unheard, mark))

    def _hear(self, worker: Running) -> None:
        for job, sequence in worker.told.items():
            self._told[job] = max(sequence, self._told.get(job, 0))
