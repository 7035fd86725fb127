"""Bombs: a few bytes that say they are very many are refused by name, in little memory and in time."""

from __future__ import annotations

import io
import json
import lzma
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from msgpack import packb

from decodelog.fsm.errors import CorruptRecord
from decodelog.fsm.limits import NEW_TOKENS_MAX, PAYLOAD_BYTES_MAX, SEALED_BYTES_MAX
from decodelog.fsm.machine.states import Status
from decodelog.fsm.ports import EMPTY_HEAD, Head, JobRow
from decodelog.service.inspect.audit import verify
from decodelog.store.archive.bundle import APPEND, MANIFEST, write
from decodelog.store.archive.frames import MAGIC, FrameWriter
from decodelog.store.log import sealed
from decodelog.store.log.chain import StoredLog, digest
from decodelog.store.log.codec import entries
from decodelog.store.log.stored import MARK, Stored
from decodelog.store.log.unpacking import LISTS_MAX, SHORT, STEP_BYTES, unpacked

pytestmark = [pytest.mark.contract("LOG-3", "LOG-9"), pytest.mark.timeout(600)]  # of compressing, on a busy machine

MEMORY_BYTES = 640 * 2**20
"""Of addresses, for all of a process that proves a file; the program by itself has 230 MiB of them."""

MANY = 16_000_000
STEPS = 1_000_000
COLUMN = bytes(8 * STEPS)

