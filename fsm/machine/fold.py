"""fold: (state, event) -> state. The only way a state comes to be, live and in replay. A load (`load.py`) skips states.

Every event is checked against the state that it claims to follow: a receipt must be the one that this state issues, a
commit must lead to the state whose digest it carries, frontiers must balance. A log that does not say so is a
BrokenInvariant or an IllegalTransition, never a different state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from ..errors import BrokenInvariant, EvidenceSealed
from ..evidence.prompt_record import check, digest, text_of
from ..evidence.receipt import Receipt, Selection, issue
from ..output.horizon import START, flush
from ..output.standing import Standing
from ..output.structure import BEGUN, sought
from ..request.finish import FROM_OUTSIDE, FinishReason, rank
from .commit import committed
from .compiled import target
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
    RequestAdmitted,
    RequestClosed,
    RequestFailed,
)
from .frontier import Frontier
from .next_step import due_reasons, owes_prompt
from .spec import Spec
from .state import NO_RECEIPT, Ending, State, Tenure
from .states import Status, Trigger
from .thinned import Thinned

SCORES_BYTES = 32

# An enum finds its members by way of Python code; the fold asks for some of these a dozen times a token.
ADMITTED, PREFILLED = Status.ADMITTED, Status.PREFILLED
ATTEMPT_STARTED, LANES_REBUILT = Trigger.ATTEMPT_STARTED, Trigger.LANES_REBUILT
CALL_COMPLETED, CALL_FAILED = Trigger.CALL_COMPLETED, Trigger.CALL_FAILED
DECISION_MADE, OUTPUT_COMMITTED = Trigger.DECISION_MADE, Trigger.OUTPUT_COMMITTED
PROMPT_RECORDED = Trigger.PROMPT_RECORDED
REQUEST_CLOSED, REQUEST_FAILED = Trigger.REQUEST_CLOSED, Trigger.REQUEST_FAILED


def fold(state: State | None, event: Event) -> State:
    """The state after `event`; `None` before the first. Pure: equal arguments give equal states."""
    if state is None:
        if not isinstance(event, RequestAdmitted):
            raise BrokenInvariant(clause="FSM-4", reason=f"a log begins with {event.tag}, not with its admission")
        return admitted(event)
    if (apply := _FOLDS.get(type(event))) is None:
        if isinstance(event, Thinned):
            raise EvidenceSealed(state.spec.job, state.frontier.output)
        raise BrokenInvariant(clause="FSM-4", reason=f"{event.tag} cannot follow another event")
    after: State = apply(state, event)
    return after


def fold_all(events: Iterable[Event], state: State | None = None) -> State:
    """Fold a whole log, or the tail after `state`; no event at all is a BrokenInvariant."""
    for event in events:
        state = fold(state, event)
    if state is None:
        raise BrokenInvariant(clause="FSM-4", reason="a job without events has no state")
    return state


def admitted(event: RequestAdmitted) -> State:
    spec = Spec.seal(event.job, event.envelope)
    return State(
        spec=spec,
        status=ADMITTED,
        tenure=Tenure(),
        frontier=Frontier.admitted(len(spec.prompt)),
        horizon=START,
        receipt=None,
        last_receipt=NO_RECEIPT,
        scores=b"",
        delta="",
        due=(),
        ending=None,
        structure=sought(spec.detectors) if spec.detectors else None if spec.grammar is None else BEGUN,
    )


def attempt_started(state: State, event: AttemptStarted) -> State:
    status = target(state.status, ATTEMPT_STARTED)
    tenure = state.tenure
    if event.fence <= tenure.fence:
        raise BrokenInvariant(clause="LOG-7", reason=f"fence {event.fence} follows fence {tenure.fence}")
    return state._replace(
        status=status, tenure=tenure._replace(attempt=tenure.attempt + 1, fence=event.fence), delta=""
    )


def lanes_rebuilt(state: State, event: LanesRebuilt) -> State:
    status = advanced(state, LANES_REBUILT)
    if not 0 <= event.tokens <= state.frontier.processed:
        raise BrokenInvariant(clause="FSM-3", reason=f"{event.tokens} tokens cannot rebuild {state.frontier}")
    if not 0 < event.prefilled <= state.frontier.processed:
        raise BrokenInvariant(clause="FSM-3", reason=f"a call of {event.prefilled} tokens is not in {state.frontier}")
    check_scores(event.scores, wanted=status is PREFILLED)
    tenure = state.tenure._replace(recomputed=state.tenure.recomputed + event.tokens)
    return state._replace(status=status, tenure=tenure, scores=event.scores, delta="")


def call_completed(state: State, event: CallCompleted) -> State:
    status = advanced(state, CALL_COMPLETED)
    frontier = state.frontier.after_call(event.tokens, event.lanes)
    check_scores(event.scores, wanted=True)
    tenure = state.tenure if not state.tenure.failures else state.tenure._replace(failures=0)
    return State(
        state.spec,
        status,
        tenure,
        frontier,
        state.horizon,
        None,
        state.last_receipt,
        event.scores,
        "",
        state.due,  # none, but before a repair
        None,
        state.structure,
        state.matched_stop,
    )


def advanced(state: State, trigger: Trigger) -> Status:
    """The state after a trigger that works towards more output: none may, once an end is due."""
    status = target(state.status, trigger)
    if due := due_reasons(state):
        raise BrokenInvariant(clause="FSM-7", reason=f"{due[0]} is due, and {trigger} follows instead of the end")
    if state.tenure.failures > state.spec.retry_budget:
        raise BrokenInvariant(clause="FSM-10", reason=f"the retry budget is spent, and {trigger} follows")
    return status


def check_scores(scores: bytes, wanted: bool) -> None:
    """A score row's digest is whole where there is a row to consume, and absent where there is none."""
    if len(scores) != (SCORES_BYTES if wanted else 0):
        raise BrokenInvariant(clause="FSM-5", reason=f"{len(scores)} bytes are not the digest of the score row")


