"""Rows whose tokens a grammar has narrowed: what is removed before the transforms, and what stays the raw row's."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...fsm.errors import NonFiniteScores
from ...fsm.receipt import Selection
from .scores import Logits
from .select import summarise

Mask = NDArray[np.bool_]
Masks = Sequence[Mask | None]


def narrowed(scores: Logits, masks: Masks) -> Logits:
    """Remove from each row the tokens that its mask does not allow: -inf, before any transform.

    Axes: B rows, V vocabulary.
    scores  values [B, V], left alone
    masks   B masks, [V] bool with at least one True; None: nothing is removed
    """
    values = scores.values.clone()
    for row, mask in enumerate(masks):
        if mask is not None:
            values[row].masked_fill_(torch.from_numpy(~mask).to(values.device), -torch.inf)
    return Logits(values, scores.axis)


def with_raw(selection: Selection, row: Tensor, mask: Mask) -> Selection | NonFiniteScores:
    """The selection of a narrowed row with the raw facts of the whole one.

    row  [V] scores as the model gave them; NonFiniteScores where one of them is no finite number
    Log-probabilities before the transforms are those of the whole row; the margin and the alternatives are of the
    tokens that the mask allows, since no other could have been chosen.
    """
    summary = summarise(row.unsqueeze(0))
    shifted, total = summary.shifted[0], float(summary.total)
    if not isfinite(float(summary.lowest)):
        return NonFiniteScores()
    log_total = log(total)
    return selection._replace(
        support=min(selection.support, int(mask.sum())),
        logprob_raw=float(shifted[selection.token]) - log_total,
        alternatives=tuple(
            best._replace(logprob_raw=float(shifted[best.token]) - log_total)
            for best in selection.alternatives
            if mask[best.token]
        ),
    )
