"""Audit: the store's rows and the machine's replay, over one job or all, from the log alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from ..fsm.audit import Fault, compare, replay
from ..fsm.ports import EventLog, JobRow
from ..store.audit import Audited
from ..store.audit import audit as audit_rows


class AuditedLog(EventLog, Audited, Protocol):
    """A log that also shows its rows as they are stored."""


class Report(NamedTuple):
    """What an audit looked at and found; `ok` where there is no fault."""

    jobs: int
    events: int
    faults: list[Fault]

    @property
    def ok(self) -> bool:
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "jobs": self.jobs,
            "events": self.events,
            "faults": [fault._asdict() for fault in self.faults],
        }


def audit(log: AuditedLog, jobs: Sequence[str] | None = None) -> Report:
    """Prove chain, sequence, receipts, frontiers, replay and listing of each job. Errors: UnknownJob."""
    rows = log.rows() if jobs is None else [log.row(job) for job in jobs]
    events, faults = 0, []
    for row in rows:
        seen, found = _audit_job(log, row)
        events += seen
        faults += found
    return Report(len(rows), events, faults)


def _audit_job(log: AuditedLog, row: JobRow) -> tuple[int, list[Fault]]:
    """Events and faults of one job. Rows that are not what was appended are all named, and not replayed."""
    stored = audit_rows(log, row.job)
    if stored.faults:
        return stored.events, [Fault(*fault) for fault in stored.faults]
    audited = replay(row.job, log.read(row.job))
    return audited.events, audited.faults or compare(row, audited)
