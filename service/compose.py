"""The one place that wires the runtime to the store."""

from __future__ import annotations

from ..fsm.admission import check, check_runtime
from ..fsm.points import Reached, unheard
from ..fsm.ports import Store
from ..runtime.job import Job
from ..runtime.model import Model
from ..runtime.worker import Notice, Pace, Worker
from ..runtime.writer import Sink
from .database import now_ms
from .incarnation import dead_workers, new_worker_name
from .models import Models

PACE = Pace()


def new_worker(
    store: Store,
    models: Models,
    sink: Sink | None = None,
    notice: Notice | None = None,
    form: str = "prefill",
    pace: Pace = PACE,
    at: Reached = unheard,
) -> Worker:
    """A worker of this process under a fresh incarnation."""
    return Worker(
        name=new_worker_name(),
        store=store,
        load=models.load,
        admit=admit_job,
        clock=now_ms,
        sink=sink,
        notice=notice,
        dead=dead_workers,
        form=form,
        pace=pace,
        at=at,
    )


def admit_job(job: Job, model: Model) -> None:
    """Refuse a job whose artifact or runtime facts are not this process's (ENV-6, ENV-9)."""
    envelope = job.state.spec.envelope
    check(envelope, model.facts)
    check_runtime(envelope, model.runtime)
