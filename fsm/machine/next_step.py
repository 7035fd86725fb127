"""What the crank owes a job: a pure function of its state, so that live, resumed and audited runs agree on it."""

from __future__ import annotations

from enum import StrEnum

from ..request.finish import FinishReason
from .state import NO_RECEIPT, State
from .states import Status


class Step(StrEnum):
    """The next thing to do for a job."""

    CALL = "call"  # run the model over the unprocessed suffix
    DECIDE = "decide"  # consume the score row
    COMMIT = "commit"  # consume the recorded receipt; nothing is drawn again
    CLOSE = "close"  # a finish reason is due
    NOTHING = "nothing"  # it has ended


_OWED = {
    Status.ADMITTED: Step.CALL,
    Status.PREFILLED: Step.DECIDE,
    Status.DECIDED: Step.COMMIT,
    Status.PENDING: Step.CALL,
}


def next_step(state: State) -> Step:
    """FSM-8's typed choice included: no output asked for closes before any call, or after the prefill."""
    if state.ending is not None:
        return Step.NOTHING
    if due_reasons(state):
        return Step.CLOSE
    return _OWED[state.status]


def close_reason(state: State) -> FinishReason | None:
    """The finish reason that is due without another decision, if any."""
    due = due_reasons(state)
    return due[0] if due else None


def due_reasons(state: State) -> tuple[FinishReason, ...]:
    """Every finish reason that holds without another decision, most important first."""
    spec = state.spec
    if spec.max_new_tokens == 0 and (state.status is Status.PREFILLED or not spec.prefill_only):
        return () if owes_prompt(state) else (FinishReason.LENGTH,)
    return () if owes_repair(state) else state.due


def owes_repair(state: State) -> bool:
    """Whether the output has ended and its last token is still to be processed, because the request promises so.

    The call that does it is one like any other. Its score row is never consumed: what holds after the last commit is
    due as soon as the call is done.
    """
    return state.spec.repaired and bool(state.due) and state.status is Status.PENDING


def owes_prompt(state: State) -> bool:
    """Whether the request asks to see something of its prompt that is not recorded yet."""
    return state.spec.wish is not None and state.last_receipt == NO_RECEIPT
