"""A store in this process's memory: the same promises as a database, except that it ends with the process."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from threading import Condition, RLock

from ..fsm.errors import ContentErased, CorruptRecord, JobNotEnded, SealRefused, UnknownJob
from ..fsm.events import Event
from ..fsm.ports import (
    EMPTY_HEAD,
    Admission,
    Append,
    AppendResult,
    Bell,
    Caution,
    Claim,
    Clock,
    Command,
    Durable,
    Head,
    JobRow,
    Outcome,
    Record,
)
from ..fsm.snapshot import Keep, Snapshot
from ..fsm.states import Status
from .admission import admission, attached
from .bells import MemoryBell
from .chain import StoredLog, records
from .erased import erased
from .offer import Offer, Tenancy, offer, refusal
from .refusals import RECORDED, Refusal
from .stalls import SPREAD, doubled, spread
from .stored import Stored


@dataclass(slots=True)
class _Job:
    """A job's row, and its log as three lists of equal length: the appends, their last sequences, their digests."""

    job: str
    identity: str
    model: str
    idempotency_key: str | None
    created_ms: int
    prompt: int
    status: Status = Status.ADMITTED
    finish: str | None = None
    output: int = 0
    fence: int = 0
    owner: str | None = None
    lease_until_ms: int | None = None
    stalled: int = 0
    claimed_output: int | None = None
    claimed_sequence: int | None = None
    claim_after_ms: int | None = None
    ended_ms: int | None = None
    retain_ms: int | None = None
    sealed_ms: int | None = None
    erased_ms: int | None = None
    log: list[Stored] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    snapshot: Snapshot | None = None

    @property
    def head(self) -> Head:
        return Head(self.lasts[-1], self.digests[-1]) if self.log else EMPTY_HEAD

    def place(self, sequence: int) -> tuple[int, bytes | None]:
        """The index of the append that holds the next event, and the digest at `sequence` if an append ends there."""
        index = bisect_right(self.lasts, sequence)
        if index == 0:
            return 0, EMPTY_HEAD.chain if sequence == 0 else None
        return index, self.digests[index - 1] if self.lasts[index - 1] == sequence else None

    def take(self, offered: Offer, now_ms: int) -> None:
        append = offered.append
        self.log.append(offered.row)
        self.lasts.append(offered.row.last)
        self.digests.append(offered.head.chain)
        self.status, self.output = append.status, append.output
        if append.finish is not None:
            self.finish, self.owner, self.lease_until_ms, self.ended_ms = append.finish, None, None, now_ms

    def stand(self, rows: list[Stored]) -> None:
        """Have these rows in the place of the log's: as many, or one for all."""
        if len(rows) != len(self.log):
            self.lasts, self.digests = self.lasts[-1:], self.digests[-1:]
        self.log = rows

    def due(self, after_ms: int | None, now_ms: int) -> bool:
        """Whether it has content, and ended so long ago."""
        if self.erased_ms is not None or self.ended_ms is None or after_ms is None:
            return False
        return self.ended_ms + after_ms <= now_ms

    def free(self, now_ms: int, dead: Collection[str]) -> bool:
        expired = self.lease_until_ms is not None and self.lease_until_ms <= now_ms
        return self.finish is None and (self.owner is None or expired or self.owner in dead)

    def claim(self, number: int, worker: str, now_ms: int, lease_ms: int, delay_ms: int) -> Claim:
        """Begin a tenure; see `stalls` for what it says of the one before."""
        if self.claimed_output is not None and self.output > self.claimed_output:
            self.stalled = 0
        elif self.owner not in (None, worker) and self.head.sequence > (self.claimed_sequence or 0):
            self.stalled += self.claimed_sequence is not None
        self.fence, self.owner, self.lease_until_ms = self.fence + 1, worker, now_ms + lease_ms
        self.claimed_sequence = self.head.sequence
        self.claimed_output, delay = self.output, delay_ms * doubled(self.stalled)
        self.claim_after_ms = now_ms + delay + delay * spread(number, self.fence) // SPREAD if self.stalled else None
        return Claim(self.job, self.fence, self.head, self.model, self.stalled)

    def row(self) -> JobRow:
        return JobRow(
            self.job, self.identity, self.model, self.status, self.finish, self.prompt, self.output, self.head,
            self.fence, self.owner, self.lease_until_ms, self.idempotency_key, self.created_ms,
            self.stalled, self.ended_ms, self.retain_ms, self.sealed_ms, self.erased_ms,
        )  # fmt: skip


@dataclass(slots=True)
class _Command:
    command: Command
    outcome: str | None = None


