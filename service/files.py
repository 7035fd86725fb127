"""Reads regular files alone, so that it never blocks on a pipe or a device; and syncs a folder's names."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """The regular file at `path`, for reading. Errors: OSError, also for anything else that has this name."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no file")
    return os.fdopen(handle, "rb")


def sync_folder(folder: Path) -> None:
    """Make the names in this folder durable."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
