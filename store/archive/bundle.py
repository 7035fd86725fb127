"""A bundle: logs in one file, to be proven without a database.

Frames (see `frames`) in this order: for each job one with what its row says, then one for each of its appends as it is
stored; in a snapshot of a job one more with where the job stands, then its cache's rows; at the end the manifest, every
job's name and how many appends it has; and after it, in a bundle that is signed, the signature of its digest. Bodies
are msgpack. Nothing else in it says when, where or by whom it was written: two bundles of the same logs are the same
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, takewhile
from types import NoneType, UnionType
from typing import Any, BinaryIO, NamedTuple

from msgpack import packb

from ...fsm.errors import CorruptRecord, Rejected, UnknownJob
from ...fsm.limits import FACTS_BYTES_MAX, FRAME_BYTES_MAX, MANIFEST_BYTES_MAX
from ...fsm.machine.states import Status
from ...fsm.ports import Head, JobRow, Record
from ...fsm.reading.audit import Fault
from ...fsm.request.names import check_job_name
from ..log.chain import StoredLog, records
from ..log.stored import Stored
from ..log.unpacking import SHORT, unpacked
from .frames import LOST, Frame, FrameWriter, frames, linked

JOB, APPEND, MANIFEST, SNAPSHOT, ROWS, SIGNATURE = 1, 2, 3, 4, 5, 6
KIND = "container"
"""The kind of a fault of the file, whatever the logs in it say."""

_PARTS = {JOB: "the job's frame", APPEND: "the append's frame", MANIFEST: "the manifest", LOST: "the frame"}
_PARTS |= {SNAPSHOT: "the snapshot's frame", ROWS: "the frame of a cache's rows", SIGNATURE: "the signature"}
_MOST = {JOB: FACTS_BYTES_MAX, SNAPSHOT: FACTS_BYTES_MAX, MANIFEST: MANIFEST_BYTES_MAX, SIGNATURE: FACTS_BYTES_MAX}
_FACTS = (str, str, str, str | NoneType, int, int, int, int | NoneType, str | NoneType)


class SnapshotPlace(NamedTuple):
    """What a snapshot says beside the job's log.

    form    "pending-suffix", or "repaired" where the suffix was processed first
    facts   every field of the state that the log leads to (see `fsm.reading.snapshot.facts_of`)
    abi     of the cache, in words; empty where there are no rows
    rows    processed tokens that the lanes hold
    """

    form: str
    facts: Any
    abi: str
    rows: int


RowsOf = tuple[int, int, bytes, bytes]
"""Rows [start, stop) of a cache: these two, their link, and a safetensors file (see `runtime.loop.lanes.Part`)."""


class Signature(NamedTuple):
    """An Ed25519 signature of a bundle's digest: the public key (32 bytes) that it says it is of, and itself (64)."""

    key: bytes
    value: bytes


class Written(NamedTuple):
    """What a bundle holds, the digest of all of it, and the public key that it is signed with, in hex, if it is."""

    jobs: int
    appends: int
    digest: str
    signed_by: str = ""


def write(
    file: BinaryIO,
    logs: Iterable[StoredLog],
    standing: SnapshotPlace | None = None,
    parts: Iterable[RowsOf] = (),
    sign: Callable[[bytes], Signature] | None = None,
) -> Written:
    """Write a bundle of these logs as they come, damaged or not; one append at a time is in memory.

    standing, parts   what a snapshot says of the one log that it is of
    sign              makes the signature of a digest of 32 bytes
    """
    writer = FrameWriter(file)
    manifest: list[tuple[str, int]] = []
    for log in logs:
        writer.write(JOB, _pack((log.job, *log.head, log.fence, log.damage, _facts(log.row))))
        appends = 0
        for row in log.rows:
            writer.write(APPEND, _pack(row))
            appends += 1
        manifest.append((log.job, appends))
    if standing is not None:
        writer.write(SNAPSHOT, _pack(standing))
        for part in parts:
            writer.write(ROWS, _pack(part))
    writer.write(MANIFEST, _pack(manifest))
    digest, signed_by = writer.digest, ""
    if sign is not None:
        signature = sign(digest)
        writer.write(SIGNATURE, _pack(signature))
        signed_by = signature.key.hex()
    return Written(len(manifest), sum(appends for _, appends in manifest), digest.hex(), signed_by)


