"""audit: prove the logs from what is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from .. import terminal
from ..database import opened
from ..edge import FAILED
from ..naming import find
from . import options

if TYPE_CHECKING:
    from ..audit import Report


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
    tell(report, json)


def tell(report: Report, json: bool) -> None:
    """Say what a proof found, and end with exit code 1 where that is a fault."""
    if json:
        terminal.write_json(report.as_json())
    else:
        for fault in report.faults:
            place = f"{fault.job}  event {fault.sequence}  " if fault.job else ""
            terminal.write(f"{place}[{fault.kind}] {fault.detail}\n")
        verdict = "no fault" if report.ok else f"{len(report.faults)} faults"
        digest = f", digest {report.digest}" if report.digest else ""
        terminal.write(f"{report.jobs} jobs, {report.events} events{digest}: {verdict}\n")
        if report.sealed:
            terminal.write(f"{report.sealed} sealed: receipts and digests of thinned steps are not kept, nor proven\n")
        if report.erased:
            terminal.write(f"{report.erased} erased: their chain is proven, and nothing else is left\n")
    if not report.ok:
        raise typer.Exit(FAILED)
