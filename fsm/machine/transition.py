"""transition: (state, command) -> events, or a typed rejection. It decides; `fold` applies; the log makes it so.

A proposal carries the state that folding its events gives, so that the crank need not fold them twice. Nobody may act
on that state before the events are durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..errors import ReceiptConflict, Terminal
from ..evidence.prompt_record import PromptToken
from ..evidence.receipt import Selection
from ..output.standing import Standing
from ..request.finish import FROM_OUTSIDE, FinishReason, rank
from . import token_step as ordinary
from .commit import committed
from .events import (
    STATE_BYTES,
    AttemptStarted,
    CallCompleted,
    CallFailed,
    DecisionMade,
    Event,
    LanesRebuilt,
    OutputCommitted,
    PromptRecorded,
    RequestClosed,
    RequestFailed,
    TokenStep,
    expand,
)
from .fold import decided, ending_reasons, fold, issued
from .next_step import due_reasons
from .state import State


class StartAttempt(NamedTuple):
    """Begin a tenure under `fence`; `facts` are sorted (name, value) pairs of what it runs on."""

    fence: int
    worker: str
    facts: tuple[tuple[str, str], ...] = ()


class RebuildLanes(NamedTuple):
    """Report lanes that are back at the processed frontier; see `LanesRebuilt`."""

    form: str
    tokens: int
    prefilled: int
    scores: bytes = b""


class CompleteCall(NamedTuple):
    """Report ALL_NEW; see `CallCompleted`."""

    tokens: int
    lanes: int
    scores: bytes


class FailCall(NamedTuple):
    """Report ALL_OLD with its cause; past the retry budget the job fails with it."""

    cause: str
    detail: str = ""


class RecordPrompt(NamedTuple):
    """Record what the request asks to see of its prompt; see `PromptRecorded`."""

    tokens: tuple[PromptToken, ...]


class IssueDecision(NamedTuple):
    """Issue the receipt of `selection`; `piece` is its token's exact bytes, `hidden` says that it is special.

    `structure` is where the token leaves the grammar's parser, where the request has a grammar.
    """

    selection: Selection
    piece: bytes
    hidden: bool = False
    branch: int = 0
    structure: Standing | None = None


class CommitOutput(NamedTuple):
    """Consume a receipt: the issued one, or the one that `receipt_id` names."""

    receipt_id: bytes | None = None


class TakeStep(NamedTuple):
    """Report a call over the newest token, decide on its scores, and commit: what nearly every turn does for a job."""

    call: CompleteCall
    decision: IssueDecision


class CloseRequest(NamedTuple):
    """End the job now: cancelled or timed out, or with a reason that `next_step` found due. Any other is refused.

    `also` holds reasons from outside that held at the same time; they are recorded beside the canonical one.
    """

    reason: FinishReason
    also: tuple[FinishReason, ...] = ()


class FailRequest(NamedTuple):
    """End the job by a fault."""

    cause: str
    detail: str = ""


Command = (
    StartAttempt
    | RebuildLanes
    | CompleteCall
    | FailCall
    | RecordPrompt
    | IssueDecision
    | CommitOutput
    | TakeStep
    | CloseRequest
    | FailRequest
)


class Proposal(NamedTuple):
    """What to append, the state after each entry, and the last of these. No entries: the command was already done."""

    entries: tuple[Event | TokenStep, ...]
    states: tuple[State, ...]
    state: State

    @property
    def events(self) -> tuple[Event, ...]:
        return expand(self.entries)

    def then(self, other: Proposal) -> Proposal:
        return Proposal(self.entries + other.entries, self.states + other.states, other.state)


def transition(state: State, command: Command) -> Proposal:
    """Decide one command.

    Raises Terminal after the end, ReceiptConflict for another receipt of a decided step, IllegalTransition for a
    command that the state does not take. Nothing is changed by a rejection.
    """
    if isinstance(command, CommitOutput) and command.receipt_id == consumed(state) is not None:
        return Proposal((), (), state)
    if state.ending is not None:
        raise Terminal(state=state.status.value, reason=state.ending.finish or state.ending.cause)
    decide: Callable[[State, Any], Proposal] = _DECIDE[type(command)]
    return decide(state, command)


def transitions(state: State, commands: Sequence[Command]) -> Proposal:
    """Decide commands in order as one proposal; commands after the one that ends the job are left out."""
    proposal = Proposal((), (), state)
    for command in commands:
        made = transition(proposal.state, command)
        proposal = proposal.then(made) if proposal.entries else made
        if proposal.state.ending is not None:
            break
    return proposal


def propose(state: State, event: Event) -> Proposal:
    return proposed(event, fold(state, event))


def proposed(event: Event, after: State) -> Proposal:
    return Proposal((event,), (after,), after)


def start_attempt(state: State, command: StartAttempt) -> Proposal:
    return propose(state, AttemptStarted(command.fence, command.worker, command.facts))


def rebuild_lanes(state: State, command: RebuildLanes) -> Proposal:
    return propose(state, LanesRebuilt(*command))


def complete_call(state: State, command: CompleteCall) -> Proposal:
    return propose(state, CallCompleted(command.tokens, command.lanes, command.scores))


def fail_call(state: State, command: FailCall) -> Proposal:
    proposal = propose(state, CallFailed(command.cause, command.detail))
    if proposal.state.tenure.failures <= state.spec.retry_budget:
        return proposal
    return proposal.then(fail_request(proposal.state, FailRequest(command.cause, command.detail)))


def record_prompt(state: State, command: RecordPrompt) -> Proposal:
    return propose(state, PromptRecorded(command.tokens))


def issue_decision(state: State, command: IssueDecision) -> Proposal:
    receipt = issued(state, command.selection, command.piece, command.hidden, command.branch, command.structure)
    return proposed(DecisionMade(receipt), decided(state, receipt))


def commit_output(state: State, command: CommitOutput) -> Proposal:
    refuse_other_receipt(state, command.receipt_id)
    after = committed(state)
    commit = OutputCommitted(after.frontier.output, after.digest()[:STATE_BYTES], after.matched_stop)
    return ended_if_due(proposed(commit, after))


def take_step(state: State, command: TakeStep) -> Proposal:
    """An ordinary step as one entry; any other as its three commands, errors included."""
    call, (selection, piece, hidden, branch, structure) = command
    made = None if structure is not None else ordinary.step(state, *call, selection, piece, hidden, branch)
    if made is None:
        return transitions(state, (*command, CommitOutput()))
    step, after = made
    proposal = Proposal((step,), (after,), after)
    return ended_if_due(proposal) if after.due else proposal


def ended_if_due(proposal: Proposal) -> Proposal:
    """A commit, and the end that it makes due."""
    due = due_reasons(proposal.state)
    return proposal.then(propose(proposal.state, RequestClosed(due[0], due))) if due else proposal


def refuse_other_receipt(state: State, offered: bytes | None) -> None:
    """A receipt other than the one held, or consumed last, conflicts with it; before the first there is none."""
    held, step = consumed(state), state.frontier.output - 1
    if state.receipt is not None:
        held, step = state.receipt.receipt_id, state.receipt.step
    if offered is not None and held is not None and offered != held:
        raise ReceiptConflict(step=step, held=held.hex(), offered=offered.hex())


def consumed(state: State) -> bytes | None:
    """The id of the last consumed receipt, if there is one."""
    return state.last_receipt if state.frontier.output else None


def close_request(state: State, command: CloseRequest) -> Proposal:
    asked = {command.reason, *command.also}
    triggers = ending_reasons(state, asked & FROM_OUTSIDE)
    triggers = rank({*asked, *triggers}, state.spec.finish_order)
    return propose(state, RequestClosed(triggers[0], triggers))


def fail_request(state: State, command: FailRequest) -> Proposal:
    return propose(state, RequestFailed(command.cause, command.detail))


_DECIDE: dict[type, Callable[[State, Any], Proposal]] = {
    StartAttempt: start_attempt,
    RebuildLanes: rebuild_lanes,
    CompleteCall: complete_call,
    FailCall: fail_call,
    RecordPrompt: record_prompt,
    IssueDecision: issue_decision,
    CommitOutput: commit_output,
    TakeStep: take_step,
    CloseRequest: close_request,
    FailRequest: fail_request,
}
