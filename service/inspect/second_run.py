"""A job's request run again in memory, by the calls that its log records: on one stack its bits are the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ...fsm.errors import CallFailed, NonFiniteScores
from ...fsm.machine.events import RequestAdmitted
from ...fsm.machine.next_step import Step, next_step
from ...fsm.machine.spec import Spec
from ...fsm.machine.state import State
from ...fsm.machine.states import Status
from ...fsm.ports import Store
from ...fsm.reading.rebuilds import Rebuild
from ...runtime.loop.batcher import Batcher
from ...runtime.loop.context import Context
from ...runtime.loop.engine import Engine
from ...runtime.loop.job import Job
from ...runtime.model.port import Model
from ...store.memory.log import MemoryStore
from ..database import now_ms
from ..jobs.compose import check_job

WORKER = "reexecution"
LEASE_MS = 86_400_000
REEXECUTE = "reexecute"


def run_again(admitted: RequestAdmitted, model: Model, steps: int, lost: Iterable[Rebuild]) -> MemoryStore:
    """The log of the request's second run, up to so many output tokens or its end.

    lost   where the first run lost its lanes: this one gives them up there too, and has them made of the same calls

    Errors: NotAdmissible where this process is not what the request is bound to; CallFailed where calls fail in this
    run until it ends.
    """
    spec = Spec.seal(admitted.job, admitted.envelope)
    store = MemoryStore(clock=now_ms)
    store.admit(spec.job, spec.identity.hex(), "again", len(spec.prompt), admitted, None)
    (claim,) = store.claim(WORKER, LEASE_MS, 1, [spec.job])
    engine = Engine(store, model, Context(form=REEXECUTE))
    held = Job.load(store, claim)
    check_job(held, model)
    engine.adopt(held, WORKER)
    due = deque(lost)
    while engine.jobs and held.state.frontier.output < steps:
        while due and _at(due[0], held.state):
            _lose(due.popleft(), held, store, engine.batcher)
        engine.turn()
        engine.flush()
    engine.close()
    _check(held.state)
    return store


def _at(place: Rebuild, state: State) -> bool:
    """Whether the run has come to where its lanes were lost: before its next call, or with that call's row at hand."""
    frontier = state.frontier
    if state.status is not Status.PENDING:
        return False
    return place.processed == frontier.processed + (frontier.unprocessed if place.scored else 0)


def _lose(place: Rebuild, held: Job, store: Store, batcher: Batcher) -> None:
    """Give the lane up; the engine's next turn makes it again, its score row too where the first run had one."""
    if place.scored:
        while next_step(held.state) is Step.CALL:
            held.record(store, *batcher.call_alone(held).report)
    batcher.release(held)
    held.prefilled = place.prefilled


def _check(state: State) -> None:
    """Refuse a run that ended by failed calls. A failed call that was repeated does not matter: its rows are the same.

    Scores that are not finite are what the model gives; the comparison then says that the first run had others.
    """
    ending = state.ending
    if ending is not None and state.tenure.failures and ending.cause != NonFiniteScores.code:
        raise CallFailed(f"{ending.detail or ending.cause}, in the second run")
