"""A snapshot of a job as one file: its log, where it stands, and its cache's rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...fsm.errors import BrokenSnapshot, CallFailed, JobBusy
from ...fsm.machine.next_step import Step, next_step
from ...fsm.machine.transition import FailCall
from ...fsm.ports import Claim
from ...fsm.reading.load import load
from ...fsm.reading.snapshot import facts_of
from ...fsm.reading.transcript import Transcript
from ...store.archive.bundle import SnapshotPlace, write
from ...store.log.chain import records
from ..jobs.incarnation import dead_workers
from .export import check_writable, write_whole

if TYPE_CHECKING:
    from ...runtime.loop.batcher import Batcher
    from ...runtime.loop.job import Job
    from ...runtime.loop.lanes import Lanes
    from ...runtime.loop.segments import Segments
    from ...runtime.model.port import Model
    from ...store.engine import DatabaseStore
    from ...store.memory.log import MemoryStore

FORMS = PENDING_SUFFIX, REPAIRED = "pending-suffix", "repaired"
LEASE_MS = 300_000
"""A repair is one call, which nobody else can make meanwhile."""


class How(NamedTuple):
    """How a snapshot is taken.

    form      "repaired" has the model process the unprocessed suffix first. Where the job goes on, that is the job's
              next call: it is recorded, in a tenure of this process. Beside an ended log it is the file's alone
    rebuild   how rows that are not kept anywhere are made again: "prefill" or "reexecute"
    kept      folder of caches to look into
    force     replace the file where it is there already
    """

    form: str = PENDING_SUFFIX
    rebuild: str = "prefill"
    kept: Path | None = None
    force: bool = False


AS_IT_STANDS = How()


class SnapshotReport(NamedTuple):
    """What a snapshot holds.

    sequence      the event that it is of
    processed, unprocessed   P and |U| there, in tokens
    rows          tokens whose K/V rows it has, P, or P + |U| where the suffix was processed beside an ended log
    recomputed    tokens whose rows had to be computed again for it
    """

    job: str
    form: str
    state: str
    sequence: int
    processed: int
    unprocessed: int
    rows: int
    recomputed: int
    digest: str


def take(
    store: DatabaseStore | MemoryStore, model: Model | None, job: str, out: Path, worker: str, how: How = AS_IT_STANDS
) -> SnapshotReport:
    """Write a snapshot of a job as it stands, running or ended; without a model, without the cache's rows.

    A file that cannot be written is refused before the job is claimed.
    Errors: UnknownJob, UnwritableOutput, JobBusy where a repair finds a worker at the job, CallFailed, NotAdmissible
    where this process is not what the request is bound to, and those of the store.
    """
    check_writable(out, how.force)
    with _looking_into(how.kept) as segments:
        batcher = None if model is None else _batcher(model, how, segments)
        if batcher is None or how.form != REPAIRED or store.row(job).status.terminal:
            return _write(store, batcher, job, out, how)
        claims = store.claim(worker, LEASE_MS, 1, [job], dead=dead_workers(store.owners()))
        if not claims:
            raise JobBusy(job, store.row(job).owner or "a worker that has just let it go")
        try:
            held, recorded = _processed(store, batcher, claims[0], worker)
            return _write(store, batcher, job, out, how, held, recorded)
        finally:
            store.release(worker, [job])


@contextmanager
def _looking_into(kept: Path | None) -> Iterator[Segments | None]:
    if kept is None:
        yield None
        return
    from ...runtime.loop.segments import Segments

    segments = Segments(kept, reading=True)
    try:
        yield segments
    finally:
        segments.close()


def _batcher(model: Model, how: How, segments: Segments | None) -> Batcher:
    from ...runtime.loop.batcher import Batcher
    from ...runtime.loop.context import Context

    context = Context(form=how.rebuild, segments=segments)
    return Batcher(model, context, spare=int(how.form == REPAIRED))


def _processed(store: DatabaseStore | MemoryStore, batcher: Batcher, claim: Claim, worker: str) -> tuple[Job, int]:
    """Make and record the call that is due; the job after it, and how many tokens had to be computed again.

    A job whose next step is no call has nothing to process.
    """
    from ...runtime.loop.engine import Engine
    from ...runtime.loop.job import Job
    from ..jobs.compose import check_job

    held = Job.load(store, claim)
    check_job(held, batcher.model)
    before = held.state.tenure.recomputed
    Engine(store, batcher.model).adopt(held, worker)
    while next_step(held.state) is Step.CALL:
        called = batcher.call_alone(held)
        held.record(store, *called.report)
        if isinstance(fault := called.report[0], FailCall):
            raise CallFailed(fault.detail)
    return held, held.state.tenure.recomputed - before


def _write(
    store: DatabaseStore | MemoryStore,
    batcher: Batcher | None,
    job: str,
    out: Path,
    how: How,
    held: Job | None = None,
    recorded: int = 0,
) -> SnapshotReport:
    (log,) = [each._replace(rows=list(each.rows)) for each in store.logs(job)]
    transcript, row = Transcript(), log.row
    head = load(transcript, records(job, log.rows, 0))
    state = transcript.state
    if row is None or state is None or head != log.head:
        raise BrokenSnapshot(job, log.damage or "its log does not end where its row says")
    with ExitStack() as stack:
        lanes: Lanes | None = None
        if batcher is not None:
            from ...runtime.loop.job import Job
            from ...runtime.loop.lanes import lanes_of
            from ..jobs.compose import check_job

            held = held or Job.at(Claim(job, log.fence, head, row.model), head, transcript)
            check_job(held, batcher.model)
            lanes = stack.enter_context(lanes_of(held, batcher, how.form == REPAIRED))
        abi, rows, computed = ("", 0, 0) if lanes is None else lanes[:3]
        standing = SnapshotPlace(how.form, facts_of(state), abi, rows)
        parts = () if lanes is None else lanes.parts
        written = write_whole(out, how.force, lambda file: write(file, [log], standing, parts))
    place, frontier = (how.form, state.status.value, head.sequence), state.frontier
    return SnapshotReport(
        job, *place, frontier.processed, frontier.unprocessed, rows, recorded + computed, written.digest
    )
