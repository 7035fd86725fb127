"""A job's listing, from its row, and what is wrong with a damaged row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from reprlib import repr as shortened
from types import NoneType
from typing import Any

from ...fsm.errors import CorruptRecord
from ...fsm.machine.states import Status
from ...fsm.ports import Head, JobRow
from .tables import jobs

STATUSES = {status.value: status for status in Status}

# SQLite keeps a value of any type in any column, and calls any bytes text.
_TYPES = [
    (column.name, (column.type.python_type, NoneType) if column.nullable else (column.type.python_type,))
    for column in jobs.columns
]


def wrong(row: Any) -> str:
    """What is wrong with a row of `jobs` whatever its log says; empty where nothing is."""
    for name, types in _TYPES:
        value = getattr(row, name)
        if type(value) not in types or (isinstance(value, str) and not value.isascii() and readable(value) != value):
            return f"the job's row has {name} {shortened(value)}"
        if isinstance(value, int) and value < 0:
            return f"the job's row has {name} {value}"
    status = STATUSES.get(row.status)
    if status is None:
        return f"the job's row has status {shortened(row.status)}"
    if status.terminal != (row.finish is not None):
        return f"the job's row has status {status.value} and finish {shortened(row.finish)}"
    return ""


def readable(name: object) -> str:
    """A name as text that can be printed, also where a damaged row has another value for it."""
    return str(name).encode("utf-8", "backslashreplace").decode()


def job_row(row: Any) -> JobRow:
    """A job's listing, from its row. CorruptRecord where that is `wrong`."""
    if problem := wrong(row):
        raise CorruptRecord(readable(row.job), row.sequence if isinstance(row.sequence, int) else 0, problem)
    return JobRow(
        row.job, row.identity, row.model, STATUSES[row.status], row.finish, row.prompt, row.output,
        Head(row.sequence, row.chain), row.fence, row.owner, row.lease_until_ms, row.idempotency_key, row.created_ms,
        row.stalled, row.ended_ms, row.retain_ms, row.sealed_ms, row.erased_ms, row.artifact, row.output_max,
    )  # fmt: skip


def sound_rows(rows: Iterable[Any]) -> Iterator[JobRow]:
    """The listings of the sound rows: a damaged one does not hide the others."""
    for row in rows:
        try:
            yield job_row(row)
        except CorruptRecord:
            continue  # the audit names it


def sound_head(job: str, head: Head) -> Head:
    """The head that a job's row names. CorruptRecord where it can be the head of no log."""
    if isinstance(head.sequence, int) and isinstance(head.chain, bytes):
        return head
    raise CorruptRecord(job, 0, f"the job's row has sequence {shortened(head.sequence)}, chain {shortened(head.chain)}")
