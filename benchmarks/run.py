"""The benchmarks: a table on standard output, and every figure in build/bench.json."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import machine
import typer
from api import api
from bars import ROWS, Row
from control import control
from folding import folding
from measuring import Figures, Measure
from policy import policy
from position import position
from resume import resume
from rich import box
from rich.console import Console
from rich.table import Table
from sealing import sealing
from simulation import simulation
from size import size
from stream import stream
from structure import structure
from text import text
from torture import torture

MEASURES: dict[str, tuple[Measure, int]] = {
    "stream": (stream, 5),
    "control": (control, 5),
    "folding": (folding, 5),
    "size": (size, 1),
    "position": (position, 5),
    "policy": (policy, 5),
    "structure": (structure, 5),
    "text": (text, 5),
    "sealing": (sealing, 5),
    "resume": (resume, 5),
    "api": (api, 5),
    "torture": (torture, 1),
    "simulation": (simulation, 1),
}
"""The families of figures: what measures each, and its rounds."""

RESULTS = Path("build/bench.json")
SHOWN = (
    "processor",
    "cores",
    "torch_threads",
    "python",
    "torch",
    "transformers",
    "sqlite",
    "dbos",
    "eventsourcing",
)


def main(
    only: Annotated[list[str] | None, typer.Option(help=f"measure only this family: {', '.join(MEASURES)}")] = None,
    quick: Annotated[bool, typer.Option(help="one round each: whether it runs, not how fast")] = False,
) -> None:
    """Measure, print the table, and write build/bench.json."""
    progress = Console(stderr=True)
    if unknown := set(only or ()) - set(MEASURES):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))} is none of {', '.join(MEASURES)}")
    facts, figures = machine.facts(), Figures()
    for name in only or MEASURES:
        measure, rounds = MEASURES[name]
        begin = time.perf_counter()
        figures |= measure(1 if quick else rounds, partial(tell, progress, name))
        progress.print(f"[dim]{name}: {time.perf_counter() - begin:.0f} s")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({**figures, "machine": facts, "quick": quick}, indent=2, sort_keys=True) + "\n")
    show(figures, facts)


def tell(progress: Console, name: str, text: str) -> None:
    progress.print(f"[dim]{name}: {text}")


def show(figures: Figures, facts: dict[str, object]) -> None:
    """The table, as wide as its reader's terminal or 150 columns where there is none."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=150)
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("measure", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("bar")
    table.add_column("", no_wrap=True)
    table.add_column("how")
    for row in ROWS:
        if row.key in figures:
            table.add_row(row.key, row.form.format(figures[row.key]), row.bar, verdict(row, figures), row.how)
    console.print(table)
    console.print(", ".join(f"{name} {facts[name]}" for name in SHOWN), style="dim")
    console.print(f"every figure: {RESULTS}", style="dim")


def verdict(row: Row, figures: Figures) -> str:
    if row.holds is None:
        return ""
    return "[green]ok" if row.holds(figures) else "[red]short"


if __name__ == "__main__":
    typer.run(main)