class Bundle:
    """A bundle as a log that can be read and audited.

    faults      what is wrong with the file; its logs are the audit's business
    digest      of all of it, empty where it is not what was written
    signature   of the digest, as it stands there; None where there is none
    """

    def __init__(self, file: BinaryIO) -> None:
        """Go over the whole file once. It must begin as one of frames does (see `frames.begins`)."""
        self._file = file
        survey = _Survey()
        for frame, sound in linked(frames(file, most=_most)):
            survey.take(frame, sound)
        survey.end(file.seek(0, 2))
        self.faults, self._logs = survey.faults, survey.logs
        self.digest = "" if survey.faults else survey.digest
        self.signature = survey.signature
        self._standing = survey.standing
        # A name that occurs twice is a fault; the first one is read.
        self._named = {log.job: (log, place) for log, place in reversed(survey.logs)}

    def logs(self, job: str | None = None) -> Iterator[StoredLog]:
        """One job's log, or every one, as they are stored."""
        for log, place in self._logs if job is None else [self._find(job)]:
            yield log._replace(rows=self._appends(place))

    def rows(self) -> list[JobRow]:
        return [log.row for log, _ in self._logs if log.row is not None]

    def row(self, job: str) -> JobRow:
        log, _ = self._find(job)
        if log.row is None:
            raise CorruptRecord(job, 0, log.damage)
        return log.row

    def read(self, job: str) -> Iterator[Record]:
        return records(job, self._appends(self._find(job)[1]), 0)

    def snapshot(self, job: str) -> None:
        """None: a bundle has no snapshot to begin a load with."""

    @property
    def standing(self) -> SnapshotPlace | None:
        """What the file says of its one job, where it is a snapshot."""
        return self._standing[0] if self._standing else None

    def parts(self) -> Iterator[RowsOf]:
        """The rows of its job's cache, one part at a time, in a file without fault."""
        if self._standing is not None:
            after = islice(frames(self._file, self._standing[1]), 1, None)
            yield from (_unpack(frame.body) for frame in takewhile(lambda frame: frame.kind == ROWS, after))

    def snapshot_damage(self, job: str) -> str:
        """What is wrong with the job's snapshots by themselves: nothing."""
        return ""

    def damage(self) -> Iterator[Fault]:
        """What is wrong with what holds the logs: `faults` says it."""
        return iter(())

    def _find(self, job: str) -> tuple[StoredLog, int]:
        if job not in self._named:
            raise UnknownJob(job)
        return self._named[job]

    def _appends(self, place: int) -> Iterator[Stored]:
        """The appends that follow a job's frame, without those that cannot be read, which are faults of the file."""
        after = islice(frames(self._file, place), 1, None)
        rows = (_row(frame.body) for frame in takewhile(lambda frame: frame.kind == APPEND, after))
        return (row for row in rows if row is not None)


