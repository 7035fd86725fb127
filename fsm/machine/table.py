"""The transition table, as data: one row says which trigger takes which state to which."""

from __future__ import annotations

from .states import Status, Trigger

INITIAL = Status.ADMITTED

A, P, D, N = Status.ADMITTED, Status.PREFILLED, Status.DECIDED, Status.PENDING

ROWS: tuple[tuple[Trigger, Status, Status], ...] = (
    # A model call is ALL_NEW (the committed input is processed, one score row exists) or ALL_OLD (nothing moved).
    (Trigger.CALL_COMPLETED, A, P),
    (Trigger.CALL_COMPLETED, N, P),
    (Trigger.CALL_FAILED, A, A),
    (Trigger.CALL_FAILED, N, N),
    (Trigger.CALL_FAILED, P, P),  # the call that was to bring back a lost score row
    # What a request asks to see of its prompt: its text before any call, its log-probabilities after the prefill.
    (Trigger.PROMPT_RECORDED, A, A),
    (Trigger.PROMPT_RECORDED, P, P),
    # A score row is consumed by exactly one receipt, and a receipt by exactly one commit.
    (Trigger.DECISION_MADE, P, D),
    (Trigger.OUTPUT_COMMITTED, D, N),
    # A new tenure moves nothing: it only says who works from here on, and what it had to recompute.
    *((Trigger.ATTEMPT_STARTED, state, state) for state in (A, P, D, N)),
    (Trigger.LANES_REBUILT, P, P),
    (Trigger.LANES_REBUILT, N, N),
    # Every live state can end; no ended state can move.
    *((Trigger.REQUEST_CLOSED, state, Status.CLOSED) for state in (A, P, D, N)),
    *((Trigger.REQUEST_FAILED, state, Status.FAILED) for state in (A, P, D, N)),
)
