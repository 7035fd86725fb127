"""A worker of the real model that is stopped and followed by another: its cache comes back from the disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from databases import AnyStore, wall_clock_ms

from decodelog.fsm.machine.events import LanesRebuilt
from decodelog.fsm.machine.state import State
from decodelog.fsm.reading.emission import Emission
from decodelog.fsm.request.draft import draft_from
from decodelog.runtime.loop.worker import Worker
from decodelog.service.inspect.audit import audit
from decodelog.service.jobs.compose import new_worker
from decodelog.service.jobs.models import Models, home
from decodelog.service.jobs.submit import submit
from decodelog.service.streams.reading import transcript_of

MODEL = "smollm2-135m-instruct"


@pytest.mark.contract("RES-2", "RES-4")
def test_a_stopped_worker_is_followed_by_one_that_computes_nothing_again(store: AnyStore, tmp_path: Path) -> None:
    models, folder = Models(home(), lanes=1), tmp_path / "snapshots"
    draft = draft_from({"prompt": "The river", "max_new_tokens": 16, "temperature": 1.0, "seed": 4, "ignore_eos": True})
    job, whole = (submit(store, models.load(MODEL), MODEL, draft, wall_clock_ms()).job for _ in range(2))
    workers: list[Worker] = []

    def stop_early(name: str, emissions: Sequence[Emission], state: State) -> None:
        if state.frontier.output == 7:
            workers[0].stop()

    workers.append(new_worker(store, models, stop_early, cache_dir=folder))
    workers[0].run([job], drain=True)
    assert not store.row(job).status.terminal
    assert list(folder.glob("*/*.safetensors"))
    new_worker(store, models, cache_dir=folder).run([job], drain=True)
    new_worker(store, models).run([whole], drain=True)
    done, expected = (transcript_of(store, name).result() for name in (job, whole))
    assert [(each["token"], each["logprob"]) for each in done["tokens"]] == [
        (each["token"], each["logprob"]) for each in expected["tokens"]
    ]
    assert (done["usage"]["recomputed_tokens"], done["usage"]["attempts"]) == (0, 2)
    events = [event for record in store.read(job) for event in record.events]
    assert [event.form for event in events if isinstance(event, LanesRebuilt)] == ["tensors"]
    assert list(folder.iterdir()) == []
    assert audit(store).ok
