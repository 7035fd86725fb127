"""One scheduler for all that happens in a simulation: whose turn it is, and what time it is.

Everything that would be a thread is a greenlet, and gives the scheduler a turn at each of its points: before and after
a statement, a model call, a wait. The scheduler draws who goes on. Time stands still while anybody can go on, and then
jumps to when somebody can. So a run is a function of its seed, and takes no longer than its work does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import ceil
from queue import Empty
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet


class Killed(BaseException):
    """The process is dead: what is left of it unwinds, and reaches nobody any more."""


class Stuck(Exception):
    """Nothing can go on, or too much went on: the simulated world does not come to an end."""


class Process:
    """Something that can die as a whole, and can be stopped for a while.

    resumes_ms   it does not go on before
    failure      what its first task ended with, if that was no orderly end
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.resumes_ms = 0
        self.failure: BaseException | None = None


class Task:
    """What a thread is elsewhere. It waits until `wake_ms`, if ever, or until `ready` says so."""

    __slots__ = ("done", "name", "process", "ready", "run", "wake_ms")

    def __init__(self, process: Process, name: str, run: greenlet) -> None:
        self.process, self.name, self.run = process, name, run
        self.wake_ms: int | None = 0
        self.ready: Callable[[], bool] | None = None
        self.done = False


class Scheduler:
    """Runs tasks one at a time until the one that matters has ended.

    draws    decides everything
    switch   how likely a task that reaches a point has to let another one go on
    trace    who went on when, and what struck; equal for equal seeds
    at       told each point that a process reaches; may kill it, stop it, or raise
    """

    def __init__(self, draws: Random, switch: float, turns_max: int) -> None:
        self.now_ms = 0
        self.trace: list[tuple[int, str, str]] = []
        self.at: Callable[[Process, str], None] = lambda process, point: None
        self._random = draws.random
        self._switch = switch
        self._turns_left = turns_max
        self._tasks: list[Task] = []
        self._current: Task | None = None
        self._hub: Any = getcurrent()

    def start(self, process: Process, name: str, run: Callable[[], None]) -> Task:
        """A new task of `process`; it begins when it is drawn."""

        def body() -> None:
            try:
                run()
            except Killed:
                pass
            except BaseException as error:
                process.failure = process.failure or error
            task.done = True

        task = Task(process, f"{process.name}:{name}", greenlet(body, self._hub))
        self._tasks.append(task)
        return task

    def kill(self, process: Process) -> None:
        """No task of the process goes on. Within one of its own tasks this raises Killed."""
        if not process.dead:
            process.dead = True
            self.trace.append((self.now_ms, process.name, "killed"))
        if self._current is not None and self._current.process is process:
            raise Killed

    def run_until(self, done: Callable[[], bool]) -> None:
        """Let tasks go on until `done`. Errors: Stuck."""
        while not done():
            task = self._draw()
            self._turns_left -= 1
            if self._turns_left < 0:
                raise Stuck(f"too many turns, at {self.now_ms} ms; the last ones are {self.trace[-5:]}")
            self.trace.append((self.now_ms, task.name, ""))
            self._resume(task)
            if task.done or task.process.dead:
                self._reap()

    def end(self) -> None:
        """Kill everything."""
        for task in self._tasks:
            task.process.dead = True
        self._reap()

    def point(self, process: Process, name: str) -> None:
        """What reaches a point may be struck there, and may have to wait for others."""
        if process.dead:
            raise Killed
        self.at(process, name)
        if self._random() < self._switch:
            self.wait(process, None, 0)

    def wait(self, process: Process, ready: Callable[[], bool] | None, milliseconds: int | None) -> None:
        """Let others go on until `ready`, or for so long; None and None would be for ever."""
        task = self._current
        if process.dead:
            raise Killed
        if task is None or getcurrent() is self._hub:
            raise RuntimeError("only a task can wait")
        task.ready = ready
        task.wake_ms = None if milliseconds is None else self.now_ms + milliseconds
        self._hub.switch()

    def _draw(self) -> Task:
        now = self.now_ms
        while True:
            able = [
                task
                for task in self._tasks
                if task.process.resumes_ms <= now
                and ((task.wake_ms is not None and task.wake_ms <= now) or (task.ready is not None and task.ready()))
            ]
            if able:
                self.now_ms = now
                return able[int(self._random() * len(able))] if len(able) > 1 else able[0]
            now = self._next_moment(now)

    def _next_moment(self, now: int) -> int:
        """When the next task can go on."""
        moments = [
            max(task.process.resumes_ms, now if wake_ms is None else wake_ms)
            for task in self._tasks
            if (wake_ms := task.wake_ms) is not None or (task.ready is not None and task.ready())
        ]
        if not moments:
            raise Stuck(f"everybody waits for somebody: {[task.name for task in self._tasks]}")
        return min(moments)

    def _resume(self, task: Task) -> None:
        self._current, task.ready, task.wake_ms = task, None, None
        task.run.switch()
        self._current = None

    def _reap(self) -> None:
        """Unwind the tasks of dead processes, and forget those that have ended."""
        for task in self._tasks:
            while task.process.dead and not task.done:
                self._current = task
                if task.run:
                    task.run.throw(Killed)
                else:
                    task.done = True
                self._current = None
        self._tasks = [task for task in self._tasks if not task.done]


class VirtualFlag:
    """`runtime.host.Flag`. Setting it is possible from outside of any task, as from a signal handler."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler, self._process, self._set = scheduler, process, False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._scheduler.wait(self._process, self.is_set, None if timeout is None else ceil(timeout * 1000))
        return self._set


class VirtualQueue:
    """`runtime.host.Queue`."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler, self._process, self._items = scheduler, process, deque[Any]()

    def put(self, item: Any) -> None:
        self._scheduler.point(self._process, "queue.put")
        self._items.append(item)

    def get(self) -> Any:
        while not self._items:
            self._scheduler.wait(self._process, self._filled, None)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        self._scheduler.point(self._process, "queue.get")
        if not self._items:
            raise Empty
        return self._items.popleft()

    def _filled(self) -> bool:
        return bool(self._items)


class VirtualHost:
    """`runtime.host.Host` for the threads of one simulated process."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler, self._process = scheduler, process

    def monotonic_s(self) -> float:
        return self._scheduler.now_ms / 1000

    def sleep(self, seconds: float) -> None:
        self._scheduler.wait(self._process, None, ceil(seconds * 1000))

    def start(self, run: Callable[[], None], name: str) -> Joined:
        return Joined(self._scheduler, self._scheduler.start(self._process, name, run))

    def flag(self) -> VirtualFlag:
        return VirtualFlag(self._scheduler, self._process)

    def queue(self) -> VirtualQueue:
        return VirtualQueue(self._scheduler, self._process)

    def lock(self) -> Any:
        return _lock(self._scheduler, self._process)


class Joined:
    """A task that can be waited for."""

    def __init__(self, scheduler: Scheduler, task: Task) -> None:
        self._scheduler, self._task = scheduler, task

    def join(self) -> None:
        if not self._task.done:
            self._scheduler.wait(self._task.process, lambda: self._task.done, None)


class _lock:
    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler, self._process, self._held = scheduler, process, False

    def __enter__(self) -> None:
        while self._held:
            self._scheduler.wait(self._process, lambda: not self._held, None)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False
