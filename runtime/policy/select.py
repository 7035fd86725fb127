"""From score rows to choices: the summary of a raw row, the distribution, and the draw.

Axes: B rows, V vocabulary, N candidates. Every function is deterministic, leaves its arguments alone, and makes no
host sync. No row's result depends on another row, to the last bit: sums run in one order whatever the batch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .scores import Logits, Probabilities, require
from .transforms import arrange, scale

Numbers = NDArray[Any]

# A single row longer than this could be summed in parts that its batch decides, and so in another order.
_SUM_WHOLE_MAX = 16384
_SUM_BLOCK = 256


class Summary(NamedTuple):
    """Facts of raw rows. float64; scores are relative to the row's best score, so at most 0.

    shifted  [B, V] the scores
    lowest   [B, 1] the smallest; finite where and only where the whole row is
    second   [B, 1] the second best, 0 in a tie; -inf over a vocabulary of one
    total    [B, 1] sum of exp(shifted)
    token    [B, 1] int64, the lowest id that has the best score
    """

    shifted: Tensor
    lowest: Tensor
    second: Tensor
    total: Tensor
    token: Tensor


class Draw(NamedTuple):
    """The outcome of one draw a row.

    column    [B, 1] int64, the chosen column of the distribution
    token     [B, 1] int64, its token id
    total     [B, 1] float64, the sum of all weights
    interval  [B, 2] float64, the column's interval of the cumulative distribution: start <= unit < end; where the
              column is 0 the interval starts at 0, whatever the first number says
    """

    column: Tensor
    token: Tensor
    total: Tensor
    interval: Tensor


def summarise(values: Tensor) -> Summary:
    """Take the facts of raw rows [B, V] of any float dtype, in nats. A row that is not finite spoils only its own."""
    shifted = values.to(torch.float64, copy=True)
    if shifted.device.type == "cpu":
        facts = shift_and_summarise(shifted.numpy())
        return Summary(shifted, *(torch.from_numpy(fact).unsqueeze_(-1) for fact in facts))
    best, token = shifted.max(-1, keepdim=True)
    shifted -= best
    lowest = shifted.amin(-1, keepdim=True)
    second = shifted.scatter_(-1, token, -torch.inf).amax(-1, keepdim=True)
    shifted.scatter_(-1, token, 0.0)
    return Summary(shifted, lowest, second, _row_sum(shifted.exp()), token)


def shift_and_summarise(rows: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """The facts of float64 rows [B, V] in the memory of a CPU: lowest, second, total and token, [B] each.

    Subtracts its best score from each row, in place. `summarise` on a CPU is this and no more, so a row has the same
    facts whether or not the decision needs tensors. numpy starts a small operation several times faster than torch.
    """
    count = _indexes(len(rows))
    with np.errstate(invalid="ignore"):
        token = rows.argmax(-1)
        rows -= rows[count, token][:, None]
        lowest = np.minimum.reduce(rows, -1)
        rows[count, token] = -np.inf
        second = np.maximum.reduce(rows, -1)
        rows[count, token] = 0.0
        return lowest, second, np.add.reduce(np.exp(rows), -1), token


@lru_cache(maxsize=64)
def _indexes(count: int) -> Numbers:
    """[count] int64: 0, 1, 2, ... Shared: not to be written to."""
    return np.arange(count)


def settle(scores: Logits) -> Logits:
    """Finish the scores: in float64, divided by the temperature, relative to the best, in order of token id."""
    require(scores, Logits, "settle")
    values, tokens = scores.values, scores.tokens
    if tokens is None:
        best = values.amax(-1, keepdim=True)
    else:
        best = values[:, :1]
        if tokens.shape[1] == scores.axis.size:
            values, tokens = torch.empty_like(values).scatter_(1, tokens, values), None
        else:
            order = arrange(tokens)
            values, tokens = values.gather(1, order), tokens.gather(1, order)
    return Logits(scale(values, best, scores.temperature), scores.axis, tokens)


def probabilities(settled: Logits) -> Probabilities:
    """Weigh every candidate of settled scores: exp(score), so 1 for the best and 0 for a removed one."""
    require(settled, Logits, "probabilities")
    return Probabilities(settled.values.exp(), settled.axis, settled.tokens)


def draw(distribution: Probabilities, unit: Tensor) -> Draw:
    """Choose by inverse cumulative distribution, in order of token id, in float64.

    unit  [B, 1] float64, uniform in [0, 1)
    The cumulative distribution is divided by its own last value, so it ends at exactly 1; the choice is the first
    token at which it exceeds `unit`, which always has a positive weight.
    """
    require(distribution, Probabilities, "draw")
    sums = distribution.values.cumsum(-1)
    total = sums[:, -1:].clone()
    sums /= total
    column = torch.searchsorted(sums, unit, right=True)
    # Only a row that is not finite gets past its last column; clamping keeps its reads inside.
    bounds = torch.cat((column - 1, column), 1).clamp_(0, sums.shape[1] - 1)
    column = bounds[:, 1:]
    token = column if distribution.tokens is None else distribution.tokens.gather(1, column)
    return Draw(column, token, total, sums.gather(1, bounds))


def _row_sum(values: Tensor) -> Tensor:
    """[B, V] -> [B, 1], in an order that V alone decides."""
    count, size = values.shape
    if size <= _SUM_WHOLE_MAX:
        return values.sum(-1, keepdim=True)
    whole = size - size % _SUM_BLOCK
    blocks = values[:, :whole].reshape(count, -1, _SUM_BLOCK).sum(-1)
    return blocks.sum(-1, keepdim=True) + values[:, whole:].sum(-1, keepdim=True)
