"""Reading jobs from the log alone: no model, no tokenizer, no lock on anybody's work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..fsm.emission import Emission
from ..fsm.events import Event
from ..fsm.load import load
from ..fsm.ports import Bell, EventLog
from ..fsm.transcript import Transcript

FOLLOW_S = 0.1


class Numbered(NamedTuple):
    """An event with its sequence number in its job's log."""

    sequence: int
    event: Event


class Follower:
    """One job's transcript, brought up to the log's end at every `poll`."""

    def __init__(self, log: EventLog, job: str) -> None:
        self.transcript = Transcript()
        self._log = log
        self._job = job

    def poll(self) -> Sequence[Emission]:
        """What became visible since the last poll. Errors: UnknownJob, CorruptRecord, and what `load` finds broken."""
        before = self.transcript.sequence
        load(self.transcript, self._log.read(self._job, after=before))
        return self.transcript.emissions_after(before)

    @property
    def ended(self) -> bool:
        state = self.transcript.state
        return state is not None and state.status.terminal


def transcript_of(log: EventLog, job: str) -> Transcript:
    """Everything a job has made visible so far. Errors: UnknownJob, CorruptRecord, and what `load` finds broken."""
    follower = Follower(log, job)
    follower.poll()
    return follower.transcript


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

    With the database's `bell` it is followed to the job's end.
    """
    follower = Follower(log, job)
    while True:
        yield from (emission for emission in follower.poll() if emission.sequence >= start)
        if follower.ended or bell is None:
            return
        bell.wait(FOLLOW_S)
