"""One decision a row for a whole batch: scores, plans and draws in, selections out, one transfer to the host.

Rows whose plans have one shape are worked on together. A row's selection is the same, to the last bit, alone and in
any batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, log

import numpy as np
import torch
from torch import Tensor

from ...fsm.errors import NonFiniteScores, NoTokenLeft, WrongDraw, WrongScores
from ...fsm.evidence.receipt import Alternative, Selection
from .edits import edit
from .group import CutStep, EditStep, Group, group_rows
from .history import History
from .kinds import Beside, Mask
from .plan import Plan
from .ranking import rank, scale
from .scores import Logits, VocabularyAxis, require
from .select import best, draw, finished, probabilities, shift_and_summarise, summarise, values_of

Rows = Sequence[Sequence[float]]
Decision = Selection | NonFiniteScores | NoTokenLeft


def decide(
    scores: Logits,
    plans: Sequence[Plan],
    draws: Sequence[float | None],
    axis: VocabularyAxis | None = None,
    pasts: Sequence[History | None] | None = None,
    masks: Sequence[Mask | None] | None = None,
    noises: Sequence[Mapping[int, float] | None] | None = None,
) -> list[Decision]:
    """Decide every row of a batch.

    Axes: B rows, V vocabulary.
    scores  values [B, V] float16, bfloat16, float32 or float64, as the model gave them; half precision is widened
    plans   B plans
    draws   B unit draws in [0, 1), float64; None where the plan is greedy
    axis    the vocabulary that the requests are about; None: the scores' own
    pasts   B histories, as far as the rows are; None where the plan does not look back, or for all rows at once
    masks   B masks [V] bool, the tokens that each row may become now; None where the plan has no MaskedTokens
    noises  B mappings from the domains of each plan to unit draws in [0, 1); None where it has none
    returns B results in order. Without effect on the other rows, NonFiniteScores for a row with a NaN or an infinity
            anywhere (a model masks nothing: masks are transforms), and NoTokenLeft where every token was removed

    Deterministic. One host sync, at the end. Raises WrongScores and WrongDraw.
    """
    require(scores, Logits, "decide", axis)
    values, size = scores.values, scores.axis.size
    pasts = [None] * len(plans) if pasts is None else pasts
    masks = [None] * len(plans) if masks is None else masks
    noises = [None] * len(plans) if noises is None else noises
    one_each = len(draws) == len(pasts) == len(masks) == len(noises) == len(plans)
    if values.shape != (len(plans), size) or scores.tokens is not None or not one_each:
        ranked = "ranked " if scores.tokens is not None else ""
        found = f"{ranked}scores {list(values.shape)}, {len(draws)} draws, {len(pasts)} pasts and {len(masks)} masks"
        raise WrongScores(
            "decide", f"{len(plans)} rows of {size} scores, with a draw, past and mask or None each", found
        )
    if wrong := [mask.shape for mask in masks if mask is not None and mask.shape != (size,)]:
        raise WrongScores("decide", f"masks of {size} tokens", f"one of {list(wrong[0])}")

    groups = group_rows(tuple(plans), size, values.device)
    results: list[Decision] = [NonFiniteScores()] * len(plans)
    on_cpu = values.device.type == "cpu"
    plain = [on_cpu and group.plain for group in groups]
    beside = [] if all(plain) else [Beside(*each) for each in zip(pasts, masks, noises, strict=True)]
    parts = [
        _plain_facts(values, group, draws) if easy else row_facts(scores, group, draws, beside)
        for group, easy in zip(groups, plain, strict=True)
    ]
    for group, facts in zip(groups, _fetch(parts), strict=True):
        for row, numbers in zip(group.rows, facts, strict=True):
            if isfinite(numbers[0]):
                results[row] = _decision(group, numbers, draws[row])
    return results


@torch.inference_mode()
def row_facts(scores: Logits, group: Group, draws: Sequence[float | None], beside: Sequence[Beside]) -> Tensor:
    """Take what a selection needs of the group's rows: [rows, facts] float64, still on the device.

    Facts of every row: lowest, second and total of the raw scores; then what `_decision` reads; then the tokens, raw
    scores and processed scores of the alternatives. Scores are relative to the row's best. No host sync.
    """
    unit = _units(group, draws, scores.values.device)
    values = scores.values[group.where]
    summary = summarise(values)
    processed = given = Logits(values, scores.axis)
    ranked = rank(given, group.width) if group.width else given
    if group.start == "ranked":
        processed = ranked
    elif group.start == "relative":
        processed = Logits(summary.shifted, scores.axis)
    for step in group.steps:
        match step:
            case EditStep():
                processed = edit(processed, step.columns, [beside[row] for row in group.rows])
            case CutStep(domain=0):
                processed = step.kernel(processed, *step.numbers)
            case CutStep():
                noise = _noise(step.domain, [beside[row] for row in group.rows], values.device)
                processed = step.kernel(processed, *step.numbers, noise)

    settled = finished(processed) if group.steps else processed
    if unit is not None:
        chosen = draw(probabilities(settled), unit)
    elif group.steps:
        chosen = best(settled, probabilities(settled))
    else:
        chosen = summary.best()
    numbers = [chosen.column, chosen.token]
    if group.narrowed:
        numbers.append((processed.values > -torch.inf).sum(-1, keepdim=True))
    facts = [
        *(summary.lowest, summary.second, summary.total, chosen.total, chosen.interval),
        *(summary.shifted.gather(1, chosen.token), settled.values.gather(1, chosen.column)),
        torch.cat(numbers, 1).double(),
    ]
    if group.logprobs_top and ranked.tokens is not None:
        tokens, first = ranked.tokens[:, : group.logprobs_top], ranked.values[:, : group.logprobs_top]
        facts += [tokens.double(), scale(first, first[:, :1], None), values_of(settled, tokens)]
    return torch.cat(facts, 1)


def _plain_facts(values: Tensor, group: Group, draws: Sequence[float | None]) -> Rows:
    """The same of a plain group in the memory of a CPU, where no tensor is needed."""
    _units(group, draws, values.device)
    if len(group.rows) < len(values):
        values = values[group.where]
    if values.dtype is torch.bfloat16:  # which numpy does not have
        values = values.float()
    facts = shift_and_summarise(values.numpy(force=True).astype(np.float64))
    # Of one distribution, raw and processed, the best token is chosen, with a score of 0 relative to itself.
    return [(low, second, total, total, 0.0, 1.0, 0.0, 0.0, token, token) for low, second, total, token in facts]


def _units(group: Group, draws: Sequence[float | None], device: torch.device) -> Tensor | None:
    """The group's unit draws [rows, 1], or None for a greedy one; WrongDraw where they are not what it needs."""
    sampled = group.family == "sample"
    units = []
    for row in group.rows:
        unit = draws[row]
        if (unit is None) == sampled or (unit is not None and not 0.0 <= unit < 1.0):
            raise WrongDraw(row, group.family, str(unit))
        units.append(unit)
    return torch.tensor(units, dtype=torch.float64, device=device).unsqueeze_(-1) if sampled else None


