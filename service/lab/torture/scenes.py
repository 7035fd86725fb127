"""What the processes that are to be killed do: a few jobs in a given state, and an act that may be done again.

After a kill the same act is done once more. So an act names what it submits and posts, and doing it twice has the
effect of doing it once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from ....fsm.failpoints import Reached
from ....fsm.machine.events import AttemptStarted, DecisionMade, Event, OutputCommitted
from ....fsm.machine.state import State
from ....fsm.machine.states import Status
from ....fsm.machine.transition import Proposal, StartAttempt, propose
from ....fsm.ports import CANCEL, Claim, Command, Store
from ....fsm.reading.emission import Emission
from ....fsm.request.draft import draft_from
from ....fsm.request.seal import seal
from ....runtime.loop.context import SEQUENTIAL, Context
from ....runtime.loop.engine import Engine
from ....runtime.loop.job import Job
from ....runtime.loop.pace import SNAPSHOT_EVENTS, Pace
from ....runtime.model.port import Model
from ....store.archive.bundle import write
from ....store.engine import DatabaseStore
from ....store.memory.log import MemoryStore
from ...archive.restore import restore
from ...jobs.cancel import cancel
from ...jobs.compose import new_worker
from ...jobs.incarnation import dead_workers, new_worker_name
from ...jobs.models import Models
from ...jobs.submit import admit_job
from ...retention.erase import erase
from ...retention.seal import SealableLog
from ...retention.seal import seal as seal_log
from ...retention.sweep import sweep

SCRIPT = '{"architecture": "scripted", "script": {"text": "Hello, world. Bye."}}'
OUTPUTS = 5  # committed where a scene begins in the middle: the first job then holds "lo" back
LEASE_MS, BEATING_MS = 60_000, 12
ONCE_MS = 600_000  # one claim a process: it finds all of its jobs

HELD: dict[str, Any] = {"stop": ["lo, worst", "ld. B"]}
"""Text that may become a stop is held back over several tokens, is none, and the other stop is one."""

SAMPLED: dict[str, Any] = {
    "temperature": 10.0, "seed": 7, "ignore_eos": True, "max_new_tokens": 9, "logprobs": 2, "repetition_penalty": 1.2,
}  # fmt: skip
"""A scripted row has one high peak, which so high a temperature levels."""

SCORED: dict[str, Any] = {"echo_prompt": True, "prompt_logprobs": 2, "final_cache": "repaired", "max_new_tokens": 7}
STRUCTURED: dict[str, Any] = {"regex": r"[A-Z][a-z]+, [a-z]+\."}
DOOMED: dict[str, Any] = {"allowed_token_ids": [*b"Hel"], "no_repeat_ngram_size": 1}
"""No token may come twice, and three may come: the fourth step leaves none, and the job fails."""

BATCH = (HELD, SAMPLED, SCORED)


@dataclass(frozen=True, slots=True)
class World:
    """What an act has to do with.

    mark   called with what the outside world has been told: that a job is admitted, or its text up to an event
    """

    store: Store
    models: Models
    model: str
    scene: Scene
    at: Reached
    mark: Callable[[str, int], None]

    @property
    def loaded(self) -> Model:
        return self.models.load(self.model)


Act = Callable[[World], None]


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """Jobs, the state in which a process finds them, and what it does.

    drafts    one request a job
    start     None: the act submits them
    beside    whether appends run beside the next call
    reading_s how long the reader takes to read
    snapshot_events   as in `Pace`
    tenures   that the act begins of a live job; None: it depends on where the job stands
    passing   how many of the jobs, the first ones, have content that may not stay after their end
    """

    name: str
    about: str
    act: Act
    drafts: tuple[Mapping[str, Any], ...] = BATCH
    start: Status | None = Status.ADMITTED
    beside: bool = True
    reading_s: float = 0.0
    lease_ms: int = LEASE_MS
    snapshot_events: int = SNAPSHOT_EVENTS
    tenures: int | None = 1
    passing: int = 0

    @property
    def jobs(self) -> list[str]:
        return [f"{self.name}-{index}" for index in range(len(self.drafts))]


# ---- acts -----------------------------------------------------------------------------------------------------


def submit(world: World) -> None:
    """Submit the scene's jobs, each under a key of its own."""
    model = world.loaded
    for index, (job, draft) in enumerate(zip(world.scene.jobs, world.scene.drafts, strict=True)):
        envelope = seal(draft_from({"prompt": "say ", **draft}), model.facts, model.runtime, model.text, 1)
        retain_ms = 0 if index < world.scene.passing else None
        admit_job(world.store, world.model, job, envelope, f"key of {job}", retain_ms=retain_ms)
        world.mark(job, 1)


