"""audit: prove the logs from what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...database import opened
from ...jobs.models import Models, home
from ...jobs.naming import find
from .. import terminal
from ..edge import FAILED, UNPROVEN
from . import options

if TYPE_CHECKING:
    from ...inspect.audit import Report

Reexecute = Annotated[
    bool, typer.Option("--reexecute", help="Also run the model over each job again; the first difference is a fault.")
]

Anchor = Annotated[
    Path | None,
    typer.Option(
        "--anchor",
        metavar="FILE",
        dir_okay=False,
        help="Hold the logs to the heads in this file, and add those of sound logs to it.",
        show_default=False,
    ),
]


def audit(
    job: options.MaybeJobOrFamily = None,
    every: options.AllJobs = False,
    reexecute: Reexecute = False,
    anchor: Anchor = None,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    from ...inspect.audit import audit as audit_jobs
    from ...inspect.audit import audit_anchored
    from ...inspect.reexecution import again

    if job is not None and every:
        raise typer.BadParameter("name one job, or give --all")
    with opened(db) as store:
        jobs = None if job is None else find(store, job).jobs
        report = audit_jobs(store, jobs) if anchor is None else audit_anchored(store, jobs, anchor)
        if reexecute:
            with terminal.progress("running jobs again") as tell_job:
                report = again(store, Models(home(), lanes=1), jobs, report, tell_job)
    tell(report, json)


def tell(report: Report, json: bool) -> None:
    """Say what a proof found, and end with exit code 1 where that is a fault, or 3 where not all was proven."""
    if json:
        terminal.write_json(report.as_json())
    else:
        for fault in report.faults:
            place = f"{fault.job}  event {fault.sequence}  " if fault.job else ""
            terminal.write(f"{place}[{fault.kind}] {fault.detail}\n")
        for each in report.not_run or ():
            terminal.write(f"{each.job} could not be run again: {each.message}\n")
        for each in report.in_part or ():
            terminal.write(f"{each.job} was run again, and compared in part: it is sealed, and {each.message}\n")
        verdict = _verdict(report)
        digest = f", digest {report.digest}" if report.digest else ""
        terminal.write(f"{report.jobs} jobs, {report.events} events{digest}: {verdict}\n")
        if report.signed_by:
            proven = "proven" if report.checked else "not proven" if report.faults else "not checked without --key"
            terminal.write(f"signed with {report.signed_by}: {proven}\n")
        if report.sealed:
            terminal.write(f"{report.sealed} sealed: receipts and digests of thinned steps are not kept, nor proven\n")
        if report.erased:
            terminal.write(f"{report.erased} erased: their chain is proven, and nothing else is left\n")
    if not report.ok:
        raise typer.Exit(FAILED)
    if report.unproven:
        raise typer.Exit(UNPROVEN)


def _verdict(report: Report) -> str:
    verdict = "no fault" if report.ok else f"{len(report.faults)} faults"
    parts = [(report.not_run, "not run again"), (report.in_part, "compared in part")]
    unproven = [f"{len(jobs)} {what}" for jobs, what in parts if jobs]
    return f"{verdict} in what was proven; {', '.join(unproven)}" if unproven else verdict
