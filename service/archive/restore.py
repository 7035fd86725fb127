"""Restore: a snapshot or an export back into a database, after all of it is proven."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from msgpack import packb, unpackb

from ...fsm.errors import BrokenSnapshot, ContentLeftOut, NotAnExport, Problem, UnwritableOutput
from ...fsm.limits import NAME_CHARACTERS_MAX, RETAIN_MS_MAX, SAFE_INTEGER_MAX
from ...fsm.machine.events import RequestAdmitted
from ...fsm.machine.spec import Spec
from ...fsm.ports import JobRow
from ...fsm.reading.load import load
from ...fsm.reading.snapshot import facts_of
from ...fsm.reading.transcript import Transcript
from ...fsm.request.envelope import admit
from ...fsm.request.names import check_job_name, check_model_name
from ...store.archive.bundle import Bundle
from ...store.archive.frames import begins
from ...store.archive.restore import Restorable, RestoredLog
from ..files import open_regular
from ..inspect.audit import audit
from ..jobs.incarnation import dead_workers
from ..jobs.naming import check_key
from ..jobs.placing import Places
from ..signing import PublicKey, signature_faults
from .snapshot import FORMS, REPAIRED

if TYPE_CHECKING:
    from ...runtime.loop.lanes import Part
    from ...store.engine import DatabaseStore


class Back(NamedTuple):
    """What became of one job of a restored file: see `RestoredLog`.

    state, sequence   where the database has it from then on, which a file of an earlier state does not change
    rows              tokens whose rows were put into the folder of caches: of a job that is live only
    """

    job: str
    outcome: str
    appends: int
    state: str
    sequence: int
    rows: int


class Proven(NamedTuple):
    """A file that is to be restored, after all of it was proven: its logs, and the tokens that its rows are of."""

    bundle: Bundle
    logs: list[Restorable]
    spec: Spec | None
    ids: list[int]


def restore(store: DatabaseStore, path: Path, kept: Path | None = None, model: str | None = None) -> list[Back]:
    """Bring the jobs of a snapshot, or of an export, into a database; their caches' rows into the folder `kept`.

    model   the fetched model or the directory that they are of; not given: see `placing`

    Errors: those of `proven` and of `bring`.
    """
    with proven(path) as found:
        return bring(store, found, kept, model)


@contextmanager
def proven(path: Path, key: PublicKey | None = None) -> Iterator[Proven]:
    """Prove a file before anything changes.

    That is the file itself, the logs in it by an audit, where the job stands field by field, and that the rows are of
    just its tokens. Of an erased job only the chain is proven; its end and its counts are taken from
    the file, since what would prove them is gone. With a `key`, it must be signed with that key.
    Errors: NotAnExport, BrokenSnapshot, ContentLeftOut.
    """
    try:
        with _begun(path) as file:
            bundle = Bundle(file)
            for fault in () if key is None else signature_faults(bundle, key):
                raise BrokenSnapshot("of the file", fault.detail)
            logs = _proven(bundle)
            spec, ids = _standing(bundle, logs)
            if spec is not None:
                for _ in _parts(bundle, spec, ids):
                    pass
            yield Proven(bundle, logs, spec, ids)
    except OSError as error:
        raise NotAnExport(str(path), error.strerror or str(error)) from error


def bring(store: DatabaseStore, found: Proven, kept: Path | None = None, model: str | None = None) -> list[Back]:
    """Bring a proven file's jobs into a database, and rows into the folder `kept`; doing so again changes nothing.

    model   as in `restore`. Errors: RestoreConflict, JobBusy, UnwritableOutput, NotAdmissible where `model` is another
            one, and those of the store.
    """
    bundle, logs, spec, ids = found
    places = Places(model)
    logs = [_placed(bundle, log, places, model is not None) for log in logs]
    restored, laid = store.restore(logs, dead_workers(store.owners())), 0
    # Nothing would ever remove the rows of an ended job, and those of an erased one are its content.
    if spec is not None and kept is not None and ids and restored[0].row.finish is None:
        _put(kept, spec, _parts(bundle, spec, ids))
        laid = len(ids)
    return [_back(done, laid) for done in restored]


def _placed(bundle: Bundle, log: Restorable, places: Places, moved: bool) -> Restorable:
    """The log with a name of its model that this machine may look up; an erased job's model is unknown."""
    if any(row.erased for row in log.appends):
        return log
    record = next(iter(bundle.read(log.row.job)))
    admitted = record.events[0]
    if not isinstance(admitted, RequestAdmitted):
        raise BrokenSnapshot(log.row.job, "its log does not begin with its admission")
    envelope = admit(admitted.envelope)
    model = places.place(log.row.model, envelope)
    row = dataclasses.replace(log.row, model=model, artifact=envelope.artifact_digest)
    return log._replace(row=row, moved=moved)


