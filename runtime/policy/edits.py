"""Edits: transforms that touch the tokens which they name, or which the row's history names.

All rows of a group go at once: the places of all their tokens make one index. Every function is deterministic and
treats each row by itself. Arithmetic is float64 and is rounded once, to a dtype of at least float32; a result beyond
its range stays at the end of it, and a removed token (-inf) stays removed unless it is forced.

Axes: B rows, V vocabulary, N places. Places are flat indexes into [B, V], each at most once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...fsm.errors import WrongScores
from .history import History
from .kinds import (
    AllowedTokens,
    BannedTokens,
    Edit,
    ForcedTokens,
    FrequencyPenalty,
    Ids,
    LogitBias,
    Mask,
    MaskedTokens,
    MinNewTokens,
    NoRepeatNgram,
    PresencePenalty,
    RepetitionPenalty,
)
from .scores import Logits, require
from .transforms import in_order_of_token

Amounts = NDArray[np.float64]

_NO_IDS: Ids = np.empty(0, dtype=np.int64)
_NO_AMOUNTS: Amounts = np.empty(0, dtype=np.float64)


class Beside(NamedTuple):
    """What a row's edits read beside its scores: its history, and its mask [V] of allowed tokens, where it has them."""

    past: History | None = None
    mask: Mask | None = None


def edit(scores: Logits, columns: Sequence[Sequence[Edit]], beside: Sequence[Beside]) -> Logits:
    """Apply edits of one kind after another; each column has one edit a row.

    scores  values [B, V] of any float dtype, ranked or not
    beside  [B] what the edits of each row read
    returns logits in order of token id, fresh, float32 or float64. No host sync.
    """
    require(scores, Logits, "edit")
    scores = in_order_of_token(scores)
    half = scores.values.dtype not in (torch.float32, torch.float64)
    values = scores.values.to(torch.float32 if half else scores.values.dtype, copy=True)
    for column in columns:
        _apply(values, scores.temperature, column, beside)
    return Logits(values, scores.axis, None, scores.temperature)


def _apply(values: Tensor, temperature: Tensor | None, column: Sequence[Edit], beside: Sequence[Beside]) -> None:
    """Change `values` [B, V], contiguous, in place."""
    touched = [_touched(change, row) for change, row in zip(column, beside, strict=True)]
    counts = [len(ids) for ids, _ in touched]
    if not any(counts) and not isinstance(column[0], AllowedTokens | MaskedTokens):
        return
    rows = np.repeat(np.arange(len(column)), counts)
    places = _tensor(np.concatenate([ids for ids, _ in touched]) + rows * values.shape[1], values)
    flat = values.view(-1)
    match column[0]:
        case NoRepeatNgram() | BannedTokens() | MinNewTokens():
            flat[places] = -torch.inf
        case AllowedTokens() | MaskedTokens():
            kept = flat[places]
            values.fill_(-torch.inf)
            flat[places] = kept
        case ForcedTokens():
            values[_tensor(np.flatnonzero(counts), values)] = -torch.inf
            flat[places] = 0.0
        case _:
            amounts = _tensor(np.concatenate([amounts for _, amounts in touched]), values)
            before = flat[places].double()
            if isinstance(column[0], RepetitionPenalty):
                after = torch.where(before < 0, before * amounts, before / amounts)
            else:
                # The scores are still to be divided by the temperature, and what is added to them is not.
                warmth = temperature[_tensor(rows, values), 0] if temperature is not None else 1.0
                after = before + amounts * warmth
            largest = torch.finfo(values.dtype).max
            after = torch.where(before == -torch.inf, before, after.clamp(-largest, largest))
            flat[places] = after.to(values.dtype)


def _touched(change: Edit, beside: Beside) -> tuple[Ids, Amounts]:
    """The tokens of one row that the edit touches now, and a number for each where the edit needs one."""
    match change:
        case LogitBias():
            return change.ids, change.amounts
        case AllowedTokens() | BannedTokens():
            return change.ids, _NO_AMOUNTS
        case MaskedTokens():
            if beside.mask is None:
                raise WrongScores("decide", "a mask of the row for MaskedTokens", "none")
            return np.flatnonzero(beside.mask), _NO_AMOUNTS
    past = beside.past
    if past is None:
        raise WrongScores("decide", f"a history of the row for {type(change).__name__}", "none")
    match change:
        case RepetitionPenalty():
            ids = past.seen(change.scope).ids
            return ids, np.full(len(ids), float(change.value))
        case FrequencyPenalty():
            ids, counts = past.seen(change.scope)
            return ids, -change.value * counts
        case PresencePenalty():
            ids = past.seen(change.scope).ids
            return ids, np.full(len(ids), -float(change.value))
        case NoRepeatNgram():
            return past.completions(change.value, change.scope), _NO_AMOUNTS
        case MinNewTokens():
            return (change.ids if past.output < change.value else _NO_IDS), _NO_AMOUNTS
        case ForcedTokens():
            return change.by_step.get(past.output, _NO_IDS), _NO_AMOUNTS


def _tensor(array: NDArray[np.int64] | Amounts, like: Tensor) -> Tensor:
    return torch.from_numpy(array).to(like.device)
