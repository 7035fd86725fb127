"""Reads jobs from the log alone: no model, no tokenizer, and no lock that could hold up a worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...fsm.errors import Defect, Problem
from ...fsm.machine.events import Event
from ...fsm.ports import Bell, EventLog
from ...fsm.reading.emission import Emission
from ...fsm.reading.load import load
from ...fsm.reading.transcript import Transcript

FOLLOW_S = 0.1


class Numbered(NamedTuple):
    """An event with its sequence number in its job's log."""

    sequence: int
    event: Event


class Follower:
    """One job's transcript, brought up to the log's end at every `poll`.

    damage   what the last poll met behind what it could prove, and took in
    """

    def __init__(self, log: EventLog, job: str) -> None:
        self.transcript = Transcript()
        self.damage: Defect | None = None
        self._log = log
        self._job = job
        self._handed = 0  # the event that its emissions were handed out up to

    def poll(self) -> Sequence[Emission]:
        """What became visible since the last poll. Errors: UnknownJob, CorruptRecord, and what `load` finds broken."""
        emissions = self.poll_proven()
        if self.damage is not None:
            raise self.damage
        return emissions

    def poll_proven(self) -> Sequence[Emission]:
        """The same as far as the log is sound; `damage` then says what is not. Errors: UnknownJob."""
        self.damage = None
        try:
            load(self.transcript, self._log.read(self._job, after=self.transcript.sequence))
        except Defect as damage:
            self.damage = damage
        # What was taken in before the database went away in an earlier poll was not handed out yet.
        emissions = self.transcript.emissions_after(self._handed)
        self._handed = self.transcript.sequence
        return emissions

    @property
    def ended(self) -> bool:
        state = self.transcript.state
        return state is not None and state.status.terminal


def transcript_of(log: EventLog, job: str) -> Transcript:
    """Everything a job has made visible so far. Errors: UnknownJob, CorruptRecord, and what `load` finds broken."""
    follower = Follower(log, job)
    follower.poll()
    return follower.transcript


def proven_of(log: EventLog, job: str) -> tuple[Transcript, Problem | None]:
    """Everything that a job has made visible and that is proven, and the damage behind it. Errors: UnknownJob, and the
    damage where nothing comes before it.
    """
    follower = Follower(log, job)
    follower.poll_proven()
    if follower.damage is not None and follower.transcript.state is None:
        raise follower.damage
    return follower.transcript, follower.damage


def events_of(log: EventLog, job: str, start: int = 1, bell: Bell | None = None) -> Iterator[Numbered]:
    """The job's events from sequence `start` on; with the database's `bell`, also those to come until it ends."""
    seen = 0
    while True:
        # Asked before the read: what ends the job between the two is then read in the next round.
        ended = log.row(job).status.terminal
        for record in log.read(job, after=seen):
            for sequence, event in enumerate(record.events, start=record.first):
                if sequence >= start:
                    yield Numbered(sequence, event)
            seen = record.last
        if ended or bell is None:
            return
        bell.wait(FOLLOW_S)


def emissions_of(log: EventLog, job: str, start: int = 1, bell: Bell | None = None) -> Iterator[Emission]:
    """The job's stream from sequence `start` on: exactly the rest, during the run, after a crash and after the end.

    With the database's `bell` it is followed to the job's end. Of a damaged log, what is proven comes before the error.
    """
    follower = Follower(log, job)
    while True:
        yield from (emission for emission in follower.poll_proven() if emission.sequence >= start)
        if follower.damage is not None:
            raise follower.damage
        if follower.ended or bell is None:
            return
        bell.wait(FOLLOW_S)
