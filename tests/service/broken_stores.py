"""A campaign against a store that keeps its promises only half, in a process of its own: `broken_stores.py NAME...`."""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch

from decodelog.fsm.ports import Outcome
from decodelog.service.torture import campaign
from decodelog.service.torture.child import Place
from decodelog.service.torture.databases import SqliteGround
from decodelog.service.torture.scenes import SCENES
from decodelog.store.offer import offer


class Halved:
    """Takes a turn job by job, each in a transaction of its own: a kill between two leaves half of the turn."""

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    def append(self, batch):
        return [result for append in batch for result in self._store.append([append])]

    def begin(self, batch):
        return partial(self.append, batch)


class Early(Halved):
    """Says that a turn is durable when it has only been told of it, and writes it with the next one."""

    def __init__(self, store):
        super().__init__(store)
        self._later = list

    def begin(self, batch):
        self._later()
        self._later = partial(self._store.append, batch)
        return lambda: [offer(append).done(Outcome.APPENDED) for append in batch]

    def append(self, batch):
        self._later()
        return self._store.append(batch)

    def row(self, job):
        self._later()
        return self._store.row(job)

    def waiting(self, jobs, exclude):
        self._later()
        return self._store.waiting(jobs, exclude)


STORES = {"sound": lambda store: store, "halved": Halved, "early": Early}
KILLS = (
    ("pending", Place("append.committed", 4)),
    ("pending", Place("append.committed", 5)),
    ("structured", Place("turn.published", 3)),
)


def opened(name, url, at):
    return STORES[name](campaign.open_real(url, at))


def main(names: list[str]) -> None:
    """Print what is found, store by store, as one JSON object."""
    torch.set_num_threads(1)
    scenes = {scene.name: scene for scene in SCENES}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        ground = SqliteGround(Path(folder))
        for name in names:
            made = campaign.Campaign(Path(folder), ground, partial(opened, name))
            found[name] = [
                fault
                for scene, place in KILLS
                for fault in made.kill(scenes[scene], made.rehearse(scenes[scene]), place).faults
            ]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
