"""jobs, show, cancel: looking at jobs, and ending one."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ....fsm.errors import ConflictingFlags, Terminal
from ....fsm.machine.states import Status
from ...database import now_ms, opened
from ...jobs.listing import age, listed, missed_by, out_of, owner_of, rate
from ...jobs.naming import find
from .. import terminal
from ..board import Board
from ..edge import FAILED, end_with, on_signals, told_damage
from ..table import Table
from ..visible import visible_line
from . import options
from .run import say_missing, told

if TYPE_CHECKING:
    from ....fsm.ports import JobRow, ModelRef
    from ....fsm.reading.transcript import Transcript
    from ....store.engine import DatabaseStore
    from ....store.memory.log import MemoryStore

LISTED = 1000
WATCHED = 20
LOOK_S = 1.0
SHOWN = 100  # characters of a value
COLUMNS = ("JOB", "STATE", "FINISH", "IN", "OUT/MAX", "RATE", "AGE", "OWNER", "MODEL")
NUMBERS = ("IN", "OUT/MAX", "RATE", "AGE")
STATES = {
    "live": tuple(status for status in Status if not status.terminal),
    "ended": tuple(status for status in Status if status.terminal),
    **{status.value.lower(): (status,) for status in Status},
}

Limit = Annotated[
    int | None,
    typer.Option("--limit", "--last", min=1, metavar="N", help="Only the N newest jobs.", show_default=False),
]
State = Annotated[
    str | None,
    typer.Option("--state", metavar="STATE", help=f"Only jobs that are {', '.join(STATES)}.", show_default=False),
]
Watching = Annotated[
    bool, typer.Option("--watch", help="Draw the newest jobs again and again on a terminal, until Ctrl-C.")
]
Whole = Annotated[bool, typer.Option("--all", help="All of the prompt, and all that is sealed in the request.")]
Wait = Annotated[float, typer.Option("--wait", min=0.0, metavar="S", help="Seconds to wait for the job's owner.")]


def jobs(
    state: State = None,
    limit: Limit = None,
    every: options.AllJobs = False,
    watch: Watching = False,
    db: options.Database = None,
    json: options.Json = False,
) -> None:
    if every and limit is not None:
        raise ConflictingFlags("--all and --limit", "give one of them")
    if watch and (every or json):
        raise ConflictingFlags("--watch and --all or --json", "what is watched is a table of the newest jobs")
    if state is not None and state.lower() not in STATES:
        raise typer.BadParameter(f"it is one of {', '.join(STATES)}", param_hint="--state")
    states = tuple(Status) if state is None else STATES[state.lower()]
    with opened(db) as store:
        missing = store.missing()
        if watch and sys.stdout.isatty():
            return _watch(store, limit or WATCHED, states)
        if json:
            _write_array([listed(row, missing) for row in page] for page in store.pages(limit, states))
            return
        last = LISTED if limit is None and not every else limit
        table, shown = Table(COLUMNS, NUMBERS), 0
        for page in store.pages(last, states):
            shown += len(page)
            table.write([_cells(row, now_ms(), missing) for row in page])
        if shown == last and (older := store.count(states) - shown) > 0:
            terminal.say(f"{older} older jobs are not shown; --all shows them", style="dim")


def _cells(row: JobRow, at_ms: int, missing: Mapping[ModelRef, str], rated: str | None = None) -> tuple[Any, ...]:
    """A row of the table. Its rate is over all the job's time, waiting included, or as it was `rated`."""
    whole = rate(row.output, (row.ended_ms or at_ms) - row.created_ms)
    finish, out, since = row.finish, out_of(row.output, row.output_max), age(at_ms - row.created_ms)
    named = owner_of(row.owner), row.model
    state, whole = _state(row, missed_by(row, missing)), whole if rated is None else rated
    return row.job, state, finish, row.prompt, out, whole, since, *named


def _watch(store: DatabaseStore | MemoryStore, last: int, states: Sequence[Status]) -> None:
    """Draw the newest jobs until Ctrl-C: one query a look, and the rate of a job that runs is since the look before."""
    before: dict[str, tuple[int, int]] = {}

    def lines() -> list[str]:
        at_ms, missing = now_ms(), store.missing()
        rows = [row for page in store.pages(last, states) for row in page]
        cells = []
        for row in rows:
            output, then_ms = before.get(row.job, (row.output, at_ms))
            rated = None if row.status.terminal else rate(row.output - output, at_ms - then_ms)
            cells.append(_cells(row, at_ms, missing, rated))
        before.clear()
        before.update({row.job: (row.output, at_ms) for row in rows})
        return Table(COLUMNS, NUMBERS).lines(cells)

    board = Board(sys.stdout, lines)
    with on_signals():
        while True:
            board.draw()
            time.sleep(LOOK_S)