def still() -> int:
    """A clock that stands still: leases given under it do not expire."""
    return 0


class MemoryStore:
    """Log, leases and inbox over dictionaries, one lock around each method. `clock` is what a database's clock is."""

    elsewhere = False

    def __init__(self, clock: Clock = still) -> None:
        self._clock = clock
        self._lock = RLock()
        self._jobs: dict[str, _Job] = {}
        self._keys: dict[str, _Job] = {}
        self._commands: dict[str, _Command] = {}
        self._refusals: list[Refusal] = []
        self._changed = Condition(self._lock)
        self.rung = 0

    def close(self) -> None:
        """Nothing to release."""

    def bell(self) -> Bell:
        return MemoryBell(self._changed, lambda: self.rung)

    def _ring(self) -> None:
        """Ring the bells; the lock is held."""
        self.rung += 1
        self._changed.notify_all()

    # ---- the log ----

    def admit(
        self,
        job: str,
        identity: str,
        model: str,
        prompt: int,
        event: Event,
        idempotency_key: str | None,
        retain_ms: int | None = None,
    ) -> Admission:
        offered = admission(job, identity, event)
        with self._lock:
            held = self._keys.get(idempotency_key) if idempotency_key is not None else None
            if (held := held or self._jobs.get(job)) is not None:
                return attached(job, identity, idempotency_key, held.job, held.identity, held.erased_ms is not None)
            made = _Job(job, identity, model, idempotency_key, self._clock(), prompt, retain_ms=retain_ms)
            made.take(offered, made.created_ms)
            self._jobs[job] = made
            self._ring()
            if idempotency_key is not None:
                self._keys[idempotency_key] = made
        return Admission(job, created=True)

    def append(self, batch: Sequence[Append]) -> list[AppendResult]:
        offers = [offer(append) for append in batch]
        with self._lock:
            return [self._append(offered) for offered in offers]

    def begin(self, batch: Sequence[Append]) -> Durable:
        return partial(self.append, batch)

    def _append(self, offered: Offer) -> AppendResult:
        append = offered.append
        if (job := self._jobs.get(append.job)) is None:
            return AppendResult(Outcome.UNKNOWN, EMPTY_HEAD, f"there is no job {append.job}")
        index, before = job.place(append.expected.sequence)
        there = job.log[index] if index < len(job.log) else None
        refused = refusal(offered, Tenancy(job.head, job.fence, job.finish), before, there)
        if refused is None:
            job.take(offered, self._clock())
            if job.finish is not None:
                self._ring()
            return offered.done(Outcome.APPENDED)
        if refused.outcome in RECORDED:
            self._refusals.append(Refusal.of(offered, refused, self._clock()))
        return refused

    def read(self, job: str, after: int = 0) -> Iterator[Record]:
        with self._lock:
            held = self._held(job)
            index = bisect_right(held.lasts, after)
            head = Head(held.lasts[index - 1], held.digests[index - 1]) if index else EMPTY_HEAD
            rows = held.log[index:]
        return records(job, rows, after, head)

    def follow(self, job: str, head: Head) -> Iterator[Record]:
        with self._lock:
            held = self._held(job)
            index, digest = held.place(head.sequence)
            if digest != head.chain:
                raise CorruptRecord(job, head.sequence, "the log has no append that ends there with this digest")
            rows = held.log[index:]
        return records(job, rows, head.sequence, head)

    def row(self, job: str) -> JobRow:
        with self._lock:
            return self._held(job).row()

    def rows(self) -> list[JobRow]:
        with self._lock:
            return [job.row() for job in self._jobs.values()]

    def refusals(self, job: str) -> list[Refusal]:
        with self._lock:
            held = self._held(job)
            return [refused for refused in self._refusals if refused.job == held.job]

    def logs(self, job: str | None = None) -> Iterator[StoredLog]:
        with self._lock:
            chosen = list(self._jobs.values()) if job is None else [self._held(job)]
            logs = [StoredLog(held.job, held.head, held.fence, list(held.log), row=held.row()) for held in chosen]
        return iter(logs)

    def _held(self, job: str) -> _Job:
        if (held := self._jobs.get(job)) is None:
            raise UnknownJob(job)
        return held

    # ---- snapshots ----

    def keep(self, batch: Sequence[Keep]) -> None:
        with self._lock:
            for fence, _, snapshot in batch:
                job = self._held(snapshot.state.spec.job)
                if job.fence == fence:
                    job.snapshot = snapshot

    def snapshot(self, job: str) -> Snapshot | None:
        with self._lock:
            return self._held(job).snapshot

    def snapshot_damage(self, job: str) -> str:
        """What is wrong with the job's snapshots by themselves: nothing."""
        return ""

    def forget(self, names: Sequence[str]) -> None:
        with self._lock:
            for job in names:
                self._held(job).snapshot = None

    # ---- how long logs stay ----

    def whole(self, job: str) -> StoredLog:
        with self._lock:
            self._ended(job)
            return next(self.logs(job))

    def seal(self, job: str, head: Head, row: Stored) -> bool:
        with self._lock:
            held = self._ended(job)
            if held.erased_ms is not None:
                raise ContentErased(job)
            if held.sealed_ms is not None:
                return False
            if held.head != head:
                raise SealRefused(job, "its head is not what was read")
            held.stand([row])
            held.snapshot = None
            held.sealed_ms = self._clock()
        return True

    def erase(self, job: str) -> bool:
        with self._lock:
            held = self._ended(job)
            if held.erased_ms is not None:
                return False
            held.stand(erased(job, held.log, held.head))
            held.snapshot = None
            held.erased_ms = self._clock()
        return True

    def scrub(self) -> bool:
        return True

    def past_retention(self) -> list[str]:
        with self._lock:
            return [job.job for job in self._jobs.values() if job.due(job.retain_ms, self._clock())]

    def unsealed(self, older_ms: int) -> list[str]:
        with self._lock:
            due = (job for job in self._jobs.values() if job.due(older_ms, self._clock()))
            return [job.job for job in due if job.sealed_ms is None]

    def _ended(self, job: str) -> _Job:
        held = self._held(job)
        if held.finish is None:
            raise JobNotEnded(job, held.status.value)
        return held

    # ---- leases ----

    def claim(
        self,
        worker: str,
        lease_ms: int,
        limit: int,
        jobs: Collection[str] | None = None,
        dead: Collection[str] = (),
        exclude: Collection[str] = (),
        caution: Caution | None = None,
    ) -> list[Claim]:
        with self._lock:
            now_ms = self._clock()
            free = [
                (number, job)
                for number, job in enumerate(self._jobs.values(), 1)
                if job.free(now_ms, dead) and (jobs is None or job.job in jobs) and job.job not in exclude
            ]
            if caution is not None:
                suspects = [each for each in free if each[1].stalled and (each[1].claim_after_ms or 0) <= now_ms]
                ordinary = [each for each in free if not each[1].stalled or each[1].owner == worker]
                taken = suspects[: caution.suspects]
                free = taken + [each for each in ordinary if each not in taken]
            delay_ms = 0 if caution is None else caution.delay_ms
            chosen = sorted(free[:limit], key=itemgetter(0))
            return [job.claim(number, worker, now_ms, lease_ms, delay_ms) for number, job in chosen]

    def heartbeat(self, worker: str, lease_ms: int) -> frozenset[str]:
        with self._lock:
            held = [job for job in self._jobs.values() if job.owner == worker]
            for job in held:
                job.lease_until_ms = self._clock() + lease_ms
            return frozenset(job.job for job in held)

    def release(self, worker: str, jobs: Collection[str] | None = None) -> None:
        with self._lock:
            for job in self._jobs.values():
                if job.owner == worker and (jobs is None or job.job in jobs):
                    job.owner, job.lease_until_ms, job.claim_after_ms = None, None, None
            self._ring()

    def owners(self) -> frozenset[str]:
        with self._lock:
            return frozenset(job.owner for job in self._jobs.values() if job.owner is not None)

    def waiting(self, jobs: Collection[str] | None, exclude: Collection[str]) -> bool:
        with self._lock:
            return any(
                job.finish is None and (jobs is None or job.job in jobs) and job.job not in exclude
                for job in self._jobs.values()
            )

    # ---- the inbox ----

    def post(self, command: Command) -> bool:
        with self._lock:
            self._held(command.job)
            self._ring()
            return self._commands.setdefault(command.command_id, found := _Command(command)) is found

    def pending(self, jobs: Collection[str]) -> list[Command]:
        with self._lock:
            return [
                posted.command
                for posted in self._commands.values()
                if posted.outcome is None
                and posted.command.job in jobs
                and self._held(posted.command.job).finish is None
            ]

    def settle(self, command_id: str, outcome: str) -> None:
        with self._lock:
            posted = self._commands.get(command_id)
            if posted is not None and posted.outcome is None:
                posted.outcome = outcome

    def outcome(self, command_id: str) -> str | None:
        with self._lock:
            posted = self._commands.get(command_id)
            return None if posted is None else posted.outcome or self._held(posted.command.job).finish
