"""Forks: which jobs go on from others, by what their admissions say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...fsm.errors import Problem
from ...fsm.machine.events import Parent, RequestAdmitted
from ..log import sealed
from ..log.chain import WRONG_TYPE
from ..log.codec import decode
from ..log.stored import Stored


def forks(firsts: Iterable[tuple[str, Stored]], parents: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(job, its parent) of each job whose parent is one of these; `firsts` are jobs with the first row of their log."""
    names = {parent.encode() for parent in parents}
    for job, row in firsts:
        try:
            # Most rows do not have to be read to see that they name none of these.
            if not row.sealed and not any(name in row.payload for name in names):
                continue
            parent = _parent(job, row)
        except (Problem, StopIteration, *WRONG_TYPE):  # damaged, which is for the audit to say
            continue
        if parent is not None and parent.encode() in names:
            yield job, parent


def _parent(job: str, row: Stored) -> str | None:
    read = next(sealed.records(job, row)).events if row.sealed else decode(row.payload, row.key, job, row.first)
    match read[0]:
        case RequestAdmitted(parent=Parent(job=parent)):
            return parent
    return None
