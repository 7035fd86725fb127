"""Sweep: erase what is past its retention, and seal what ended long ago; one job a transaction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..fsm.errors import ContentErased, SealRefused
from .erase import Erased, erase
from .seal import SealableLog, Sealed, seal

Heard = Callable[["Erased | Sealed | SealRefused"], None]


class Due(NamedTuple):
    """What a sweep would do now, oldest jobs first."""

    erase: list[str]
    seal: list[str]


def due(log: SealableLog, seal_after_ms: int | None) -> Due:
    """Jobs whose content may not stay, and the others that ended `seal_after_ms` ago (None: none)."""
    gone = log.past_retention()
    old = [] if seal_after_ms is None else log.unsealed(seal_after_ms)
    return Due(gone, [job for job in old if job not in set(gone)])


def sweep(log: SealableLog, seal_after_ms: int | None, hear: Heard, snapshots: Path | None = None) -> bool:
    """Do what is due; `hear` is told each job. False where the bytes of what was erased could not be given up yet.

    A log whose audit finds a fault is not sealed, and does not keep the others from it.
    """
    found = due(log, seal_after_ms)
    for job in found.erase:
        hear(erase(log, job, snapshots))
    scrubbed = log.scrub() if found.erase else True
    seal_all(log, found.seal, hear)
    return scrubbed


def seal_all(log: SealableLog, jobs: list[str], hear: Heard) -> None:
    """Seal these jobs; `hear` is told each, or why it was refused. What is erased meanwhile is passed over."""
    for job in jobs:
        try:
            hear(seal(log, job))
        except SealRefused as refused:
            hear(refused)
        except ContentErased:
            continue
