"""The audit of what is stored, row by row: chain, gaps, duplicates, fences, payloads, and the heads in the jobs' rows.

It goes on after a fault, so that one damaged byte is one fault and not the end of the audit. What the events say, and
whether they may follow one another, is for the fold to judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ..fsm.audit import Fault
from ..fsm.errors import Problem
from ..fsm.ports import EMPTY_HEAD, JobRow
from . import sealed
from .chain import WRONG_TYPE, StoredLog, digest, digest_older, following
from .codec import decode
from .erased import WITHOUT_CONTENT
from .stored import Stored


@dataclass(slots=True)
class Audit:
    """What an audit went over, and what it found.

    events   the ones that could be read; of an erased log, only of its tenures
    sealed, erased   names of the jobs whose log is sealed, or whose content is erased
    """

    jobs: int = 0
    appends: int = 0
    events: int = 0
    sealed: set[str] = field(default_factory=set)
    erased: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.faults


class ShowsRows(Protocol):
    """A store that shows its rows as they are."""

    def logs(self, job: str | None = None) -> Iterator[StoredLog]:
        """All that is stored of one job's log, or of every one."""


def audit_rows(store: ShowsRows, job: str | None = None) -> Audit:
    """Audit one job or all of them. Raises only where the database cannot be read."""
    result = Audit()
    for log in store.logs(job):
        result.jobs += 1
        walk = Walk()
        result.faults += [Fault(log.job, *fault) for fault in faults(log, walk)]
        result.appends += walk.appends
        result.events += walk.events
        result.sealed |= {log.job} if walk.sealed else set()
        result.erased |= {log.job} if walk.erased else set()
    return result


def faults(log: StoredLog, walk: Walk) -> Iterator[tuple[int, str, str]]:
    """(sequence, kind, detail) of each fault of one log, in order."""
    for row in log.rows:
        yield from walk.step(log.job, row)
    sequence, head = walk.sequence, log.head
    if log.damage:
        yield sequence, "listing", log.damage
    if not (isinstance(head.sequence, int) and isinstance(log.fence, int)):
        return  # which is the damage of the listing
    if sequence != head.sequence:
        yield head.sequence, "head", f"the log ends at event {sequence}, and the job's row says {head.sequence}"
    elif walk.linked and head.chain not in walk.chains:
        yield head.sequence, "head", "the job's row has another digest than its log"
    if (gone := walk.gone) is not None and (kept := walk.kept) is not None:
        detail = f"the content of event {gone} is erased and that of event {kept} is not; erasing takes all of a log"
        yield max(gone, kept), "payload", detail
    if log.row is not None and log.dated:
        yield from _listed(log.row, walk)
    if walk.fence > log.fence:
        yield sequence, "fence", f"an append has fence {walk.fence}, and the job's row {log.fence}"


def _listed(row: JobRow, walk: Walk) -> Iterator[tuple[int, str, str]]:
    """What a database's row says of its log beside the head, and is not so."""
    if row.erased_ms is not None and not walk.erased:
        yield walk.sequence, "listing", "the job's row says that its content is erased, and it is there"
    if row.erased_ms is None and walk.gone is not None:
        yield walk.gone, "listing", "its content is erased, and the job's row does not say so"
    if row.sealed_ms is not None and not walk.sealed:
        yield walk.sequence, "listing", "the job's row says that its log is sealed, and it is not"
    # A log with digests of the older form is erased to a row of the sealed kind.
    if row.sealed_ms is None and walk.sealed and not walk.erased:
        yield walk.sequence, "listing", "its log is sealed, and the job's row does not say so"
    # Nobody claims a job that has ended, so its fence is still that of whoever ended it.
    if row.finish is not None and walk.sequence == row.head.sequence and walk.fence < row.fence:
        detail = f"the append that ended the job has fence {walk.fence}, and the job's row {row.fence}"
        yield walk.sequence, "fence", detail


@dataclass(slots=True)
class Walk:
    """Where the audit of one log stands.

    chains   the digests that the log may have here: where an anchor's own is the damage, two are possible
    appends  how many there were
    events   how many could be read
    sealed   whether an append was seen that is so
    gone    the first event of the first append whose content is erased, and
    kept    that of the first append with content; None where there is none
    older    the digests are of the older form
    linked   the last append followed from the one before it; after a break, no further one is reported until it does
    """

    sequence: int = 0
    appends: int = 0
    events: int = 0
    chains: list[bytes] = field(default_factory=lambda: [EMPTY_HEAD.chain])
    sealed: bool = False
    gone: int | None = None
    kept: int | None = None
    older: bool = False
    linked: bool = True
    fence: int = 0

    @property
    def erased(self) -> bool:
        return self.gone is not None

    def step(self, job: str, row: Stored) -> Iterator[tuple[int, str, str]]:
        expected = self.sequence + 1
        self.appends += 1
        try:
            yield from self._step(job, row)
        except WRONG_TYPE as problem:
            yield expected, "payload", f"a row holds a value of another type ({problem})"

    def _step(self, job: str, row: Stored) -> Iterator[tuple[int, str, str]]:
        expected = self.sequence + 1
        self.sealed = self.sealed or row.sealed
        if row.erased and self.gone is None:
            self.gone = expected
        if row.first < expected:
            yield row.first, "duplicate", f"events {row.first} to {row.last} overlap the append before"
            return
        if row.first > expected:
            yield expected, "gap", f"events {expected} to {row.first - 1} are missing"
            self.linked = False
        yield from self._chain(row)
        yield from self._payload(job, row)
        if row.fence < self.fence:
            yield row.first, "fence", f"fence {row.fence} follows fence {self.fence}"
        self.fence = row.fence

    def _chain(self, row: Stored) -> Iterator[tuple[int, str, str]]:
        found = [(before, after) for before in self.chains if (after := following(before, row)) is not None]
        if not found and self.linked:
            yield row.first, "chain", "the append is not the one that its digest was taken of"
        self.linked = bool(found)
        content = row.first, row.key, row.payload
        if found:
            self.chains = [after for _, after in found]
            before, after = found[0]
            self.older = not row.sealed and after != digest(before, *content)
        else:
            form = digest_older if self.older else digest
            chains = [form(chain, *content) for chain in self.chains]
            self.chains = ([*chains, row.chain] if row.anchor else chains)[-2:]

    def _payload(self, job: str, row: Stored) -> Iterator[tuple[int, str, str]]:
        if row.erased:
            if row.last < row.first:
                yield row.first, "payload", f"an erased append is stored as {row.first} to {row.last}"
            self.sequence = max(row.first, row.last)
            return
        try:
            count = self._count(job, row)
            last = row.first + count - 1
            self.events += count
        except Problem as problem:
            yield row.first, "payload", str(problem)
            last = row.last if isinstance(row.last, int) and row.last >= row.first else row.first
        if last != row.last:
            yield row.first, "payload", f"events {row.first} to {last} are stored as {row.first} to {row.last}"
        self.sequence = last

    def _count(self, job: str, row: Stored) -> int:
        """How many events a row says, and whether they are content."""
        if row.sealed:
            self.kept = self.kept or row.first
            return sum(record.last - record.first + 1 for record in sealed.records(job, row))
        events = decode(row.payload, row.key, job, row.first)
        if self.kept is None and not all(isinstance(event, WITHOUT_CONTENT) for event in events):
            self.kept = row.first
        return len(events)
