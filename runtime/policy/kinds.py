"""The kinds of transforms as the kernels take them, checked when they are made.

Cuts have one number a row. Edits touch the tokens that they name, or that the row's history names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...fsm.errors import SchemaViolation

Scope = Literal["prompt", "output", "both"]
Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Temperature:
    """Divide the scores by `value`, finite and >= 0."""

    value: float

    def __post_init__(self) -> None:
        if not (_is_number(self.value) and 0 <= self.value < math.inf):
            raise SchemaViolation("policy.temperature", f"{self.value!r} is no finite number of at least 0")


@dataclass(frozen=True, slots=True)
class TopK:
    """Keep the `value` best tokens, an integer >= 1; of equal scores the lowest ids."""

    value: int

    def __post_init__(self) -> None:
        if type(self.value) is not int or self.value < 1:
            raise SchemaViolation("policy.top_k", f"{self.value!r} is no integer of at least 1")


@dataclass(frozen=True, slots=True)
class TopP:
    """Keep the best tokens up to and with the one that brings their probability to `value`, in [0, 1]."""

    value: float

    def __post_init__(self) -> None:
        _check_probability("policy.top_p", self.value)


@dataclass(frozen=True, slots=True)
class MinP:
    """Keep the tokens with at least `value` times the probability of the best one, in [0, 1]."""

    value: float

    def __post_init__(self) -> None:
        _check_probability("policy.min_p", self.value)


@dataclass(frozen=True, slots=True)
class TypicalP:
    """Keep the most typical tokens up to and with the one that brings their probability to `value`, in [0, 1]."""

    value: float

    def __post_init__(self) -> None:
        _check_probability("policy.typical_p", self.value)


@dataclass(frozen=True, slots=True)
class RepetitionPenalty:
    """Divide positive and multiply negative scores of the scope's tokens by `value`, finite and > 0."""

    value: float
    scope: Scope

    def __post_init__(self) -> None:
        if not (_is_number(self.value) and 0 < self.value < math.inf):
            raise SchemaViolation("policy.repetition_penalty", f"{self.value!r} is no finite number above 0")


@dataclass(frozen=True, slots=True)
class FrequencyPenalty:
    """Subtract `value`, finite, once for each time that the scope has a token."""

    value: float
    scope: Scope

    def __post_init__(self) -> None:
        _check_finite("policy.frequency_penalty", self.value)


@dataclass(frozen=True, slots=True)
class PresencePenalty:
    """Subtract `value`, finite, once from each token that the scope has."""

    value: float
    scope: Scope

    def __post_init__(self) -> None:
        _check_finite("policy.presence_penalty", self.value)


@dataclass(frozen=True, slots=True)
class NoRepeatNgram:
    """Remove the tokens that would complete a sequence of `value` tokens, >= 1, that the scope has already."""

    value: int
    scope: Scope

    def __post_init__(self) -> None:
        if type(self.value) is not int or self.value < 1:
            raise SchemaViolation("policy.no_repeat_ngram", f"{self.value!r} is no integer of at least 1")


@dataclass(frozen=True, slots=True)
class LogitBias:
    """Add to the scores: `entries` are (token id, bias in nats, finite), each id once."""

    entries: tuple[tuple[int, float], ...]
    ids: Ids = field(init=False, repr=False, compare=False)
    amounts: NDArray[np.float64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for _, bias in self.entries:
            _check_finite("policy.logit_bias", bias)
        object.__setattr__(self, "ids", _ids(token for token, _ in self.entries))
        object.__setattr__(self, "amounts", np.array([bias for _, bias in self.entries], dtype=np.float64))


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """Remove every token but these ids, each given once."""

    tokens: tuple[int, ...]
    ids: Ids = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", _ids(self.tokens))


@dataclass(frozen=True, slots=True)
class BannedTokens:
    """Remove these ids, each given once."""

    tokens: tuple[int, ...]
    ids: Ids = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", _ids(self.tokens))


@dataclass(frozen=True, slots=True)
class MaskedTokens:
    """Remove every token that the row's mask of this step does not allow; `decide` is given the masks."""


@dataclass(frozen=True, slots=True)
class MinNewTokens:
    """Remove these ids, each given once, until `value` tokens are committed."""

    value: int
    tokens: tuple[int, ...]
    ids: Ids = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", _ids(self.tokens))


@dataclass(frozen=True, slots=True)
class ForcedTokens:
    """Remove every token but one at some steps: `entries` are (step, token id), each step once."""

    entries: tuple[tuple[int, int], ...]
    by_step: dict[int, Ids] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_step", {step: _ids([token]) for step, token in self.entries})


Cut = Temperature | TopK | TopP | MinP | TypicalP
Edit = (
    RepetitionPenalty
    | FrequencyPenalty
    | PresencePenalty
    | NoRepeatNgram
    | LogitBias
    | AllowedTokens
    | BannedTokens
    | MaskedTokens
    | MinNewTokens
    | ForcedTokens
)
Transform = Cut | Edit

LOOK_BACK = (RepetitionPenalty, FrequencyPenalty, PresencePenalty, NoRepeatNgram, MinNewTokens, ForcedTokens)
"""Kinds whose effect depends on the tokens before."""

REMOVE = (
    *(TopK, TopP, MinP, TypicalP, NoRepeatNgram),
    *(AllowedTokens, BannedTokens, MaskedTokens, MinNewTokens, ForcedTokens),
)
"""Kinds that can take a token out."""


def _ids(tokens: Any) -> Ids:
    return np.array(list(tokens), dtype=np.int64)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_probability(path: str, value: object) -> None:
    if not (_is_number(value) and 0 <= value <= 1):  # type: ignore[operator]
        raise SchemaViolation(path, f"{value!r} is no number from 0 to 1")


def _check_finite(path: str, value: object) -> None:
    if not (_is_number(value) and math.isfinite(value)):  # type: ignore[arg-type]
        raise SchemaViolation(path, f"{value!r} is no finite number")
