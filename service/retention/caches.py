"""Caches on disk whose jobs were ended by something other than their worker, so that nothing will use them again."""

from __future__ import annotations

from pathlib import Path

from ...fsm.machine.spec import binding_of
from ...fsm.ports import EventLog, JobRow


def left_over(log: EventLog, directory: Path) -> list[str]:
    """Ended jobs of this log that `directory` still has caches of, oldest first.

    Caches of jobs that the log does not know may belong to another database.
    """
    if not (folders := {path.stem for path in directory.iterdir()}):  # one that is being removed has a suffix
        return []
    return [row.job for row in log.rows() if row.finish is not None and binding(row).hex() in folders]


def binding(row: JobRow) -> bytes:
    """What a job's cache is bound to, and its folder named after."""
    return binding_of(row.job, bytes.fromhex(row.identity))
