"""The campaign: a process is killed at every point, in every state, on each database, and its logs are looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from ....fsm.errors import ChildFailed
from ....fsm.failpoints import ONE_STATEMENT, POINTS, Reached, unheard
from ....fsm.ports import Store
from ....store.engine import open_store
from ...database import now_ms
from ...jobs.models import Models
from ...jobs.shelf import SCRIPT_FILE
from . import child
from .child import ANYWHERE, MOMENT_S, Ended, Mark, Place
from .databases import Ground
from .scenes import SCENES, SCRIPT, Scene, World, prepare
from .verdict import Scan, after_end, after_kill, scan

LANES = 8
TRIES = 3  # to reach a point that a thread of its own comes to in its own time
INSTANTS = 20
BEATS = 2  # of those that a run has more or fewer of

Open = Callable[[str, Reached], Any]


class Kill(NamedTuple):
    """One kill: where, in which scene, on which database."""

    database: str
    scene: str
    place: Place

    def __str__(self) -> str:
        return f"{self.scene}:{self.place.point}:{self.place.nth}"


class Result(NamedTuple):
    """What became of it: the states that the kill left the jobs in, and what is wrong."""

    kill: Kill
    state: str
    faults: list[str]

    def as_json(self) -> dict[str, Any]:
        database, scene, (point, nth) = self.kill
        return {
            "database": database, "scene": scene, "point": point, "nth": nth,
            "state": self.state, "faults": self.faults,
        }  # fmt: skip


def open_real(url: str, at: Reached) -> Any:
    return open_store(url, clock=now_ms, at=at)


class Rehearsal(NamedTuple):
    """A scene that nothing happened to: what it found and left, the points that it reached, and its time in s."""

    before: Scan
    whole: Scan
    points: Counter[str]
    seconds: float

    @property
    def anywhere(self) -> list[Place]:
        """Instants spread over its time: a kill inside a statement, a sync or a call falls at no point."""
        return [Place(ANYWHERE, int(self.seconds / MOMENT_S * part / INSTANTS)) for part in range(1, INSTANTS)]

    @property
    def places(self) -> list[Place]:
        counts = {point: min(n, BEATS) if point.startswith("heartbeat.") else n for point, n in self.points.items()}
        return [Place(point, nth) for point in POINTS for nth in range(1, counts.get(point, 0) + 1)]


class Campaign:
    """Kills on one database. `opened` opens its store, for the processes that are killed."""

    def __init__(self, folder: Path, ground: Ground, opened: Open = open_real) -> None:
        self.ground = ground
        self.folder = folder
        self._open = opened
        self._models = Models(folder, LANES)
        self._model = folder / "model"
        self._model.mkdir(exist_ok=True)
        (self._model / SCRIPT_FILE).write_text(SCRIPT)
        self._models.load(str(self._model))

    def rehearse(self, scene: Scene) -> Rehearsal:
        """Run a scene undisturbed. Errors: ChildFailed; so does a scene whose own end is not sound."""
        self.lay(scene)
        before = self.scan(scene)
        ended = self.run(scene, self._open)
        whole = self.scan(scene)
        wrong = list(after_end(scene, before, whole, whole, ended))
        if wrong or ended.killed:
            raise ChildFailed(0, f"scene {scene.name} on {self.ground.name}, undisturbed: {'; '.join(wrong)}")
        return Rehearsal(before, whole, Counter(ended.points), ended.seconds)

    def kill(self, scene: Scene, rehearsed: Rehearsal, place: Place) -> Result:
        """Kill a process at one place, look, have another one go on, and look again."""
        kill = Kill(self.ground.name, scene.name, place)
        for _ in range(TRIES):
            self.lay(scene)
            ended = self.run(scene, self._open, place)
            if ended.killed or not ended.well or place.point == ANYWHERE:
                break
        found = self.scan(scene)
        if not ended.killed and place.point != ANYWHERE:
            return Result(
                kill, found.state, [f"the process did not get there: it ended with {ended.code}: {ended.last}"]
            )
        faults = list(after_kill(scene, ended, rehearsed.before, found, rehearsed.whole))
        retry = self.run(scene, open_real)
        faults += after_end(scene, found, self.scan(scene), rehearsed.whole, retry)
        return Result(kill, found.state, faults)

    def lay(self, scene: Scene) -> None:
        def fill(url: str) -> None:
            with closing(open_real(url, unheard)) as store:
                prepare(self.world(store, scene, unheard, lambda job, sequence: None))

        self.ground.lay(scene.name, fill)

    def run(self, scene: Scene, opened: Open, place: Place | None = None) -> Ended:
        def body(at: Reached, mark: Mark) -> None:
            with closing(opened(self.ground.url, at)) as store:
                scene.act(self.world(store, scene, at, mark))

        ended = child.run(body, self.folder, place)
        self.ground.wait_idle()
        return ended

    def scan(self, scene: Scene) -> Scan:
        with closing(open_real(self.ground.url, unheard)) as store:
            return scan(store, scene)

    def world(self, store: Store, scene: Scene, at: Reached, mark: Mark) -> World:
        return World(store, self._models, str(self._model), scene, at, mark)


def points_of(database: str) -> list[str]:
    """The points that there are on a database."""
    return [point for point in POINTS if database == "sqlite" or point not in ONE_STATEMENT]


def plan(rehearsals: dict[Scene, Rehearsal], quick: bool) -> list[tuple[Scene, Place]]:
    """Every place of every scene, and kills anywhere; `quick`: each point once, in one scene after the other."""
    if not quick:
        return [(scene, place) for scene, made in rehearsals.items() for place in [*made.places, *made.anywhere]]
    chosen: list[tuple[Scene, Place]] = []
    for index, point in enumerate(POINTS):
        reached = [scene for scene, rehearsed in rehearsals.items() if rehearsed.points[point]]
        for scene in reached[index % max(len(reached), 1) :][:1]:
            places = [place for place in rehearsals[scene].places if place.point == point]
            chosen.append((scene, places[index % len(places)]))
    return chosen


class Verdict(NamedTuple):
    """What a campaign found: every kill, and the points of its database that no scene has reached."""

    results: list[Result]
    unreached: list[str]

    @property
    def failures(self) -> int:
        return sum(bool(result.faults) for result in self.results) + len(self.unreached)


def torture(
    campaign: Campaign, quick: bool, hear: Callable[[Result], None], scenes: Sequence[Scene] = SCENES
) -> Verdict:
    """Kill at every planned place of every scene; `hear` is told each result. Errors: ChildFailed, and the store's."""
    rehearsals = {scene: campaign.rehearse(scene) for scene in scenes}
    results: list[Result] = []
    for scene, place in plan(rehearsals, quick):
        results.append(campaign.kill(scene, rehearsals[scene], place))
        hear(results[-1])
    reached = sum((rehearsed.points for rehearsed in rehearsals.values()), Counter[str]())
    return Verdict(results, [point for point in points_of(campaign.ground.name) if not reached[point]])
