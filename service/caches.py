"""Caches that are kept on disk of jobs that nobody will go on with, as somebody else than their worker ended them."""

from __future__ import annotations

from pathlib import Path

from ..fsm.ports import EventLog
from ..fsm.spec import binding_of


def left_over(log: EventLog, directory: Path) -> dict[str, bytes]:
    """Ended jobs of this log that `directory` still has caches of, oldest first, each with its binding.

    What lies there of jobs that the log does not know may be another database's.
    """
    folders = {path.name for path in directory.iterdir() if path.is_dir()}
    if not folders:
        return {}
    ended = (row for row in log.rows() if row.finish is not None)
    bindings = {row.job: binding_of(row.job, bytes.fromhex(row.identity)) for row in ended}
    return {job: binding for job, binding in bindings.items() if binding.hex() in folders}
