"""A store in this process's memory: the promises of a database, except that it ends with the process."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from threading import Condition, RLock
from typing import TYPE_CHECKING

from ...fsm.errors import ContentErased, CorruptRecord, JobNotEnded, SealRefused, UnknownJob
from ...fsm.machine.events import Event
from ...fsm.machine.states import Status
from ...fsm.ports import (
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
    ModelRef,
    Outcome,
    Record,
    refused,
)
from ...fsm.reading.audit import Fault
from ..appending.admission import admission, attached, output_max_of
from ..appending.offer import Offer, Tenancy, offer, refusal
from ..appending.refusals import RECORDED, Refusal
from ..coordination.bells import MemoryBell
from ..log.chain import StoredLog, records
from ..log.erased import erased
from ..log.stored import Stored
from ..retention.forks import forks
from .job import MemoryJob
from .models import MemoryModels

if TYPE_CHECKING:
    from ...fsm.reading.snapshot import Keep, Snapshot


@dataclass(slots=True)
class _Command:
    command: Command
    outcome: str | None = None


def still() -> int:
    """A clock that stands still: leases given under it do not expire."""
    return 0


class MemoryStore(MemoryModels):
    """Log, leases and inbox over dictionaries, one lock around each method. `clock` is what a database's clock is."""

    elsewhere = False

    def __init__(self, clock: Clock = still) -> None:
        super().__init__(clock, RLock())
        self._jobs: dict[str, MemoryJob] = {}
        self._keys: dict[str, MemoryJob] = {}
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
        artifact: str = "",
    ) -> Admission:
        offered = admission(job, identity, event)
        with self._lock:
            held = self._keys.get(idempotency_key) if idempotency_key is not None else None
            if (held := held or self._jobs.get(job)) is not None:
                return attached(job, identity, idempotency_key, held.job, held.identity, held.erased_ms is not None)
            made = MemoryJob(
                job, identity, model, idempotency_key, self._clock(), prompt, retain_ms=retain_ms, artifact=artifact
            )
            made.output_max = output_max_of(event)
            made.take(offered, made.created_ms)
            self._jobs[job] = made
            self._ring()
            if idempotency_key is not None:
                self._keys[idempotency_key] = made
        return Admission(job, created=True)

    def append(self, batch: Sequence[Append]) -> list[AppendResult]:
        return self.begin(batch)()

    def begin(self, batch: Sequence[Append]) -> Durable:
        return partial(self._take, [offer(append) for append in batch])

    def _take(self, offers: Sequence[Offer]) -> list[AppendResult]:
        with self._lock:
            return [self._append(offered) for offered in offers]

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

    def names(self, beginning: str = "", last: int | None = None) -> list[str]:
        with self._lock:
            found = [name for name in self._jobs if name.startswith(beginning)]
        return found if last is None else found[-last:]

    def pages(self, last: int | None = None, states: Collection[Status] = tuple(Status)) -> Iterator[list[JobRow]]:
        rows = [row for row in self.rows() if row.status in states]
        yield rows if last is None else rows[-last:]

    def count(self, states: Collection[Status] = tuple(Status)) -> int:
        return sum(len(page) for page in self.pages(states=states))

    def refusals(self, job: str) -> list[Refusal]:
        with self._lock:
            held = self._held(job)
            return [refused for refused in self._refusals if refused.job == held.job]

    def logs(self, job: str | None = None) -> Iterator[StoredLog]:
        with self._lock:
            chosen = list(self._jobs.values()) if job is None else [self._held(job)]
            logs = [StoredLog(held.job, held.head, held.fence, list(held.log), row=held.row()) for held in chosen]
        return iter(logs)

    def damage(self) -> Iterator[Fault]:
        """What is wrong with what holds the logs: nothing."""
        return iter(())

    def _held(self, job: str) -> MemoryJob:
        if (held := self._jobs.get(job)) is None:
            raise UnknownJob(job)
        return held

    # ---- snapshots ----

    def keep(self, batch: Sequence[Keep]) -> None:
        with self._lock:
            for fence, _, snapshot in batch:
                job = self._held(snapshot.state.spec.job)
                if job.fence == fence and job.finish is None:
                    job.snapshot = snapshot

    def snapshot(self, job: str) -> Snapshot | None:
        with self._lock:
            return self._held(job).snapshot

    def snapshot_damage(self, job: str) -> str:
        """What is wrong with the job's snapshots by themselves: nothing."""
        return ""

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
            held.stand(erased(job, held.log))
            held.snapshot = None
            held.erased_ms = self._clock()
        return True

    def forks(self, parents: Collection[str]) -> list[tuple[str, str]]:
        with self._lock:
            firsts = [(job.job, job.log[0]) for job in self._jobs.values() if job.erased_ms is None]
        return list(forks(firsts, parents))

    def scrub(self) -> bool:
        return True

    def past_retention(self) -> list[str]:
        with self._lock:
            return [job.job for job in self._jobs.values() if job.due(job.retain_ms, self._clock())]

    def unsealed(self, older_ms: int) -> list[str]:
        with self._lock:
            due = (job for job in self._jobs.values() if job.due(older_ms, self._clock()))
            return [job.job for job in due if job.sealed_ms is None]

    def _ended(self, job: str) -> MemoryJob:
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
        barred: Collection[ModelRef] = (),
    ) -> list[Claim]:
        with self._lock:
            now_ms = self._clock()
            free = [
                (number, job)
                for number, job in enumerate(self._jobs.values(), 1)
                if job.free(now_ms, dead) and (jobs is None or job.job in jobs)
                if job.job not in exclude and (job.model, job.artifact) not in barred
            ]
            if caution is not None:
                suspects = [each for each in free if each[1].suspect(worker, now_ms, caution.asked)]
                suspects.sort(key=lambda each: each[1].stalled == 0)  # those that are known first
                ordinary = [
                    each for each in free
                    if each[1].owner == worker or not (each[1].stalled or each[1].stalls(worker))
                ]  # fmt: skip
                free = suspects[: caution.suspects] or ordinary
            chosen = sorted(free[:limit], key=itemgetter(0))
            return [job.claim(number, worker, now_ms, lease_ms, caution or Caution(0, 0)) for number, job in chosen]

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

    def missing(self) -> dict[ModelRef, str]:
        with self._lock:
            held = {ModelRef(job.model, job.artifact) for job in self._jobs.values() if job.owner is not None}
            return {model: worker for model, worker in super().missing().items() if model not in held}

    def waiting(
        self, jobs: Collection[str] | None, exclude: Collection[str], barred: Collection[ModelRef] = ()
    ) -> bool:
        with self._lock:
            return any(
                job.finish is None
                and (jobs is None or job.job in jobs)
                and job.job not in exclude
                and (job.model, job.artifact) not in barred
                for job in self._jobs.values()
            )

    # ---- the inbox ----

    def post(self, command: Command) -> bool:
        with self._lock:
            finish = self._held(command.job).finish
            self._ring()
            posted = _Command(command, None if finish is None else refused(finish))
            return self._commands.setdefault(command.command_id, posted) is posted

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
