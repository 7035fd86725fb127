"""The one place that wires the runtime to the store."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ...fsm.errors import ModelNotHere, Problem, Transient
from ...fsm.failpoints import Reached, unheard
from ...fsm.ports import ModelRef, Store
from ...fsm.request.admission import check, check_runtime
from ...fsm.request.transforms import Own
from ...runtime.loop.context import Context, Notice, Sink, unnoticed
from ...runtime.loop.job import Job
from ...runtime.loop.pace import PACE, Pace
from ...runtime.loop.segments import Segments
from ...runtime.loop.worker import Worker
from ...runtime.model.port import Model
from ...runtime.policy.registry import registered
from ..advice import advised
from ..database import now_ms
from .incarnation import dead_workers, new_worker_name
from .models import Models
from .voice import Say, unsaid


def new_worker(
    store: Store,
    models: Models,
    sink: Sink | None = None,
    notice: Notice = unnoticed,
    form: str = "prefill",
    pace: Pace = PACE,
    cache_dir: Path | None = None,
    at: Reached = unheard,
    say: Say = unsaid,
) -> Worker:
    """A worker of this process under a fresh incarnation; it keeps its jobs' caches under `cache_dir`, where given.

    say   told when the database is waited for and when it is back, and that caches cannot be kept any more
    """

    def say_not_kept(fault: OSError) -> None:
        """Jobs do not depend on kept caches, and go on."""
        say(f"caches are not kept any more: {fault}; a resume will compute them again")

    def say_waiting(problem: Transient | None) -> None:
        waiting = "the database is back; going on"
        if problem is not None:
            waiting = f"waiting for the database: {advised(problem)}"
        say(waiting)

    name = new_worker_name()

    def load(wanted: ModelRef) -> Model:
        try:
            model = models.load(*wanted)
        except ModelNotHere:
            note(wanted, name)
            raise
        note(wanted, None)
        return model

    def note(wanted: ModelRef, missed_by: str | None) -> None:
        with suppress(Problem):  # it is for listings alone
            store.note_missing(wanted, missed_by)

    return Worker(
        name=name,
        store=store,
        load=load,
        admit=check_job,
        clock=now_ms,
        context=Context(
            sink=sink,
            notice=notice,
            told=say_waiting,
            dead=dead_workers,
            form=form,
            pace=pace,
            segments=None if cache_dir is None else Segments(cache_dir, say=say_not_kept),
            at=at,
        ),
    )


def check_job(job: Job, model: Model) -> None:
    """Refuse a job whose artifact, runtime facts or own transforms are not this process's (ENV-6, ENV-9)."""
    envelope = job.state.spec.envelope
    check(envelope, model.facts)
    check_runtime(envelope, model.runtime)
    for each in envelope.policy.transforms:
        if isinstance(each, Own):
            registered(each.name, each.version, each.sha256)
