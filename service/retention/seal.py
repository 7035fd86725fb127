"""Seal: an ended job's log becomes one compressed row that shows a caller the same, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from ...fsm.errors import ContentErased, Problem, SealRefused
from ...fsm.machine.thinned import ThinnedStep
from ...fsm.ports import EventLog, JobRow, Record
from ...fsm.reading.audit import Fault
from ...fsm.reading.load import load
from ...fsm.reading.snapshot import Snapshot
from ...fsm.reading.transcript import Transcript
from ...store.log import chain, sealed
from ...store.log.chain import StoredLog
from ...store.log.stored import Stored
from ...store.retention.keeping import KeepsLogs
from ..inspect.audit import AuditedLog, audit


class SealableLog(EventLog, AuditedLog, KeepsLogs, Protocol):
    """A log that can be proven, and whose rows can be replaced."""


class Sealed(NamedTuple):
    """A job's log, and the bytes of its payloads and keys before and after; equal where it was sealed already."""

    job: str
    tokens: int
    before: int
    after: int

    @property
    def done(self) -> bool:
        return self.before != self.after


def seal(log: SealableLog, job: str) -> Sealed:
    """Seal one job's log, once its audit has found no fault and the sealed form reads the same as the log.

    Errors: UnknownJob, JobNotEnded, ContentErased, SealRefused; nothing has changed then.
    """
    stored = log.whole(job)
    row, rows = stored.row, list(stored.rows)
    if row is None:
        raise SealRefused(job, stored.damage)
    if row.erased_ms is not None:
        raise ContentErased(job)
    before = size(rows)
    if row.sealed_ms is not None and all(each.sealed for each in rows):
        return Sealed(job, row.output, before, before)
    # All is derived from one reading: what is sealed or erased meanwhile is found when the rows are replaced.
    report = audit(Once(log, stored._replace(rows=rows)), [job])
    if report.faults:
        fault = report.faults[0]
        raise SealRefused(job, f"event {fault.sequence} [{fault.kind}] {fault.detail}")
    records = list(chain.records(job, rows, 0))
    whole = transcript(records)
    state = whole.state
    one = sealed.seal(row.head, rows, records, structured=state is None or state.structure is not None)
    if reason := difference(job, whole, records, one):
        raise SealRefused(job, reason)
    done = log.seal(job, row.head, one)
    return Sealed(job, row.output, before, size([one]) if done else before)


class Once:
    """One job's log as it was read once, to be audited; its snapshots as they are."""

    def __init__(self, log: AuditedLog, stored: StoredLog) -> None:
        self._log = log
        self._stored = stored

    def logs(self, job: str | None = None) -> Iterator[StoredLog]:
        return iter([self._stored])

    def read(self, job: str) -> Iterator[Record]:
        return chain.records(job, self._stored.rows, 0)

    def row(self, job: str) -> JobRow:
        return self.rows()[0]

    def rows(self) -> list[JobRow]:
        return [] if self._stored.row is None else [self._stored.row]

    def snapshot(self, job: str) -> Snapshot | None:
        return self._log.snapshot(job)

    def snapshot_damage(self, job: str) -> str:
        return self._log.snapshot_damage(job)

    def damage(self) -> Iterator[Fault]:
        return iter(())


def difference(job: str, whole: Transcript, records: list[Record], one: Stored) -> str:
    """The first thing that the sealed form would lose; empty where it loses nothing."""
    try:
        again = list(sealed.records(job, one))
        read = transcript(again)
    except Problem as problem:
        return f"what was sealed cannot be read: {problem}"
    if repr(read.result()) != repr(whole.result()) or repr(read.emissions) != repr(whole.emissions):
        return "what was sealed shows something else"
    if read.state != whole.state:
        return "what was sealed leads to another state"
    kept = [(record, old) for record, old in zip(again, records, strict=True) if not _thinned(record)]
    if any((record.events, record.key, record.fence) != (old.events, old.key, old.fence) for record, old in kept):
        return "what was sealed has another event"
    return ""


def transcript(records: list[Record]) -> Transcript:
    made = Transcript()
    load(made, records)
    return made


def size(rows: list[Stored]) -> int:
    return sum(len(row.key) + len(row.chain) + len(row.payload) for row in rows)


def _thinned(record: Record) -> bool:
    return isinstance(record.entries[0], ThinnedStep)
