"""Cuts: transforms from logits to logits over whole rows, with a few numbers a row.

Axes: B rows, V vocabulary, N candidates. Every function is deterministic, leaves its arguments alone, treats each row
by itself, and makes no host sync. Of equal scores the lower token id ranks higher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...fsm.request.transforms import cuts
from .kinds import Cut, runs
from .ranking import LOW_HALF, arrange, best_of, keys, least, rank, scale
from .scores import Logits, require


def temperature(scores: Logits, value: Tensor) -> Logits:
    """Divide each row by its temperature.

    value  [B, 1] float64, > 0. The division is done in float64 after the row's best score was subtracted, so that
           nothing overflows at any temperature; it waits until the weights are computed.
    """
    require(scores, Logits, "temperature")
    earlier = scores.temperature
    return Logits(scores.values, scores.axis, scores.tokens, value if earlier is None else earlier * value)


def top_k(scores: Logits, value: Tensor, most: int | None = None) -> Logits:
    """Remove all but each row's best tokens.

    value  [B, 1] integral float64, >= 1: how many to keep; most is the largest of them, where the host knows it
    returns ranked logits
    """
    scores = rank(require(scores, Logits, "top_k"), most)
    alive = scores.values > -torch.inf
    return _keep(scores, alive.cumsum(-1) <= value)


def top_p(scores: Logits, value: Tensor) -> Logits:
    """Remove what each row's nucleus does without: a token stays while the better ones have less than `value`.

    value  [B, 1] float64, probability in (0, 1]
    returns ranked logits
    Source: Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020), with the token that crosses kept.
    """
    scores = rank(require(scores, Logits, "top_p"))
    weights = scale(scores.values, best_of(scores.values), scores.temperature).exp_()
    mass = weights.cumsum(-1)
    return _keep(scores, mass - weights < value * mass[:, -1:])


def min_p(scores: Logits, value: Tensor) -> Logits:
    """Remove each token with less than `value` times the probability of its row's best.

    value  [B, 1] float64, in [0, 1]; of 1 the best token and those that score as it does are left
    """
    require(scores, Logits, "min_p")
    weights = scale(scores.values, best_of(scores.values), scores.temperature).exp_()
    return _keep(scores, weights >= value)


def typical_p(scores: Logits, value: Tensor) -> Logits:
    """Remove what each row does without: a token stays while the more typical ones have less than `value`.

    A token is the more typical, the nearer its surprisal is to the row's entropy; of equals, as float32, the lower id.
    value  [B, 1] float64, probability in [0, 1]; the most typical token always stays
    Source: Meister et al., "Locally Typical Sampling" (2023), with the token that crosses kept.
    """
    require(scores, Logits, "typical_p")
    values, tokens = scores.values, scores.tokens
    order = None if tokens is None else arrange(tokens)
    if order is not None:
        values = values.gather(1, order)
    surprisal = scale(values, best_of(values), scores.temperature).neg_()
    weights = surprisal.neg().exp_()
    total = weights.cumsum(-1)[:, -1:]
    # Relative to the best token's surprisal, which cancels; a removed token (weight 0) adds nothing.
    entropy = (weights * surprisal).nan_to_num_(0.0).cumsum(-1)[:, -1:] / total
    columns = least(keys(surprisal.sub_(entropy).abs_().neg_().float()), values.shape[1]).bitwise_and_(LOW_HALF)
    ranked = weights.gather(1, columns)
    mass = ranked.cumsum(-1)
    stays = mass - ranked < value * total
    stays[:, :1] = True
    keep = torch.empty_like(stays).scatter_(1, columns, stays)
    if order is not None:
        keep = torch.empty_like(keep).scatter_(1, order, keep)
    return _keep(scores, keep)


def xtc(scores: Logits, probability: Tensor, threshold: Tensor, unit: Tensor) -> Logits:
    """Where the row's draw is below `probability`, of its tokens of at least `threshold` keep only the least probable.

    probability, threshold  [B, 1] float64, in [0, 1]; threshold is a probability after what was removed before
    unit                    [B, 1] float64, uniform in [0, 1)
    The tokens below the threshold stay. Of equals the one that ranks lowest is the least probable.
    """
    require(scores, Logits, "xtc")
    weights = scale(scores.values, best_of(scores.values), scores.temperature).exp_()
    top = (weights >= threshold * weights.cumsum(-1)[:, -1:]) & (weights > 0)
    # Columns stand in order of token id or of rank, so the last of equals ranks lowest.
    last = torch.where(top, scores.values, torch.inf).flip(-1).argmin(-1, keepdim=True)
    spared = torch.zeros_like(top).scatter_(1, top.shape[1] - 1 - last, True)
    return _keep(scores, ~top | spared | (unit >= probability))


def _keep(scores: Logits, keep: Tensor) -> Logits:
    values = torch.where(keep, scores.values, -torch.inf)
    return Logits(values, scores.axis, scores.tokens, scores.temperature)


@runs(cuts.Temperature)
@dataclass(frozen=True, slots=True)
class Temperature(Cut):
    """Divide the scores by `value`, finite and >= 0."""

    value: float

    def settled(self, size: int) -> Cut | None:
        if self.value < cuts.TEMPERATURE_LEAST:
            return TopK(1)
        return None if self.value == 1 else self

    @classmethod
    def kernel(cls, column: Sequence[Cut]) -> Callable[..., Logits]:
        return temperature


@runs(cuts.TopK)
@dataclass(frozen=True, slots=True)
class TopK(Cut):
    """Keep the `value` best tokens, an integer >= 1; of equal scores the lowest ids."""

    value: int
    removes = ranks = True

    def settled(self, size: int) -> Cut | None:
        return None if self.value >= size else self

    @classmethod
    def most(cls, column: Sequence[TopK]) -> int:
        return max(part.value for part in column)

    @classmethod
    def kernel(cls, column: Sequence[TopK]) -> Callable[..., Logits]:
        return partial(top_k, most=cls.most(column))


@runs(cuts.TopP)
@dataclass(frozen=True, slots=True)
class TopP(Cut):
    """Keep the best tokens up to and with the one that brings their probability to `value`, in [0, 1]."""

    value: float
    removes = ranks = True

    def settled(self, size: int) -> Cut | None:
        if self.value == 0:
            return TopK(1)
        return None if self.value == 1 else self

    @classmethod
    def kernel(cls, column: Sequence[Cut]) -> Callable[..., Logits]:
        return top_p


@runs(cuts.MinP)
@dataclass(frozen=True, slots=True)
class MinP(Cut):
    """Keep the tokens with at least `value` times the probability of the best one, in [0, 1]."""

    value: float
    removes = True

    def settled(self, size: int) -> Cut | None:
        return None if self.value == 0 else self

    @classmethod
    def kernel(cls, column: Sequence[Cut]) -> Callable[..., Logits]:
        return min_p


@runs(cuts.TypicalP)
@dataclass(frozen=True, slots=True)
class TypicalP(Cut):
    """Keep the most typical tokens up to and with the one that brings their probability to `value`, in [0, 1]."""

    value: float
    removes = True
    keeps_best = False

    def settled(self, size: int) -> Cut | None:
        return None if self.value == 1 else self

    @classmethod
    def kernel(cls, column: Sequence[Cut]) -> Callable[..., Logits]:
        return typical_p


@runs(cuts.Xtc)
@dataclass(frozen=True, slots=True)
class Xtc(Cut):
    """Of the tokens that reach `threshold` keep the least, where the draw is below `probability`; both in [0, 1]."""

    probability: float
    threshold: float
    removes = True
    keeps_best = False

    def settled(self, size: int) -> Cut | None:
        return None if self.probability == 0 or self.threshold > 0.5 else self

    @classmethod
    def kernel(cls, column: Sequence[Cut]) -> Callable[..., Logits]:
        return xtc
