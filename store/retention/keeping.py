"""What every kind of store does with the logs of ended jobs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from ...fsm.ports import Head
from ..log.chain import StoredLog
from ..log.stored import Stored


class KeepsLogs(Protocol):
    """Every method is one transaction: a kill leaves the old log or the new one. Errors: those of the store."""

    def whole(self, job: str) -> StoredLog:
        """All that is stored of an ended job's log at one moment: by its links, or else by its rows.

        Errors: UnknownJob, JobNotEnded.
        """

    def seal(self, job: str, head: Head, row: Stored) -> bool:
        """Replace all of the job's appends by `row`, which stands for the whole log up to `head`.

        False where that was done before. Errors: UnknownJob, JobNotEnded, ContentErased, SealRefused.
        """

    def erase(self, job: str) -> bool:
        """Erase the content of a job's log (see `erased`); False where that was done before.

        Its row keeps name, identity, idempotency key, counts, times, finish and head. Errors: UnknownJob, JobNotEnded.
        """

    def forks(self, parents: Collection[str]) -> list[tuple[str, str]]:
        """(fork, its parent) of each job with content that was forked from one of these, oldest first.

        It goes over every append, and reads every sealed log.
        """

    def scrub(self) -> bool:
        """Have the database overwrite the bytes of what was erased; False where readers prevent it."""

    def past_retention(self) -> list[str]:
        """Jobs whose content may not stay any longer, oldest first."""

    def unsealed(self, older_ms: int) -> list[str]:
        """Jobs that ended so long ago, and are neither sealed nor erased, oldest first."""