def work(world: World) -> None:
    """Run the scene's jobs to their ends, as `decodelog worker --drain` does."""
    scene = world.scene

    def read(job: str, emissions: Sequence[Emission], state: State) -> None:
        time.sleep(scene.reading_s)
        world.mark(job, emissions[-1].sequence)

    pace = Pace(lease_ms=scene.lease_ms, claim_ms=ONCE_MS, beside=scene.beside, snapshot_events=scene.snapshot_events)
    new_worker(world.store, world.models, read, pace=pace, at=world.at).run(scene.jobs, drain=True)


def submit_and_work(world: World) -> None:
    submit(world)
    work(world)


def cancel_and_work(world: World) -> None:
    """Ask for the end of jobs that nobody holds yet; the worker that takes them obeys."""
    for job in world.scene.jobs:
        world.store.post(Command(cancel_id(job), job, CANCEL))
    work(world)


def cancel_id(job: str) -> str:
    """The id of the scene's command to cancel a job."""
    return f"cancel of {job}"


def cancel_alone(world: World) -> None:
    """End the jobs without their owner, who is gone."""
    for job in world.scene.jobs:
        cancel(world.store, job, new_worker_name())


def lose_and_work(world: World) -> None:
    """Go on with a job after another worker has fenced it, then give it to one that may."""
    store, zombie, thief = world.store, new_worker_name(), new_worker_name()
    for claim in store.claim(zombie, LEASE_MS, 1, world.scene.jobs, dead_workers(store.owners())):
        engine = Engine(store, world.loaded, Context(at=world.at, pace=Pace(beside=world.scene.beside)))
        engine.adopt(Job.load(store, claim), zombie)
        for _ in range(3):
            engine.turn()
        engine.flush()
        store.claim(thief, LEASE_MS, 1, [claim.job], [zombie])
        engine.turn()
        engine.close()
        store.release(thief)
    work(world)


def restore_and_work(world: World) -> None:
    """Bring jobs back from a file, in which they are in the middle, and go on with them."""
    elsewhere = MemoryStore()
    submit(replace(world, store=elsewhere, mark=lambda job, sequence: None))
    engine = Engine(elsewhere, world.loaded, SEQUENTIAL)
    for claim in elsewhere.claim("elsewhere", LEASE_MS, len(world.scene.jobs)):
        engine.adopt(Job.load(elsewhere, claim), "elsewhere")
    for _ in range(OUTPUTS):
        engine.turn()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.dlog"
        with path.open("wb") as file:
            write(file, elsewhere.logs())
        for each in restore(cast(DatabaseStore, world.store), path):
            world.mark(each.job, each.sequence)
    work(world)


def seal_all(world: World) -> None:
    for job in world.scene.jobs:
        seal_log(logs_of(world), job)


def erase_all(world: World) -> None:
    for job in world.scene.jobs:
        erase(logs_of(world), job)
    logs_of(world).scrub()


def sweep_all(world: World) -> None:
    sweep(logs_of(world), 0, lambda told: None)


def logs_of(world: World) -> SealableLog:
    """The store as one that keeps logs, which every database is."""
    return cast(SealableLog, world.store)


