"""What the crank needs from storage, as types: an append and its outcome, the log, leases, the inbox.

`store` implements these, `runtime` uses them, and neither knows the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from .machine.events import Entry, Event, expand
from .machine.states import Status

if TYPE_CHECKING:
    from .reading.snapshot import Keep, Snapshot


class Head(NamedTuple):
    """The end of a job's log: the last event's sequence (events count from 1) and the chain's digest there.

    digest = SHA-256(previous digest + the append's first sequence + SHA-256 of its key and payload); 32 zero bytes
    before the first.
    """

    sequence: int
    chain: bytes


EMPTY_HEAD = Head(0, bytes(32))


class Append(NamedTuple):
    """Events of one job that become durable together or not at all.

    job        the job's name
    expected   the head that the log must have
    fence      the tenure that appends; a higher fence in the log refuses it
    key        32 bytes: the id of the decision receipt it consumes, or of the command it records
    entries    events in order, at least one; an ordinary step may be one value
    status     the job's status after these events; a terminal one seals the log
    output     committed output tokens after these events, for listings
    finish     the finish reason or the cause of failure, where these events end the job
    """

    job: str
    expected: Head
    fence: int
    key: bytes
    entries: tuple[Entry, ...]
    status: Status
    output: int
    finish: str | None = None

    @property
    def events(self) -> tuple[Event, ...]:
        return expand(self.entries)


class Outcome(StrEnum):
    """What became of an append. Only APPENDED changed the log."""

    APPENDED = "appended"
    DUPLICATE = "duplicate"  # these very events are already there, at this very place
    CONFLICT = "conflict"  # something else is there, at this very place
    STALE = "stale"  # the expected head is not one that the log ever had
    FENCED = "fenced"  # a later tenure owns the job
    TERMINAL = "terminal"  # the job has ended
    UNKNOWN = "unknown"  # no such job

    __hash__ = str.__hash__


class AppendResult(NamedTuple):
    """The outcome, the head after it (APPENDED and DUPLICATE: right after these events), and what differs."""

    outcome: Outcome
    head: Head
    detail: str = ""


Durable = Callable[[], list[AppendResult]]
"""What is left of an append: to wait until it is durable. One result for each, in order."""


class Record(NamedTuple):
    """One stored append, decoded. `chain` is the digest after it, `entries` its events with each step as one.

    In a sealed log `chain` is empty but at the end, and so is the key of a thinned step: they are not kept.
    """

    first: int
    last: int
    fence: int
    key: bytes
    chain: bytes
    entries: tuple[Entry, ...]

    @property
    def events(self) -> tuple[Event, ...]:
        return expand(self.entries)


class ModelRef(NamedTuple):
    """What a job says of its model: a name, which may mean nothing elsewhere, and its artifact's digest, or nothing."""

    name: str
    artifact: str = ""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as listings show it: a projection that the appends maintain; the log is the truth. Times in ms since 1970.

    stalled     tenures in a row that ended without a release and brought no token, as of the newest claim; those that
                somebody asked for (see `Caution`) are left out
    model       the name that its submitter has the model by; where that is found is for each process to say
    artifact    the digest of the model's artifact (see `artifact_digest`); empty where nobody said
    retain_ms   how long its content may stay from its end on; None: for ever
    output_max  output tokens at most, as the request says; None where that is not known here
    """

    job: str
    identity: str
    model: str
    status: Status
    finish: str | None
    prompt: int
    output: int
    head: Head
    fence: int
    owner: str | None
    lease_until_ms: int | None
    idempotency_key: str | None
    created_ms: int
    stalled: int = 0
    ended_ms: int | None = None
    retain_ms: int | None = None
    sealed_ms: int | None = None
    erased_ms: int | None = None
    artifact: str = ""
    output_max: int | None = None

    @property
    def wanted(self) -> ModelRef:
        return ModelRef(self.model, self.artifact)


class Admission(NamedTuple):
    """What became of a submission: the job that runs it, and whether this call created it."""

    job: str
    created: bool


class Claim(NamedTuple):
    """A tenure: from here on only `fence` may append to `job`. `stalled` as in the job's row, with the last one."""

    job: str
    fence: int
    head: Head
    model: str
    stalled: int = 0
    artifact: str = ""

    @property
    def wanted(self) -> ModelRef:
        return ModelRef(self.model, self.artifact)


class Caution(NamedTuple):
    """How to claim jobs whose tenures stall: such a job may be what kills its workers.

    suspects   how many of them at most; a claim that takes one takes no other job beside it
    delay_ms   how long after a claim the job is left alone after one stalled tenure; twice as long after each further
               one, and up to twice as long again, so that jobs do not come back all at once
    asked      somebody asked for these jobs by name and watches them: they are taken without the delay, and this tenure
               is not counted, however it ends
    """

    suspects: int
    delay_ms: int
    asked: bool = False


CANCEL = "cancel"
"""The kind of command that ends a job with the tokens it has."""


class Command(NamedTuple):
    """A request from another process to the owner of a job, in the order of arrival."""

    command_id: str
    job: str
    kind: str


class EventLog(Protocol):
    """The truth. Every method raises a typed store error where the database fails; none leaves anything half-done."""

    @property
    def elsewhere(self) -> bool:
        """Whether another process carries appends out: what this one computes meanwhile costs it nothing."""

    def admit(
        self,
        job: str,
        identity: str,
        model: str,
        prompt: int,
        event: Event,
        idempotency_key: str | None,
        retain_ms: int | None = None,
        artifact: str = "",
    ) -> Admission:
        """Make a job durable before it is acknowledged.

        The same idempotency key with the same identity returns the earlier job, with its `retain_ms`; with another
        identity it raises IdempotencyConflict, and where the job's content is erased ContentErased; nothing is written
        then. `retain_ms` is how long the content may stay from the job's end on.
        """

    def append(self, batch: Sequence[Append]) -> list[AppendResult]:
        """Append for many jobs in one transaction and one sync; one result for each, in order.

        A refused append changes nothing and does not keep the others from being appended. FENCED and TERMINAL
        refusals are recorded beside the log with their reason.
        """

    def begin(self, batch: Sequence[Append]) -> Durable:
        """The same in two halves: all that this thread must do now, and the wait, once, on any thread.

        Others see the log as it was until the second half has returned; a batch whose second half is dropped leaves no
        trace. It must follow soon: it may keep everyone else from writing.
        """

    def read(self, job: str, after: int = 0) -> Iterator[Record]:
        """The job's appends whose last event is beyond sequence `after`, in order, the chain verified from there."""

    def follow(self, job: str, head: Head) -> Iterator[Record]:
        """The job's appends after `head`, in order, the chain verified from there; CorruptRecord where it has no such
        head."""

    def row(self, job: str) -> JobRow:
        """One job's listing; UnknownJob where there is none."""

    def rows(self) -> list[JobRow]:
        """All jobs, oldest first."""


class Named(Protocol):
    """Jobs by their names."""

    def row(self, job: str) -> JobRow:
        """One job's listing; UnknownJob where there is none."""

    def names(self, beginning: str = "", last: int | None = None) -> list[str]:
        """The names that begin so, or the `last` newest of them, oldest first."""


class Snapshots(Protocol):
    """Recent states of live jobs, so that a load need not begin at the log's start.

    They can be lost at any time, and the append that ends a job removes its own.
    """

    def keep(self, batch: Sequence[Keep]) -> None:
        """Keep snapshots of many jobs in one transaction, but none of a job that has ended or has another tenure."""

    def snapshot(self, job: str) -> Snapshot | None:
        """The job's newest snapshot that is whole; whether its head is the log's is for `follow` to say."""


class Log(EventLog, Snapshots, Protocol):
    """Everything needed to resume a job: the log and its snapshots."""


class Leases(Protocol):
    """Who works on which job, in database time."""

    def claim(
        self,
        worker: str,
        lease_ms: int,
        limit: int,
        jobs: Collection[str] | None = None,
        dead: Collection[str] = (),
        exclude: Collection[str] = (),
        caution: Caution | None = None,
        barred: Collection[ModelRef] = (),
    ) -> list[Claim]:
        """Take up to `limit` live jobs whose lease is free, expired, or held by a worker named in `dead`.

        Each claim raises the job's fence. `jobs` restricts the choice, `exclude` takes jobs out of it, and `barred` the
        jobs of models that have no room, or are not here. Oldest first.
        `caution` says how to go about jobs that stall; without it they are taken like all others.
        """

    def heartbeat(self, worker: str, lease_ms: int) -> frozenset[str]:
        """Extend every lease of `worker` in one statement; the jobs that it still holds."""

    def release(self, worker: str, jobs: Collection[str] | None = None) -> None:
        """Give back the leases of `worker` (of those jobs, or all), so that others can claim at once."""

    def owners(self) -> frozenset[str]:
        """The workers that hold a lease on a live job, expired or not."""

    def waiting(
        self, jobs: Collection[str] | None, exclude: Collection[str], barred: Collection[ModelRef] = ()
    ) -> bool:
        """Whether there is a live job, leased or not, of `jobs` (None: of all), not in `exclude`, and not of a model in
        `barred`; cheap to ask."""

    def note_missing(self, model: ModelRef, worker: str | None) -> None:
        """Note for listings that `worker` has looked for a model in vain; with None, that a worker has it."""

    def missing(self) -> dict[ModelRef, str]:
        """The models that nobody has found since a worker looked for them in vain, with that worker's name; without
        those of which a job is being worked on."""


def refused(finish: str) -> str:
    """The outcome of a command that arrived after its job had ended."""
    return f"refused: terminal ({finish})"


class Inbox(Protocol):
    """Commands from other processes, idempotent by their id, settled by the owner with what became of them."""

    def post(self, command: Command) -> bool:
        """Store a command durably; False where one with that id is already there.

        A command to a job that has ended is stored as `refused`: nobody can carry it out, and its outcome says so.
        """

    def pending(self, jobs: Collection[str]) -> list[Command]:
        """Unsettled commands of these jobs, in order of arrival; what has ended needs no command."""

    def settle(self, command_id: str, outcome: str) -> None:
        """Record what became of a command; settling again with another outcome changes nothing."""

    def outcome(self, command_id: str) -> str | None:
        """What became of a command: what was recorded, else how its job has ended; None while it is open."""


class Bell(Protocol):
    """Wakes a thread that waits for others to change the database. For one thread at a time."""

    def wait(self, seconds: float) -> bool:
        """Wait until it rings, at most so long; whether it rang.

        It rings for submissions, commands, releases and ends of jobs. It may also ring for other things, or not at
        all, so a waiter has to poll now and then.
        """

    def close(self) -> None:
        """Release its connection; idempotent."""


class Store(Log, Leases, Inbox, Protocol):
    """All four over one database."""

    def bell(self) -> Bell:
        """A new bell for the caller, which rings for what happens from now on."""

    def close(self) -> None:
        """Release connections; idempotent."""


Clock = Callable[[], int]
"""Milliseconds since 1970; always an argument, never read in `fsm`."""