def _write_array(pages: Iterator[list[dict[str, Any]]]) -> None:
    """One JSON array on one line, a page at a time."""
    before = "["
    for page in filter(None, pages):
        terminal.write(before + terminal.json_line(page).strip()[1:-1])
        before = ", "
    terminal.write("[]\n" if before == "[" else "]\n")


def show(
    job: options.JobOrFamily, whole: Whole = False, db: options.Database = None, json: options.Json = False
) -> None:
    from ...streams.reading import proven_of

    with opened(db) as store:
        found = find(store, job)
        rows = [store.row(name) for name in found.jobs]
        read = [proven_of(store, name) for name in found.jobs]
        missing = store.missing()
    results = [transcript.result() for transcript, _ in read]
    damage = next((damage for _, damage in read if damage is not None), None)
    say_missing(found)
    if json:
        each = [result | told_damage(damage) for result, (_, damage) in zip(results, read, strict=True)]
        if whole:
            each = [one | {"request": _envelope(transcript)} for one, (transcript, _) in zip(each, read, strict=True)]
        terminal.write_json(told(found, each))
        return end_with(damage, json)
    shown = [
        (terminal.heading(row.job) if found.is_family else "")
        + _shown(row, result, transcript, whole, missed_by(row, missing))
        for row, result, (transcript, _) in zip(rows, results, read, strict=True)
    ]
    terminal.write("\n".join(shown))
    end_with(damage, json)


def _shown(row: JobRow, result: dict[str, Any], transcript: Transcript, whole: bool, missed: str | None) -> str:
    from ..printer import ending

    usage = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in result["usage"].items())
    took = age((row.ended_ms or now_ms()) - row.created_ms)
    facts = {
        "job": row.job,
        "state": f"{result['state']} ({ending(result)})" if row.status.terminal else result["state"],
        "model": row.model,
        "artifact": row.artifact or None,
        "waits": f"no worker has its model: {missed} looked for it; start one with --models DIR" if missed else None,
        "identity": row.identity,
        "created": _when(row.created_ms),
        "ended": f"{_when(row.ended_ms)}, after {took}" if row.ended_ms is not None else f"not yet, after {took}",
        "prompt": _prompt(transcript, whole),
        "asks for": _asked(transcript, whole),
        "tokens": f"{out_of(row.output, row.output_max)} new ones",
        "usage": usage,
        "ends at": ", ".join(map(str, result["eos_ids"])) or "no end token",
        "key": row.idempotency_key,
        "owner": row.owner,
        "stalled": f"{row.stalled} tenures in a row ended without a token" if row.stalled else None,
    }
    lines = "".join(f"{name:<9} {value}\n" for name, value in facts.items() if value is not None)
    return f"{lines}\n{result['text']}\n"


def _prompt(transcript: Transcript, whole: bool) -> str | None:
    """How many tokens it has, what it was made from, and its text where the log has that, else its ids."""
    if (state := transcript.state) is None:
        return None
    recorded = b"".join(token.piece for emission in transcript.emissions for token in emission.prompt)
    text = recorded.decode(errors="replace") if recorded else " ".join(map(str, state.spec.prompt))
    shown = text if whole or len(text) <= SHOWN else f"{text[:SHOWN]}..."
    return f"{len(state.spec.prompt)} tokens of {state.spec.envelope.prompt.source.kind}: {visible_line(shown)}"


def _asked(transcript: Transcript, whole: bool) -> str | None:
    """What its request asks for beside the prompt, one a line: what is not as usual, or all that is sealed."""
    from ...inspect.parameters import sealed, unusual

    if (state := transcript.state) is None:
        return None
    asked = (sealed if whole else unusual)(state.spec.envelope)
    values = {name: str(value) for name, value in asked.items()}
    return (
        f"\n{'':<9} ".join(
            f"{name} {visible_line(value if whole or len(value) <= SHOWN else f'{value[:SHOWN]}...')}"
            for name, value in values.items()
        )
        or "what is usual"
    )


def _envelope(transcript: Transcript) -> dict[str, Any] | None:
    """The request as it is sealed."""
    return None if transcript.state is None else transcript.state.spec.envelope.model_dump(by_alias=True)


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


def _state(row: JobRow, missed: str | None) -> str:
    """The job's state; where its tenures stall, how many in a row, and where its model is missing, that."""
    if not row.status.terminal:
        why = [*(["no worker has its model"] if missed else []), *([f"stalled {row.stalled}"] if row.stalled else [])]
        return row.status.value + (f" ({', '.join(why)})" if why else "")
    kept = "erased" if row.erased_ms is not None else "sealed" if row.sealed_ms is not None else ""
    return row.status.value + (f" ({kept})" if kept else "")


def _when(milliseconds: int) -> str:
    """Local time, to the second."""
    return datetime.fromtimestamp(milliseconds / 1000).isoformat(" ", "seconds")
