"""Waiting for a database that is away: what failed may succeed later, and is tried again up to a stated time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar, cast

from ...fsm.errors import Transient
from ...fsm.ports import Append, AppendResult, Durable, Store
from ..host import Host
from .context import WaitNotice

Result = TypeVar("Result")

FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 1.0
SHORT_S = 0.5
NOTICED_S = 1.0
MOMENT_S = 0.001  # what is left of a wait and is shorter is rounding


class Patience:
    """Tries again what may succeed later. All threads of a worker share one, so that they wait once and say it once.

    Only for actions that are idempotent: an append whose answer was lost is found again as a duplicate.

    limit_s   how long an action may fail, in seconds, before its error is raised
    told      see `WaitNotice`; called on whatever thread waits
    host      whose time it is
    """

    def __init__(self, limit_s: float, told: WaitNotice, host: Host) -> None:
        self._limit_s = limit_s
        self._told = told
        self._ending = False
        self._spent = False
        self._host = host
        self._lock = host.lock()
        self._said = False  # from when a wait was spoken of until it is over

    def hurry(self) -> None:
        """Wait no longer than a moment from now on: the worker is to end. Safe in a signal handler."""
        self._ending = True

    @property
    def _hurried(self) -> bool:
        return self._ending or self._spent

    def __call__(self, action: Callable[[], Result]) -> Result:
        """Run `action` until it succeeds, waiting twice as long after each Transient; past the limit it is raised.

        What has run out once has done so for everybody, until something succeeds again: whoever ends a worker then does
        not wait again at every step.
        """
        begin, wait_s, speaks = self._host.monotonic_s(), FIRST_WAIT_S, False
        while True:
            try:
                result = action()
            except Transient as problem:
                waited_s = self._host.monotonic_s() - begin
                left_s = (min(SHORT_S, self._limit_s) if self._hurried else self._limit_s) - waited_s
                if left_s < MOMENT_S:
                    self._spent = True
                    raise
                if waited_s >= NOTICED_S and not speaks and (speaks := self._first()):
                    self._told(problem)
                self._pause(min(wait_s, left_s))
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
                continue
            self._spent = False
            if speaks:
                self._said = False
                self._told(None)
            return result

    def _first(self) -> bool:
        """Whether nobody else has said that one waits."""
        with self._lock:
            first, self._said = not self._said, True
        return first

    def _pause(self, wait_s: float) -> None:
        """Wait in short sleeps; the word to hurry cuts a wait short."""
        until = self._host.monotonic_s() + wait_s
        while (left_s := until - self._host.monotonic_s()) > 0:
            self._host.sleep(min(left_s, FIRST_WAIT_S))
            if self._hurried:
                return


class PatientStore:
    """A store whose actions are tried again with patience, where trying again is harmless and somebody waits for them.

    A heartbeat comes again by itself, and nothing depends on a snapshot that is not kept. A log is read record by
    record, so whoever reads it has to begin again: `Job.load` is tried again as a whole.
    """

    AGAIN: Final = frozenset(("append", "claim", "owners", "pending", "release", "row", "settle", "waiting"))

    def __init__(self, store: Store, patience: Patience) -> None:
        self._store = store
        self._patience = patience

    def __getattr__(self, name: str) -> Any:
        action = getattr(self._store, name)
        return partial(self._again, action) if name in self.AGAIN else action

    def _again(self, action: Callable[..., Result], *arguments: Any) -> Result:
        return self._patience(partial(action, *arguments))

    def begin(self, batch: Sequence[Append]) -> Durable:
        """As `EventLog.begin`. Where the second half fails, the whole is done again: what is there is a duplicate."""
        durable = self._again(self._store.begin, batch)

        def finished() -> list[AppendResult]:
            try:
                return durable()
            except Transient:
                return self._again(self._store.append, batch)

        return finished


def patient(store: Store, patience: Patience) -> Store:
    return cast(Store, PatientStore(store, patience))
