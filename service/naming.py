"""Finding a job by the beginning of its name."""

from __future__ import annotations

from itertools import takewhile

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
    raise UnknownJob(prefix, sorted(names, key=lambda name: _shared(name, prefix))[-CANDIDATES_SHOWN:])


def _shared(name: str, prefix: str) -> int:
    """Characters that both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(name, prefix, strict=False)))
