"""A cache's files are held to the size that their rows have before anything of them is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from decodelog.runtime.caches import segment_files
from decodelog.runtime.caches.abi import CacheAbi
from decodelog.runtime.caches.segment_files import Segment

ABI = CacheAbi(2, 1, 4, torch.float32, "none")
SHAPE = [2, 2, 1, 3, 4]


def header(shape: list[int], size: int, spaces: int = 0) -> bytes:
    """How a file with one tensor of float32 begins, which is said to have so many bytes."""
    rows = {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}
    text = json.dumps({"__metadata__": {"prefilled": "1"}, "rows": rows}).encode()
    text += b" " * (spaces + -len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def segment(path: Path) -> Segment:
    return Segment(0, 3, bytes(32), path)


def test_rows_of_the_right_size_are_read(tmp_path: Path) -> None:
    rows = torch.arange(48, dtype=torch.float32).reshape(SHAPE)
    save_file({"rows": rows}, tmp_path / "sound", {"prefilled": "2"})
    found = segment_files.rows_of(segment(tmp_path / "sound"), ABI)
    assert found is not None
    assert torch.equal(found.tensor, rows)
    assert found.prefilled == 2


@pytest.mark.parametrize("metadata", [None, {}, {"prefilled": "0"}, {"prefilled": "-1"}, {"prefilled": "123456789"}])
def test_rows_that_do_not_say_which_calls_made_them_are_not_read(
    tmp_path: Path, metadata: dict[str, str] | None
) -> None:
    save_file({"rows": torch.zeros(SHAPE)}, tmp_path / "unsaid", metadata)
    assert segment_files.rows_of(segment(tmp_path / "unsaid"), ABI) is None


@pytest.mark.parametrize("shape", [[2, 2, 1, 2**33, 4], [2**33, 2, 1, 3, 4], [2, 2, 1, 3], [2, 2, 1, 4, 4]])
def test_a_file_of_another_size_is_not_read_however_large_it_is(tmp_path: Path, shape: list[int]) -> None:
    """With holes: a digest of all that it says it has would take hours."""
    path, size = tmp_path / "bomb", 4
    for each in shape:
        size *= each
    begin = header(shape, size)
    with path.open("wb") as file:
        file.write(begin)
        file.truncate(len(begin) + size)
    assert segment_files.rows_of(segment(path), ABI) is None


def test_a_header_that_is_longer_than_any_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(header(SHAPE, 48 * 4, spaces=8192) + bytes(48 * 4))
    assert segment_files.rows_of(segment(path), ABI) is None
    path.write_bytes(header(SHAPE, 48 * 4) + bytes(48 * 4))
    assert segment_files.rows_of(segment(path), ABI) is not None
