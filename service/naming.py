"""Finding a job by the beginning of its name."""

from __future__ import annotations

from os.path import commonprefix

from ..fsm.errors import AmbiguousJob, UnknownJob
from ..fsm.ports import EventLog

CANDIDATES_SHOWN = 5


def find_job(log: EventLog, prefix: str) -> str:
    """The whole name of the one job that begins with `prefix`. Errors: UnknownJob, AmbiguousJob (both list names)."""
    try:
        return log.row(prefix).job
    except UnknownJob:
        names = [row.job for row in log.rows()]
    found = [name for name in names if name.startswith(prefix)] if prefix else []
    if len(found) == 1:
        return found[0]
    if found:
        raise AmbiguousJob(prefix, len(found), found[-CANDIDATES_SHOWN:])
    nearest = sorted(names, key=lambda name: len(commonprefix([name, prefix])))
    raise UnknownJob(prefix, nearest[-CANDIDATES_SHOWN:])