class _Survey:
    """Where the reading of a bundle stands: whose appends come, and up to which event they have come."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.logs: list[tuple[StoredLog, int]] = []
        self.digest = ""
        self.standing: tuple[SnapshotPlace, int] | None = None
        self.signature: Signature | None = None
        self._job, self._sequence = "", 0
        self._found: list[tuple[str, int]] = []
        self._ended = False

    def take(self, frame: Frame, sound: bool) -> None:
        if self._ended:
            self._sign(frame, sound)
            return
        read = _READ[frame.kind](frame.body) if frame.kind in _READ else None
        if frame.kind == JOB:
            self._begin(read, frame.offset)
        if frame.kind == LOST:
            self._blame(frame, frame.body.decode())
        elif not sound:
            self._blame(frame, "it is not what was written there")
        elif read is None:
            self._blame(frame, "it cannot be read")
        elif frame.kind == JOB and not _is_name(read.job):
            self._fault("", 0, f"the job's frame at byte {frame.offset}: it has a name that no job may have")
        if frame.kind == APPEND:
            self._count(read)
        elif frame.kind == SNAPSHOT and read is not None and self.standing is None:
            self.standing = read, frame.offset
        elif frame.kind == MANIFEST:
            self.digest = frame.mark.hex()
            self._compare(read)
        self._ended = frame.kind in (MANIFEST, LOST)

    def _sign(self, frame: Frame, sound: bool) -> None:
        """Take the signature, which is all that may stand after the manifest."""
        read = _signature(frame.body) if frame.kind == SIGNATURE and self.signature is None else None
        if read is not None and sound:
            self.signature = read
        else:
            self._blame(frame, "it is not what was written there" if read else "it stands after the end")

    def end(self, size: int) -> None:
        if not self._ended:
            self._fault(self._job, self._sequence + 1, f"the file ends at byte {size}, and has no manifest")

    def _begin(self, log: StoredLog | None, offset: int) -> None:
        self._job, self._sequence = "" if log is None else log.job, 0
        self._found.append((self._job, 0))
        if log is not None:
            self.logs.append((log, offset))

    def _count(self, row: Stored | None) -> None:
        if self._found:
            name, appends = self._found[-1]
            self._found[-1] = (name, appends + 1)
        if row is not None and isinstance(row.last, int):
            self._sequence = row.last

    def _compare(self, manifest: list[tuple[str, int]] | None) -> None:
        if manifest is None or manifest == self._found:
            return
        listed, found = dict(manifest), dict(self._found)
        for name in [name for name in listed if name not in found]:
            self._fault(name, 0, "the manifest names it, and it is not there")
        for name in [name for name in found if name not in listed]:
            self._fault(name, 0, "it is there, and the manifest does not name it")
        for name in [name for name in listed if listed[name] != found.get(name, listed[name])]:
            self._fault(name, 0, f"it has {found[name]} appends, and the manifest says {listed[name]}")
        if listed == found:
            self._fault("", 0, "the jobs do not stand there once each, in the order of the manifest")

    def _blame(self, frame: Frame, reason: str) -> None:
        part = f"{_PARTS.get(frame.kind, f'a frame of the unknown kind {frame.kind}')} at byte {frame.offset}"
        if frame.kind in (APPEND, LOST):
            self._fault(self._job, self._sequence + 1, f"{part}: {reason}")
        else:
            self._fault(self._job if frame.kind == JOB else "", 0, f"{part}: {reason}")

    def _fault(self, job: str, sequence: int, detail: str) -> None:
        self.faults.append(Fault(job, sequence, KIND, detail))


def _is_name(job: str) -> bool:
    try:
        check_job_name(job)
    except Rejected:
        return False
    return True


def _pack(value: Any) -> bytes:
    # Text of a damaged database that is not UTF-8 stays as bytes.
    return packb(value, unicode_errors="surrogateescape")  # type: ignore[no-any-return]


def _most(kind: int) -> int:
    """How many bytes the body of a frame may have."""
    return _MOST.get(kind, FRAME_BYTES_MAX)


def _unpack(body: bytes, longest: int = SHORT) -> Any:
    """The value in a body, with tuples for lists; None where it cannot be unpacked. `longest` as in `unpacked`."""
    try:
        return unpacked(body, longest, unicode_errors="backslashreplace")
    except (ValueError, TypeError, LookupError):
        return None


def _fields(value: Any, *types: type | UnionType) -> bool:
    """Whether a value is a list of just these types, `object` being any."""
    if type(value) is not tuple or len(value) != len(types):
        return False
    pairs = zip(value, types, strict=True)
    return all(kind is object or (isinstance(each, kind) and type(each) is not bool) for each, kind in pairs)


def _row(body: bytes) -> Stored | None:
    """An append, whatever its columns hold: the audit checks that."""
    value = _unpack(body)
    return Stored(*value) if _fields(value, *(object,) * len(Stored._fields)) else None


def _log(body: bytes) -> StoredLog | None:
    """What a job's row says, and no appends yet."""
    value = _unpack(body)
    if not _fields(value, str, object, object, object, str, tuple | NoneType):
        return None
    job, sequence, chain, fence, damage, facts = value
    log = StoredLog(job, Head(sequence, chain), fence, (), damage, dated=False)
    if damage:
        return log
    if not _fields((sequence, chain, fence), int, bytes, int) or not _fields(facts, *_FACTS):
        return None
    identity, model, status, finish, prompt, output, created_ms, retain_ms, idempotency_key = facts
    if status not in tuple(Status):
        return None
    row = JobRow(
        job, identity, model, Status(status), finish, prompt, output, log.head, fence, None, None, idempotency_key,
        created_ms, retain_ms=retain_ms,
    )  # fmt: skip
    return log._replace(row=row)


def _facts(row: JobRow | None) -> tuple[Any, ...] | None:
    """What a bundle states about a job apart from its head; not who works on it, nor when it ended."""
    if row is None:
        return None
    told = row.identity, row.model, row.status, row.finish, row.prompt, row.output, row.created_ms
    return *told, row.retain_ms, row.idempotency_key


def _manifest(body: bytes) -> list[tuple[str, int]] | None:
    value = _unpack(body, len(body))
    sound = type(value) is tuple and all(_fields(each, str, int) for each in value)
    return list(value) if sound else None


def _stands(body: bytes) -> SnapshotPlace | None:
    value = _unpack(body)
    return SnapshotPlace(*value) if _fields(value, str, tuple, str, int) else None


def _rows(body: bytes) -> RowsOf | None:
    value = _unpack(body)
    return value if _fields(value, int, int, bytes, bytes) else None


def _signature(body: bytes) -> Signature | None:
    value = _unpack(body)
    return Signature(*value) if _fields(value, bytes, bytes) else None


_READ: dict[int, Callable[[bytes], Any]] = {
    JOB: _log,
    APPEND: _row,
    MANIFEST: _manifest,
    SNAPSHOT: _stands,
    ROWS: _rows,
}
