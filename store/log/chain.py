"""The hash chain of a log: a digest after each append, over it and everything before it.

The job's row holds the digest at the head whole. The rows of the log hold the first eight bytes of theirs, enough to
name the one that was changed, and every 64 events an *anchor* holds all 32, so that a reader who starts in the middle
can verify what it reads from there.

A digest is taken of a digest of the content, so that a row whose content is erased still proves what follows it: its
key is empty then, and its payload is that digest (see `erased`). A sealed row stands for a whole log (see `sealed`) and
proves itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from ...fsm.errors import ContentErased, CorruptRecord
from ...fsm.machine.events import count
from ...fsm.ports import EMPTY_HEAD, Head, JobRow, Record
from . import sealed
from .codec import entries
from .stored import CHECK_BYTES, MARK, Stored

ANCHOR_EVENTS = 64
DIGEST_BYTES = 32

WRONG_TYPE = (TypeError, ValueError, AttributeError, OverflowError, struct.error)
"""What computing with a column raises where a damaged file gives it a value of another type, or out of its range."""

MARKS = (CHECK_BYTES, DIGEST_BYTES)
"""How many bytes of its digest a row can have."""


def digest(before: bytes, first: int, key: bytes, payload: bytes) -> bytes:
    """SHA-256 of the digest before, the first sequence (8 bytes, big-endian), and the content's digest: 72 bytes."""
    return sha256(before + first.to_bytes(8, "big") + content(key, payload)).digest()


def content(key: bytes, payload: bytes) -> bytes:
    """SHA-256 of key and payload; of a row whose content is erased, what it has in their place."""
    return sha256(key + payload).digest() if key else payload


def following(before: bytes, row: Stored) -> bytes | None:
    """The whole digest after a row; None where the row has been changed."""
    first, _, _, key, mark, payload = row
    if len(mark) not in MARKS:
        return None
    if row.sealed:
        return sealed.proven(row)
    found = digest(before, first, key, payload)
    return found if found.startswith(mark) and len(key or payload) == DIGEST_BYTES else None


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
                # What `following` finds of an ordinary append, without the call: this is most of what a load does.
                found = sha256(chain + first.to_bytes(8, "big") + sha256(key + payload).digest()).digest()
                if not (found.startswith(mark) and len(mark) in MARKS and len(key) == DIGEST_BYTES):
                    found = following(chain, row) or b""
                if not found:
                    raise CorruptRecord(job, first, "the append is not the one that its digest was taken of")
                chain = found
            given, sequence = True, last
            yield row, chain
    except WRONG_TYPE as problem:
        raise CorruptRecord(job, sequence + 1, f"its row holds a value of another type ({problem})") from problem


def records(job: str, rows: Iterable[Stored], after: int, head: Head | None = None) -> Iterator[Record]:
    """Verify rows (see `verified`), and decode the ones whose last event is beyond sequence `after`.

    Errors: those of `verified`, and ContentErased at an append whose content is.
    """
    for row, chain in verified(job, rows, after, head):
        first, last, fence, key, _, payload = row
        if last <= after:
            continue
        if not key or payload[:1] == MARK:
            if row.erased:
                raise ContentErased(job)
            yield from (record for record in sealed.records(job, row) if record.last > after)
            continue
        held = entries(payload, key, job, first)
        if count(held) != last - first + 1:
            raise CorruptRecord(job, first, f"{count(held)} events are stored as {first} to {last}")
        yield Record(first, last, fence, key, chain, held)


class StoredLog(NamedTuple):
    """Everything that is stored of one job's log, in order of sequence, and what the job's row says of it.

    rows     may be gone over once, before the next log is asked for
    damage   what is wrong with the job's row by itself, else empty; then the head and the fence may have any type
    row      all that the job's row says, None where it is damaged
    dated    the row is a database's own, which also says when the log was sealed and erased; an exported file's is not
    links    what is wrong with the links between the rows, as (sequence, detail), once `rows` was gone over
    """

    job: str
    head: Head
    fence: int
    rows: Iterable[Stored]
    damage: str = ""
    row: JobRow | None = None
    dated: bool = True
    links: Sequence[tuple[int, str]] = ()
