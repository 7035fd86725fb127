"""What libraries make ready for a job, models and grammars: beside the crank, since it may take long, or never end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...fsm.errors import NotRunnableHere, Problem
from ...fsm.ports import Claim
from ..faults import is_fault, told
from ..grammar.parser import Parser
from ..host import Host
from .job import Job

Result = TypeVar("Result")

BRIEF_S = 0.1
"""What takes no longer than this is waited for where it is asked for."""


class Loading(Generic[Result]):
    """An action on a thread of its own.

    what     names it in errors
    limit_s  how long it may take, in seconds
    """

    def __init__(self, what: str, action: Callable[[], Result], limit_s: float, host: Host) -> None:
        self._what, self._action, self._limit_s, self._host = what, action, limit_s, host
        self._until_s = host.monotonic_s() + limit_s
        self._ended = host.flag()
        self._raised: BaseException | None = None
        self._results: list[Result] = []
        host.start(self._run, f"loading {what}")
        self.wait(BRIEF_S)

    def _run(self) -> None:
        try:
            self._results.append(self._action())
        except BaseException as raised:
            if not (is_fault(raised) or isinstance(raised, MemoryError)):
                raise
            self._raised = raised
        self._ended.set()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def wait(self, seconds: float) -> None:
        """Wait for its end, at most so long."""
        self._ended.wait(seconds)

    def result(self) -> list[Result]:
        """The result as the one entry of a list; an empty list while there is none.

        Errors: what it raised, as NotRunnableHere where that has no type of ours or time is up.
        """
        if not self.ended:
            if self._host.monotonic_s() >= self._until_s:
                raise NotRunnableHere(self._what, f"it took more than {self._limit_s:g} s")
            return []
        if isinstance(self._raised, Problem):
            raise self._raised
        if self._raised is not None:
            raise NotRunnableHere(self._what, f"{type(self._raised).__name__}: {told(self._raised)}") from self._raised
        return self._results


@dataclass(slots=True)
class Arrival:
    """A claimed job on its way to the crank: its log is loaded once its model is, and then its grammar."""

    claim: Claim
    job: Job | None = None
    parser: Loading[Parser | None] | None = None
