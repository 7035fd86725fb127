"""An ordinary step in one go: a call over the pending token, a decision on its scores, and its commit.

Nearly every `TakeStep` is one, and deciding it command by command asks the same things of the same state again and
again. Here they are asked once, and the step stays one value from here to the log's bytes. What is not ordinary is left
to the three commands, errors included, and a property test holds the two equal, event by event.
"""

from __future__ import annotations

from ..evidence.receipt import Selection, identify
from .commit import released
from .compiled import target
from .events import STATE_BYTES, TokenStep
from .fold import SCORES_BYTES
from .frontier import EMPTY, PENDING_NEXT_CALL, Frontier
from .state import State
from .states import Status, Trigger

PENDING = Status.PENDING
PREFILLED = target(PENDING, Trigger.CALL_COMPLETED)
COMMITTED = target(target(PREFILLED, Trigger.DECISION_MADE), Trigger.OUTPUT_COMMITTED)

make = tuple.__new__  # makes a named tuple of a plain one, in half the time of the class's own, which is Python code


def step(
    state: State, tokens: int, lanes: int, scores: bytes, selection: Selection, piece: bytes, special: bool, branch: int
) -> tuple[TokenStep, State] | None:
    """An ordinary step and the state after it; None where the step is not one.

    tokens, lanes, scores   of the call, as in `CallCompleted`
    selection, piece, special, branch   of the decision, as in `identify`; the request has no structure
    """
    spec, status, tenure, frontier, horizon, _, last_receipt, _, _, due, _, structure, _ = state
    prompt, output, _, unprocessed, _ = frontier
    if status is not PENDING or due or structure is not None or tenure.failures:
        return None
    if unprocessed != 1 or tokens != 1 or lanes != prompt + output or len(scores) != SCORES_BYTES:
        return None
    processed = make(Frontier, (prompt, output, lanes, 0, EMPTY))
    before = spec, PREFILLED, tenure, processed, horizon, None, last_receipt, scores, "", (), None, None, None
    called = make(State, before)
    receipt = identify(spec.binding, output, branch, called.digest(), scores, selection, piece, special)
    output += 1
    token = selection.token
    horizon, delta, match = released(spec, horizon, output, token, piece, special and spec.skip_special)
    due = spec.due(token, output, match is not None)
    stop = spec.matched(due, token, match) if due else None
    pending = make(Frontier, (prompt, output, lanes, 1, PENDING_NEXT_CALL))
    after = spec, COMMITTED, tenure, pending, horizon, None, receipt, b"", delta, due, None, None, stop
    committed = make(State, after)
    proof = committed.digest()[:STATE_BYTES]
    return make(
        TokenStep, (tokens, lanes, scores, branch, selection, piece, special, receipt, output, proof, None, stop)
    ), committed
