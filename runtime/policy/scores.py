"""Score rows with their kind: logits, log-probabilities and probabilities are three types, not three habits.

Axes: B rows, one a decision; V vocabulary; N candidates, the columns that a row still has (V before it is narrowed).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from ...fsm.errors import WrongScores


@dataclass(frozen=True, slots=True)
class VocabularyAxis:
    """What the columns of a score row stand for: `size` token ids, mapped to pieces by the map named `identity`."""

    size: int
    identity: str

    def __str__(self) -> str:
        return f"{self.size} ids of {self.identity}"


@dataclass(frozen=True, slots=True)
class Logits:
    """Unnormalised scores in nats.

    values       [B, N] float32 or float64; -inf where a transform has removed a token
    axis         the vocabulary
    tokens       [B, N] int64, the token id of each column, best first; None: all V columns in order of token id
    temperature  [B, 1] float64, still to be divided by; None: 1. It is kept apart because it changes no ranking,
                 so that only the candidates that are left need the division
    """

    values: Tensor
    axis: VocabularyAxis
    tokens: Tensor | None = None
    temperature: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LogProbabilities:
    """Normalised log-probabilities in nats.

    values  [B, V] float64, <= 0
    """

    values: Tensor
    axis: VocabularyAxis


@dataclass(frozen=True, slots=True)
class Probabilities:
    """Weights of a distribution up to a positive factor a row.

    values  [B, N] float64, >= 0, at least one positive in a row, in order of token id
    tokens  [B, N] int64, the token id of each column, ascending; None: all V columns
    """

    values: Tensor
    axis: VocabularyAxis
    tokens: Tensor | None = None


Scores = Logits | LogProbabilities | Probabilities
Kind = TypeVar("Kind", Logits, LogProbabilities, Probabilities)


def require(scores: Scores, kind: type[Kind], operation: str, axis: VocabularyAxis | None = None) -> Kind:
    """Return `scores`, checked to be of this kind and, where `axis` is given, over this very vocabulary.

    Raises WrongScores otherwise, with what was found.
    """
    if not isinstance(scores, kind):
        raise WrongScores(operation, kind.__name__, type(scores).__name__)
    if axis is not None and scores.axis != axis:
        raise WrongScores(operation, f"{kind.__name__} over {axis}", f"{kind.__name__} over {scores.axis}")
    return scores
