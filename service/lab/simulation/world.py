"""One simulated world: workers, callers and readers around one database, and the faults that strike them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from ....fsm.errors import LostTenure, Problem, Transient
from ....fsm.machine.state import State
from ....fsm.ports import Command, ModelRef
from ....fsm.reading.emission import Emission
from ....runtime.loop.context import Context
from ....runtime.loop.pace import SNAPSHOT_EVENTS, Pace
from ....runtime.loop.worker import Worker
from ....store.memory.log import MemoryStore
from ...jobs.compose import check_job as admissible
from .callers import RESTART_MS, START_MS, Asked, Errand, end, follow, submit
from .device import Device, DeviceFaults
from .faults import Faults
from .jobs import MODEL, OTHER_MODEL, SHAPES, model
from .scheduler import Process, Scheduler, Stuck, VirtualHost
from .store import Connection, Outage

LEASE_MS = 600
EPOCH_MS = 1_700_000_000_000
JUMP_MS = 3 * LEASE_MS
TURNS_MAX = 4_000
DEADLY = 0.05


class Posted(NamedTuple):
    """A command, and how far its job was when it became durable."""

    job: str
    output: int


class VirtualStore(MemoryStore):
    """The database itself, which nothing happens to; it remembers what commands found."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(clock)
        self.posted: dict[str, Posted] = {}

    def post(self, command: Command) -> bool:
        new = super().post(command)
        if new:
            self.posted[command.command_id] = Posted(command.job, self.row(command.job).output)
        return new