LIMITED = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES}, {MEMORY_BYTES}))
from decodelog.service.cli.app import main
main()
"""


def sealed_row(body: bytes, last: int, size: int | None = None) -> Stored:
    """A row whose key is right: whoever can write a file can take digests."""
    compressed = lzma.compress(body, lzma.FORMAT_RAW, filters=sealed._FILTERS)
    payload = b"".join((MARK, b"\x01", struct.pack(">Q", len(body) if size is None else size), compressed))
    row = Stored(1, last, 1, b"", bytes(32), payload)
    return row._replace(key=sealed.key_of(row))


def whole(payload: bytes) -> bytes:
    """A body of one append with this payload."""
    return b"".join((b"\x91\x94\x00\x00", packb(bytes(32)), packb(payload)))


def listing(size: int) -> bytes:
    return b"\xdd" + struct.pack(">I", size)


def thinned(**changes: Any) -> bytes:
    """A body of one item of thinned steps."""
    fields = {
        "kind": 1, "fence": 1, "count": STEPS, "lanes": 1, "output": 1, "branches": COLUMN, "kinds": [(1, b"x", False)],
        "places": COLUMN, "supports": COLUMN, "raw": COLUMN, "crossed": COLUMN, "beside": None,
    }  # fmt: skip
    return bytes(packb([list((fields | changes).values())]))


SEALED: dict[str, tuple[Callable[[], bytes], int, str]] = {
    "maps in the place of items": (lambda: listing(MANY) + b"\x80" * MANY, STEPS, "in the place of a list"),
    "a payload of lists": (lambda: whole(listing(MANY) + b"\x90" * MANY), STEPS, "exceeds max_array_len"),
    "lists in lists": (
        lambda: whole(listing(MANY // 1001) + (b"\x91" * 1000 + b"\xc0") * (MANY // 1001)), STEPS, "payload",
    ),
    "lists that say more than they have": (lambda: whole(listing(250_000) * 1000 + bytes(MANY)), STEPS, "No more data"),
    "steps without bytes": (lambda: thinned(count=10**12), 3 * 10**12, f"the maximum is {NEW_TOKENS_MAX}"),
    "a million steps": (thinned, 3 * STEPS, "does not follow"),
    "a table of kinds": (lambda: thinned(kinds=[(1, b"", False)] * (STEPS + 1)), 3 * STEPS, "a table has 1000001 rows"),
    "alternatives without end": (
        lambda: thinned(beside=(b"\xff" * 8 * STEPS, [(1, None)], b"", b"", b"")),
        3 * STEPS,
        "alternatives, and the maximum",
    ),
    "more than it says": (lambda: whole(bytes(MANY)), 1, "sealed_bytes is more than the 1000 that it says"),
}  # fmt: skip


def exported(rows: list[Stored], head: Head) -> bytes:
    row = JobRow("job", "a" * 64, "m", Status.CLOSED, "length", 1, 1, head, rows[-1].fence, None, None, None, 0)
    file = io.BytesIO()
    write(file, [StoredLog("job", head, rows[-1].fence, rows, "", row)])
    return file.getvalue()


def proven(file: Path) -> list[Any]:
    """The faults that a process with little memory finds in a file."""
    limited = [sys.executable, "-c", LIMITED, "verify", str(file), "--json"]
    ended = subprocess.run(
        limited, capture_output=True, encoding="utf-8", env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    )
    assert (ended.returncode, ended.stderr) == (1, "")
    return list(json.loads(ended.stdout)["faults"])


@pytest.mark.parametrize("name", SEALED)
def test_a_sealed_row_of_some_kilobytes_is_a_fault_and_not_gigabytes(tmp_path: Path, name: str) -> None:
    body, last, told = SEALED[name]
    row = sealed_row(body(), last, 1000 if name == "more than it says" else None)
    assert len(row.payload) < 64 * 1024
    file = tmp_path / "bomb.dlog"
    file.write_bytes(exported([row], Head(last, row.chain)))
    (fault, *_) = proven(file)
    assert fault["job"] == "job"
    assert told in fault["detail"]


@pytest.mark.parametrize("size", [SEALED_BYTES_MAX + 1, 2**63, 2**64 - 1])
def test_a_size_that_no_body_has_is_refused_before_anything_is_read(tmp_path: Path, size: int) -> None:
    row = sealed_row(b"\x90", 3, size)
    (tmp_path / "bomb").write_bytes(exported([row], Head(3, row.chain)))
    fault, *_ = verify(tmp_path / "bomb").faults
    assert f"sealed_bytes is {size}, and the maximum is {SEALED_BYTES_MAX}" in fault.detail


@pytest.mark.parametrize(
    "payload",
    [listing(250_000) * 1000 + bytes(2**20), b"\x91" * 1000 + listing(2**20) + bytes(2**20), b"\x80" * 2**21],
    ids=["lists that say more than they have", "a long list far down", "maps"],
)
def test_an_append_is_unpacked_in_the_memory_of_its_bytes(tmp_path: Path, payload: bytes) -> None:
    key = bytes(32)
    chain = digest(EMPTY_HEAD.chain, 1, key, payload)
    file = tmp_path / "bomb.dlog"
    file.write_bytes(exported([Stored(1, 1, 0, key, chain, payload)], Head(1, chain)))
    assert [fault["kind"] for fault in proven(file)] == ["payload"]


@pytest.mark.parametrize("kind", [APPEND, MANIFEST, 77])
def test_a_frame_that_says_it_is_larger_than_any_is_not_read(tmp_path: Path, kind: int) -> None:
    """In a file with holes, which takes no room on a disk."""
    file = tmp_path / "bomb.dlog"
    with file.open("wb") as opened:
        writer = FrameWriter(opened)
        writer.write(kind, b"\x90")
        opened.seek(len(MAGIC))
        head = struct.pack(">BQ", kind, 2**40)
        opened.write(head + struct.pack(">L", crc32(head)))
        opened.truncate(2**40 + 2**20)
    (fault, *_) = proven(file)
    assert f"frame_bytes of kind {kind} is {2**40}, and the maximum is" in fault["detail"]


def test_a_payload_beyond_its_limit_is_refused_by_name() -> None:
    with pytest.raises(CorruptRecord, match=f"payload_bytes is {PAYLOAD_BYTES_MAX + 1}, and the maximum is"):
        entries(bytes(PAYLOAD_BYTES_MAX + 1), bytes(32), "job", 1)


def test_what_is_unpacked_is_counted_as_it_is_made() -> None:
    """Up to the maximum everything is as msgpack has it."""
    for value in (list(range(STEP_BYTES)), [[1, b"x", None]] * 2000, [1.5, "text", [2**63, -(2**63)]] * 3000):
        assert unpacked(packb(value), len(value)) == tuple(
            tuple(each) if isinstance(each, list) else each for each in value
        )
    for bomb in (
        packb([[]] * (LISTS_MAX + 1)),
        packb([0] * (SHORT + 1)),
        packb([{}] * STEP_BYTES),
        listing(2**20) + bytes(2**20 - 1),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            unpacked(bomb, SHORT if bomb[0] == 0xDC else len(bomb))
