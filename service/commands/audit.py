"""audit: prove the logs from what is stored."""

from __future__ import annotations

import typer

from .. import terminal
from ..database import opened
from ..edge import FAILED
from ..naming import find
from . import options


def audit(
    job: options.MaybeJobOrFamily = None,
    every: options.AllJobs = False,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    """Prove the logs from what is stored; exit 1 on a fault."""
    from ..audit import audit as audit_jobs

    if job is not None and every:
        raise typer.BadParameter("name one job, or give --all")
    with opened(db) as store:
        report = audit_jobs(store, None if job is None else find(store, job).jobs)
    if json:
        terminal.write_json(report.as_json())
    else:
        for fault in report.faults:
            terminal.write(f"{fault.job}  event {fault.sequence}  [{fault.kind}] {fault.detail}\n")
        verdict = "no fault" if report.ok else f"{len(report.faults)} faults"
        terminal.write(f"{report.jobs} jobs, {report.events} events: {verdict}\n")
    if not report.ok:
        raise typer.Exit(FAILED)
