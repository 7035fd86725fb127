"""Why a job ended: one canonical reason by a declared order, with every trigger that held recorded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final


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


TRIGGERS: Final[Mapping[FinishReason, str]] = MappingProxyType(
    {
        FinishReason.CANCELLED: "a cancel was taken; exactly the tokens committed before it stay",
        FinishReason.TIMEOUT: "`deadline_ms` has passed since the admission",
        FinishReason.STRUCTURED_ERROR: "the text is not of the grammar, or its guards leave no token that may follow",
        FinishReason.STOP_STRING: "a token brought the last byte of a stop string",
        FinishReason.STOP_TOKEN: "the token is one of `stop_token_ids`",
        FinishReason.STRUCTURED_COMPLETE: "the grammar, or a detector, has its whole structure, and nothing may follow",
        FinishReason.EOS: "the token is one of the tokenizer's end tokens, and they are not ignored",
        FinishReason.LENGTH: "`max_new_tokens` are committed",
        FinishReason.CONTEXT_LIMIT: "no further call fits into the context",
    }
)

HELD_BACK: Final = frozenset(
    {FinishReason.STOP_STRING, FinishReason.STOP_TOKEN, FinishReason.STRUCTURED_COMPLETE, FinishReason.EOS}
)
"""What cannot end a job before min_new_tokens: the tokens are masked, and stops and structures do not count yet."""

STOPS: Final = frozenset({FinishReason.STOP_STRING, FinishReason.STOP_TOKEN, FinishReason.EOS})
"""What matches something of the request; `include_stop` says whether its text is shown."""

MatchedStop = str | int
"""What stopped an output: a stop string, or the id of a token that ends it."""

DEFAULT_ORDER: tuple[FinishReason, ...] = tuple(FinishReason)

FROM_OUTSIDE = frozenset({FinishReason.CANCELLED, FinishReason.TIMEOUT})
"""What can end a job at any time; every other reason follows from its own commits."""


def rank(held: Collection[FinishReason], order: Sequence[FinishReason]) -> tuple[FinishReason, ...]:
    """The reasons that hold, most important first; the first one is the canonical finish reason."""
    return tuple(reason for reason in order if reason in held)
