"""The virtual device: the scripted model with calls that take time, fail, or give rows that are not finite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nan

from ....fsm.errors import NoFreeSlot, PreparedCacheChanged
from ....runtime.families.session import Decode, Lane, Prefill
from ....runtime.model.port import Model, ModelSession
from .faults import Faults
from .scheduler import Process, Scheduler

CALL_MS_MIN, CALL_MS_MAX = 2, 8


@dataclass(slots=True)
class DeviceFaults:
    """What the device does to jobs.

    failed    how many of a job's calls failed
    spoiled   jobs that had a score row that is not finite
    deadly    the kind of job, if any, whose model calls kill every process that makes them
    """

    failed: Counter[str] = field(default_factory=Counter)
    spoiled: set[str] = field(default_factory=set)
    deadly: str = ""

    def kills(self, job: str) -> bool:
        return bool(self.deadly) and job.startswith(f"{self.deadly}-")


class Device:
    """A model in one process, with the interface of any.

    room     jobs that each session has lanes for, None without bound
    candid   whether it says so
    """

    def __init__(
        self,
        model: Model,
        scheduler: Scheduler,
        process: Process,
        faults: Faults,
        device_faults: DeviceFaults,
        room: int | None = None,
        candid: bool = True,
    ) -> None:
        self.facts, self.runtime, self.recorded, self.text = model.facts, model.runtime, model.recorded, model.text
        self.lanes = room if candid else None
        self._model = model
        self._world = scheduler, process, faults, device_faults, room
        self._sessions: dict[int, Calls] = {}

    def session(self, width: int) -> Calls:
        if width not in self._sessions:
            self._sessions[width] = Calls(self._model.session(width), *self._world)
        return self._sessions[width]

    def lose(self) -> None:
        """The process is gone, and with it what its lanes held."""
        for session in self._sessions.values():
            session.lose()


class Calls:
    """A session whose calls take virtual time and may fail."""

    def __init__(
        self,
        caller: ModelSession,
        scheduler: Scheduler,
        process: Process,
        faults: Faults,
        device_faults: DeviceFaults,
        room: int | None,
    ) -> None:
        self._room = room
        self._caller, self._scheduler, self._process, self._faults, self._device_faults = (
            caller, scheduler, process, faults, device_faults,
        )  # fmt: skip
        self.recorded, self.cache = caller.recorded, caller.cache
        self._lanes: dict[Lane, None] = {}
        self._called: dict[int, Sequence[str]] = {}

    def open(self, request: str, positions: int) -> Lane:
        if self._room is not None and len(self._lanes) >= self._room:
            raise NoFreeSlot(self._room)
        lane = self._caller.open(request, positions)
        self._lanes[lane] = None
        return lane

    def release(self, lane: Lane) -> None:
        self._lanes.pop(lane, None)
        self._caller.release(lane)

    def lose(self) -> None:
        for lane in list(self._lanes):
            self.release(lane)

    def prepare(self, calls: Sequence[Prefill | Decode]) -> Any:
        faults, jobs = self._faults, [call.lane.request for call in calls]
        took_ms = CALL_MS_MIN + int(faults.draws.random() * (CALL_MS_MAX - CALL_MS_MIN))
        self._scheduler.wait(self._process, None, took_ms)
        if any(map(self._device_faults.kills, jobs)):
            self._scheduler.kill(self._process)
        if faults.left and faults.strike("call", 3.0):
            self._device_faults.failed.update(jobs)
            raise RuntimeError("the device is lost")
        ticket = self._caller.prepare(calls)
        self._called[ticket.event] = jobs
        return ticket

    def select(self, ticket: Any) -> Tensor:
        faults, jobs = self._faults, self._called.pop(ticket.event)
        if faults.left and faults.strike("call", 3.0):
            self._device_faults.failed.update(jobs)
            raise PreparedCacheChanged(jobs[0], "length")
        scores = self._caller.select(ticket)
        if faults.left and faults.strike("scores"):
            spoiled = int(faults.draws.random() * len(jobs))
            self._device_faults.spoiled.add(jobs[spoiled])
            scores = scores.clone()  # the script's own rows are shown as they lie
            scores[spoiled, 0] = nan
        return scores
