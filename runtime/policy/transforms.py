"""Transforms from logits to logits, over all rows at once, with one parameter a row.

Axes: B rows, V vocabulary, N candidates. Every function is deterministic, leaves its arguments alone, treats each row
by itself, and makes no host sync. Of equal scores the lower token id ranks higher.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from .scores import Logits, require

_LOW_HALF = 0xFFFFFFFF


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
    weights = scale(scores.values, _best(scores.values), scores.temperature).exp_()
    mass = weights.cumsum(-1)
    return _keep(scores, mass - weights < value * mass[:, -1:])


def min_p(scores: Logits, value: Tensor) -> Logits:
    """Remove each token with less than `value` times the probability of its row's best.

    value  [B, 1] float64, in [0, 1]; of 1 the best token and those that score as it does are left
    """
    require(scores, Logits, "min_p")
    weights = scale(scores.values, _best(scores.values), scores.temperature).exp_()
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
    surprisal = scale(values, _best(values), scores.temperature).neg_()
    weights = surprisal.neg().exp_()
    total = weights.cumsum(-1)[:, -1:]
    # Relative to the best token's surprisal, which cancels; a removed token (weight 0) adds nothing.
    entropy = (weights * surprisal).nan_to_num_(0.0).cumsum(-1)[:, -1:] / total
    columns = _least(_keys(surprisal.sub_(entropy).abs_().neg_().float()), values.shape[1]).bitwise_and_(_LOW_HALF)
    ranked = weights.gather(1, columns)
    mass = ranked.cumsum(-1)
    stays = mass - ranked < value * total
    stays[:, :1] = True
    keep = torch.empty_like(stays).scatter_(1, columns, stays)
    if order is not None:
        keep = torch.empty_like(keep).scatter_(1, order, keep)
    return _keep(scores, keep)


def in_order_of_token(scores: Logits) -> Logits:
    """All V columns again, in order of token id; what was left out is removed. As given where it is so already."""
    if scores.tokens is None:
        return scores
    values = scores.values.new_full((len(scores.values), scores.axis.size), -torch.inf)
    return Logits(values.scatter_(1, scores.tokens, scores.values), scores.axis, None, scores.temperature)


def rank(scores: Logits, width: int | None = None) -> Logits:
    """Order each row's candidates by rank, best first, and keep the first `width` of them (None: all).

    returns logits with `tokens`; as given where they are ranked already
    """
    if scores.tokens is not None:
        return scores
    values = scores.values
    size = values.shape[1]
    width = size if width is None else min(width, size)
    if values.dtype is torch.float64:
        tokens = values.sort(descending=True, stable=True).indices[:, :width]
    else:
        tokens = _least(_keys(values.float()), width).bitwise_and_(_LOW_HALF)
    return Logits(values.gather(1, tokens), scores.axis, tokens, scores.temperature)


def arrange(keys: Tensor) -> Tensor:
    """[B, N] int64: the columns that put each row of unique integers in ascending order."""
    if keys.device.type != "cpu":
        return keys.argsort()
    return torch.from_numpy(keys.numpy().argsort())


@lru_cache(maxsize=64)
def _count(size: int, device: torch.device) -> Tensor:
    """[size] int64: 0, 1, 2, ... Shared: not to be written to."""
    return torch.arange(size, device=device)


def scale(values: Tensor, best: Tensor, divisor: Tensor | None) -> Tensor:
    """(values - best) / divisor in float64, fresh: at most 0, and -inf for a removed token.

    values [B, N] any float; best [B, 1] each row's largest value; divisor [B, 1] float64 or None for 1
    """
    scaled = values.double() - best
    return scaled if divisor is None else scaled.div_(divisor)


def _best(values: Tensor) -> Tensor:
    return values.amax(-1, keepdim=True)


def _keep(scores: Logits, keep: Tensor) -> Logits:
    values = torch.where(keep, scores.values, -torch.inf)
    return Logits(values, scores.axis, scores.tokens, scores.temperature)


def _keys(values: Tensor) -> Tensor:
    """Rank and token id in one int64: of float32 scores [B, V] the best one has the least key, and no two are equal."""
    # Subtracting from zero turns both zeros into one, and IEEE 754 bits order as sign and magnitude.
    bits = (0.0 - values).view(torch.int32)
    bits ^= (bits >> 31).bitwise_and_(0x7FFFFFFF)
    return bits.to(torch.int64).bitwise_left_shift_(32).bitwise_or_(_count(values.shape[1], values.device))


def _least(keys: Tensor, width: int) -> Tensor:
    """The `width` least of each row of unique int64 keys, ascending. Overwrites `keys` [B, N]."""
    whole = width == keys.shape[1]
    if keys.device.type != "cpu":
        return keys.sort().values if whole else keys.topk(width, largest=False).values
    # On a CPU numpy sorts integers about ten times faster; unique keys have one order whoever sorts them.
    array = keys.numpy()
    if not whole:
        array.partition(width - 1)
        array = np.ascontiguousarray(array[:, :width])
    array.sort()
    return torch.from_numpy(array)
