"""The order of a row's candidates, and what is made of it: what cuts and choices are built of.

Axes: B rows, V vocabulary, N candidates. Every function is deterministic, leaves its arguments alone, treats each row
by itself, and makes no host sync. Of equal scores the lower token id ranks higher.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from .scores import Logits

LOW_HALF = 0xFFFFFFFF


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
        tokens = least(keys(values.float()), width).bitwise_and_(LOW_HALF)
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


def best_of(values: Tensor) -> Tensor:
    return values.amax(-1, keepdim=True)


def keys(values: Tensor) -> Tensor:
    """Rank and token id in one int64: of float32 scores [B, V] the best one has the least key, and no two are equal."""
    # Subtracting from zero turns both zeros into one, and IEEE 754 bits order as sign and magnitude.
    bits = (0.0 - values).view(torch.int32)
    bits ^= (bits >> 31).bitwise_and_(0x7FFFFFFF)
    return bits.to(torch.int64).bitwise_left_shift_(32).bitwise_or_(_count(values.shape[1], values.device))


def least(keys: Tensor, width: int) -> Tensor:
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
