"""The virtual database: the store in memory, and the way to it, on which answers are late, are lost, or never come."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

from ....fsm.errors import DatabaseLocked, DatabaseUnavailable
from ....fsm.machine.events import Event
from ....fsm.ports import (
    Admission,
    Append,
    AppendResult,
    Caution,
    Claim,
    Command,
    Durable,
    Head,
    JobRow,
    ModelRef,
    Record,
    Store,
)
from ....fsm.reading.snapshot import Keep, Snapshot
from .faults import Faults
from .scheduler import Process, Scheduler

Result = TypeVar("Result")

NAME = "simulated"
LATENCY_MS = 3
OUTAGE_MS = 900


class Outage:
    """When the database answers again."""

    def __init__(self) -> None:
        self.until_ms = 0


class VirtualBell:
    """`fsm.ports.Bell`, which sometimes fails to ring."""

    def __init__(self, rung: Callable[[], int], scheduler: Scheduler, process: Process, faults: Faults) -> None:
        self._rung, self._heard = rung, rung()
        self._scheduler, self._process, self._faults = scheduler, process, faults

    def wait(self, seconds: float) -> bool:
        deaf = self._faults.left > 0 and self._faults.strike("bell", 3.0)
        self._scheduler.wait(self._process, None if deaf else self._rings, int(seconds * 1000))
        rang, self._heard = self._rings(), self._rung()
        return rang and not deaf

    def _rings(self) -> bool:
        return self._rung() > self._heard

    def close(self) -> None: ...


class Connection:
    """One process's way to `store`; it gives the scheduler a turn at each side of every statement."""

    elsewhere = False

    def __init__(
        self,
        store: Store,
        rung: Callable[[], int],
        scheduler: Scheduler,
        process: Process,
        faults: Faults,
        outage: Outage,
    ) -> None:
        self._rung = rung
        self._store, self._scheduler, self._process = store, scheduler, process
        self._faults, self._outage = faults, outage

    def _do(self, operation: str, statement: Callable[[], Result]) -> Result:
        """Execute a statement, if it gets there, and answer, if the answer comes back."""
        scheduler, faults = self._scheduler, self._faults
        scheduler.point(self._process, f"{operation}.begin")
        if scheduler.now_ms < self._outage.until_ms:
            raise DatabaseUnavailable(NAME, "it answers nobody")
        if faults.left:
            if faults.strike("outage", 0.3):
                self._outage.until_ms = scheduler.now_ms + faults.draws.randrange(OUTAGE_MS)
                raise DatabaseUnavailable(NAME, "it has gone away")
            if faults.strike("before", 2.0):
                raise DatabaseLocked(NAME, f"{operation} waited for too long")
        result = statement()
        if faults.left and faults.strike("after", 2.0):
            raise DatabaseUnavailable(NAME, f"the connection was lost during {operation}")
        scheduler.point(self._process, f"{operation}.committed")
        return result

    def bell(self) -> VirtualBell:
        return VirtualBell(self._rung, self._scheduler, self._process, self._faults)

    def close(self) -> None: ...

    # ---- the log ----

    def admit(
        self,
        job: str,
        identity: str,
        model: str,
        prompt: int,
        event: Event,
        idempotency_key: str | None,
        retain_ms: int | None = None,
        artifact: str = "",
    ) -> Admission:
        admit = self._store.admit
        return self._do(
            "admit", lambda: admit(job, identity, model, prompt, event, idempotency_key, retain_ms, artifact)
        )

    def append(self, batch: Sequence[Append]) -> list[AppendResult]:
        return self.begin(batch)()

    def begin(self, batch: Sequence[Append]) -> Durable:
        scheduler, faults = self._scheduler, self._faults
        scheduler.point(self._process, "append.executed")
        if scheduler.now_ms < self._outage.until_ms or (faults.left and faults.strike("before")):
            raise DatabaseUnavailable(NAME, "it is not there to begin with")

        def durable() -> list[AppendResult]:
            if wait_ms := int(faults.draws.random() * LATENCY_MS):
                scheduler.wait(self._process, None, wait_ms)
            return self._do("append", lambda: self._store.append(batch))

        return durable

    def read(self, job: str, after: int = 0) -> Iterator[Record]:
        return self._do("read", lambda: iter(list(self._store.read(job, after))))

    def row(self, job: str) -> JobRow:
        return self._do("row", lambda: self._store.row(job))

    def rows(self) -> list[JobRow]:
        return self._do("rows", self._store.rows)

    def follow(self, job: str, head: Head) -> Iterator[Record]:
        return self._do("follow", lambda: iter(list(self._store.follow(job, head))))

    # ---- snapshots ----

    def keep(self, batch: Sequence[Keep]) -> None:
        self._do("snapshot", lambda: self._store.keep(batch))

    def snapshot(self, job: str) -> Snapshot | None:
        return self._do("kept", lambda: self._store.snapshot(job))

    # ---- leases ----

    def claim(
        self,
        worker: str,
        lease_ms: int,
        limit: int,
        jobs: Collection[str] | None = None,
        dead: Collection[str] = (),
        exclude: Collection[str] = (),
        caution: Caution | None = None,
        barred: Collection[ModelRef] = (),
    ) -> list[Claim]:
        claim = self._store.claim
        return self._do("claim", lambda: claim(worker, lease_ms, limit, jobs, dead, exclude, caution, barred))

    def heartbeat(self, worker: str, lease_ms: int) -> frozenset[str]:
        if self._faults.left and self._faults.strike("heartbeat", 10.0):
            raise DatabaseUnavailable(NAME, "the heartbeat was lost")
        return self._do("heartbeat", lambda: self._store.heartbeat(worker, lease_ms))

    def release(self, worker: str, jobs: Collection[str] | None = None) -> None:
        self._do("release", lambda: self._store.release(worker, jobs))

    def owners(self) -> frozenset[str]:
        return self._do("owners", self._store.owners)

    def waiting(
        self, jobs: Collection[str] | None, exclude: Collection[str], barred: Collection[ModelRef] = ()
    ) -> bool:
        return self._do("waiting", lambda: self._store.waiting(jobs, exclude, barred))

    def note_missing(self, model: ModelRef, worker: str | None) -> None:
        self._do("note", lambda: self._store.note_missing(model, worker))

    def missing(self) -> dict[ModelRef, str]:
        return self._do("missing", self._store.missing)

    # ---- the inbox ----

    def post(self, command: Command) -> bool:
        return self._do("post", lambda: self._store.post(command))

    def pending(self, jobs: Collection[str]) -> list[Command]:
        return self._do("pending", lambda: self._store.pending(jobs))

    def settle(self, command_id: str, outcome: str) -> None:
        self._do("answer", lambda: self._store.settle(command_id, outcome))

    def outcome(self, command_id: str) -> str | None:
        return self._do("outcome", lambda: self._store.outcome(command_id))
