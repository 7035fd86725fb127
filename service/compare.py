"""Comparing jobs by their logs, and a job with what its request gives when it is run once more."""

from __future__ import annotations

from typing import Any

from ..fsm.audit import Fault
from ..fsm.compare import LEVELS, SHOWN, Difference, Run, compare, run_of, shown
from ..fsm.events import RequestAdmitted
from ..fsm.finish import FROM_OUTSIDE, FinishReason
from ..fsm.ports import EventLog
from ..fsm.spec import Spec
from ..runtime.engine import Engine
from ..runtime.job import Job
from ..runtime.model import Model
from ..store.memory_log import MemoryStore
from .compose import admit_job
from .database import now_ms
from .reading import events_of, transcript_of

WORKER = "reexecution"
LEASE_MS = 86_400_000
OWN_ENDS = set(FinishReason) - FROM_OUTSIDE


def run_in(log: EventLog, job: str, level: str = LEVELS[0]) -> Run:
    """The run of a job, from its log, for a comparison from `level` on.

    Errors: UnknownJob, CorruptRecord, and what the fold finds broken; EvidenceSealed where the log is sealed and the
    level is about what no reader was shown.
    """
    if level in SHOWN:
        return shown(transcript_of(log, job))
    return run_of(numbered.event for numbered in events_of(log, job))


def reexecuted(log: EventLog, model: Model, job: str, level: str = LEVELS[0]) -> Run:
    """What the job's request gives when it is run again from its first call, in memory, as far as the job has come.

    level   the first that the run is to be compared at

    Errors: NotAdmissible where this process is not what the request is bound to, and those of the log.
    """
    admitted = next(numbered.event for numbered in events_of(log, job))
    if not isinstance(admitted, RequestAdmitted):
        raise TypeError("a log begins with its admission")
    spec, steps = Spec.seal(job, admitted.envelope), len(run_in(log, job, level).steps)
    store = MemoryStore(clock=now_ms)
    store.admit(job, spec.identity.hex(), "again", len(spec.prompt), admitted, None)
    (claim,) = store.claim(WORKER, LEASE_MS, 1, [job])
    engine = Engine(store, model)
    held = Job.load(store, claim)
    admit_job(held, model)
    engine.adopt(held, WORKER)
    while engine.jobs and store.row(job).output < max(steps, 1):
        engine.turn()
        engine.settle()
    engine.close()
    return run_in(store, job, level)


def against_reexecution(log: EventLog, model: Model, job: str, level: str = LEVELS[0]) -> tuple[Difference | None, int]:
    """The first difference between a job and its request run again, from `level` on, and the steps compared.

    Of a job that somebody ended, or a fault, the steps before are compared: its end is none of the request's.
    Errors: as `reexecuted`.
    """
    left, right, finish = run_in(log, job, level), reexecuted(log, model, job, level), log.row(job).finish
    if finish is not None and finish not in OWN_ENDS:
        left, right = left._replace(ended=False), Run(right.steps[: len(left.steps)], right.end, ended=True)
    return compare(left, right, level), min(len(left.steps), len(right.steps))


def reexecution_faults(log: EventLog, model: Model, job: str) -> list[Fault]:
    """What `against_reexecution` finds, as a fault of the kind "reexecution"; of a sealed log at the levels it has."""
    row = log.row(job)
    level = LEVELS[0] if row.sealed_ms is None else SHOWN[0]
    found, steps = against_reexecution(log, model, job, level)
    return [] if found is None else [Fault(job, row.head.sequence, "reexecution", told(found, steps, level))]


def told(found: Difference | None, steps: int, level: str = LEVELS[0]) -> str:
    """The verdict of a comparison from `level` on, in words."""
    if found is None:
        counted = len(LEVELS) - LEVELS.index(level)
        levels = f"all {counted} levels" if level == LEVELS[0] else f"the last {counted} levels, from {level} on"
        return f"the same at {levels}, {steps} steps"
    return f"{found.level}: step {found.step} differs in {found.name}: {_short(found.left)} and {_short(found.right)}"


def plain(found: Difference | None, steps: int) -> dict[str, Any]:
    """The verdict for JSON."""
    if found is None:
        return {"same": True, "steps": steps}
    facts = {"step": found.step, "level": found.level, "name": found.name}
    return {"same": False, **facts, "left": _short(found.left), "right": _short(found.right)}


def _short(value: Any) -> str:
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
