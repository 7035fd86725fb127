"""The files of a kept cache: what they are called, what links them, and how they are read and removed.

A job has a folder. In it are *segments*, each a safetensors file with the rows of a range of tokens, and a *tail*: the
rows after the last segment, one record a token, until they are enough for a segment. Each segment and each record has a
link: a digest of the link before it, its tokens and its rows.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from errno import EEXIST, ENOTEMPTY
from hashlib import sha256
from mmap import ACCESS_COPY, mmap
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor, uint8

from ...fsm.errors import CacheInUse
from .abi import CacheAbi

DTYPES: Final = {"F32": torch.float32, "BF16": torch.bfloat16}
DOMAIN: Final = b"decodelog.segment.v1"
LINK_BYTES: Final = 32
HEADER_BYTES_MAX: Final = 4096  # of one tensor's name, type and shape, and what its rows are of
ASIDE: Final = ".gone"
"""What is added to the name of a job's folder while it is removed."""
DISCARDS_MAX: Final = 8

_NAME = re.compile(r"^(\d{8})-(\d{8})-([0-9a-f]{64})\.safetensors$")
_SPAN = struct.Struct("<QQ")
_TOKENS = re.compile(r"^[1-9][0-9]{0,7}$")
_COUNT = struct.Struct("<Q")
_PREFILLED = "prefilled"


class Segment(NamedTuple):
    """A file that says it holds rows [start, stop), and the link that it has."""

    start: int
    stop: int
    link: bytes
    path: Path


class Rows(NamedTuple):
    """A segment's rows as they lie in its file, and their digest.

    prefilled   tokens whose rows one call made, by the file; 1 or more
    """

    tensor: Tensor
    digest: bytes
    prefilled: int


# ---- names and links -------------------------------------------------------------------------------------------------


def folder_of(directory: Path, binding: bytes) -> Path:
    """Where the files of one job lie."""
    return directory / binding.hex()


def file_name(start: int, stop: int, link: bytes) -> str:
    return f"{start:08d}-{stop:08d}-{link.hex()}.safetensors"


def tail_of(folder: Path, start: int) -> Path:
    """The file of the rows from `start` on, which no segment has yet."""
    return folder / f"{start:08d}.tail"


def origin(binding: bytes, abi: str, prefilled: int) -> bytes:
    """The link before a job's first segment.

    prefilled   see `Rows`: rows that calls of other shapes made are other rows, so they are of another chain
    """
    return sha256(DOMAIN + binding + _COUNT.pack(prefilled) + abi.encode()).digest()


def link_of(before: bytes, start: int, ids: Sequence[int], rows: bytes) -> bytes:
    """The link of a segment or a record: `ids` are the tokens of its rows, `rows` is the digest of these."""
    return sha256(b"".join((before, _SPAN.pack(start, len(ids)), struct.pack(f"<{len(ids)}I", *ids), rows))).digest()


def digest_of(rows: Tensor) -> bytes:
    return sha256(_bytes(rows)).digest()


def _bytes(rows: Tensor) -> memoryview:
    return rows.view(uint8).numpy().data


# ---- writing ---------------------------------------------------------------------------------------------------------


def content_of(rows: Tensor, prefilled: int) -> bytes:
    """A segment's file."""
    return save({"rows": rows}, {_PREFILLED: str(prefilled)})


def records_of(link: bytes, start: int, ids: Sequence[int], rows: Tensor) -> tuple[bytes, bytes]:
    """The records of rows [layers, 2, kv_heads, len(ids), head_dim] from `start` on, and the link of the last."""
    parts = list[bytes | memoryview]()
    for offset, token in enumerate(ids):
        data = _bytes(rows[:, :, :, offset : offset + 1].contiguous())
        link = link_of(link, start + offset, (token,), sha256(data).digest())
        parts += data, link
    return b"".join(parts), link


# ---- reading ---------------------------------------------------------------------------------------------------------


