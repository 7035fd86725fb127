"""What an audit says of one log that a test has put together."""

from __future__ import annotations

from decodelog.store.audit import audit_rows
from decodelog.store.chain import StoredLog


class Shown:
    """A store that shows one log."""

    def __init__(self, log: StoredLog) -> None:
        self.log = log

    def logs(self, job=None):
        return iter([self.log])


def faults(log: StoredLog) -> list[tuple[int, str]]:
    return [(fault.sequence, fault.kind) for fault in audit_rows(Shown(log)).faults]