def _begun(path: Path) -> BinaryIO:
    file = open_regular(path)
    if not begins(file):
        file.close()
        raise NotAnExport(str(path), "its first bytes are not those of a file that this program reads")
    return file


def _back(done: RestoredLog, rows: int) -> Back:
    row = done.row
    return Back(row.job, done.outcome, done.appends, row.status.value, row.head.sequence, rows)


def _proven(bundle: Bundle) -> list[Restorable]:
    """Every log of a bundle in which an audit finds no fault."""
    for fault in (*bundle.faults, *audit(bundle).faults):
        raise BrokenSnapshot(fault.job or "of the file", f"event {fault.sequence}: {fault.detail}")
    logs = [Restorable(bundle.row(log.job), list(log.rows)) for log in bundle.logs()]
    for row, appends, _ in logs:
        _possible(row)
        if row.status.terminal != (row.finish is not None):
            raise BrokenSnapshot(row.job, f"it has status {row.status.value} and finish {row.finish}")
        if row.finish is None and any(each.erased for each in appends):
            raise ContentLeftOut(row.job)
    return logs


def _possible(row: JobRow) -> None:
    """Refuse a row that no submission could have made, and that a database might not even be able to store."""
    numbers = {"prompt": row.prompt, "output": row.output, "sequence": row.head.sequence, "fence": row.fence}
    for name, value in (numbers | {"created_ms": row.created_ms}).items():
        if not 0 <= value <= SAFE_INTEGER_MAX:
            raise BrokenSnapshot(row.job, f"its {name} is {value}")
    if row.retain_ms is not None and not 0 <= row.retain_ms <= RETAIN_MS_MAX:
        raise BrokenSnapshot(row.job, f"its retain_ms is {row.retain_ms}")
    checks: dict[str, Callable[[], None]] = {
        "idempotency key": lambda: check_key(row.idempotency_key),
        "name": lambda: check_job_name(row.job),
        "model": lambda: check_model_name(row.model),
    }
    for what, check in checks.items():
        try:
            check()
        except Problem as problem:
            raise BrokenSnapshot(row.job[:NAME_CHARACTERS_MAX], f"its {what} is none: {problem}") from problem


def _standing(bundle: Bundle, logs: list[Restorable]) -> tuple[Spec | None, list[int]]:
    """The request of a snapshot's job, and the tokens that its rows are of; None of a mere export."""
    standing = bundle.standing
    if standing is None:
        return None, []
    job = logs[0].row.job if len(logs) == 1 else "of the file"
    transcript = Transcript()
    load(transcript, bundle.read(job) if len(logs) == 1 else ())
    state = transcript.state
    if state is None or unpackb(packb(facts_of(state)), use_list=False) != standing.facts:
        raise BrokenSnapshot(job, "it does not stand where its log leads to")
    frontier = state.frontier
    repaired = frontier.processed + frontier.unprocessed
    possible = {0, frontier.processed} | ({repaired} if standing.form == REPAIRED else set())
    if standing.form not in FORMS or standing.rows not in possible:
        raise BrokenSnapshot(job, f"{standing.rows} rows are not those of a {standing.form} snapshot")
    return state.spec, [*state.spec.prompt, *transcript.token_ids][: standing.rows]


def _parts(bundle: Bundle, spec: Spec, ids: list[int]) -> Iterator[Part]:
    from ...runtime.loop.lanes import Part, checked

    abi = "" if bundle.standing is None else bundle.standing.abi
    return checked(spec, abi, ids, (Part(*part) for part in bundle.parts()))


def _put(kept: Path, spec: Spec, parts: Iterator[Part]) -> None:
    from ...runtime.loop.lanes import put

    try:
        put(kept, spec, parts)
    except OSError as error:
        raise UnwritableOutput(str(kept), error.strerror or str(error)) from error
