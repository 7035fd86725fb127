"""Runs the jobs of an audit again: a difference is a fault, and jobs that could not be run are named."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...fsm.errors import ContentErased, EvidenceSealed, Problem
from ...fsm.ports import EventLog
from ..advice import advised
from ..jobs.models import Models
from .audit import NotRun, Report
from .compare import reexecution_faults


def again(
    log: EventLog,
    models: Models,
    jobs: Sequence[str] | None,
    report: Report,
    tell: Callable[[str], object] = lambda job: None,
) -> Report:
    """The report, and what differs where jobs without a fault are run again, in memory, as far as they have come.

    A job that cannot be run is named, and the others are run; so is one whose log has not all that can be compared.

    jobs   those that the audit was of; None: all
    tell   told each job before it is run
    """
    damaged = {fault.job for fault in report.faults}
    wanted = [row.job for row in log.rows() if (jobs is None or row.job in jobs) and row.job not in damaged]
    faults, not_run, in_part = list(report.faults), list[NotRun](), list[NotRun]()
    for job in wanted:
        tell(job)
        row = log.row(job)
        try:
            if row.erased_ms is not None:
                raise ContentErased(job)
            faults += reexecution_faults(log, models.load(*row.wanted), job)
        except Problem as problem:
            not_run.append(NotRun(job, problem.code, advised(problem)))
        else:
            if log.row(job).sealed_ms is not None:
                in_part.append(NotRun(job, EvidenceSealed.code, "only bytes, text and end are kept to compare"))
    return report._replace(faults=faults, not_run=not_run, in_part=in_part)
