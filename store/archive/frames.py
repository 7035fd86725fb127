"""Frames: a file as a list of byte strings, each linked to all that stands before it.

    file    MAGIC, then frames
    frame   kind (1 byte), size of the body (8), CRC-32 of these nine (4), body, digest (32); big-endian
    digest  SHA-256 of the digest before it, kind, size and body; before the first frame that of MAGIC

The size has a checksum of its own: a reader who believed a damaged one would lose its place, and everything after it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import BinaryIO, NamedTuple
from zlib import crc32

from ...fsm.limits import FRAME_BYTES_MAX

MAGIC = b"decodelog export 1\n"
LOST = 0
"""The kind of what is no frame: from there on the file cannot be read."""

_HEAD = struct.Struct(">BQ")
_CHECK = struct.Struct(">L")
_DIGEST_BYTES = 32
_HEAD_BYTES = _HEAD.size + _CHECK.size


class Frame(NamedTuple):
    """A frame as it is stored from byte `offset` on; the body of a LOST one says in words why it cannot be read."""

    offset: int
    kind: int
    body: bytes
    mark: bytes


class FrameWriter:
    """Writes frames one after the other. `digest` is the one of all that it has written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = sha256(MAGIC).digest()
        file.write(MAGIC)

    def write(self, kind: int, body: bytes) -> None:
        head = _HEAD.pack(kind, len(body))
        self.digest = link(self.digest, kind, body)
        self._file.write(b"".join((head, _CHECK.pack(crc32(head)), body, self.digest)))


def link(before: bytes, kind: int, body: bytes) -> bytes:
    """The digest of a frame that follows the one of digest `before`."""
    return sha256(b"".join((before, _HEAD.pack(kind, len(body)), body))).digest()


def begins(file: BinaryIO) -> bool:
    """Whether a file begins as one of frames does."""
    file.seek(0)
    return file.read(len(MAGIC)) == MAGIC


def frames(
    file: BinaryIO, offset: int = len(MAGIC), most: Callable[[int], int] = lambda kind: FRAME_BYTES_MAX
) -> Iterator[Frame]:
    """The frames from byte `offset` on, as they are stored, one at a time; other reading may come between two.

    most   how many bytes the body of a frame of this kind may have; a longer one is not read, and none after it
    """
    end = file.seek(0, 2)
    while offset < end:
        file.seek(offset)
        head = file.read(_HEAD_BYTES)
        if len(head) < _HEAD_BYTES:
            yield Frame(offset, LOST, b"the file ends within its head", b"")
            return
        if _CHECK.pack(crc32(head[: _HEAD.size])) != head[_HEAD.size :]:
            yield Frame(offset, LOST, b"its head is damaged, and nothing from there on can be read", b"")
            return
        kind, size = _HEAD.unpack_from(head)
        following = offset + _HEAD_BYTES + size + _DIGEST_BYTES
        if following > end:
            yield Frame(offset, LOST, b"the file ends within it", b"")
            return
        if size > (bound := most(kind)):
            yield Frame(offset, LOST, f"frame_bytes of kind {kind} is {size}, and the maximum is {bound}".encode(), b"")
            return
        yield Frame(offset, kind, file.read(size), file.read(_DIGEST_BYTES))
        offset = following


def linked(read: Iterable[Frame]) -> Iterator[tuple[Frame, bool]]:
    """Each frame from the file's first, and whether it is what was written there, after all that stands before it.

    After one that is not, two digests may be the right one to go on from, its own and the one that its bytes have, so
    that one damaged byte is one damaged frame.
    """
    before = [sha256(MAGIC).digest()]
    for frame in read:
        found = [link(digest, frame.kind, frame.body) for digest in before]
        sound = frame.kind != LOST and frame.mark in found
        yield frame, sound
        before = [frame.mark] if sound else [frame.mark, found[-1]]
