"""One decision a row for a whole batch: scores, plans and draws in, selections out, one transfer to the host.

Rows whose plans have one shape are worked on together. A row's selection is the same, to the last bit, alone and in
any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite, log

import numpy as np
import torch
from torch import Tensor

from ...fsm.errors import NonFiniteScores, WrongDraw, WrongScores
from ...fsm.receipt import Alternative, Selection
from .group import Group, group_rows
from .plan import Plan, Temperature, TopK, TopP, Transform
from .scores import Logits, VocabularyAxis, require
from .select import draw, probabilities, settle, shift_and_summarise, summarise
from .transforms import rank, scale, temperature, top_k, top_p

Rows = Sequence[Sequence[float]]

_APPLY: dict[type[Transform], Callable[[Logits, Tensor], Logits]] = {
    Temperature: temperature,
    TopK: top_k,
    TopP: top_p,
}


@torch.inference_mode()
def decide(
    scores: Logits,
    plans: Sequence[Plan],
    draws: Sequence[float | None],
    axis: VocabularyAxis | None = None,
) -> list[Selection | NonFiniteScores]:
    """Decide every row of a batch.

    Axes: B rows, V vocabulary.
    scores  values [B, V] float16, bfloat16, float32 or float64, as the model gave them; half precision is widened
    plans   B plans
    draws   B unit draws in [0, 1), float64; None where the plan is greedy
    axis    the vocabulary that the requests are about; None: the scores' own
    returns B results in order; NonFiniteScores for a row with a NaN or an infinity anywhere (a model masks nothing:
            masks are transforms), without effect on the other rows

    Deterministic. One host sync, at the end. Raises WrongScores and WrongDraw.
    """
    require(scores, Logits, "decide", axis)
    values, size = scores.values, scores.axis.size
    if values.shape != (len(plans), size) or scores.tokens is not None or len(draws) != len(plans):
        ranked = "ranked " if scores.tokens is not None else ""
        found = f"{ranked}scores {list(values.shape)} and {len(draws)} draws"
        raise WrongScores("decide", f"{len(plans)} rows of {size} scores, with a draw or None each", found)

    groups = group_rows(tuple(plans), size, values.device)
    results: list[Selection | NonFiniteScores] = [NonFiniteScores()] * len(plans)
    facts_of_groups = _fetch([row_facts(scores, group, draws) for group in groups])
    for group, facts in zip(groups, facts_of_groups, strict=True):
        for row, numbers in zip(group.rows, facts, strict=True):
            unit = draws[row]
            if isfinite(numbers[0]):
                results[row] = _greedy(group, numbers) if unit is None else _sampled(group, numbers, unit)
    return results


def row_facts(scores: Logits, group: Group, draws: Sequence[float | None]) -> Tensor | Rows:
    """Take what a selection needs of the group's rows: [rows, facts] float64, still on the device.

    Facts of every row: lowest, second and total of the raw scores; then what `_greedy` or `_sampled` reads; then the
    tokens, raw scores and processed scores of the alternatives. Scores are relative to the row's best. No host sync.
    A plain group in the memory of a CPU needs no tensor: its facts are there at once.
    """
    unit = _units(group, draws, scores.values.device)
    values = scores.values[group.where]
    if group.plain and values.device.type == "cpu":
        return _plain_facts(values)
    summary = summarise(values)
    raw = Logits(summary.shifted, scores.axis)
    leading = rank(Logits(values, scores.axis), group.width) if group.width else raw
    processed = leading if group.narrowed else raw
    for kind, numbers in group.transforms:
        processed = _APPLY[kind](processed, numbers)

    floats, integers = [summary.lowest, summary.second, summary.total], [summary.token]
    if unit is not None:
        settled = settle(processed)
        drawn = draw(probabilities(settled), unit)
        chosen = summary.shifted.gather(1, drawn.token), settled.values.gather(1, drawn.column)
        floats += [*chosen, drawn.total, drawn.interval]
        integers = [drawn.column, drawn.token]
    elif group.transforms:
        floats.append(probabilities(settle(processed)).values.cumsum(-1)[:, -1:])
    if group.narrowed:
        integers.append((processed.values > -torch.inf).sum(-1, keepdim=True))
    facts = [*floats, torch.cat(integers, 1).double()]
    if group.logprobs_top and leading.tokens is not None:
        best = leading.values[:, : group.logprobs_top]
        kept = processed.values[:, : group.logprobs_top] if group.narrowed else best
        facts += [leading.tokens[:, : group.logprobs_top].double()]
        facts += [scale(best, best[:, :1], None), scale(kept, best[:, :1], processed.temperature)]
    return torch.cat(facts, 1)


def _plain_facts(values: Tensor) -> Rows:
    if values.dtype is torch.bfloat16:  # which numpy does not have
        values = values.float()
    rows = values.numpy(force=True).astype(np.float64)
    return list(zip(*(fact.tolist() for fact in shift_and_summarise(rows)), strict=True))


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


def _greedy(group: Group, numbers: Sequence[float]) -> Selection:
    _, second, total_raw, *more = numbers
    log_raw = log_total = log(total_raw)
    if group.transforms:
        # No transform changes which token is best, and relative to itself the best one scores 0.
        log_total = log(more.pop(0))
    token = int(more.pop(0))
    support = int(more.pop(0)) if group.narrowed else group.size
    alternatives = _alternatives(more, log_raw, log_total) if more else ()
    return Selection(token, support, 0.0 - log_raw, 0.0 - log_total, 0.0 - second, alternatives=alternatives)


def _sampled(group: Group, numbers: Sequence[float], unit: float) -> Selection:
    _, second, total_raw, raw, processed, total, start, end, column, token, *more = numbers
    log_raw = log(total_raw)
    # Without transforms the two are one distribution, summed in two orders.
    log_total = log(total) if group.transforms else log_raw
    support = int(more.pop(0)) if group.narrowed else group.size
    alternatives = _alternatives(more, log_raw, log_total) if more else ()
    start = start if column else 0.0
    logprobs = raw - log_raw, processed - log_total
    return Selection(int(token), support, *logprobs, 0.0 - second, unit, start, end, alternatives)


def _alternatives(numbers: list[float], log_raw: float, log_total: float) -> tuple[Alternative, ...]:
    count = len(numbers) // 3
    columns = numbers[:count], numbers[count : 2 * count], numbers[2 * count :]
    return tuple(
        Alternative(int(token), raw - log_raw, processed - log_total)
        for token, raw, processed in zip(*columns, strict=True)
    )
