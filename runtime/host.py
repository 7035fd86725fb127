"""What a worker needs of the process that it runs in: time that only grows, threads, and what they wait for.

A simulation gives another host, in which one scheduler says who goes on, and time passes when everybody waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Any, Protocol


class Started(Protocol):
    """A thread that runs."""

    def join(self) -> None:
        """Wait until it has ended."""


class Flag(Protocol):
    """As `threading.Event`."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Queue(Protocol):
    """As `queue.SimpleQueue`: `get_nowait` raises `queue.Empty`."""

    def put(self, item: Any) -> None: ...

    def get(self) -> Any: ...

    def get_nowait(self) -> Any: ...


class Host(Protocol):
    """Where the threads of one worker run."""

    def monotonic_s(self) -> float:
        """Seconds since some moment."""

    def sleep(self, seconds: float) -> None:
        """Let the others go on for so long."""

    def start(self, run: Callable[[], None], name: str) -> Started:
        """Run it on a thread, which does not outlive the process."""

    def flag(self) -> Flag: ...

    def queue(self) -> Queue: ...

    def lock(self) -> AbstractContextManager[Any]:
        """At most one thread is inside."""


class Threads:
    """The host that every process is."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def start(self, run: Callable[[], None], name: str) -> Started:
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def flag(self) -> Flag:
        return threading.Event()

    def queue(self) -> Queue:
        return SimpleQueue()

    def lock(self) -> AbstractContextManager[Any]:
        return threading.Lock()


THREADS: Host = Threads()
