"""torture --simulate: run seeded schedules of faults in this process, and prove that none of them changes anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .. import terminal
from ..edge import FAILED

if TYPE_CHECKING:
    from ...lab.simulation.run import Schedule

Simulate = Annotated[
    int | None,
    typer.Option(
        "--simulate",
        min=1,
        metavar="N",
        help="Run N schedules with workers, callers, clock, device and database simulated, instead of real processes.",
        show_default=False,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        min=0,
        metavar="S",
        help="The first schedule of --simulate; the next is S + 1. Not given: 0.",
        show_default=False,
    ),
]


def simulation(count: int, seed: int, json: bool) -> None:
    """Run `count` schedules from `seed` on. Exits with 1 where something is wrong in one of them."""
    from ...lab.simulation.faults import KINDS
    from ...lab.simulation.run import simulate

    report = simulate(count, seed, hear)
    totals = {"simulated_schedules": report.schedules, "simulated_failures": len(report.failures)}
    pace = {"seconds": round(report.seconds, 1), "schedules_per_second": round(report.schedules / report.seconds, 1)}
    if json:
        failures = [{"seed": each.seed, "found": each.found, "again": each.again} for each in report.failures]
        told = {"ok": not failures, "seed": seed, **totals, **pace, "digest": report.digest}
        terminal.write_json({**told, "faults": dict(sorted(report.happened.items())), "failures": failures})
    else:
        rows = [(kind, about, report.happened[kind]) for kind, about in KINDS.items()]
        terminal.write_table(("fault", "what happened", "times"), rows)
        for each in report.failures:
            terminal.write("".join(f"FAILED seed {each.seed}: {found}\n" for found in each.found))
            terminal.write(f"  again: {each.again}\n")
        words = " ".join(f"{key}={value}" for key, value in {"seed": seed, **totals, **pace}.items())
        terminal.write(f"{words} digest={report.digest}\n")
    if report.failures:
        raise typer.Exit(FAILED)


def hear(schedule: Schedule) -> None:
    terminal.say(f"seed {schedule.seed}: {schedule.found[0]}", style="red")
