"""Jobs on the real engine and log, with the scripted model: what the crank's tests are made of."""

from __future__ import annotations

import time
from typing import Any

from databases import AnyStore, wall_clock_ms

from decodelog.fsm.errors import LostTenure
from decodelog.fsm.machine.state import State
from decodelog.fsm.ports import Store
from decodelog.fsm.reading.transcript import Transcript
from decodelog.fsm.request.draft import draft_from
from decodelog.runtime.families.scripted.model import ScriptedModel
from decodelog.runtime.families.scripted.script import Fault, Script, ScriptedConfig
from decodelog.runtime.host import THREADS
from decodelog.runtime.loop.context import Context, Sink, untold
from decodelog.runtime.loop.engine import Engine
from decodelog.runtime.loop.job import Job
from decodelog.runtime.loop.pace import Pace
from decodelog.runtime.loop.retry import SHORT_S, Patience, patient
from decodelog.runtime.model.port import Model
from decodelog.service.inspect.audit import audit
from decodelog.service.jobs.submit import submit
from decodelog.service.streams.reading import transcript_of

LEASE_MS = 60_000
PATIENCE_S = 600.0
WORKER = "tester"
BESIDE: bool | None = None
PACED = {"snapshot_events"}


def model(text: str | None = "Hello, world.", faults: tuple[Fault, ...] = (), **script: Any) -> ScriptedModel:
    script = script or {"text": text}
    return ScriptedModel(ScriptedConfig(script=Script(**script), faults=faults))


def admit(store: AnyStore, of: Model, **draft: Any) -> str:
    """Submit one job; its name."""
    draft = {"max_new_tokens": 40, **draft}
    if not {"messages", "token_ids"} & draft.keys():
        draft.setdefault("prompt", "say ")
    return submit(store, of, "scripted", draft_from(draft), wall_clock_ms()).job


def claim(store: AnyStore, job: str, worker: str = WORKER, dead: tuple[str, ...] = ()) -> Job:
    """The job in this worker's hands. PostgreSQL's claim passes over a row that an append under way still holds."""
    until = time.monotonic() + PATIENCE_S
    while not (claims := store.claim(worker, LEASE_MS, 1, [job], dead=dead)):
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.01)
    return Job.load(store, claims[0])


def patiently(store: Store) -> Store:
    return patient(store, Patience(SHORT_S, untold, THREADS))


def context(sink: Sink | None = None, beside: bool | None = None, **options: Any) -> Context:
    pace = Pace(
        beside=BESIDE if beside is None else beside, **{key: options.pop(key) for key in PACED & options.keys()}
    )
    return Context(sink=sink, pace=pace, **options)


def engine(
    store: AnyStore, of: Model, *jobs: str, sink: Sink | None = None, worker: str = WORKER, **options: Any
) -> Engine:
    """An engine that holds these jobs, taken from whoever had them."""
    made = Engine(patiently(store), of, context(sink, **options))
    for job in jobs:
        made.adopt(claim(store, job, worker, dead=tuple(store.owners())), worker)
    return made


def turn(made: Engine, turns: int = 1) -> list[LostTenure]:
    """So many turns, the last one durable."""
    lost = [loss for _ in range(turns) for loss in made.turn()]
    return lost + made.flush()


def finish(made: Engine, turns: int = 400) -> None:
    """Turn until every job has ended."""
    for _ in range(turns):
        if not made.jobs:
            return
        made.turn()
    raise AssertionError(f"{list(made.jobs)} did not end in {turns} turns")


def run(store: AnyStore, of: Model, **draft: Any) -> dict[str, Any]:
    """One job from submission to its result."""
    job = admit(store, of, **draft)
    finish(engine(store, of, job))
    return result(store, job)


def result(store: AnyStore, job: str) -> dict[str, Any]:
    return transcript_of(store, job).result()


def transcript(store: AnyStore, job: str) -> Transcript:
    return transcript_of(store, job)


def state_of(store: AnyStore, job: str) -> State:
    """Where its log leads."""
    state = transcript_of(store, job).state
    assert state is not None
    return state


def assert_audited(store: AnyStore) -> None:
    report = audit(store)
    assert report.ok, report.faults
    assert report.jobs
