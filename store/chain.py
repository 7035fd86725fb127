"""The hash chain of a log: a digest after each append, over it and everything before it.

The job's row holds the digest at the head whole. The rows of the log hold the first eight bytes of theirs, enough to
name the one that was changed, and every 64 events an *anchor* holds all 32, so that a reader who starts in the middle
can verify what it reads from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import NamedTuple

from ..fsm.errors import CorruptRecord
from ..fsm.events import count
from ..fsm.ports import EMPTY_HEAD, Head, JobRow, Record
from .codec import entries

CHECK_BYTES = 8
ANCHOR_EVENTS = 64

WRONG_TYPE = (TypeError, ValueError, AttributeError, OverflowError)
"""What computing with a column raises where a damaged file gives it a value of another type."""


class Stored(NamedTuple):
    """An append as it is stored. `chain` is the digest after it, whole in an anchor, else its beginning."""

    first: int
    last: int
    fence: int
    key: bytes
    chain: bytes
    payload: bytes

    @property
    def anchor(self) -> bool:
        return len(self.chain) > CHECK_BYTES


def digest(before: bytes, first: int, key: bytes, payload: bytes) -> bytes:
    """SHA-256 of the digest before, the first sequence (8 bytes, big-endian), the key and the payload."""
    return sha256(b"".join((before, first.to_bytes(8, "big"), key, payload))).digest()


def kept(chain: bytes, before: int, last: int) -> bytes:
    """What an append's row keeps of its digest, where the events before it end at sequence `before`."""
    crosses = not before or before // ANCHOR_EVENTS != last // ANCHOR_EVENTS
    return chain if crosses else chain[:CHECK_BYTES]


def verified(job: str, rows: Iterable[Stored], after: int, head: Head | None = None) -> Iterator[tuple[Stored, bytes]]:
    """Each row with the whole digest after it. Raises CorruptRecord at the first that does not follow.

    The rows follow `head` where it is given. Else they begin with the log's first append, or with an anchor that ends
    at or before sequence `after`, which is taken as it is.
    """
    sequence, chain = head or EMPTY_HEAD
    given = head is not None
    try:
        for row in rows:
            first, last, _, key, mark, payload = row
            if not given and first > 1:
                if last > after or not row.anchor:
                    raise CorruptRecord(job, first - 1, "the append there is missing")
                chain = mark
            else:
                if first != sequence + 1 or last < first:
                    raise CorruptRecord(job, sequence + 1, f"the next append there is of events {first} to {last}")
                chain = digest(chain, first, key, payload)
                if not mark or not chain.startswith(mark):
                    raise CorruptRecord(job, first, "the append is not the one that its digest was taken of")
            given, sequence = True, last
            yield row, chain
    except WRONG_TYPE as problem:
        raise CorruptRecord(job, sequence + 1, f"its row holds a value of another type ({problem})") from problem


def records(job: str, rows: Iterable[Stored], after: int, head: Head | None = None) -> Iterator[Record]:
    """Verify rows (see `verified`), and decode the ones whose last event is beyond sequence `after`."""
    for (first, last, fence, key, _, payload), chain in verified(job, rows, after, head):
        if last > after:
            held = entries(payload, key, job, first)
            if count(held) != last - first + 1:
                raise CorruptRecord(job, first, f"{count(held)} events are stored as {first} to {last}")
            yield Record(first, last, fence, key, chain, held)


class StoredLog(NamedTuple):
    """Everything that is stored of one job's log, in order of sequence, and what the job's row says of it.

    rows     may be gone over once, before the next log is asked for
    damage   what is wrong with the job's row by itself, else empty; then the head and the fence may have any type
    row      all that the job's row says, None where it is damaged
    """

    job: str
    head: Head
    fence: int
    rows: Iterable[Stored]
    damage: str = ""
    row: JobRow | None = None