SCENES = (
    Scene("submitted", "three jobs are submitted, and run side by side, appends beside calls", submit_and_work,
          start=None),
    Scene("admitted", "three admitted jobs run side by side, appends in place", work, beside=False),
    Scene("prefilled", "three jobs whose score rows are recorded and lost", work, start=Status.PREFILLED),
    Scene("decided", "three jobs whose receipts are recorded and not consumed", work, start=Status.DECIDED),
    Scene("pending", "three jobs in the middle, one with text held back", work, start=Status.PENDING, beside=False),
    Scene("structured", "a job with a grammar", work, drafts=(STRUCTURED,)),
    Scene("failed", "a job that fails in the middle, beside one that goes on", work, drafts=(DOOMED, HELD)),
    Scene("cancelled", "two jobs are cancelled in the middle by their owner", cancel_and_work, drafts=BATCH[:2],
          start=Status.PENDING),
    Scene("orphaned", "two jobs are cancelled between decision and commit, and nobody owns them", cancel_alone,
          drafts=BATCH[:2], start=Status.DECIDED, tenures=0),
    Scene("lost", "a job whose worker is fenced in the middle, and goes on all the same", lose_and_work,
          drafts=(SAMPLED,), tenures=None),
    Scene("slow", "a job whose reader is slow, so that its lease is extended", work, drafts=(HELD,), reading_s=0.004,
          lease_ms=BEATING_MS),
    Scene("snapshots", "a job that keeps a snapshot every few tokens", work, drafts=(SAMPLED,), snapshot_events=6),
    Scene("restored", "two jobs are brought back from a file, in the middle", restore_and_work, drafts=BATCH[:2],
          start=None, tenures=None),
    Scene("sealed", "two ended jobs are sealed", seal_all, drafts=BATCH[:2], start=Status.CLOSED),
    Scene("erased", "two ended jobs are erased", erase_all, drafts=BATCH[:2], start=Status.CLOSED),
    Scene("swept", "of three ended jobs two are erased and one is sealed", sweep_all, start=Status.CLOSED, passing=2),
)  # fmt: skip


# ---- bringing jobs into a state -------------------------------------------------------------------------------


def prepare(world: World) -> None:
    """Admit the scene's jobs and bring them to its start, each step an append as a worker would make it.

    What is appended is what an undisturbed run appends; where it is cut in the middle of a step, each event is one.
    """
    start = world.scene.start
    if start is None:
        return
    submit(world)
    if start is Status.ADMITTED:
        return
    store, worker = world.store, "torture/preparing"
    for claim in store.claim(worker, LEASE_MS, len(world.scene.jobs), world.scene.jobs):
        job = Job.load(store, claim)
        job.record(store, StartAttempt(claim.fence, worker))
        for events in cut(undisturbed(world, claim), start):
            record(job, store, events)
    store.release(worker)


def undisturbed(world: World, claim: Claim) -> list[tuple[Event, ...]]:
    """The appends of a run of the same job that nothing happens to, after its tenure has begun."""
    store = MemoryStore()
    (admitted,) = next(iter(world.store.read(claim.job))).events
    row = world.store.row(claim.job)
    store.admit(claim.job, row.identity, row.model, row.prompt, admitted, None)
    (other,) = store.claim("undisturbed", LEASE_MS, 1)
    engine = Engine(store, world.loaded, SEQUENTIAL)
    engine.adopt(Job.load(store, other), "undisturbed")
    while engine.jobs:
        engine.turn()
    engine.close()
    appended = [record.events for record in store.read(claim.job, after=1)]
    first, *rest = appended
    echo = tuple(event for event in first if not isinstance(event, AttemptStarted))
    return [echo, *rest] if echo else rest


def cut(appends: Sequence[tuple[Event, ...]], start: Status) -> list[tuple[Event, ...]]:
    """Those up to the commit of OUTPUTS tokens, and then event by event to the state in which a job is to be found."""
    taken: list[tuple[Event, ...]] = []
    outputs = 0
    for events in appends:
        if outputs < OUTPUTS or start is Status.CLOSED:
            taken.append(events)
            outputs += sum(isinstance(event, OutputCommitted) for event in events)
            continue
        before_decision = next(index for index, event in enumerate(events) if isinstance(event, DecisionMade))
        count = {Status.PENDING: 0, Status.PREFILLED: before_decision, Status.DECIDED: before_decision + 1}[start]
        return taken + [(event,) for event in events[:count]]
    return taken


def record(job: Job, store: Store, events: Sequence[Event]) -> None:
    """Append events that are known to follow, and go on from there."""
    proposal = Proposal((), (), job.state)
    for event in events:
        proposal = proposal.then(propose(proposal.state, event))
    durable = job.durable
    durable.take_over(proposal, store.append([durable.append_of(proposal, job.state)])[0])
    job.advance(proposal)
