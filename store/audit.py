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
from ..fsm.ports import EMPTY_HEAD
from .chain import WRONG_TYPE, Stored, StoredLog, digest
from .codec import decode


@dataclass(slots=True)
class Audit:
    """What an audit went over, and what it found. `events` are the ones that could be read."""

    jobs: int = 0
    appends: int = 0
    events: int = 0
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
    if walk.fence > log.fence:
        yield sequence, "fence", f"an append has fence {walk.fence}, and the job's row {log.fence}"


@dataclass(slots=True)
class Walk:
    """Where the audit of one log stands.

    chains   the digests that the log may have here: where an anchor's own is the damage, two are possible
    appends  how many there were
    events   how many could be read
    linked   the last append followed from the one before it; after a break, no further one is reported until it does
    """

    sequence: int = 0
    appends: int = 0
    events: int = 0
    chains: list[bytes] = field(default_factory=lambda: [EMPTY_HEAD.chain])
    linked: bool = True
    fence: int = 0

    def step(self, job: str, row: Stored) -> Iterator[tuple[int, str, str]]:
        expected = self.sequence + 1
        self.appends += 1
        try:
            yield from self._step(job, row)
        except WRONG_TYPE as problem:
            yield expected, "payload", f"a row holds a value of another type ({problem})"

    def _step(self, job: str, row: Stored) -> Iterator[tuple[int, str, str]]:
        expected = self.sequence + 1
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
        chains = [digest(chain, row.first, row.key, row.payload) for chain in self.chains]
        following = [chain for chain in chains if row.chain and chain.startswith(row.chain)]
        if not following and self.linked:
            yield row.first, "chain", "the append is not the one that its digest was taken of"
        self.linked = bool(following)
        self.chains = following or ([*chains, row.chain] if row.anchor else chains)[-2:]

    def _payload(self, job: str, row: Stored) -> Iterator[tuple[int, str, str]]:
        try:
            count = len(decode(row.payload, row.key, job, row.first))
            last = row.first + count - 1
            self.events += count
        except Problem as problem:
            yield row.first, "payload", str(problem)
            last = row.last if isinstance(row.last, int) and row.last >= row.first else row.first
        if last != row.last:
            yield row.first, "payload", f"events {row.first} to {last} are stored as {row.first} to {row.last}"
        self.sequence = last
