"""Why a job ended: one canonical reason by a declared order, with every trigger that held recorded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum


class FinishReason(StrEnum):
    """Finish reasons in the default order of precedence: the first that holds is the reason."""

    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    STRUCTURED_ERROR = "structured_error"
    STOP_STRING = "stop_string"
    STOP_TOKEN = "stop_token"
    STRUCTURED_COMPLETE = "structured_complete"
    EOS = "eos"
    LENGTH = "length"
    CONTEXT_LIMIT = "context_limit"

    __hash__ = str.__hash__


DEFAULT_ORDER: tuple[FinishReason, ...] = tuple(FinishReason)

FROM_OUTSIDE = frozenset({FinishReason.CANCELLED, FinishReason.TIMEOUT})
"""What can end a job at any time; every other reason follows from its own commits."""


def rank(held: Collection[FinishReason], order: Sequence[FinishReason]) -> tuple[FinishReason, ...]:
    """The reasons that hold, most important first; the first one is the canonical finish reason."""
    return tuple(reason for reason in order if reason in held)
