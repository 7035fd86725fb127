"""The six states of a job, the triggers that move it, and the tags of what has no model row yet."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Where one durable generation job stands."""

    ADMITTED = "ADMITTED"  # sealed and durable; the model has processed nothing
    PREFILLED = "PREFILLED"  # all committed input processed; one score row may be consumed
    DECIDED = "DECIDED"  # one receipt issued for that row and not consumed
    PENDING = "PENDING"  # receipt consumed; its token is the next model input
    CLOSED = "CLOSED"  # ended as the request asked, with one finish reason
    FAILED = "FAILED"  # ended by a fault, with its cause

    # Enum hashes in Python code; the step looks states up a dozen times a token.
    __hash__ = str.__hash__

    @property
    def terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL = frozenset({Status.CLOSED, Status.FAILED})


class Trigger(StrEnum):
    """What can happen to a job. Each value is the wire tag of the event that records it."""

    ATTEMPT_STARTED = "attempt.started"
    LANES_REBUILT = "lanes.rebuilt"
    CALL_COMPLETED = "call.completed"
    CALL_FAILED = "call.failed"
    PROMPT_RECORDED = "prompt.recorded"
    DECISION_MADE = "decision.made"
    OUTPUT_COMMITTED = "output.committed"
    REQUEST_CLOSED = "request.closed"
    REQUEST_FAILED = "request.failed"

    __hash__ = str.__hash__


class Suffix(StrEnum):
    """Why the committed suffix U has not been processed by the model."""

    EMPTY = "EMPTY"
    PENDING_NEXT_CALL = "PENDING_NEXT_CALL"
    CLOSED_UNPROCESSED = "CLOSED_UNPROCESSED"

    __hash__ = str.__hash__