def by_name(folder: Path, most: int) -> Iterator[Segment]:
    """The segments that follow on one another by their names, from row 0 to `most` at most; the longest wherever
    several begin."""
    named = [match for path in folder.glob("*.safetensors") if (match := _NAME.match(path.name))]
    segments = [Segment(int(m[1]), int(m[2]), bytes.fromhex(m[3]), folder / m[0]) for m in named]
    at = 0
    while following := [each for each in segments if each.start == at and at < each.stop <= most]:
        longest = max(following)
        yield longest
        at = longest.stop


def rows_of(segment: Segment, abi: CacheAbi) -> Rows | None:
    """A segment's rows; None where the file is gone or is none, or of another size than these rows have."""
    wanted = [abi.layers, 2, abi.kv_heads, segment.stop - segment.start, abi.head_dim]
    try:
        with segment.path.open("rb") as file:
            mapped = mmap(file.fileno(), 0, access=ACCESS_COPY)  # for as long as the tensor lives
        header, begin = _header(mapped)
        facts = header["rows"]
        size = math.prod(wanted) * abi.dtype.itemsize
        if (facts["shape"], DTYPES[facts["dtype"]], len(mapped) - begin) != (wanted, abi.dtype, size):
            return None
        rows = torch.frombuffer(mapped, dtype=abi.dtype, offset=begin).view(wanted)
        return Rows(rows, digest_of(rows), prefilled_of(mapped))
    except (OSError, KeyError, TypeError, ValueError, RuntimeError):
        return None


def prefilled_of(content: bytes | mmap) -> int:
    """What a segment's file says of it; see `Rows`. Errors: ValueError for what is no such file."""
    header, _ = _header(content)
    facts = header.get("__metadata__")
    said = facts.get(_PREFILLED) if isinstance(facts, dict) else None
    if not (isinstance(said, str) and _TOKENS.match(said)):
        raise ValueError(f"{said} tokens")
    return int(said)


def _header(content: bytes | mmap) -> tuple[dict[str, Any], int]:
    """A safetensors file's header, and where its data begins: behind the header, whose size the file begins with."""
    begin = _COUNT.size + int.from_bytes(content[: _COUNT.size], "little")
    if not _COUNT.size < begin <= min(len(content), HEADER_BYTES_MAX):
        raise ValueError("its header does not end in the file")
    header = json.loads(content[_COUNT.size : begin])
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    return header, begin


def read_tail(path: Path, link: bytes, start: int, ids: Sequence[int], row: Tensor) -> tuple[list[Tensor], bytes]:
    """The rows of a tail from `start` on that join to `link` and are of these tokens, and the link of the last.

    row   one like them: [layers, 2, kv_heads, 1, head_dim]
    """
    rows, size = list[Tensor](), row.nbytes + LINK_BYTES
    try:
        with path.open("rb") as file:
            data = bytearray(file.read(size * len(ids)))
    except OSError:
        return rows, link
    for offset, token in enumerate(ids[: len(data) // size]):
        begin, end = offset * size, (offset + 1) * size - LINK_BYTES
        found = link_of(link, start + offset, (token,), sha256(memoryview(data)[begin:end]).digest())
        if found != data[end : end + LINK_BYTES]:
            break
        link = found
        rows.append(torch.frombuffer(data, dtype=row.dtype, count=row.numel(), offset=begin).view(row.shape))
    return rows, link


# ---- removing --------------------------------------------------------------------------------------------------------


def discard(directory: Path, binding: bytes) -> None:
    """Remove what was kept of a job that nobody runs. Errors: CacheInUse, where some of it stays.

    The folder first gets another name, so that a worker which has not heard yet that its job was taken from it does
    not write into what is being removed.
    """
    folder = folder_of(directory, binding)
    aside, reason = folder.with_suffix(ASIDE), "something else is written there"
    for _ in range(DISCARDS_MAX):
        try:
            _remove(aside)  # what an earlier try, that was killed, has left, too
            folder.rename(aside)
        except FileNotFoundError:
            return
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno not in (ENOTEMPTY, EEXIST):  # as where another process removes it at the same time
                break
    with suppress(OSError):
        if not folder.exists():
            aside.rename(folder)
    raise CacheInUse(str(folder), reason)


def _remove(folder: Path) -> None:
    while folder.exists():
        with suppress(FileNotFoundError):  # a file of it that another process has just removed
            shutil.rmtree(folder)
