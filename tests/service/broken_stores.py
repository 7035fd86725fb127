"""Campaigns that must find something, in a process of its own: `broken_stores.py NAME...`."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from decodelog.fsm.errors import DatabaseLocked, Problem
from decodelog.fsm.failpoints import Reached
from decodelog.fsm.ports import Append, AppendResult, Durable, JobRow, Outcome
from decodelog.service.lab.torture import campaign, child, outages, siege
from decodelog.service.lab.torture.child import Body, Mark, Place, Running
from decodelog.service.lab.torture.databases import SqliteGround
from decodelog.service.lab.torture.disruptions import rehearse_load
from decodelog.service.lab.torture.scenes import SCENES
from decodelog.service.lab.torture.siege import Siege
from decodelog.service.lab.torture.signals import held_back
from decodelog.store.appending.offer import offer
from decodelog.store.engine import DatabaseStore


class Halved:
    """Takes a turn job by job, each in a transaction of its own: a kill between two leaves half of the turn."""

    def __init__(self, store: DatabaseStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def append(self, batch: Sequence[Append]) -> list[AppendResult]:
        return [result for append in batch for result in self._store.append([append])]

    def begin(self, batch: Sequence[Append]) -> Durable:
        return partial(self.append, batch)


class Early(Halved):
    """Says that a turn is durable when it has only been told of it, and writes it with the next one."""

    def __init__(self, store: DatabaseStore) -> None:
        super().__init__(store)
        self._later: Callable[[], object] = list

    def begin(self, batch: Sequence[Append]) -> Durable:
        self._later()
        self._later = partial(self._store.append, batch)
        return lambda: [offer(append).done(Outcome.APPENDED) for append in batch]

    def append(self, batch: Sequence[Append]) -> list[AppendResult]:
        self._later()
        return self._store.append(batch)

    def row(self, job: str) -> JobRow:
        self._later()
        return self._store.row(job)

    def waiting(self, *given: Any) -> bool:
        self._later()
        return self._store.waiting(*given)


STORES = {"sound": lambda store: store, "halved": Halved, "early": Early}
KILLS = (
    ("pending", Place("append.committed", 4)),
    ("pending", Place("append.committed", 5)),
    ("structured", Place("turn.published", 3)),
)


def tampered(folder: Path, ground: SqliteGround) -> Iterable[str]:
    """A siege in which somebody takes away the newest append."""

    def disturb(siege: Siege) -> Iterator[float]:
        yield 0.3
        with closing(sqlite3.connect(ground.url.removeprefix("sqlite:///"))) as connection, connection:
            connection.execute("DELETE FROM appends WHERE id = (SELECT max(id) FROM appends)")
        siege.look()

    return besieged(folder, ground, disturb, ())


def harmless(folder: Path, ground: SqliteGround) -> Iterable[str]:
    """A siege that only looks."""

    def disturb(siege: Siege) -> Iterator[float]:
        yield 0.2
        siege.look()

    return besieged(folder, ground, disturb, (DatabaseLocked,))


def unseen(folder: Path, ground: SqliteGround) -> Iterator[str]:
    """A siege that cannot look at its logs while somebody holds the write lock. What is said is what has stayed."""

    def disturb(siege: Siege) -> Iterator[float]:
        look, looks = siege.look, iter(range(2))
        vars(siege)["look"] = lambda: look() if next(looks) == 0 else held()
        yield from outages.locked(siege)

    yield from besieged(folder, ground, disturb, ())
    yield from left(ground)


def held() -> NoReturn:
    raise DatabaseLocked("it", "held")


def endless(folder: Path, ground: SqliteGround) -> Iterator[str]:
    """A siege whose workers do not end, while somebody reads as long as one may."""
    for module in (siege, outages):
        vars(module)["LATE_S"] = 0.5

    def disturb(siege: Siege) -> Iterator[float]:
        siege.hampered = lambda: time.sleep(60)
        siege.restart()
        yield from outages.read_long(siege)

    yield from besieged(folder, ground, disturb, ())
    yield from left(ground)


def left(ground: SqliteGround) -> Iterator[str]:
    """What a siege has left behind: a process, a lock."""
    try:
        os.waitpid(-1, os.WNOHANG)
        yield "a process is left"
    except ChildProcessError:
        pass
    with closing(sqlite3.connect(ground.url.removeprefix("sqlite:///"), timeout=0.0)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            yield f"a lock is left: {error}"


def asked(folder: Path, ground: SqliteGround) -> Iterator[str]:
    """A process that is asked to end where it holds that back, twice over, and in a copy of it."""
    reached = []
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background begins without it
    try:
        with held_back():
            with held_back():
                signal.raise_signal(signal.SIGINT)
                reached.append("inner end")
            reached.append("outer end")
        reached.append("beyond")
    except KeyboardInterrupt:
        reached.append("ended")
    yield from reached

    def waiting(at: Reached, mark: Mark) -> None:
        mark("up", 1)
        time.sleep(60)

    with held_back():
        copy = child.start(waiting, folder)
    while "up" not in copy.told:
        time.sleep(0.01)
    os.kill(copy.pid, signal.SIGTERM)
    yield f"the copy ended by {copy.wait().signal}"


def besieged(
    folder: Path, ground: SqliteGround, disturb: Callable[[Siege], Iterator[float]], expected: tuple[type[Problem], ...]
) -> Iterable[str]:
    made = campaign.Campaign(folder, ground)
    return Siege(made, rehearse_load(made), 1).run("test", disturb, expected).faults


def hung(folder: Path, ground: SqliteGround) -> Iterator[str]:
    """A process that does not end, where one may take a few seconds."""
    yield started(folder, lambda at, mark: time.sleep(60)).wait().last


def stopped(folder: Path, ground: SqliteGround) -> Iterator[str]:
    """A process that is stopped for longer than it may take, and has nothing else to do than to end after that."""
    running = started(folder, lambda at, mark: os.kill(os.getpid(), signal.SIGSTOP))

    def wake() -> None:
        os.waitid(os.P_PID, running.pid, os.WSTOPPED | os.WNOWAIT)
        time.sleep(child.PATIENCE_S + 1)
        os.kill(running.pid, signal.SIGCONT)

    waker = threading.Thread(target=wake)
    waker.start()
    ended = running.wait()
    waker.join()
    if not ended.well or ended.seconds < child.PATIENCE_S:
        yield f"{ended.signal} {ended.code} {ended.seconds} {ended.last}"


def started(folder: Path, body: Body) -> Running:
    child.PATIENCE_S = 3
    return child.start(body, folder)


OTHERS = {each.__name__: each for each in (tampered, harmless, unseen, endless, asked, hung, stopped)}


def opened(name: str, url: str, at: Reached) -> Any:
    return STORES[name](campaign.open_real(url, at))


def main(names: list[str]) -> None:
    """Print what is found, store by store, as one JSON object."""
    torch.set_num_threads(1)
    scenes = {scene.name: scene for scene in SCENES}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        ground = SqliteGround(Path(folder))
        for name in names:
            if name in OTHERS:
                found[name] = list(OTHERS[name](Path(folder), ground))
                continue
            made = campaign.Campaign(Path(folder), ground, partial(opened, name))
            found[name] = [
                fault
                for scene, place in KILLS
                for fault in made.kill(scenes[scene], made.rehearse(scenes[scene]), place).faults
            ]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