def _noise(domain: int, beside: Sequence[Beside], device: torch.device) -> Tensor:
    """The draws of one domain [rows, 1]; WrongScores where a row has none."""
    units = [None if row.noise is None else row.noise.get(domain) for row in beside]
    if None in units:
        raise WrongScores("decide", f"a draw of domain {domain} for each row that takes one", "none")
    return torch.tensor(units, dtype=torch.float64, device=device).unsqueeze_(-1)


def _fetch(parts: list[Tensor | Rows]) -> list[Rows]:
    """For each part its rows of numbers; those that are still tensors come to the host in one transfer."""
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if len(tensors) <= 1:
        return [part.tolist() if isinstance(part, Tensor) else part for part in parts]
    flat = torch.cat([part.reshape(-1) for part in tensors]).cpu()
    rows: list[Rows] = []
    at = 0
    for part in parts:
        if isinstance(part, Tensor):
            rows.append(flat[at : at + part.numel()].view(part.shape).tolist())
            at += part.numel()
        else:
            rows.append(part)
    return rows


def _decision(group: Group, numbers: Sequence[float], unit: float | None) -> Decision:
    _, second, total_raw, total, start, end, raw, processed, column, token, *more = numbers
    support = int(more.pop(0)) if group.narrowed else group.size
    if not support:
        return NoTokenLeft()
    log_raw = log(total_raw)
    # Without transforms the two are one distribution, summed in two orders.
    log_total = log(total) if group.steps else log_raw
    alternatives = _alternatives(more, log_raw, log_total) if more else ()
    logprobs = raw - log_raw, processed - log_total
    if unit is None:
        return Selection(int(token), support, *logprobs, 0.0 - second, alternatives=alternatives)
    start = start if column else 0.0
    return Selection(int(token), support, *logprobs, 0.0 - second, unit, start, end, alternatives)


def _alternatives(numbers: list[float], log_raw: float, log_total: float) -> tuple[Alternative, ...]:
    count = len(numbers) // 3
    columns = numbers[:count], numbers[count : 2 * count], numbers[2 * count :]
    return tuple(
        Alternative(int(token), raw - log_raw, processed - log_total)
        for token, raw, processed in zip(*columns, strict=True)
    )
