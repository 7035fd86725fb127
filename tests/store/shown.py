"""What an audit says of one log that a test has put together."""

from __future__ import annotations

from decodelog.store.log.chain import StoredLog
from decodelog.store.reading.audit import audit_rows


class Shown:
    """A store that shows one log."""

    def __init__(self, log: StoredLog) -> None:
        self.log = log

    def logs(self, job=None):
        return iter([self.log])


def faults(log: StoredLog) -> list[tuple[int, str]]:
    return [(fault.sequence, fault.kind) for fault in audit_rows(Shown(log)).faults]
