"""What is said to be written is on the disk: a file before it has its name, and its folder after."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from commandline import decodelog

Write = Callable[[str, Path], object]

WRITTEN: dict[str, Write] = {
    "export": lambda url, file: decodelog("export", "--all", "--out", file, db=url),
    "export over another": lambda url, file: decodelog("export", "--all", "--out", file, "--force", db=url),
    "anchors": lambda url, file: decodelog("audit", "--all", "--anchor", file, db=url),
}


@pytest.mark.parametrize("write", WRITTEN.values(), ids=WRITTEN)
def test_a_file_is_synced_before_it_has_its_name_and_its_folder_after(
    write: Write, sqlite_url: str, short_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is synced whole before it has its name and its folder after."""
    decodelog("run", "--model", short_model, "--prompt", "Go", db=sqlite_url)
    folder = tmp_path / "written"
    folder.mkdir()
    file = folder / "file"
    synced: list[tuple[int, int, bool]] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.append((found.st_ino, found.st_size, file.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    write(sqlite_url, file)
    written = file.stat()
    assert (written.st_ino, written.st_size, False) in synced
    assert [inode for inode, _, _ in synced].index(written.st_ino) < len(synced) - 1
    assert (synced[-1][0], synced[-1][2]) == (folder.stat().st_ino, True)
