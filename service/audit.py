"""Audit: the store's chains and the machine's replay, over one job or all, from the log alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..fsm.audit import Fault, compare, replay
from ..fsm.ports import EventLog


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


def audit(log: EventLog, jobs: Sequence[str] | None = None) -> Report:
    """Prove chain, sequence, receipts, frontiers, replay and listing of each job. Errors: UnknownJob."""
    rows = log.rows() if jobs is None else [log.row(job) for job in jobs]
    events, faults = 0, []
    for row in rows:
        audited = replay(row.job, log.read(row.job))
        events += audited.events
        faults += audited.faults or compare(row, audited)
    return Report(len(rows), events, faults)
