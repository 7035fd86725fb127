"""The files of a model: regular ones only, none larger than its kind needs, and what stands in for one is named."""

from __future__ import annotations

import json
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

from ..fsm.errors import BrokenArtifact, LimitExceeded
from ..fsm.limits import MODEL_JSON_BYTES_MAX

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_LFS_POINTER_BYTES_MAX = 1024


def open_file(path: Path, bytes_max: int | None = None) -> BufferedReader:
    """The regular file at `path`, open for reading; a device or a pipe is never waited for, and never read.

    Errors: BrokenArtifact (no file, not a regular one, a Git LFS pointer), LimitExceeded (above bytes_max).
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise BrokenArtifact(str(path), str(error)) from error
    try:
        _check(path, handle, bytes_max)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def check_file(path: Path) -> Path:
    """`path`, which a library will open by its name. Errors: as `open_file`."""
    open_file(path).close()
    return path


def read_text(path: Path, bytes_max: int = MODEL_JSON_BYTES_MAX) -> str:
    """The UTF-8 text in `path`; a mark of its byte order is no part of it. Errors: as `open_file`."""
    try:
        with open_file(path, bytes_max) as file:
            return file.read().decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except (OSError, ValueError) as error:
        raise BrokenArtifact(str(path), str(error)) from error


def read_json(path: Path, bytes_max: int = MODEL_JSON_BYTES_MAX) -> dict[str, Any]:
    """The JSON object in `path`. Errors: as `open_file`, and BrokenArtifact for what is no JSON object."""
    text = read_text(path, bytes_max)
    try:
        value = json.loads(text)
        if "\\u" in text:  # an escape can spell half of a surrogate pair, which no UTF-8 can write
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise BrokenArtifact(str(path), str(error)) from error
    if not isinstance(value, dict):
        raise BrokenArtifact(str(path), "is not a JSON object")
    return value


def _check(path: Path, handle: int, bytes_max: int | None) -> None:
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        raise BrokenArtifact(str(path), "is not a regular file")
    if bytes_max is not None and status.st_size > bytes_max:
        raise LimitExceeded(f"{path.name} (bytes)", status.st_size, bytes_max)
    if status.st_size <= _LFS_POINTER_BYTES_MAX and os.pread(handle, len(LFS_POINTER), 0) == LFS_POINTER:
        raise BrokenArtifact(str(path), "is a Git LFS pointer and not the file itself (`git lfs pull` fetches it)")
