"""Snapshots: the whole state of a job, so that a resume need not read its log from the start.

A snapshot is no second truth. It names the head of the log at which it was taken, a load from it must join the log
there, and an audit compares it with what the fold finds at that event. It is taken only where nothing is held back and
nothing is due, after an ordinary commit: every other field of the state is then at its one value for that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from ..evidence.receipt import Receipt
from ..machine.events import Parent
from ..machine.frontier import Frontier
from ..machine.spec import Spec
from ..machine.state import State, Tenure
from ..machine.states import Status, Suffix
from ..output.detector import Detection
from ..output.horizon import Horizon
from ..output.json_value import Scan
from ..output.standing import Standing
from ..output.structure import Structure
from ..ports import Head
from .transcript import Transcript

Plain = tuple[Any, ...]


class Snapshot(NamedTuple):
    """A job right after the event at `head`.

    state       as the fold has it there
    token_ids   every committed token
    rebuilt     see `Transcript`
    echoed      size of the prompt's text before the output's, in bytes and in characters
    parent      the job that it was forked from, if any
    """

    head: Head
    state: State
    token_ids: tuple[int, ...]
    rebuilt: int
    echoed: tuple[int, int]
    parent: Parent | None

    @classmethod
    def of(cls, transcript: Transcript, head: Head) -> Snapshot | None:
        """The snapshot of a transcript that has come to `head`; None where none can be taken."""
        state = transcript.state
        if state is None or not quiet(state):
            return None
        return cls(head, state, tuple(transcript.token_ids), transcript.rebuilt, transcript.echoed, transcript.parent)

    def transcript(self) -> Transcript:
        """The transcript for a resume: it has no text from before, which only the log still shows."""
        return Transcript.standing(
            self.state, self.head.sequence, list(self.token_ids), self.rebuilt, self.echoed, self.parent
        )


class Keep(NamedTuple):
    """A snapshot to be kept by the tenure of `fence`, which went on from the one at sequence `after`; 0: from none."""

    fence: int
    after: int
    snapshot: Snapshot


def quiet(state: State) -> bool:
    """Whether a snapshot can be taken: a token was just committed, all of its text is out, and no end is due."""
    horizon = state.horizon
    still = not (horizon.held or horizon.undecoded or horizon.closed or state.due)
    return state.status is Status.PENDING and still


def plain(snapshot: Snapshot) -> Plain:
    """Everything but the head and the token ids, as numbers, bytes, text and tuples of them."""
    state = snapshot.state
    _, _, tenure, frontier, horizon, _, last_receipt, _, delta, _, _, structure, _ = state
    sought = None if structure is None else (structure.standing, [_detection(each) for each in structure.detections])
    place = tuple(tenure), (*frontier[:-1], frontier.suffix.value), tuple(horizon)
    return (*place, last_receipt, delta, sought, snapshot.rebuilt, snapshot.echoed, snapshot.parent)


def facts_of(state: State) -> Plain:
    """Every field of any state but its spec, as numbers, bytes, text and tuples: equal for equal states only."""
    return tuple([_plain(value) for value in state[1:]])


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Receipt):
        return tuple([_plain(getattr(value, each.name)) for each in dataclasses.fields(value)])
    return tuple([_plain(each) for each in value]) if isinstance(value, tuple) else value


def snapshot_of(spec: Spec, head: Head, token_ids: Sequence[int], fields: Plain) -> Snapshot:
    """The snapshot that `plain` gave these fields of, for a job of this spec; equal to that one.

    Errors: ValueError, TypeError or LookupError for fields that none has, BrokenInvariant for a frontier that is none.
    """
    (
        tenure,
        (prompt, output, processed, unprocessed, suffix),
        horizon,
        last_receipt,
        delta,
        sought,
        rebuilt,
        echoed,
        parent,
    ) = fields
    structure = None
    if sought is not None:
        standing, detections = sought
        structure = Structure(Standing(standing), tuple([_detected(*each) for each in detections]))
    state = State(
        spec=spec,
        status=Status.PENDING,
        tenure=Tenure(*tenure),
        frontier=Frontier(prompt, output, processed, unprocessed, Suffix(suffix)).checked(),
        horizon=Horizon(*horizon),
        receipt=None,
        last_receipt=last_receipt,
        scores=b"",
        delta=delta,
        due=(),
        ending=None,
        structure=structure,
    )
    if len(token_ids) != state.frontier.output or not quiet(state):
        raise ValueError(f"{len(token_ids)} tokens are given, and the state has {state.frontier}")
    first, second = echoed
    held = None if parent is None else Parent(*parent)
    return Snapshot(head, state, tuple(token_ids), rebuilt, (first, second), held)


def _detection(detection: Detection) -> Plain:
    return (detection.node, None if detection.scan is None else tuple(detection.scan), detection.closing)


def _detected(node: int, scan: Plain | None, closing: int | None) -> Detection:
    return Detection(node, None if scan is None else Scan(*scan), closing)
