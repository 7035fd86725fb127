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

from .ranking import arrange, in_order_of_token, scale
from .scores import Logits, Probabilities, require

Numbers = NDArray[Any]

# A single row longer than this could be summed in parts that its batch decides, and so in another order.
_SUM_WHOLE_MAX = 16384
_SUM_BLOCK = 256


class Choice(NamedTuple):
    """One token a row.

    column    [B, 1] int64, the chosen column of the distribution
    token     [B, 1] int64, its token id
    total     [B, 1] float64, the sum of all weights
    interval  [B, 2] float64, where the token was drawn its interval of the cumulative distribution: start <= unit <
              end; where the column is 0 the interval starts at 0, whatever the first number says
    """

    column: Tensor
    token: Tensor
    total: Tensor
    interval: Tensor


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

    def best(self) -> Choice:
        """The choice of the best token."""
        whole = torch.tensor([[0.0, 1.0]], dtype=torch.float64, device=self.total.device)
        return Choice(self.token, self.token, self.total, whole.expand(len(self.token), 2))


def summarise(values: Tensor) -> Summary:
    """Take the facts of raw rows [B, V] of any float dtype, in nats. A row that is not finite spoils only its own."""
    shifted = values.to(torch.float64, copy=True)
    if shifted.device.type == "cpu":
        facts = torch.tensor(shift_and_summarise(shifted.numpy()), dtype=torch.float64).view(-1, 4)
        lowest, second, total, token = (facts[:, at : at + 1] for at in range(4))
        return Summary(shifted, lowest, second, total, token.long())
    best, token = shifted.max(-1, keepdim=True)
    shifted -= best
    lowest = shifted.amin(-1, keepdim=True)
    second = shifted.scatter_(-1, token, -torch.inf).amax(-1, keepdim=True)
    shifted.scatter_(-1, token, 0.0)
    return Summary(shifted, lowest, second, _row_sum(shifted.exp()), token)


def shift_and_summarise(rows: Numbers) -> list[tuple[float, float, float, int]]:
    """The facts of float64 rows [B, V] in the memory of a CPU: lowest, second, total and token of each.

    Subtracts its best score from each row, in place. `summarise` on a CPU is this and no more, so a row has the same
    facts whether or not the decision needs tensors. numpy starts a small operation several times faster than torch.
    """
    with np.errstate(invalid="ignore"):
        if len(rows) == 1:
            return [_shift_and_summarise(rows[0])]
        count = _indexes(len(rows))
        token = rows.argmax(-1)
        rows -= rows[count, token][:, None]
        lowest = np.minimum.reduce(rows, -1)
        rows[count, token] = -np.inf
        second = np.maximum.reduce(rows, -1)
        rows[count, token] = 0.0
        total = np.add.reduce(np.exp(rows), -1)
    return list(zip(lowest.tolist(), second.tolist(), total.tolist(), token.tolist(), strict=True))


def _shift_and_summarise(row: Numbers) -> tuple[float, float, float, int]:
    """The same for one row [V], bit for bit, without the indexing of many."""
    token = int(row.argmax())
    row -= row[token]
    lowest = float(np.minimum.reduce(row))
    row[token] = -np.inf
    second = float(np.maximum.reduce(row))
    row[token] = 0.0
    return lowest, second, float(np.add.reduce(np.exp(row))), token


@lru_cache(maxsize=64)
def _indexes(count: int) -> Numbers:
    """[count] int64: 0, 1, 2, ... Shared: not to be written to."""
    return np.arange(count)


def finished(scores: Logits) -> Logits:
    """Finish the scores: in float64, divided by the temperature, relative to the best, in order of token id."""
    require(scores, Logits, "finished")
    values, tokens = scores.values, scores.tokens
    if tokens is not None and tokens.shape[1] == scores.axis.size:
        values, tokens = in_order_of_token(scores).values, None
    elif tokens is not None:
        order = arrange(tokens)
        values, tokens = values.gather(1, order), tokens.gather(1, order)
    return Logits(scale(values, values.amax(-1, keepdim=True), scores.temperature), scores.axis, tokens)


def probabilities(settled: Logits) -> Probabilities:
    """Weigh every candidate of settled scores: exp(score), so 1 for the best and 0 for a removed one."""
    require(settled, Logits, "probabilities")
    return Probabilities(settled.values.exp(), settled.axis, settled.tokens)


def draw(distribution: Probabilities, unit: Tensor) -> Choice:
    """Choose the first token, in order of token id, at which the cumulative distribution exceeds the draw, in float64.

    unit  [B, 1] float64, uniform in [0, 1)
    The cumulative distribution is divided by its own last value, so it ends at exactly 1; the choice always has a
    positive weight.
    """
    require(distribution, Probabilities, "draw")
    sums = distribution.values.cumsum(-1)
    total = sums[:, -1:].clone()
    sums /= total
    return _choice(distribution, torch.searchsorted(sums, unit, right=True), total, sums)


def best(settled: Logits, distribution: Probabilities) -> Choice:
    """Choose the best of settled scores, of equals the lowest id, out of the distribution that they weigh.

    Weights cannot decide: the two best scores may differ by less than their weights can tell.
    """
    require(settled, Logits, "best")
    require(distribution, Probabilities, "best")
    sums = distribution.values.cumsum(-1)
    return _choice(distribution, settled.values.argmax(-1, keepdim=True), sums[:, -1:], sums)


def values_of(scores: Logits, tokens: Tensor) -> Tensor:
    """The scores [B, N] of tokens [B, N] int64 after `finished`; -inf where a token is no candidate."""
    if scores.tokens is None:
        return scores.values.gather(1, tokens)
    columns = torch.searchsorted(scores.tokens, tokens.contiguous()).clamp_(max=scores.tokens.shape[1] - 1)
    found = scores.tokens.gather(1, columns) == tokens
    return torch.where(found, scores.values.gather(1, columns), -torch.inf)


def _choice(distribution: Probabilities, column: Tensor, total: Tensor, sums: Tensor) -> Choice:
    # Only a row without a finite best gets past its last column; clamping keeps its reads inside.
    bounds = torch.cat((column - 1, column), 1).clamp_(0, sums.shape[1] - 1)
    column = bounds[:, 1:]
    token = column if distribution.tokens is None else distribution.tokens.gather(1, column)
    return Choice(column, token, total, sums.gather(1, bounds))


def _row_sum(values: Tensor) -> Tensor:
    """[B, V] -> [B, 1], in an order that V alone decides."""
    count, size = values.shape
    if size <= _SUM_WHOLE_MAX:
        return values.sum(-1, keepdim=True)
    whole = size - size % _SUM_BLOCK
    blocks = values[:, :whole].reshape(count, -1, _SUM_BLOCK).sum(-1)
    return blocks.sum(-1, keepdim=True) + values[:, whole:].sum(-1, keepdim=True)
