"""jobs, show, cancel: looking at jobs, and ending one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ....fsm.errors import ConflictingFlags, Terminal
from ...database import opened
from ...jobs.listing import listed
from ...jobs.naming import find
from .. import terminal
from ..edge import FAILED, end_with, told_damage
from ..table import Table
from . import options
from .run import say_missing, told

if TYPE_CHECKING:
    from ....fsm.ports import JobRow

LISTED = 1000

Last = Annotated[
    int | None,
    typer.Option("--last", min=1, metavar="N", help="Only the N newest jobs.", show_default=False),
]
Wait = Annotated[float, typer.Option("--wait", min=0.0, metavar="S", help="Seconds to wait for the job's owner.")]


def jobs(
    last: Last = None, every: options.AllJobs = False, db: options.Database = None, json: options.Json = False
) -> None:
    if every and last is not None:
        raise ConflictingFlags("--all and --last", "give one of them")
    if last is None and not every and not json:
        last = LISTED
    with opened(db) as store:
        if json:
            _write_array([listed(row) for row in page] for page in store.pages(last))
            return
        table = Table(("JOB", "STATE", "FINISH", "IN", "OUT", "CREATED", "MODEL"), numbers=("IN", "OUT"))
        shown = 0
        for page in store.pages(last):
            shown += len(page)
            table.write(
                [(row.job, _state(row), row.finish, row.prompt, row.output, _when(row.created_ms), row.model)
                 for row in page]
            )  # fmt: skip
        if shown == last and (older := store.count() - shown) > 0:
            terminal.say(f"{older} older jobs are not shown; --all shows them", style="dim")


def _write_array(pages: Iterator[list[dict[str, Any]]]) -> None:
    """One JSON array on one line, a page at a time."""
    before = "["
    for page in filter(None, pages):
        terminal.write(before + terminal.json_line(page).strip()[1:-1])
        before = ", "
    terminal.write("[]\n" if before == "[" else "]\n")


def show(job: options.JobOrFamily, db: options.Database = None, json: options.Json = False) -> None:
    from ...streams.reading import proven_of

    with opened(db) as store:
        found = find(store, job)
        rows = [store.row(name) for name in found.jobs]
        read = [proven_of(store, name) for name in found.jobs]
    results = [transcript.result() for transcript, _ in read]
    damage = next((damage for _, damage in read if damage is not None), None)
    say_missing(found)
    if json:
        each = [result | told_damage(damage) for result, (_, damage) in zip(results, read, strict=True)]
        terminal.write_json(told(found, each))
        return end_with(damage, json)
    shown = [
        (terminal.heading(row.job) if found.is_family else "") + _shown(row, result)
        for row, result in zip(rows, results, strict=True)
    ]
    terminal.write("\n".join(shown))
    end_with(damage, json)


def _shown(row: JobRow, result: dict[str, Any]) -> str:
    from ..printer import ending

    usage = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in result["usage"].items())
    facts = {
        "job": row.job,
        "state": f"{result['state']} ({ending(result)})" if row.status.terminal else result["state"],
        "model": row.model,
        "identity": row.identity,
        "created": _when(row.created_ms),
        "usage": usage,
        "ends at": ", ".join(map(str, result["eos_ids"])) or "no end token",
        "key": row.idempotency_key,
        "owner": row.owner,
        "stalled": f"{row.stalled} tenures in a row ended without a token" if row.stalled else None,
    }
    lines = "".join(f"{name:<9} {value}\n" for name, value in facts.items() if value is not None)
    return f"{lines}\n{result['text']}\n"


def cancel(
    job: options.JobOrFamily, wait: Wait = 30.0, db: options.Database = None, json: options.Json = False
) -> None:
    from ...jobs.cancel import cancel_all
    from ...jobs.incarnation import new_worker_name

    with opened(db) as store:
        found = find(store, job)
        outcomes = cancel_all(store, found.jobs, new_worker_name(), wait)
        rows = [store.row(name) for name in found.jobs]
    late = [each.outcome for each in outcomes if each is not None and each.outcome != "cancelled"]
    unanswered = outcomes.count(None)
    if len(late) == len(rows):
        raise Terminal(state=rows[0].status.value, reason=", ".join(dict.fromkeys(late)))
    if unanswered:
        terminal.say("its owner has not answered yet; the cancel is kept, and carried out when it does", style="yellow")
    if json:
        listings = [listed(row) for row in rows]
        terminal.write_json({"family": found.name, "jobs": listings} if found.is_family else listings[0])
    else:
        for row, outcome in zip(rows, outcomes, strict=True):
            if outcome is not None:
                how = "is cancelled" if outcome.outcome == "cancelled" else f"had ended already ({outcome.outcome})"
                terminal.write(f"{row.job} {how} with {row.output} tokens\n")
    if unanswered:
        raise typer.Exit(FAILED)


def _state(row: JobRow) -> str:
    """The job's state; where its tenures stall, how many in a row."""
    if not row.status.terminal:
        return row.status.value + (f" (stalled {row.stalled})" if row.stalled else "")
    kept = "erased" if row.erased_ms is not None else "sealed" if row.sealed_ms is not None else ""
    return row.status.value + (f" ({kept})" if kept else "")


def _when(milliseconds: int) -> str:
    """Local time, to the second."""
    return datetime.fromtimestamp(milliseconds / 1000).isoformat(" ", "seconds")
