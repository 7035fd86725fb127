"""What processes do that are to be killed: they run jobs of the real model, submit, read and seal them.

Each is a copy of this process, which has loaded the model and has one thread; see `service.lab.torture.child`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from decodelog.fsm.errors import LostTenure, Problem
from decodelog.fsm.failpoints import Reached, unheard
from decodelog.fsm.machine.state import State
from decodelog.fsm.reading.emission import Emission
from decodelog.fsm.request.draft import draft_from
from decodelog.fsm.request.seal import seal
from decodelog.runtime.loop.pace import Pace
from decodelog.runtime.model.port import Model
from decodelog.service.database import now_ms
from decodelog.service.jobs.compose import new_worker
from decodelog.service.jobs.models import Models, home
from decodelog.service.jobs.submit import admit_job, submit
from decodelog.service.lab.torture.child import Body, Mark
from decodelog.service.retention.sweep import Refused, sweep
from decodelog.service.streams.reading import emissions_of
from decodelog.store.engine import open_store

MODEL = "smollm2-135m-instruct"
LANES = 4
LEASE_MS = 1_000
BUSY_MS = 500
PACE = Pace(lease_ms=LEASE_MS, claim_ms=20, claim_ms_max=100, idle_ms=10, lanes_max=LANES, stalled_ms=20)

RIVER = "The river carries the mountains to the sea, slowly, grain by grain, and what it leaves behind is a valley"
CHAPTER = f"{RIVER}. {RIVER}, wide and green, in which the people of the three villages have always lived."
GREEDY: Mapping[str, Any] = {"ignore_eos": True}
SAMPLED: Mapping[str, Any] = {"ignore_eos": True, "temperature": 0.9, "top_p": 0.95, "seed": 7}


class Scene(NamedTuple):
    """Jobs that are run together, one draft each; `names` where they have others than the scene gives them."""

    name: str
    drafts: Sequence[Mapping[str, Any]]
    names: Sequence[str] = ()

    @property
    def jobs(self) -> list[str]:
        return [*self.names] or [f"{self.name}-{number}" for number in range(len(self.drafts))]


_SCENES = (
    Scene("alone", [{**GREEDY, "prompt": RIVER, "max_new_tokens": 24}]),
    Scene("long", [{**SAMPLED, "prompt": CHAPTER, "max_new_tokens": 30, "logprobs": 2}]),
    Scene(
        "pair",
        [
            {**GREEDY, "prompt": CHAPTER, "max_new_tokens": 20, "batch_width": 2},
            {**SAMPLED, "prompt": "Once upon a time", "max_new_tokens": 24, "batch_width": 2},
        ],
    ),
    Scene(
        "three",
        [
            {**SAMPLED, "prompt": RIVER, "max_new_tokens": 12, "batch_width": 3, "repetition_penalty": 1.2},
            {**GREEDY, "prompt": "The sky is blue because", "max_new_tokens": 16, "batch_width": 3},
            {**SAMPLED, "prompt": CHAPTER, "max_new_tokens": 14, "batch_width": 3, "seed": 8},
        ],
    ),
    Scene(
        "mixed",
        [
            {**SAMPLED, "prompt": RIVER + ",", "max_new_tokens": 18, "stop": ["valley of"]},
            {**GREEDY, "prompt": CHAPTER, "max_new_tokens": 12, "batch_width": 2, "echo_prompt": True, "logprobs": 1},
            {**GREEDY, "prompt": "One, two, three,", "max_new_tokens": 16},
        ],
    ),
)
SCENES = {scene.name: scene for scene in _SCENES}


class Load:
    """The model, loaded once."""

    def __init__(self) -> None:
        self.models = Models(home(), LANES)
        self.model: Model = self.models.load(MODEL)
        _ = self.model.recorded
        for width in (1, 2, 3):  # what the probe of this stack finds is known to all copies
            self.model.session(width)

    def admit(self, url: str, scene: Scene) -> None:
        """Put a scene's jobs into a database."""
        with closing(open_real(url)) as store:
            for job, draft in zip(scene.jobs, scene.drafts, strict=True):
                model = self.model
                envelope = seal(draft_from(dict(draft)), model.facts, model.runtime, model.text, 1)
                admit_job(store, MODEL, job, envelope, None)

    def working(self, url: str, form: str, cache_dir: Path | None) -> Body:
        """Run all jobs to their ends, as `worker --drain` does."""

        def body(at: Reached, mark: Mark) -> None:
            refused: list[Problem] = []

            def read(job: str, emissions: Sequence[Emission], state: State) -> None:
                mark(job, emissions[-1].sequence)

            def notice(job: str, problem: Problem) -> None:
                if not isinstance(problem, LostTenure):
                    refused.append(problem)

            with closing(open_real(url, at)) as store:
                new_worker(store, self.models, read, notice, form, PACE, cache_dir, at).run(drain=True)
            if refused:
                raise refused[0]

        return body

    def submitting(self, url: str, scene: Scene) -> Body:
        """Submit each of a scene's requests under a key of its own."""

        def body(at: Reached, mark: Mark) -> None:
            with closing(open_real(url, at)) as store:
                for job, draft in zip(scene.jobs, scene.drafts, strict=True):
                    done = submit(store, self.model, MODEL, draft_from(dict(draft)), now_ms(), f"key of {job}")
                    mark(done.job, 1)

        return body


def reading(url: str, job: str, notes: Path) -> Body:
    """Follow a job's stream to its end, and note each piece with its number."""

    def body(at: Reached, mark: Mark) -> None:
        start = max((number for number, _ in noted(notes)), default=0) + 1
        with closing(open_real(url, at)) as store, closing(store.bell()) as bell:
            file = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            for each in emissions_of(store, job, start, bell):
                os.write(file, f"{json.dumps([each.sequence, each.text])}\n".encode())

    return body


def noted(notes: Path) -> list[tuple[int, str]]:
    """What a reader has noted: numbers and texts."""
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [(number, text) for number, text in map(json.loads, lines)]


def sealing(url: str, cache_dir: Path | None) -> Body:
    """Seal all that has ended, and remove the caches that were left, as `sweep` does."""

    def body(at: Reached, mark: Mark) -> None:
        refused: list[Problem] = []

        def hear(done: object) -> None:
            if isinstance(done, Refused):
                refused.append(done.problem)

        with closing(open_real(url, at)) as store:
            sweep(store, 0, hear, cache_dir if cache_dir is not None and cache_dir.exists() else None)
        if refused:
            raise refused[0]

    return body


def open_real(url: str, at: Reached = unheard) -> Any:
    return open_store(url, clock=now_ms, at=at, busy_timeout_ms=BUSY_MS)


def store_of(url: str) -> closing[Any]:
    """A database's store, for as long as a block lasts."""
    return closing(open_real(url))