def call_failed(state: State, event: CallFailed) -> State:
    status = advanced(state, CALL_FAILED)
    tenure = state.tenure._replace(failures=state.tenure.failures + 1)
    return state._replace(status=status, tenure=tenure, delta="")


def prompt_recorded(state: State, event: PromptRecorded) -> State:
    """Record what the request asks to see of its prompt, once: after the prefill where that is to score it."""
    status, spec, wish = advanced(state, PROMPT_RECORDED), state.spec, state.spec.wish
    if wish is None or not owes_prompt(state):
        raise BrokenInvariant(clause="POL-6", reason="the prompt is recorded unasked, or again")
    if (status is PREFILLED) is (wish.top is None):
        raise BrokenInvariant(clause="POL-6", reason=f"the prompt is recorded in {status}, before or after its call")
    check(event.tokens, state.frontier.prompt, wish)
    horizon, text = state.horizon, ""
    if wish.echo:
        text, size = text_of(event.tokens, spec.skip_special)
        horizon = horizon._replace(bytes_released=size, characters_released=len(text))
    return state._replace(status=status, horizon=horizon, last_receipt=digest(event.tokens), delta=text)


def decision_made(state: State, event: DecisionMade) -> State:
    """Adopt a receipt after issuing it again from this state: every bound fact must lead to the same id."""
    offered = event.receipt
    held = issued(state, offered.selection, offered.piece, offered.hidden, offered.branch, offered.structure)
    if held.receipt_id != offered.receipt_id or held.step != offered.step:
        raise BrokenInvariant(clause="FSM-5", reason=f"receipt {offered.receipt_id.hex()} is not this state's")
    return decided(state, held)


def issued(
    state: State, selection: Selection, piece: bytes, hidden: bool, branch: int, structure: Standing | None
) -> Receipt:
    """The receipt of one decision on the state's score row; a state that has none to consume is refused.

    A decision under a grammar says where it leaves the parser, and no other does.
    """
    advanced(state, DECISION_MADE)
    if owes_prompt(state):
        raise BrokenInvariant(clause="POL-6", reason="a decision comes before what is to be recorded of the prompt")
    if (structure is None) is not (state.spec.grammar is None):
        raise BrokenInvariant(clause="OUT-5", reason=f"a parser's standing of {structure} is not this request's")
    prior, step = state.digest(), state.frontier.output
    return issue(state.spec.binding, step, branch, prior, state.scores, selection, piece, hidden, structure)


def decided(state: State, receipt: Receipt) -> State:
    """Hold the receipt that this very state issued."""
    return State(
        state.spec,
        target(state.status, DECISION_MADE),
        state.tenure,
        state.frontier,
        state.horizon,
        receipt,
        state.last_receipt,
        state.scores,
        "",
        (),
        None,
        state.structure,
    )


def output_committed(state: State, event: OutputCommitted) -> State:
    after, named = committed(state), event.matched_stop
    if named != after.matched_stop:
        raise BrokenInvariant(clause="OUT-2", reason=f"output {event.output} was not stopped by {named!r}")
    proof = event.state
    if event.output != after.frontier.output or len(proof) != STATE_BYTES or not after.digest().startswith(proof):
        raise BrokenInvariant(clause="FSM-6", reason=f"output {event.output} does not lead to the recorded state")
    return after


def ending_reasons(state: State, outside: Collection[FinishReason]) -> tuple[FinishReason, ...]:
    """Every reason that holds if the job ends now, with these from outside, most important first; none: it may not.

    A repair that is owed keeps an end back, and does not keep it from having been reached.
    """
    reached = state.due if outside else ()
    return rank({*outside, *due_reasons(state), *reached}, state.spec.finish_order)


def request_closed(state: State, event: RequestClosed) -> State:
    status = target(state.status, REQUEST_CLOSED)
    due = ending_reasons(state, FROM_OUTSIDE.intersection(event.triggers))
    if not due or event.triggers != due or event.reason is not due[0]:
        claimed, found = ", ".join(event.triggers), ", ".join(due)
        raise BrokenInvariant(clause="FSM-7", reason=f"{event.reason} of ({claimed}) is not what holds, ({found})")
    return ended(state, status, Ending(event.reason), due)


def request_failed(state: State, event: RequestFailed) -> State:
    status = target(state.status, REQUEST_FAILED)
    return ended(state, status, Ending(None, event.cause, event.detail), state.due)


def ended(state: State, status: Status, ending: Ending, due: tuple[FinishReason, ...]) -> State:
    """Flush what the horizon still holds: no later token can complete a stop, so all of it is text."""
    horizon, delta = flush(state.horizon)
    return state._replace(
        status=status,
        frontier=state.frontier.after_close(),
        horizon=horizon,
        receipt=None,
        scores=b"",
        delta=delta,
        due=due,
        ending=ending,
    )


_FOLDS: dict[type, Callable[[State, Any], State]] = {
    AttemptStarted: attempt_started,
    LanesRebuilt: lanes_rebuilt,
    CallCompleted: call_completed,
    CallFailed: call_failed,
    PromptRecorded: prompt_recorded,
    DecisionMade: decision_made,
    OutputCommitted: output_committed,
    RequestClosed: request_closed,
    RequestFailed: request_failed,
}
