"""Erase: the content of an ended job goes, and the chain of its log stays provable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...fsm.errors import JobNotEnded
from ...fsm.ports import JobRow
from .caches import binding
from .seal import SealableLog


class Erased(NamedTuple):
    """A job, and whether its content was erased now (else it was already)."""

    job: str
    done: bool


def check_ended(rows: Sequence[JobRow]) -> None:
    """Refuse all where one of these jobs is live. Errors: JobNotEnded."""
    for row in rows:
        if row.finish is None:
            raise JobNotEnded(row.job, row.status.value)


def erase(log: SealableLog, job: str, cache_dir: Path | None = None) -> Erased:
    """Erase the content of one job, after its cache under `cache_dir`.

    The bytes that the database file still holds are removed by `KeepsLogs.scrub`, once for many jobs.
    Errors: those of `KeepsLogs`, and CacheInUse where the cache cannot be removed; then the job is not erased.
    """
    if cache_dir is not None:
        from ...runtime.caches.segment_files import discard

        row = log.row(job)
        check_ended([row])
        discard(cache_dir, binding(row))
    return Erased(job, log.erase(job))


def forks_of(log: SealableLog, jobs: Sequence[str]) -> dict[str, list[str]]:
    """For each of these jobs its forks with content, forks of forks too: they keep its prompt and begin as it did.

    Those that are among the jobs are left out.
    """
    origins, new = {job: {job} for job in jobs}, list(jobs)
    while new:
        found = log.forks(new)
        new = []
        for fork, parent in found:
            known = origins.setdefault(fork, set())
            if not known >= origins[parent]:
                known |= origins[parent]
                new.append(fork)
    asked = set(jobs)
    kept = {fork: of for fork, of in origins.items() if fork not in asked}
    return {job: [fork for fork, of in kept.items() if job in of] for job in jobs}
