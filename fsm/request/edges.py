"""What the policy's numbers mean at their edges, one meaning each: 0, 1, a tiny number, the largest, and beyond."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from .. import limits
from .transforms import Temperature, TopK, TopP, Transform, TypicalP


class Effect(StrEnum):
    """What a number does at an edge, in the words of the documentation."""

    REFUSED = "refused"
    LEFT_OUT = "off: left out of the envelope"
    GREEDY = "greedy: the best score, and nothing is drawn"
    OFF = "off: it changes nothing"
    BEST = "the best token alone"
    BEST_AND_EQUALS = "the best token and those that score as it does"
    MOST_TYPICAL = "the most typical token alone"
    NONE_TWICE = "no token of the scope comes again"
    ORDINARY = "no edge: what it says, and every score stays finite"


class Edge(NamedTuple):
    """One number of one transform.

    kind     the transform
    value    the number; of a bias, the bias
    words    what it stands for in a table
    sealed   its effect in an envelope
    drafted  its effect in a draft, whose field of that name it is
    """

    kind: str
    value: float
    words: str
    sealed: Effect
    drafted: Effect


TEMPERATURE_LEAST: Final = 1e-5
"""Below it nothing but rounding is left of any score but the best."""

_LEAST: Final = 5e-324  # the smallest positive double


def _edge(kind: str, value: float, words: str, sealed: Effect, drafted: Effect | None = None) -> Edge:
    return Edge(kind, value, words, sealed, sealed if drafted is None else drafted)


def _around(kind: str, off: float, least: float, most: float) -> tuple[Edge, ...]:
    """The edges of a penalty or bias that does nothing at `off`; where the least is 0, it is itself out of bounds."""
    low = [
        _edge(kind, least * 1.01, f"below {least:g}", Effect.REFUSED),
        _edge(kind, least, f"{least:g}, the least", Effect.ORDINARY),
    ]
    if least == 0:
        low = [_edge(kind, 0, "0", Effect.REFUSED), _edge(kind, _LEAST, "tiny", Effect.ORDINARY)]
    return (
        *low,
        _edge(kind, off, f"{off:g}", Effect.OFF, Effect.LEFT_OUT),
        _edge(kind, most, f"{most:g}, the most", Effect.ORDINARY),
        _edge(kind, most * 1.01, f"above {most:g}", Effect.REFUSED),
    )


def _of_shift(kind: str) -> tuple[Edge, ...]:
    return _around(kind, 0, -limits.SCORE_SHIFT_MAX, limits.SCORE_SHIFT_MAX)


EDGES: Final[tuple[Edge, ...]] = (
    _edge("temperature", 0, "0", Effect.REFUSED, Effect.GREEDY),
    _edge("temperature", _LEAST, f"tiny: below {TEMPERATURE_LEAST:g}", Effect.BEST),
    _edge("temperature", 1, "1", Effect.OFF),
    _edge("temperature", limits.TEMPERATURE_MAX, f"{limits.TEMPERATURE_MAX:g}, the most", Effect.ORDINARY),
    _edge("temperature", limits.TEMPERATURE_MAX * 1.01, f"above {limits.TEMPERATURE_MAX:g}", Effect.REFUSED),
    _edge("top_k", 0, "0", Effect.REFUSED, Effect.LEFT_OUT),
    _edge("top_k", 1, "1", Effect.BEST),
    _edge("top_k", limits.VOCABULARY_SIZE_MAX, "the vocabulary, or more", Effect.OFF),
    _edge("top_k", limits.VOCABULARY_SIZE_MAX + 1, f"above {limits.VOCABULARY_SIZE_MAX}", Effect.REFUSED),
    _edge("top_p", 0, "0", Effect.BEST),
    _edge("top_p", _LEAST, "tiny", Effect.BEST),
    _edge("top_p", 1, "1", Effect.OFF, Effect.LEFT_OUT),
    _edge("top_p", 1.01, "above 1", Effect.REFUSED),
    _edge("min_p", 0, "0", Effect.OFF, Effect.LEFT_OUT),
    _edge("min_p", _LEAST, "tiny", Effect.ORDINARY),
    _edge("min_p", 1, "1", Effect.BEST_AND_EQUALS),
    _edge("min_p", 1.01, "above 1", Effect.REFUSED),
    _edge("typical_p", 0, "0", Effect.MOST_TYPICAL),
    _edge("typical_p", _LEAST, "tiny", Effect.MOST_TYPICAL),
    _edge("typical_p", 1, "1", Effect.OFF, Effect.LEFT_OUT),
    _edge("typical_p", 1.01, "above 1", Effect.REFUSED),
    *_around("repetition_penalty", 1, 0, limits.REPETITION_PENALTY_MAX),
    *_of_shift("frequency_penalty"),
    *_of_shift("presence_penalty"),
    _edge("no_repeat_ngram", 0, "0", Effect.REFUSED, Effect.LEFT_OUT),
    _edge("no_repeat_ngram", 1, "1", Effect.NONE_TWICE),
    _edge("no_repeat_ngram", limits.NGRAM_SIZE_MAX, "longer than the text so far", Effect.OFF),
    _edge("no_repeat_ngram", limits.NGRAM_SIZE_MAX + 1, f"above {limits.NGRAM_SIZE_MAX}", Effect.REFUSED),
    # A bias is one of a list, from which nothing is left out.
    *(each._replace(drafted=each.sealed) for each in _of_shift("logit_bias")),
)


def leaves_one_token(transform: Transform) -> bool:
    """Whether nothing can be drawn after it: one token is left, whatever the scores are."""
    match transform:
        case Temperature(value=value):
            return value < TEMPERATURE_LEAST
        case TopK(k=k):
            return k == 1
        case TopP(p=p) | TypicalP(p=p):
            return p == 0
        case _:
            return False
