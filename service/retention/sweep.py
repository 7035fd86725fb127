"""Sweep: erase what is past its retention, seal what ended long ago, and remove caches that were left; job by job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from ...fsm.errors import CacheInUse, ContentErased, Defect, Problem, Rejected
from .caches import binding, left_over
from .erase import Erased, erase
from .seal import SealableLog, Sealed, seal


class Uncached(NamedTuple):
    """An ended job whose cache was left on disk, and is removed."""

    job: str


class Refused(NamedTuple):
    """A job that could not be erased, sealed or rid of its cache, and is as it was."""

    job: str
    what: Literal["erase", "seal", "uncache"]
    problem: Problem


Heard = Callable[[Erased | Sealed | Uncached | Refused], None]


class Due(NamedTuple):
    """What a sweep would do now, oldest jobs first; `uncache` of jobs that have ended and still have a cache."""

    erase: list[str]
    seal: list[str]
    uncache: list[str]


def due(log: SealableLog, seal_after_ms: int | None, cache_dir: Path | None = None) -> Due:
    """Jobs whose content may not stay; of the others those that ended `seal_after_ms` ago (None: none), and caches."""
    gone = log.past_retention()
    going = set(gone)
    old = [] if seal_after_ms is None else log.unsealed(seal_after_ms)
    left = [] if cache_dir is None else left_over(log, cache_dir)
    return Due(gone, *([job for job in jobs if job not in going] for jobs in (old, left)))


def sweep(log: SealableLog, seal_after_ms: int | None, hear: Heard, cache_dir: Path | None = None) -> bool:
    """Do what is due; `hear` is told each job. False where the bytes of what was erased could not be given up yet.

    A job that cannot be erased or sealed does not keep the others from it.
    """
    found = due(log, seal_after_ms, cache_dir)
    scrubbed = erase_all(log, found.erase, hear, cache_dir)
    if cache_dir is not None:
        uncache_all(log, found.uncache, hear, cache_dir)
    seal_all(log, found.seal, hear)
    return scrubbed


def erase_all(log: SealableLog, jobs: Iterable[str], hear: Heard, cache_dir: Path | None = None) -> bool:
    """Erase these jobs, and have the database give up the bytes of all that was erased; False where it cannot yet.

    `hear` is told each job, or why it was refused. The bytes may be those of an earlier erasure, whose command was
    killed or blocked by a reader: so this is done even where nothing is erased now.
    """
    try:
        for job in jobs:
            try:
                done: Erased | Refused = erase(log, job, cache_dir)
            except (Rejected, Defect) as problem:
                done = Refused(job, "erase", problem)
            hear(done)
    finally:
        scrubbed = log.scrub()
    return scrubbed


def uncache_all(log: SealableLog, jobs: Iterable[str], hear: Heard, cache_dir: Path) -> None:
    """Remove the caches of these jobs, which have ended; `hear` is told each, or why it was refused."""
    from ...runtime.caches.segment_files import discard

    for job in jobs:
        try:
            discard(cache_dir, binding(log.row(job)))
            done: Uncached | Refused = Uncached(job)
        except CacheInUse as problem:
            done = Refused(job, "uncache", problem)
        hear(done)


def seal_all(log: SealableLog, jobs: Iterable[str], hear: Heard) -> None:
    """Seal these jobs; `hear` is told each, or why it was refused. What is erased meanwhile is passed over."""
    for job in jobs:
        try:
            done: Sealed | Refused = seal(log, job)
        except ContentErased:
            continue
        except (Rejected, Defect) as problem:
            done = Refused(job, "seal", problem)
        hear(done)
