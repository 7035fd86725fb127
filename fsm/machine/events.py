"""The events of a job's log: past tense, immutable, each with a literal wire tag and a version.

A model call, a decision, its commit and the end are four facts and stay four events, also where one append carries
them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from ..evidence.prompt_record import PromptToken
from ..evidence.receipt import Receipt, Selection
from ..output.standing import Standing
from ..request.finish import FinishReason, MatchedStop
from .states import Trigger
from .thinned import Thinned, ThinnedStep


class Parent(NamedTuple):
    """Where a forked job comes from: its prompt is that job's, with its first `step` output tokens."""

    job: str
    step: int


@dataclass(frozen=True, slots=True)
class RequestAdmitted:
    """The sealed request is durable.

    job        the name of this durable run
    envelope   its canonical bytes
    parent     the job that it was forked from, if any; nothing depends on it, as the prompt is whole in the envelope
    """

    tag: ClassVar[str] = "request.admitted"
    job: str
    envelope: bytes
    parent: Parent | None = None


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """A worker's tenure began. `facts` says what it runs on, as sorted (name, value) pairs."""

    tag: ClassVar[str] = Trigger.ATTEMPT_STARTED.value
    fence: int
    worker: str
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class LanesRebuilt:
    """Lost lanes are back at the processed frontier.

    form       "prefill" (one call over the processed prefix), "reexecute" (the recorded call shapes again) or
               "tensors" (rows that were kept, and the recorded calls from there on)
    tokens     processed tokens that had to be computed again
    prefilled  the shape of the calls that the lanes' rows now come from: the first so many tokens had one call, and
               each one after them its own
    scores     SHA-256 of the score row where the state was PREFILLED and so needs one, else empty
    """

    tag: ClassVar[str] = Trigger.LANES_REBUILT.value
    form: str
    tokens: int
    prefilled: int
    scores: bytes


@dataclass(frozen=True, slots=True)
class CallCompleted:
    """ALL_NEW: every stage and every lane advanced together.

    tokens  processed by this call; lanes  the frontier that every lane now has; scores  SHA-256 of the score row
    """

    tag: ClassVar[str] = Trigger.CALL_COMPLETED.value
    tokens: int
    lanes: int
    scores: bytes


@dataclass(frozen=True, slots=True)
class CallFailed:
    """ALL_OLD: nothing moved and no score row exists. `cause` is an error code, `detail` its message."""

    tag: ClassVar[str] = Trigger.CALL_FAILED.value
    cause: str
    detail: str


@dataclass(frozen=True, slots=True)
class PromptRecorded:
    """What the request asks to see of its prompt, token by token."""

    tag: ClassVar[str] = Trigger.PROMPT_RECORDED.value
    tokens: tuple[PromptToken, ...]


@dataclass(frozen=True, slots=True)
class DecisionMade:
    """A receipt was issued for the score row and is not consumed yet."""

    tag: ClassVar[str] = Trigger.DECISION_MADE.value
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class OutputCommitted:
    """The receipt was consumed: its token is output number `output` (counted from 1).

    Text and stop state follow from the receipt, so the event holds only what proves them: `state` is the first
    `STATE_BYTES` of the digest of the state after the commit. That names the step at which a replay goes another
    way; what binds the state is the next receipt's id, which covers the whole digest.

    `matched_stop` is what stopped the output with this token, if anything did: the stop string, or the token's id. Of
    several the first by the declared order.
    """

    tag: ClassVar[str] = Trigger.OUTPUT_COMMITTED.value
    output: int
    state: bytes
    matched_stop: MatchedStop | None = None


@dataclass(frozen=True, slots=True)
class RequestClosed:
    """The job ended: `reason` by the declared order, `triggers` every one that held, most important first."""

    tag: ClassVar[str] = Trigger.REQUEST_CLOSED.value
    reason: FinishReason
    triggers: tuple[FinishReason, ...]


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The job ended by a fault. `cause` is an error code, `detail` its message."""

    tag: ClassVar[str] = Trigger.REQUEST_FAILED.value
    cause: str
    detail: str


Event = (
    RequestAdmitted
    | AttemptStarted
    | LanesRebuilt
    | CallCompleted
    | CallFailed
    | PromptRecorded
    | DecisionMade
    | OutputCommitted
    | RequestClosed
    | RequestFailed
    | Thinned
)

EVENTS: dict[str, type[Event]] = {
    kind.tag: kind
    for kind in (
        RequestAdmitted,
        AttemptStarted,
        LanesRebuilt,
        CallCompleted,
        CallFailed,
        PromptRecorded,
        DecisionMade,
        OutputCommitted,
        RequestClosed,
        RequestFailed,
    )
}


STATE_BYTES = 8


class TokenStep(NamedTuple):
    """The three events of an ordinary step as one value: a call, the decision on its scores, and its commit.

    A log writes and reads them as one; they are still three facts, and `events` gives them. The fields have the
    names that they have there. `output` counts this step's token, and the receipt's step is one less.
    """

    tokens: int
    lanes: int
    scores: bytes
    branch: int
    selection: Selection
    piece: bytes
    hidden: bool
    receipt_id: bytes
    output: int
    state: bytes
    structure: Standing | None = None
    matched_stop: MatchedStop | None = None

    @property
    def events(self) -> tuple[CallCompleted, DecisionMade, OutputCommitted]:
        tokens, lanes, scores, branch, selection, piece, hidden, receipt_id, output, state, structure, stop = self
        receipt = Receipt(output - 1, branch, selection, piece, hidden, receipt_id, structure)
        return CallCompleted(tokens, lanes, scores), DecisionMade(receipt), OutputCommitted(output, state, stop)


STEP_EVENTS = 3

Step = TokenStep | ThinnedStep
STEPS: Final = (TokenStep, ThinnedStep)  # a tuple: `isinstance` takes several times as long over a union
Entry = Event | Step
"""What the log of a job is read as: an event, or the three of a step, whole or thinned."""


def joined(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The entries with the three events of a step as one, however they were written, where they come first."""
    match entries:
        case (CallCompleted() as call, DecisionMade(receipt), OutputCommitted() as output, *rest):
            if output.output == receipt.step + 1:
                step = TokenStep(
                    call.tokens, call.lanes, call.scores, receipt.branch, receipt.selection, receipt.piece,
                    receipt.hidden, receipt.receipt_id, output.output, output.state, receipt.structure,
                    output.matched_stop,
                )  # fmt: skip
                return (step, *rest)
    return entries


def count(entries: Sequence[Entry]) -> int:
    """How many events the entries are."""
    events = len(entries)
    for entry in entries:
        if isinstance(entry, STEPS):
            events += STEP_EVENTS - 1
    return events


def expand(entries: Iterable[Entry]) -> tuple[Event, ...]:
    """The entries as events, each step as its three."""
    events: list[Event] = []
    for entry in entries:
        if isinstance(entry, STEPS):
            events += entry.events
        else:
            events.append(entry)
    return tuple(events)
