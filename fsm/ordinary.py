"""An ordinary step in one go: a call over the pending token, a decision on its scores, and its commit.

Nearly every step is one, and deciding it command by command asks the same things of the same state again and again.
Here they are asked once. Whatever is not ordinary is left to `transition`, errors included, and a property test holds
the two equal, event by event and state by state. The fold does not know of this: what it replays was made here.
"""

from __future__ import annotations

from .events import STATE_BYTES, CallCompleted, DecisionMade, Event, OutputCommitted
from .fold import SCORES_BYTES
from .frontier import EMPTY, PENDING_NEXT_CALL, Frontier
from .machine import target
from .receipt import Selection, issue
from .state import State
from .states import Status, Trigger

PENDING = Status.PENDING
PREFILLED = target(PENDING, Trigger.CALL_COMPLETED)
DECIDED = target(PREFILLED, Trigger.DECISION_MADE)
COMMITTED = target(DECIDED, Trigger.OUTPUT_COMMITTED)


def step(
    state: State, tokens: int, lanes: int, scores: bytes, selection: Selection, piece: bytes, special: bool, branch: int
) -> tuple[tuple[Event, Event, Event], tuple[State, State, State]] | None:
    """The three events of an ordinary step and the state after each; None where the step is not one.

    tokens, lanes, scores   of the call, as in `CallCompleted`
    selection, piece, special, branch   of the decision, as in `issue`; the request has no structure
    """
    spec, status, tenure, frontier, horizon, _, last_receipt, _, _, due, _, structure = state
    prompt, output, _, unprocessed, _ = frontier
    if status is not PENDING or due or structure is not None or tenure.failures:
        return None
    if unprocessed != 1 or tokens != 1 or lanes != prompt + output or len(scores) != SCORES_BYTES:
        return None
    processed = Frontier(prompt, output, lanes, 0, EMPTY)
    called = State(spec, PREFILLED, tenure, processed, horizon, None, last_receipt, scores, "", (), None)
    receipt = issue(spec.binding, output, branch, called.digest(), scores, selection, piece, special)
    decided = State(spec, DECIDED, tenure, processed, horizon, receipt, last_receipt, scores, "", (), None)
    output += 1
    hidden, armed = special and spec.skip_special, output >= spec.min_new_tokens
    horizon, delta, match = spec.advance(horizon, spec.matcher, piece, hidden, spec.include_stop, armed)
    due = spec.due(selection.token, output, match is not None)
    pending = Frontier(prompt, output, lanes, 1, PENDING_NEXT_CALL)
    committed = State(spec, COMMITTED, tenure, pending, horizon, None, receipt.receipt_id, b"", delta, due, None)
    proof = committed.digest()[:STATE_BYTES]
    events = CallCompleted(tokens, lanes, scores), DecisionMade(receipt), OutputCommitted(output, proof)
    return events, (called, decided, committed)
