"""A thread that waits for the disk, so that the crank need not."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Writer(Generic[Result]):
    """Does one piece of work at a time beside its owner.

    Two queues and no future: what wakes the two threads in every turn is most of what the overlap costs.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], Result] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[Result] | BaseException] = SimpleQueue()
        self._thread: Thread | None = None
        self.busy = False

    def begin(self, work: Callable[[], Result]) -> None:
        """Start `work`; the one before must have been ended."""
        if self._thread is None:
            self._thread = Thread(target=_serve, args=(self._work, self._done), name="writer", daemon=True)
            self._thread.start()
        self.busy = True
        self._work.put(work)
        # Hands the interpreter over: the wait for the disk begins now, and not when this thread next lets go of it.
        time.sleep(0)

    def end(self) -> Result:
        """Wait for the work that was begun: its result, or what it raised."""
        done = self._done.get()
        self.busy = False
        if isinstance(done, BaseException):
            raise done
        return done[0]

    def close(self) -> None:
        """End the thread, which must not be busy; idempotent."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None


def _serve(work: SimpleQueue[Callable[[], Result] | None], done: SimpleQueue[tuple[Result] | BaseException]) -> None:
    while (each := work.get()) is not None:
        try:
            done.put((each(),))
        except BaseException as error:
            done.put(error)
        del each  # it may hold a whole turn, and the next one may be long in coming
