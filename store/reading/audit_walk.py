"""The walk of an audit over the rows of one log: what each says, and whether it follows on those before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ...fsm.errors import Problem
from ...fsm.machine.events import AttemptStarted, Event, RequestClosed
from ...fsm.ports import EMPTY_HEAD
from ..log import sealed
from ..log.chain import DIGEST_BYTES, WRONG_TYPE, digest, following, kept
from ..log.codec import decode
from ..log.erased import WITHOUT_CONTENT
from ..log.stored import Stored

NUMBERS: Final = ("first", "last", "fence")


@dataclass(slots=True)
class Walk:
    """Where the audit of one log stands.

    chains   the digests that the log may have here: where an anchor's own is the damage, two are possible
    appends  how many there were
    events   how many could be read
    sealed   whether an append was seen that is so
    gone    the first event of the first append whose content is erased, and
    kept    that of the first append with content; None where there is none
    linked   the last append followed from the one before it; after a break, no further one is reported until it does
    tenures  events that say who worked on the job, in appends of their own
    end      the last event, where it says no content and can be read in an erased log too
    asked    the event at which the digest is wanted, and `found` what it may be there
    """

    sequence: int = 0
    appends: int = 0
    events: int = 0
    chains: list[bytes] = field(default_factory=lambda: [EMPTY_HEAD.chain])
    sealed: bool = False
    gone: int | None = None
    kept: int | None = None
    linked: bool = True
    fence: int = 0
    tenures: int = 0
    end: Event | None = None
    asked: int = 0
    found: list[bytes] = field(default_factory=list)

    @property
    def erased(self) -> bool:
        return self.gone is not None

    def step(self, job: str, row: Stored) -> Iterator[tuple[int, str, str]]:
        expected = self.sequence + 1
        self.appends += 1
        try:
            if wrong := _wrong(row):
                raise TypeError(wrong)
            yield from self._step(job, row)
        except WRONG_TYPE as problem:
            yield expected, "payload", f"a row holds a value of another type ({problem})"
            self.linked = False
            if type(row.last) is int and row.first == expected <= row.last:
                self.sequence = row.last
        if self.asked == self.sequence and self.linked:
            self.found = list(self.chains)

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
        if row.first == 1 and not row.sealed:
            yield from self._admission(row)
        if row.fence < self.fence:
            yield row.first, "fence", f"fence {row.fence} follows fence {self.fence}"
        self.fence = row.fence

    def _chain(self, row: Stored) -> Iterator[tuple[int, str, str]]:
        size = DIGEST_BYTES if row.sealed else len(kept(bytes(DIGEST_BYTES), row.first - 1, row.last))
        found = [(before, after) for before in self.chains if (after := following(before, row)) is not None]
        if len(row.chain) != size:
            yield row.first, "chain", f"{len(row.chain)} bytes of the append's digest are stored, and {size} were"
        elif not found and self.linked:
            yield row.first, "chain", "the append is not the one that its digest was taken of"
        self.linked = bool(found)
        if found:
            self.chains = [after for _, after in found]
        else:
            chains = [digest(chain, row.first, row.key, row.payload) for chain in self.chains]
            self.chains = ([*chains, row.chain] if row.anchor else chains)[-2:]

    def _admission(self, row: Stored) -> Iterator[tuple[int, str, str]]:
        """What the first append of any job is: one event, before anybody's tenure."""
        if row.last != 1:
            yield 1, "payload", f"a job is admitted by one event alone, and its first append has {row.last}"
        if row.fence != 0:
            yield 1, "fence", f"a job is admitted under fence 0, and its first append has {row.fence}"

    def _payload(self, job: str, row: Stored) -> Iterator[tuple[int, str, str]]:
        self.end = None
        if row.erased:
            if row.last < row.first:
                yield row.first, "payload", f"an erased append is stored as {row.first} to {row.last}"
            self.sequence = max(row.first, row.last)
            return
        try:
            count = self._sealed(job, row) if row.sealed else self._events(job, row)
            last = row.first + count - 1
            self.events += count
        except Problem as problem:
            yield row.first, "payload", str(problem)
            last = max(row.first, row.last)
        if last != row.last:
            yield row.first, "payload", f"events {row.first} to {last} are stored as {row.first} to {row.last}"
        if isinstance(began := self.end, AttemptStarted) and began.fence != row.fence:
            yield row.first, "fence", f"a tenure of fence {began.fence} begins in an append of fence {row.fence}"
        self.sequence = last

    def _sealed(self, job: str, row: Stored) -> int:
        """How many events a sealed row says."""
        self.kept = self.kept or row.first
        return sum(record.last - record.first + 1 for record in sealed.records(job, row))

    def _events(self, job: str, row: Stored) -> int:
        """How many events a row says, and whether they are content."""
        events = decode(row.payload, row.key, job, row.first)
        if not all(isinstance(event, WITHOUT_CONTENT) for event in events):
            self.kept = self.kept or row.first
        elif events:
            self.end = events[-1]
            self.tenures += sum(not isinstance(event, RequestClosed) for event in events)
        return len(events)


def _wrong(row: Stored) -> str:
    """Which value is of another type than its column, and what it is; empty where none is."""
    for name, value in row._asdict().items():
        if type(value) is not (int if name in NUMBERS else bytes):
            return f"{name} is of type {type(value).__name__}"
    return ""
