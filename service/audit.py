"""Audit: the store's rows and the machine's replay, over one job or all, from the log alone or from an export of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..fsm.audit import Audited, Fault, compare, replay
from ..fsm.errors import NotAnExport
from ..fsm.ports import JobRow, Record
from ..fsm.snapshot import Snapshot
from ..store.audit import ShowsRows, audit_rows
from ..store.bundle import Bundle
from ..store.frames import begins


class AuditedLog(ShowsRows, Protocol):
    """A log that can be read, and also shows its rows as they are stored."""

    def read(self, job: str) -> Iterator[Record]:
        """As in `EventLog`."""

    def row(self, job: str) -> JobRow:
        """As in `EventLog`."""

    def rows(self) -> list[JobRow]:
        """As in `EventLog`."""

    def snapshot(self, job: str) -> Snapshot | None:
        """As in `Snapshots`."""

    def snapshot_damage(self, job: str) -> str:
        """What is wrong with the job's snapshots by themselves, empty where nothing is."""


class Report(NamedTuple):
    """What an audit looked at and found; `ok` where there is no fault. `digest` is that of an exported file.

    sealed   jobs whose log is sealed: receipts and digests of their thinned steps are not there to be proven
    erased   jobs whose content is erased: their chain is proven, and what it was taken of is gone
    """

    jobs: int
    events: int
    faults: list[Fault]
    digest: str = ""
    sealed: int = 0
    erased: int = 0

    @property
    def ok(self) -> bool:
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "jobs": self.jobs,
            "events": self.events,
            "sealed": self.sealed,
            "erased": self.erased,
            "faults": [fault._asdict() for fault in self.faults],
        } | ({"digest": self.digest} if self.digest else {})


def audit(log: AuditedLog, jobs: Sequence[str] | None = None) -> Report:
    """Prove chain, sequence, receipts, frontiers, replay and listing of each job. Errors: UnknownJob.

    Rows that are not what was appended are all named, and their jobs not replayed, nor those whose content is erased.
    Jobs that run meanwhile are audited as far as they were when they were read.
    """
    if jobs is None:
        stored = [audit_rows(log)]
        names = [row.job for row in log.rows()]
    else:
        stored = [audit_rows(log, job) for job in jobs]
        names = list(jobs)
    faults = [fault for each in stored for fault in each.faults]
    unread = {fault.job for fault in faults}.union(*(each.erased for each in stored))
    events = 0
    for name in names:
        if name in unread:
            continue
        audited = _replayed(log, name)
        events += audited.events
        faults += audited.faults
    sealed, erased = sum(len(each.sealed) for each in stored), sum(len(each.erased) for each in stored)
    return Report(sum(each.jobs for each in stored), events, faults, sealed=sealed, erased=erased)


def verify(path: Path) -> Report:
    """The same of an exported file, and that the file itself is what was written. Errors: NotAnExport."""
    try:
        if not path.is_file():
            raise NotAnExport(str(path), "it is no file")
        with path.open("rb") as file:
            if not begins(file):
                raise NotAnExport(str(path), "its first bytes are not those of an export that this program reads")
            bundle = Bundle(file)
            report = audit(bundle)
    except OSError as error:
        raise NotAnExport(str(path), error.strerror or str(error)) from error
    return report._replace(faults=[*bundle.faults, *report.faults], digest=bundle.digest)


def _replayed(log: AuditedLog, job: str) -> Audited:
    """Replay one job, and compare it with its listing where no append came between the two readings."""
    row, snapshot = log.row(job), log.snapshot(job)  # the log is read last: it goes beyond both
    audited = replay(job, log.read(job), snapshot)
    # A listing that is behind its log at rest fails in `read`.
    settled = audited.events == row.head.sequence
    faults = compare(row, audited) if settled and not audited.faults else audited.faults
    damage = log.snapshot_damage(job)
    damaged = [Fault(job, audited.events, "snapshot", damage)] if damage else []
    return audited._replace(faults=faults + damaged)
