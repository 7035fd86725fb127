"""A sealed log: all appends of an ended job as one row, compressed, which proves itself.

    key      SHA-256 of DOMAIN, the digest at the head (32 bytes), first and last sequence and the fence (8 each,
             big-endian), and the payload's SHA-256: a changed byte anywhere in the row is found, also when it is erased
    payload  MARK, the version (1 byte), the size of the body (8, big-endian), and the body, compressed by LZMA
    body     msgpack: the appends in order, each as it was written, or many thinned steps as columns

Of a run of ordinary steps the first and the last two stay as they were written, which is what a load folds and lands
on (`fsm.reading.load`); those between are thinned (`fsm.machine.thinned`). Where the output has a structure, every step
is folded, and none is thinned. Numbers of one kind lie together, byte plane by byte plane: the planes that say little
take no room.
"""

from __future__ import annotations

import lzma
import struct
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import groupby
from typing import Any, Final

from msgpack import packb

from ...fsm.errors import CorruptRecord, UnknownSeal
from ...fsm.limits import SEALED_BYTES_MAX
from ...fsm.machine.events import Entry, TokenStep, count, joined
from ...fsm.ports import Head, Record
from .codec import entries
from .sealed_body import MALFORMED, THINNED, WHOLE, Thinned, Whole, items
from .stored import ERASED, MARK, Stored

DOMAIN: Final = b"decodelog.sealed.v1"
VERSION: Final = 1
LAST_WHOLE: Final = 2

_SPAN = struct.Struct(">QQQ")
_SIZE = struct.Struct(">Q")
_HEAD_BYTES = len(MARK) + 1 + _SIZE.size
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 0, "lp": 0, "pb": 0}]
_WINDOW_MIN, _WINDOW_MAX = 1 << 12, 1 << 26  # bytes; the larger is the preset's own, which every release reads with


def seal(head: Head, rows: Sequence[Stored], records: Sequence[Record], structured: bool) -> Stored:
    """One row for all of a log's: `rows` as stored, `records` what they say; the same log gives the same bytes."""
    made: list[Any] = []
    for thin, run in groupby(_marked(records, structured), key=lambda pair: pair[0]):
        chosen = [index for _, index in run]
        if thin:
            first = records[chosen[0]]
            steps = [_step(records[index]) for index in chosen]
            from . import columns  # with numpy, which only sealed logs need here

            made.append((THINNED, first.fence, *columns.written(steps)))
        else:
            made += [(WHOLE, rows[index].fence, rows[index].key, rows[index].payload) for index in chosen]
    body = packb(made)
    compressed = lzma.compress(body, lzma.FORMAT_RAW, filters=_filters(len(body)))
    payload = b"".join((MARK, bytes([VERSION]), _SIZE.pack(len(body)), compressed))
    row = Stored(1, head.sequence, rows[-1].fence, b"", head.chain, payload)
    return row._replace(key=key_of(row))


def _filters(size: int) -> list[dict[str, int]]:
    """For a body of so many bytes: a window that holds it. To lay out one of 64 MiB takes longer than to compress most
    logs; whoever reads may have any that is no smaller.
    """
    return [_FILTERS[0] | {"dict_size": min(max(size, _WINDOW_MIN), _WINDOW_MAX)}]


def key_of(row: Stored) -> bytes:
    """The key that a sealed row must have. Errors: struct.error for numbers that no row has."""
    first, last, fence, _, chain, payload = row
    content = payload[len(ERASED) :] if payload[:2] == ERASED else sha256(payload).digest()
    return sha256(b"".join((DOMAIN, chain, _SPAN.pack(first, last, fence), content))).digest()


def proven(row: Stored) -> bytes | None:
    """The digest at the log's head where the row is what was sealed, else None."""
    whole = row.first == 1 and len(row.chain) == len(row.key) == sha256().digest_size
    return row.chain if whole and row.key == key_of(row) else None


def records(job: str, row: Stored) -> Iterator[Record]:
    """The appends that a sealed row stands for, in order; of thinned ones key and digest are empty.

    One is made at a time, and of the body no more is in memory than one of its items.
    Errors: UnknownSeal for a version of a newer release, CorruptRecord for bytes that no release wrote.
    """
    sequence = 0
    if (version := int.from_bytes(row.payload[1:2])) != VERSION:
        raise UnknownSeal(job, version)
    try:
        for item in items(*_body(row.payload)):
            for fence, key, held in _held(job, sequence + 1, item):
                first, sequence = sequence + 1, sequence + count(held)
                if sequence > row.last:
                    break
                yield Record(first, sequence, fence, key, row.chain if key and sequence == row.last else b"", held)
    except MALFORMED as problem:
        raise CorruptRecord(job, sequence + 1, f"the sealed log cannot be read ({problem})") from problem
    if sequence != row.last:
        raise CorruptRecord(job, sequence + 1, f"{sequence} events are sealed as {row.last}")


def _body(payload: bytes) -> tuple[bytes, int]:
    """What is compressed, and the size that it says it has."""
    (size,) = _SIZE.unpack(payload[2:_HEAD_BYTES])
    if size > SEALED_BYTES_MAX:
        raise ValueError(f"sealed_bytes is {size}, and the maximum is {SEALED_BYTES_MAX}")
    return payload[_HEAD_BYTES:], size


def _held(job: str, first: int, item: Whole | Thinned) -> Iterator[tuple[int, bytes, tuple[Entry, ...]]]:
    """Fence, key and entries of each append of an item, whose first event is `first`."""
    if isinstance(item, Whole):
        yield item.fence, item.key, joined(entries(item.payload, item.key, job, first))
        return
    from . import columns

    for step in columns.read(item.columns):
        yield item.fence, b"", (step,)


def _marked(records: Sequence[Record], structured: bool) -> Iterator[tuple[bool, int]]:
    """(whether it is thinned, its index) of each append."""
    index = 0
    for ordinary, run in groupby(records, key=lambda record: not structured and _ordinary(record)):
        size = len(list(run))
        for place in range(size):
            yield ordinary and 0 < place < size - LAST_WHOLE, index
            index += 1


def _ordinary(record: Record) -> bool:
    """Whether an append is one step and nothing else, keyed by its own receipt, of a call of one token."""
    held = joined(record.entries)
    if len(held) != 1 or not isinstance(step := held[0], TokenStep):
        return False
    return step.tokens == 1 and step.structure is None and step.receipt_id == record.key


def _step(record: Record) -> TokenStep:
    step = joined(record.entries)[0]
    if not isinstance(step, TokenStep):
        raise TypeError(step)
    return step
