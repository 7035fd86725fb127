"""Audit of one job: replay its log and name the first event that does not follow from those before it.

Folding checks frontiers, receipts, commits and the order of states; the log's reader has checked the chain. What is left
is that appends join without gap or overlap, that each is keyed by the receipt it carries, and that fences only grow.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .errors import Problem
from .events import DecisionMade
from .ports import JobRow, Record
from .state import State
from .transcript import Transcript


class Fault(NamedTuple):
    """Something in a job's log that cannot be: where, which kind (an error code), and what."""

    job: str
    sequence: int
    kind: str
    detail: str


class Audited(NamedTuple):
    """Events that were replayed, the state they lead to, and the faults found."""

    events: int
    state: State | None
    faults: list[Fault]


def replay(job: str, records: Iterable[Record]) -> Audited:
    """Fold every record; stop at the first fault, since nothing after it can be trusted."""
    transcript = Transcript()
    fence = 0
    try:
        for record in records:
            at = transcript.sequence + 1
            if record.first != at or record.last != at + len(record.events) - 1 or not record.events:
                return _faulty(job, transcript, "gap", f"an append of {record.first}..{record.last} follows {at - 1}")
            if record.fence < fence:
                return _faulty(job, transcript, "fence", f"fence {record.fence} follows fence {fence}")
            fence = record.fence
            for event in record.events:
                if isinstance(event, DecisionMade) and event.receipt.receipt_id != record.key:
                    return _faulty(job, transcript, "key", "the append is not keyed by its receipt")
                transcript.take(event)
    except Problem as problem:
        return _faulty(job, transcript, problem.code, str(problem))
    return Audited(transcript.sequence, transcript.state, [])


def compare(row: JobRow, audited: Audited) -> list[Fault]:
    """Where a job's listing and its replayed log differ."""
    state = audited.state
    if state is None:
        return []
    finish = None if state.ending is None else (state.ending.finish or state.ending.cause)
    pairs = (
        ("status", row.status, state.status),
        ("finish", row.finish, finish),
        ("output", row.output, state.frontier.output),
        ("prompt", row.prompt, state.frontier.prompt),
        ("identity", row.identity, state.spec.identity.hex()),
        ("head", row.head.sequence, audited.events),
    )
    return [
        Fault(row.job, audited.events, "listing", f"the job's row says {name} {listed}, its log says {replayed}")
        for name, listed, replayed in pairs
        if listed != replayed
    ]


def _faulty(job: str, transcript: Transcript, kind: str, detail: str) -> Audited:
    return Audited(transcript.sequence, transcript.state, [Fault(job, transcript.sequence + 1, kind, detail)])
