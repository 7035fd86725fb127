"""Files for their owner alone: what is kept of a job has its content."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

OWNER_ONLY: Final = 0o600
"""The mode of a new file; the process's umask can take more away."""


def make(path: Path) -> None:
    """Make an empty file, for others to fill; one that is there is emptied. Errors: OSError."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, OWNER_ONLY))


def opened(path: str, flags: int) -> int:
    """An `opener` for `open`, by which a new file is its owner's alone."""
    return os.open(path, flags, OWNER_ONLY)
