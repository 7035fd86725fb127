"""The people around the workers: who submits, who cancels, and who reads, each in a process of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ....fsm.errors import IdempotencyConflict, Transient
from ....fsm.reading.emission import Emission
from ...jobs.cancel import cancel
from ...jobs.submit import admit_job
from ...streams.reading import Follower
from .jobs import BY_NAME, MODEL, Shape
from .scheduler import Process, VirtualHost
from .store import Connection

if TYPE_CHECKING:
    from .world import World

START_MS, RESTART_MS, CANCEL_MS, READ_MS = 120, 300, 150, 100
NAMES = "abc"


@dataclass(eq=False, slots=True)
class Asked:
    """A submission for `model`, under a key or under one name; `job` is what runs it, once that is known."""

    shape: Shape
    key: str | None
    model: str = MODEL
    job: str | None = None
    told: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Caller:
    """A process on an errand: what it is to do, and its connection to the world."""

    world: World
    asked: Asked
    name: str
    connection: Connection
    host: VirtualHost

    def known(self) -> str:
        """Wait until somebody has submitted the job, and get its name."""
        while self.asked.job is None:
            self.host.sleep(0.01)
        return self.asked.job


class Errand:
    """What a caller does; it is repeated in a new process where the one before died or the database failed."""

    def __init__(self, world: World, name: str, asked: Asked, act: Callable[[Caller], None]) -> None:
        world.errands += 1
        self._world, self._name, self._asked, self._act = world, f"{name}-{world.errands}", asked, act
        world.outsider(self._name, self._run)

    def _run(self) -> None:
        world, tries = self._world, 0
        world.scheduler.wait(world.outside, None, world.draws.randrange(START_MS))
        while not self._done(Process(f"{self._name}.{tries}")):
            tries += 1
            world.scheduler.wait(world.outside, None, world.draws.randrange(RESTART_MS))
        world.errands -= 1

    def _done(self, process: Process) -> bool:
        world = self._world
        host = VirtualHost(world.scheduler, process)
        caller = Caller(world, self._asked, process.name, world.connection(process), host)
        world.alive.add(process.name)
        task = world.scheduler.start(process, "main", partial(self._act, caller))
        world.scheduler.wait(world.outside, lambda: task.done, None)
        world.alive.discard(process.name)
        if process.dead or isinstance(process.failure, Transient):
            return False
        if process.failure is not None:
            world.found.append(f"{process.name} ended with {process.failure!r}")
        return True


def submit(caller: Caller) -> None:
    """Submit, under a new name each time where there is a key; then another request under that key."""
    world, asked, connection = caller.world, caller.asked, caller.connection
    name = NAMES[min(len(asked.told), len(NAMES) - 1)] if asked.key else NAMES[0]
    job = f"{asked.shape.name}-{name}"
    asked.told.add(job)
    submitted = admit_job(connection, asked.model, job, asked.shape.envelope, asked.key)
    if asked.job not in (None, submitted.job):
        world.found.append(f"{asked.key}: one submission is two jobs, {asked.job} and {submitted.job}")
    asked.job = submitted.job
    if asked.key is None or world.draws.random() < 0.7:
        return
    other = BY_NAME["nothing" if asked.shape.name != "nothing" else "greedy"]
    try:
        admit_job(connection, MODEL, "other", other.envelope, asked.key)
        world.found.append(f"{asked.key}: another request was attached to it")
    except IdempotencyConflict:
        pass


def end(caller: Caller) -> None:
    """Ask for the job's end, and wait for it for a while."""
    world, job = caller.world, caller.known()
    caller.host.sleep(world.draws.randrange(CANCEL_MS) / 1000)
    timeout_s = world.draws.choice((0.0, 0.2, 60.0))
    told = cancel(caller.connection, job, caller.name, timeout_s, world.dead, caller.host)
    if told is not None:
        world.told.setdefault(job, []).append(told.outcome)


def follow(caller: Caller) -> None:
    """Read the log as it grows."""
    follower, read = Follower(caller.connection, caller.known()), list[Emission]()
    while not follower.ended:
        read += follower.poll()
        caller.host.sleep(caller.world.draws.randrange(READ_MS) / 1000)
    caller.world.followed[caller.known()] = read
