"""The text of several jobs for one reader: one job after another, though they run side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ...fsm.ports import EventLog
from ...fsm.reading.emission import Emission
from .stream import Stream


class Turns:
    """Hands the jobs' text to `write` in the order of `jobs`. What comes before its turn waits in the log.

    `write` gets the job with each emission, and may raise.
    """

    def __init__(self, log: EventLog, jobs: Sequence[str], write: Callable[[str, Emission], None]) -> None:
        self._log = log
        self._write = write
        self._later = iter(jobs)
        self._begin(next(self._later))

    def take(self, job: str, emissions: Iterable[Emission]) -> None:
        """Hand on what the worker has published for `job`, if it is that job's turn."""
        if job == self._job:
            self._stream.take(emissions)
            self._pass_on()

    def catch_up(self) -> None:
        """Hand on all that the log holds and whose turn it is."""
        self._stream.catch_up()
        self._pass_on()

    def _pass_on(self) -> None:
        while self._ended and (job := next(self._later, None)) is not None:
            self._begin(job)
            self._stream.catch_up()

    def _begin(self, job: str) -> None:
        self._job, self._ended = job, False
        self._stream = Stream(self._log, job, self._hand_on)

    def _hand_on(self, emission: Emission) -> None:
        self._ended = emission.finish is not None
        self._write(self._job, emission)
