"""A job's text for one reader, whether it comes from the worker or from the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...fsm.ports import EventLog
from ...fsm.reading.emission import Emission
from .reading import Follower


class Stream:
    """Hands all text to `write` once and in order, from the worker of this process or from the log.

    What the worker publishes is durable, so the log can always fill in what another worker's tenure has added. It is
    read once at the beginning; later a gap is seen by its text and its tokens, which every emission counts.
    If `write` raises, the emission counts as handed over.
    """

    def __init__(self, log: EventLog, job: str, write: Callable[[Emission], None]) -> None:
        self._follower = Follower(log, job)
        self._write = write
        self._sequence = 0
        self._place: tuple[int, int] | None = None  # characters and tokens handed on; None: nothing was asked for yet

    def take(self, emissions: Iterable[Emission]) -> None:
        """Hand on what the worker has published; where there is a gap before it, the log has the rest."""
        for emission in emissions:
            if emission.sequence <= self._sequence:
                continue
            if (emission.characters, emission.place) != self._place:
                return self.catch_up()
            self._hand_on(emission)

    def catch_up(self) -> None:
        """Hand on all that the log holds and that was not handed on yet."""
        self._place = self._place or (0, 0)
        for emission in self._follower.poll():
            if emission.sequence > self._sequence:
                self._hand_on(emission)

    def _hand_on(self, emission: Emission) -> None:
        self._sequence = emission.sequence
        self._place = emission.characters + len(emission.text), emission.place + len(emission.tokens)
        self._write(emission)
