"""The audit of what is stored, row by row: chain, gaps, duplicates, fences, payloads, and the heads in the jobs' rows.

It goes on after a fault, so that one damaged byte is one fault and not the end of the audit. What the events say, and
whether they may follow one another, is checked by the fold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ...fsm.errors import Defect, Rejected
from ...fsm.machine.events import STEP_EVENTS, RequestClosed
from ...fsm.machine.states import Status
from ...fsm.ports import Head, JobRow
from ...fsm.reading.audit import Fault
from ...fsm.request.finish import FinishReason
from ..log.chain import StoredLog
from .audit_walk import Walk

IDENTITY = re.compile(r"[0-9a-f]{64}")


class Reached(NamedTuple):
    """Where a log ends, and the digests that it may have at an event that was asked for; none where none ends there."""

    head: Head
    finish: str | None
    asked: tuple[bytes, ...] = ()


@dataclass(slots=True)
class Audit:
    """What an audit went over, and what it found.

    events   the ones that could be read; of an erased log, only of its tenures
    sealed, erased   names of the jobs whose log is sealed, or whose content is erased
    names   of the jobs, in the order in which they were shown
    heads   of the logs that reach what their job's row says; with the digest at the event that was asked for, where
            the log still has it
    """

    jobs: int = 0
    appends: int = 0
    events: int = 0
    sealed: set[str] = field(default_factory=set)
    erased: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    heads: dict[str, Reached] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.faults


class ShowsRows(Protocol):
    """A store that shows its rows as they are."""

    def logs(self, job: str | None = None) -> Iterator[StoredLog]:
        """All that is stored of one job's log, or of every one."""


def audit_rows(store: ShowsRows, job: str | None = None, asked: Mapping[str, int] | None = None) -> Audit:
    """Audit one job or all of them. Raises only where the database does not answer.

    asked   by job, the event at which the log's digest is wanted
    """
    result, asked = Audit(), asked or {}
    for log in store.logs(job):
        result.jobs += 1
        walk = Walk(asked=asked.get(log.job, 0))
        if log.job in result.heads:
            result.faults.append(Fault(log.job, 0, "listing", "another log of this name stands before it"))
        result.names.append(log.job)
        try:
            result.faults += [Fault(log.job, *fault) for fault in faults(log, walk)]
        except (Defect, Rejected) as problem:  # the database itself, in the middle of the log
            result.faults.append(Fault(log.job, walk.sequence + 1, problem.code, str(problem)))
        result.appends += walk.appends
        result.events += walk.events
        result.sealed |= {log.job} if walk.sealed else set()
        result.erased |= {log.job} if walk.erased else set()
        finish = None if log.row is None else log.row.finish
        result.heads[log.job] = Reached(log.head, finish, tuple(walk.found))
    return result


def faults(log: StoredLog, walk: Walk) -> Iterator[tuple[int, str, str]]:
    """(sequence, kind, detail) of each fault of one log, in order."""
    sound = True
    for row in log.rows:
        for fault in walk.step(log.job, row):
            sound = False
            yield fault
    sequence, head = walk.sequence, log.head
    if log.damage:
        yield sequence, "listing", log.damage
    if sound:  # else what is missing there, or is there twice, was named
        yield from ((at if type(at) is int else sequence, "link", detail) for at, detail in log.links)
    if type(head.sequence) is not int or type(log.fence) is not int:
        return  # which is the damage of the listing
    if sequence != head.sequence:
        yield head.sequence, "head", f"the log ends at event {sequence}, and the job's row says {head.sequence}"
    elif walk.linked and head.chain not in walk.chains:
        yield head.sequence, "head", "the job's row has another digest than its log"
    if (gone := walk.gone) is not None and (kept := walk.kept) is not None:
        detail = f"the content of event {gone} is erased and that of event {kept} is not; erasing takes all of a log"
        yield max(gone, kept), "payload", detail
    if log.row is not None and log.dated:
        yield from _listed(log.row, walk)
        if walk.erased:
            yield from _left(log.row, walk)
    # An ended job is never claimed, so its fence is still that of the tenure that ended it.
    if log.row is not None and log.row.finish is not None and sequence == head.sequence and walk.fence < log.fence:
        detail = f"the append that ended the job has fence {walk.fence}, and the job's row {log.fence}"
        yield sequence, "fence", detail
    if walk.fence > log.fence:
        yield sequence, "fence", f"an append has fence {walk.fence}, and the job's row {log.fence}"


def _left(row: JobRow, walk: Walk) -> Iterator[tuple[int, str, str]]:
    """Contradictions of a job whose content is erased; for other jobs the replay compares row and log."""
    at, end = walk.sequence, walk.end
    if not IDENTITY.fullmatch(row.identity):
        yield at, "listing", f"the job's row has identity {row.identity!r}"
    if row.finish is None:
        return  # an erased job that has not ended, which is named as such
    if row.status is Status.CLOSED and row.finish not in tuple(FinishReason):
        yield at, "listing", f"the job's row has status CLOSED and finish {row.finish!r}"
    # An admission, three events a token, the tenures that can still be read, and the end.
    if 1 + STEP_EVENTS * row.output + walk.tenures + 1 > at:
        detail = f"{at} events are too few for {row.output} tokens and an end"
        yield at, "listing", f"its content is erased, and {detail}: it had not ended, or has other counts"
    elif isinstance(end, RequestClosed) and end.reason.value != row.finish:
        yield at, "listing", f"the job's row says finish {row.finish}, its log says {end.reason.value}"
    elif end is not None and not isinstance(end, RequestClosed):
        yield at, "listing", f"the job's row says finish {row.finish}, and its log does not end"


def _listed(row: JobRow, walk: Walk) -> Iterator[tuple[int, str, str]]:
    """False statements of a database's row about its log, the head aside."""
    if row.finish is None and (walk.erased or walk.sealed):
        done = "its content is erased" if walk.erased else "its log is sealed"
        yield walk.sequence, "listing", f"{done}, and the job has not ended"
    if (row.finish is None) != (row.ended_ms is None):
        yield walk.sequence, "listing", f"the job's row has finish {row.finish} and says that it ended {row.ended_ms}"
    if row.erased_ms is not None and not walk.erased:
        yield walk.sequence, "listing", "the job's row says that its content is erased, and it is there"
    if row.erased_ms is None and walk.gone is not None:
        yield walk.gone, "listing", "its content is erased, and the job's row does not say so"
    if row.sealed_ms is not None and not walk.sealed:
        yield walk.sequence, "listing", "the job's row says that its log is sealed, and it is not"
    if row.sealed_ms is None and walk.sealed:
        yield walk.sequence, "listing", "its log is sealed, and the job's row does not say so"
