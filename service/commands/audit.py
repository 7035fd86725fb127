"""audit: prove the logs from what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from .. import terminal
from ..advice import advised
from ..database import opened
from ..edge import FAILED
from ..models import Models, home
from ..naming import find
from . import options

if TYPE_CHECKING:
    from ...store.engine import DatabaseStore
    from ...store.memory_log import MemoryStore
    from ..audit import Report

Reexecute = Annotated[
    bool, typer.Option("--reexecute", help="Also run the model over each job again; the first difference is a fault.")
]


def audit(
    job: options.MaybeJobOrFamily = None,
    every: options.AllJobs = False,
    reexecute: Reexecute = False,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    """Prove the logs from what is stored; exit 1 on a fault."""
    from ..audit import audit as audit_jobs

    if job is not None and every:
        raise typer.BadParameter("name one job, or give --all")
    with opened(db) as store:
        jobs = None if job is None else find(store, job).jobs
        report = audit_jobs(store, jobs)
        if reexecute:
            report = again(store, jobs, report)
    tell(report, json)


def again(store: DatabaseStore | MemoryStore, jobs: Sequence[str] | None, report: Report) -> Report:
    """The report, and what differs where jobs without a fault are run again, in memory, as far as they have come.

    A job that cannot be run is named, and the others are run.
    """
    from ...fsm.errors import ContentErased, Defect, Rejected
    from ..audit import NotRun
    from ..compare import reexecution_faults

    damaged, models = {fault.job for fault in report.faults}, Models(home(), lanes=1)
    wanted = [row.job for row in store.rows() if (jobs is None or row.job in jobs) and row.job not in damaged]
    faults, not_run, sealed, erased = list(report.faults), [], 0, 0
    with terminal.progress("running jobs again") as told:
        for job in wanted:
            told(job)
            row = store.row(job)
            if row.erased_ms is not None:
                erased += 1
                continue
            try:
                faults += reexecution_faults(store, models.load(row.model), job)
            except ContentErased:  # while it was read
                erased += 1
            except (Rejected, Defect) as problem:
                not_run.append(NotRun(job, problem.code, advised(problem)))
            sealed += row.sealed_ms is not None
    if erased:
        terminal.say(f"{erased} erased jobs cannot be run again", style="yellow")
    if sealed:
        terminal.say(f"of {sealed} sealed jobs only bytes, text and end can be compared", style="yellow")
    return report._replace(faults=faults, not_run=not_run)


def tell(report: Report, json: bool) -> None:
    """Say what a proof found, and end with exit code 1 where that is a fault."""
    if json:
        terminal.write_json(report.as_json())
    else:
        for fault in report.faults:
            place = f"{fault.job}  event {fault.sequence}  " if fault.job else ""
            terminal.write(f"{place}[{fault.kind}] {fault.detail}\n")
        for each in report.not_run or ():
            terminal.write(f"{each.job} could not be run again: {each.message}\n")
        verdict = "no fault" if report.ok else f"{len(report.faults)} faults"
        digest = f", digest {report.digest}" if report.digest else ""
        terminal.write(f"{report.jobs} jobs, {report.events} events{digest}: {verdict}\n")
        if report.sealed:
            terminal.write(f"{report.sealed} sealed: receipts and digests of thinned steps are not kept, nor proven\n")
        if report.erased:
            terminal.write(f"{report.erased} erased: their chain is proven, and nothing else is left\n")
    if not report.ok:
        raise typer.Exit(FAILED)
