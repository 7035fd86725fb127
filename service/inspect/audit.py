"""Audit: the store's rows and the machine's replay, over one job or all, from the log alone or from an export of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from ...fsm.errors import Defect, NotAnExport, Rejected
from ...fsm.ports import JobRow, Record
from ...fsm.reading.audit import Audited, Fault, compare, replay
from ...fsm.reading.snapshot import Snapshot
from ...store.archive.bundle import Bundle
from ...store.archive.frames import begins
from ...store.reading.audit import ShowsRows, audit_rows
from ..signing import PublicKey, signature_faults
from .anchors import Anchors, anchored, keep

CHANGES: Final = 3
"""States of an ended job's log, one after the other: whole, sealed, erased."""


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

    def damage(self) -> Iterator[Fault]:
        """What is wrong with the database or file that holds the logs."""


class NotRun(NamedTuple):
    """A job that could not be run again, or not compared in full, with the error's code and message."""

    job: str
    code: str
    message: str


class Report(NamedTuple):
    """What an audit looked at and found; `ok` where there is no fault. `digest` is that of an exported file.

    sealed    jobs whose log is sealed: receipts and digests of their thinned steps are not there to be proven
    erased    jobs whose content is erased: only their chain is proven
    not_run   jobs that could not be run again; None where that was not asked for
    in_part   jobs that were run again, but of which not everything is kept that could be compared
    signed_by the public key, in hex, that an exported file says it is signed with
    checked   whether that signature was asked for and proven
    """

    jobs: int
    events: int
    faults: list[Fault]
    digest: str = ""
    sealed: int = 0
    erased: int = 0
    not_run: list[NotRun] | None = None
    in_part: list[NotRun] | None = None
    signed_by: str = ""
    checked: bool = False

    @property
    def ok(self) -> bool:
        return not self.faults

    @property
    def unproven(self) -> int:
        """Jobs that were to be run again and were not, or whose runs could not be compared whole."""
        return len(self.not_run or ()) + len(self.in_part or ())

    def as_json(self) -> dict[str, Any]:
        """The digest and what was not run are there where they were asked for; `proven` is `ok` and all of it run."""
        also: dict[str, Any] = {"digest": self.digest} if self.digest else {}
        if self.signed_by:
            also |= {"signed_by": self.signed_by, "signature_checked": self.checked}
        if self.not_run is not None:
            also["proven"] = self.ok and not self.unproven
            also["not_run"] = [each._asdict() for each in self.not_run]
            also["in_part"] = [each._asdict() for each in self.in_part or ()]
        return {
            "ok": self.ok,
            "jobs": self.jobs,
            "events": self.events,
            "sealed": self.sealed,
            "erased": self.erased,
            "faults": [fault._asdict() for fault in self.faults],
        } | also


def audit(log: AuditedLog, jobs: Sequence[str] | None = None, anchors: Anchors | None = None) -> Report:
    """Prove chain, sequence, receipts, frontiers, replay and listing of each job. Errors: UnknownJob of a name given.

    Rows that are not what was appended are all named, and their jobs not replayed, nor those whose content is erased.
    Jobs that run meanwhile are audited as far as they were when they were read, and those that are erased meanwhile are
    counted as erased. Of all jobs also the database itself is audited.

    anchors   heads that were kept outside: each log must still have them
    """
    asked = {} if anchors is None else anchors.asked()
    stored = [audit_rows(log, job, asked) for job in ([None] if jobs is None else jobs)]
    faults = [fault for each in stored for fault in each.faults]
    if jobs is None:
        faults += log.damage()
    if anchors is not None:
        faults += anchors.faults({job: reached for each in stored for job, reached in each.heads.items()}, jobs)
    sealed = {job for each in stored for job in each.sealed}
    erased = {job for each in stored for job in each.erased}
    unread = erased.union(fault.job for fault in faults)
    events = 0
    for name in [name for each in stored for name in each.names]:
        if name in unread:
            continue
        audited = _replayed(log, name)
        if audited is None:
            erased.add(name)
            continue
        events += audited.events
        faults += audited.faults
    return Report(sum(each.jobs for each in stored), events, faults, sealed=len(sealed), erased=len(erased))


def audit_anchored(log: AuditedLog, jobs: Sequence[str] | None, path: Path) -> Report:
    """The report of an audit that also holds the logs to the anchors in a file, and adds to them what it has proven."""
    with anchored(path.resolve()) as anchors:
        report = audit(log, jobs, anchors)
        keep(path.resolve(), anchors.added({fault.job for fault in report.faults}))
    return report


def verify(path: Path | str, key: PublicKey | None = None) -> Report:
    """The same of an exported file, and that the file itself is what was written. Errors: NotAnExport.

    key   whose signature it must have
    """
    path = Path(path)
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
    unsigned = [] if key is None else signature_faults(bundle, key)
    signed_by = "" if bundle.signature is None else bundle.signature.key.hex()
    faults = [*bundle.faults, *unsigned, *report.faults]
    return report._replace(
        faults=faults, digest=bundle.digest, signed_by=signed_by, checked=key is not None and not faults
    )


def _replayed(log: AuditedLog, job: str) -> Audited | None:
    """Replay one job, once more where it was sealed or erased at the same time; None where its content is erased.

    A database error at one job is a fault of that job, unless it is transient.
    """
    try:
        row = log.row(job)
        for _ in range(CHANGES):
            if row.erased_ms is not None:
                return None
            audited = _compared(log, row)
            before, row = row, log.row(job)
            if not audited.faults or (row.sealed_ms, row.erased_ms) == (before.sealed_ms, before.erased_ms):
                break
        return audited
    except (Defect, Rejected) as problem:
        return Audited(0, None, [Fault(job, 0, problem.code, str(problem))])


def _compared(log: AuditedLog, row: JobRow) -> Audited:
    """Replay one job, and compare it with its listing where no append came between the two readings."""
    job, snapshot = row.job, log.snapshot(row.job)  # the log is read last, so it has both
    audited = replay(job, log.read(job), snapshot)
    # A listing that is behind its log at rest fails in `read`.
    settled = audited.events == row.head.sequence
    faults = compare(row, audited) if settled and not audited.faults else audited.faults
    damage = log.snapshot_damage(job)
    damaged = [Fault(job, audited.events, "snapshot", damage)] if damage else []
    return audited._replace(faults=faults + damaged)
