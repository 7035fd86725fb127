"""What an audit says of one log that a test has put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from decodelog.store.log.chain import StoredLog
from decodelog.store.log.stored import Stored
from decodelog.store.reading.audit import audit_rows


def rows_of(log: StoredLog) -> Sequence[Stored]:
    """The rows of a log that holds them all, as one in memory does."""
    assert isinstance(log.rows, list)
    return log.rows


class Shown:
    """A store that shows one log."""

    def __init__(self, log: StoredLog) -> None:
        self.log = log

    def logs(self, job: str | None = None) -> Iterator[StoredLog]:
        return iter([self.log])


def faults(log: StoredLog) -> list[tuple[int, str]]:
    return [(fault.sequence, fault.kind) for fault in audit_rows(Shown(log)).faults]
