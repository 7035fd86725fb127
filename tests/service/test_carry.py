"""Jobs carried to their end in this process, whatever happens to the database meanwhile."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from commandline import TEXT
from databases import wall_clock_ms

from decodelog.fsm.errors import DatabaseUnavailable
from decodelog.fsm.request.draft import draft_from
from decodelog.service.jobs.carry import carried
from decodelog.service.jobs.models import Models
from decodelog.service.jobs.submit import submit
from decodelog.store.memory.log import MemoryStore

AWAY_S = 0.7


class Away:
    """A store that answers nobody for a while, from the third append on: neither the worker nor the reader."""

    def __init__(self, store: MemoryStore) -> None:
        self._store, self._appends, self._until = store, 0, 0.0
        self.refused: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found) or name == "bell":
            return found

        def asked(*arguments: Any, **options: Any) -> Any:
            self._appends += name in ("append", "begin")
            if self._appends == 3 and not self._until:
                self._until = time.monotonic() + AWAY_S
            # Until the reader has met it too: on a busy machine it may come late.
            if self._until and (time.monotonic() < self._until or "read" not in self.refused):
                self.refused.add(name)
                raise DatabaseUnavailable("test", "it is away")
            return found(*arguments, **options)

        return asked


@pytest.mark.contract("LOG-2", "OUT-7")
def test_a_short_outage_ends_neither_worker_nor_reader(short_model: Path) -> None:
    """A database that is away for a moment ends neither the worker nor its reader."""
    store, models = Away(MemoryStore(wall_clock_ms)), Models(short_model, lanes=1)
    draft = draft_from({"prompt": "say", "max_new_tokens": 200})
    job = submit(store, models.load(str(short_model)), str(short_model), draft, wall_clock_ms()).job
    assert "".join(emission.text for _, emission in carried(store, models, [job])) == TEXT
    assert "read" in store.refused