class World:
    """Everything of one schedule. What must never be is said in `found`, in the order in which it was seen."""

    def __init__(self, seed: int, store: Callable[[Callable[[], int]], VirtualStore] = VirtualStore) -> None:
        draws = self.draws = Random(seed)
        self.faults = Faults(draws)
        self.scheduler = Scheduler(draws, draws.choice((0.02, 0.1, 0.4)), TURNS_MAX)
        self.scheduler.at = self._struck
        self.store = store(self._database_ms)
        self.device_faults = DeviceFaults()
        self.found: list[str] = []
        self.shown: dict[tuple[str, str], list[Emission]] = {}
        self.followed: dict[str, list[Emission]] = {}
        self.unread: set[str] = set()
        self.told: dict[str, list[str]] = {}
        self.latest_ms = 0
        self.asked = [
            Asked(shape, f"key {shape.name}" if draws.random() < 0.7 else None, draws.choice((MODEL, OTHER_MODEL)))
            for shape in draws.sample(SHAPES, draws.randint(1, 4))
        ]
        if draws.random() < DEADLY:
            self.device_faults.deadly = draws.choice(self.asked).shape.name
        self._outage = Outage()
        self._skew_ms: dict[str, int] = {}
        self._sees_deaths = draws.random() < 0.5
        self._pace = Pace(
            LEASE_MS,
            claim_ms=40,
            claim_ms_max=160,
            claims_max=draws.choice((1, 8)),
            stalled_ms=20,
            inbox_ms=20,
            idle_ms=40,
            lanes_max=draws.choice((1, 2, 16)),
            beside=draws.choice((True, False, None)),
            snapshot_events=draws.choice((6, SNAPSHOT_EVENTS)),
        )
        self._room, self._candid = draws.choice((None, None, 1, 2)), draws.random() < 0.5
        self._loads_ms = draws.choice((0, 0, 30, LEASE_MS))
        self._form = draws.choice(("prefill", "reexecute"))
        self._workers: dict[str, tuple[Process, Worker]] = {}
        self.alive: set[str] = set()
        self.errands = 0
        self._closing = False
        self.outside = Process("outside")

    # ---- the run ----

    def run(self) -> None:
        """Let it all happen, to the end. Whatever does not end by itself is a fault."""
        for number in range(self.draws.randint(2, 3)):
            self.outsider(f"seat-{number}", partial(self._seat, number))
        for asked in self.asked:
            self._send(asked)
        try:
            self.scheduler.run_until(self._ended)
            self._closing = True
            for _, worker in self._workers.values():
                worker.stop()
            self.scheduler.run_until(lambda: not self._workers or bool(self.found))
        except Stuck as stuck:
            self.found.append(f"it does not end: {stuck}")
        finally:
            self.scheduler.end()

    def _send(self, asked: Asked) -> None:
        """The callers and readers of one job."""
        draws = self.draws
        for _ in range(1 if asked.key is None else draws.randint(1, 2)):
            Errand(self, "submitter", asked, submit)
        for _ in range(draws.randint(1, 2) if asked.shape.cancelled else int(draws.random() < 0.2)):
            Errand(self, "canceller", asked, end)
        if draws.random() < 0.3:
            Errand(self, "reader", asked, follow)

    def _ended(self) -> bool:
        if self.found:
            return True  # what follows on a fault is of no interest
        if self.errands:
            return False
        return all(asked.job is not None and self.store.row(asked.job).finish is not None for asked in self.asked)

    def outsider(self, name: str, run: Callable[[], None]) -> None:
        """A task to which nothing happens."""
        self.scheduler.start(self.outside, name, run)

    # ---- clocks and faults ----

    def _database_ms(self) -> int:
        return EPOCH_MS + self.scheduler.now_ms + self._skew_ms.get("", 0)

    def _wall_ms(self, process: Process) -> int:
        now_ms = EPOCH_MS + self.scheduler.now_ms + self._skew_ms.get(process.name, 0)
        self.latest_ms = max(self.latest_ms, now_ms)
        return now_ms

    def _struck(self, process: Process, point: str) -> None:
        """At every point of every process: perhaps something happens to it here."""
        faults = self.faults
        if not faults.left or process is self.outside:
            return
        kind = faults.strike_process()
        if not kind:
            return
        self.scheduler.trace.append((self.scheduler.now_ms, process.name, f"{kind} at {point}"))
        if kind == "kill":
            self.scheduler.kill(process)
        elif kind == "pause":
            process.resumes_ms = self.scheduler.now_ms + self.draws.randrange(2 * LEASE_MS)
            self.scheduler.wait(process, None, 0)
        elif kind == "stop" and process.name in self._workers:
            self._workers[process.name][1].stop()
        elif kind == "clock":
            whose = self.draws.choice(("", process.name))
            self._skew_ms[whose] = self._skew_ms.get(whose, 0) + self.draws.randint(-JUMP_MS, JUMP_MS)

    def dead(self, owners: Collection[str]) -> set[str]:
        """Who is known to be gone; now and then a mistake."""
        gone = {owner for owner in owners if owner not in self.alive} if self._sees_deaths else set()
        if owners and self.faults.left and self.faults.strike("mistaken", 3.0):
            gone.add(min(owners))
        return gone

    def connection(self, process: Process) -> Connection:
        return Connection(self.store, lambda: self.store.rung, self.scheduler, process, self.faults, self._outage)

    # ---- workers ----

    def _seat(self, number: int) -> None:
        """One worker after the other: where one has ended, the next begins after a while."""
        self.scheduler.wait(self.outside, None, self.draws.randrange(START_MS))
        count = 0
        while not self._closing:
            process = Process(f"worker-{number}.{count}")
            count += 1
            self._work(process)
            self.scheduler.wait(self.outside, lambda: self._closing, self.draws.randrange(RESTART_MS))

    def _work(self, process: Process) -> None:
        devices: dict[str, Device] = {}
        worker = self._worker(process, devices)
        self._workers[process.name] = process, worker
        self.alive.add(process.name)
        task = self.scheduler.start(process, "main", worker.run)
        self.scheduler.wait(self.outside, lambda: task.done, None)
        killed, process.dead = process.dead, True
        self.alive.discard(process.name)
        del self._workers[process.name]
        for device in devices.values():
            device.lose()
        if killed:
            return
        if process.failure is None:
            if process.name in self.store.owners():
                self.found.append(f"{process.name} ended in order and kept a job")
        elif not isinstance(process.failure, Transient):
            self.found.append(f"{process.name} ended with {process.failure!r}")

    def _worker(self, process: Process, devices: dict[str, Device]) -> Worker:
        def load(wanted: ModelRef) -> Device:
            self.scheduler.point(process, "model.load")
            if self._loads_ms:
                self.scheduler.wait(process, None, self.draws.randrange(self._loads_ms))
            device = Device(model(), self.scheduler, process, self.faults, self.device_faults, self._room, self._candid)
            return devices.setdefault(wanted.name, device)

        def read(job: str, emissions: Sequence[Emission], state: State) -> None:
            self._read(process, job, emissions)

        return Worker(
            process.name,
            self.connection(process),
            load,
            admissible,
            lambda: self._wall_ms(process),
            Context(
                sink=read,
                notice=self._noticed,
                dead=self.dead,
                form=self._form,
                pace=self._pace,
                at=lambda point: self.scheduler.point(process, point),
                host=VirtualHost(self.scheduler, process),
            ),
        )

    def _noticed(self, job: str, problem: Problem) -> None:
        if not isinstance(problem, LostTenure | Transient):
            self.found.append(f"{job} was refused by a worker: {problem!r}")

    def _read(self, process: Process, job: str, emissions: Sequence[Emission]) -> None:
        """A reader in the worker's process is shown text."""
        durable = self.store.row(job).head.sequence
        if emissions[-1].sequence > durable:
            self.found.append(f"{job}: event {emissions[-1].sequence} was shown, and the log ends at {durable}")
        self.shown.setdefault((process.name, job), []).extend(emissions)
        if self.faults.left and self.faults.strike("reader", 10.0):
            self.unread.add(job)
            raise RuntimeError("the reader has gone away")
