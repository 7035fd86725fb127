"""Audit of one job: replay its log and name the first event that does not follow from those before it.

Folding checks frontiers, receipts, commits and the order of states; the log's reader has checked the chain. What is
left is that the log is the job's, that appends join without gap or overlap, that each is keyed by the receipt it
carries or consumes, that fences only grow and a tenure begins under its own, and that noise is the request's own. Of a
sealed log's thinned steps it says what a load says of steps that it jumps over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ..errors import Problem
from ..evidence.receipt import Receipt
from ..evidence.rng import unit_draw
from ..machine.events import STEPS, AttemptStarted, DecisionMade, Event, OutputCommitted, RequestAdmitted, RequestClosed
from ..machine.state import State
from ..ports import EMPTY_HEAD, Head, JobRow, Record
from ..request.finish import FinishReason
from .load import not_following, pass_over, unproven
from .snapshot import Snapshot
from .transcript import Transcript

WRONG: Final = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError, MemoryError)
"""What folding raises where an event holds a value of another type, or a number that no count can be."""


class Fault(NamedTuple):
    """A contradiction in a job's log.

    sequence   the first event concerned
    kind       of the rows: "gap", "duplicate", "chain", "fence", "payload", "head", "link" or "listing"; of the events:
               one of these, "job", "key", "draw", "snapshot" or an error's code; of an exported file: "container" or
               "signature"; of a database: "database" or "orphan"; of what was kept outside of it: "anchor"
    job        empty where it is of none
    """

    job: str
    sequence: int
    kind: str
    detail: str


class Audited(NamedTuple):
    """Events that were replayed, the state they lead to, the faults found, and the digest of the whole appends."""

    events: int
    state: State | None
    faults: list[Fault]
    chain: bytes = EMPTY_HEAD.chain


def replay(job: str, records: Iterable[Record], snapshot: Snapshot | None = None) -> Audited:
    """Fold every record; stop at the first fault, since nothing after it can be trusted.

    snapshot   one of this job: it must be what the replay finds at its place
    """
    transcript = Transcript()
    fence, chain = 0, EMPTY_HEAD.chain
    try:
        for record in records:
            at, events = transcript.sequence + 1, record.events
            if record.first != at or record.last != at + len(events) - 1 or not events:
                return _faulty(job, transcript, "gap", f"an append of {record.first}..{record.last} follows {at - 1}")
            if record.fence < fence:
                return _faulty(job, transcript, "fence", f"fence {record.fence} follows fence {fence}")
            fence, chain = record.fence, record.chain
            step = record.entries[0]
            jumped = isinstance(step, STEPS) and unproven(transcript, step)
            for event in events:
                if fault := _foreign(job, transcript.state, event, record):
                    return _faulty(job, transcript, *fault)
                if not jumped:
                    transcript.take(event)
            if isinstance(step, STEPS) and jumped and (len(record.entries) > 1 or not pass_over(transcript, [step])):
                raise not_following(transcript, step)
            if detail := _untenured(transcript.state, record):
                return Audited(record.first - 1, transcript.state, [Fault(job, record.first, "fence", detail)])
            if snapshot is not None and record.last >= snapshot.head.sequence:
                if Snapshot.of(transcript, Head(record.last, chain)) != snapshot:
                    return _faulty(job, transcript, "snapshot", "the snapshot there is not what the log leads to")
                snapshot = None
    except Problem as problem:
        return _faulty(job, transcript, problem.code, str(problem))
    except WRONG as problem:  # a log that was rewritten, digests included, may claim anything
        return _faulty(job, transcript, "payload", f"an event says what none can say ({problem or type(problem)})")
    if transcript.state is None:
        return _faulty(job, transcript, "gap", "the log has no events")
    if snapshot is not None:
        return _faulty(job, transcript, "snapshot", f"a snapshot is of event {snapshot.head.sequence}, beyond the log")
    return Audited(transcript.sequence, transcript.state, [], chain)


def _untenured(after: State | None, record: Record) -> str | None:
    """Why this append belongs to no tenure of the job.

    A cancel alone needs none, by whoever fenced an owner that was gone: under a fence above the tenure's.
    """
    fence, first = after.tenure.fence if after is not None else record.fence, record.events[0]
    cancelled = isinstance(first, RequestClosed) and first.reason is FinishReason.CANCELLED
    if record.fence == fence or (cancelled and record.fence > fence):
        return None
    return f"an append of fence {record.fence} lies in the tenure of fence {fence}"


def _foreign(job: str, before: State | None, event: Event, record: Record) -> tuple[str, str] | None:
    """Why this event cannot be in this append of this job, as (kind, detail)."""
    receipt = before.receipt if before is not None else None
    match event:
        case RequestAdmitted() if event.job != job:
            return "job", f"the log is that of job {event.job}"
        case AttemptStarted() if event.fence != record.fence:
            return "fence", f"a tenure of fence {event.fence} begins in an append of fence {record.fence}"
        case DecisionMade() if event.receipt.receipt_id != record.key:
            return "key", "the append is not keyed by its receipt"
        case OutputCommitted() if receipt is not None and receipt.receipt_id != record.key:
            return "key", "the append is not keyed by the receipt that it consumes"
        case DecisionMade() if before is not None and not _own_noise(before, event.receipt):
            return "draw", f"step {event.receipt.step} was not decided with the noise of the request"
    return None


def _own_noise(state: State, receipt: Receipt) -> bool:
    """Whether the decision used the draw that belongs to its step, made again here, or none where none is used."""
    envelope, drawn = state.spec.envelope, receipt.selection.unit_draw
    if envelope.policy.family != "sample":
        return drawn is None
    rng = envelope.rng
    return drawn == unit_draw(rng.algorithm, rng.seed, rng.choice, receipt.branch, receipt.step)


def compare(row: JobRow, audited: Audited) -> list[Fault]:
    """Where a job's listing and its replayed log differ."""
    state = audited.state
    if state is None:
        return []  # replay has named that
    finish = None if state.ending is None else (state.ending.finish or state.ending.cause)
    pairs = (
        ("status", row.status, state.status),
        ("finish", row.finish, finish),
        ("output", row.output, state.frontier.output),
        ("prompt", row.prompt, state.frontier.prompt),
        ("identity", row.identity, state.spec.identity.hex()),
        ("head", row.head.sequence, audited.events),
        ("chain", row.head.chain.hex(), audited.chain.hex()),
    )
    return [
        Fault(row.job, audited.events, "listing", f"the job's row says {name} {listed}, its log says {replayed}")
        for name, listed, replayed in pairs
        if listed != replayed
    ]


def _faulty(job: str, transcript: Transcript, kind: str, detail: str) -> Audited:
    return Audited(transcript.sequence, transcript.state, [Fault(job, transcript.sequence + 1, kind, detail)])
