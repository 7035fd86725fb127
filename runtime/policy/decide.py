"""One decision a row for a whole batch: scores, plans and draws in, selections out, one transfer to the host.

Rows whose plans have one shape are worked on together. A row's selection is the same, to the last bit, alone and in
any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite, log

import torch
from torch import Tensor

from ...fsm.errors import NonFiniteScores, WrongDraw, WrongScores
from ...fsm.receipt import Alternative, Selection
from .group import Group, group_rows
from .plan import Family, Plan, Temperature, TopK, TopP, Transform
from .scores import Logits, VocabularyAxis, require
from .select import draw, probabilities, settle, summarise
from .transforms import rank, scale, temperature, top_k, top_p

# On a CPU rows go through in parts that stay in its cache; elsewhere all at once.
_ELEMENTS_PER_PART = 1 << 17

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
        found = f"{list(values.shape)} scores and {len(draws)} draws"
        raise WrongScores("decide", f"{len(plans)} rows of {size} scores, with a draw or None each", found)

    step = max(1, _ELEMENTS_PER_PART // size if values.device.type == "cpu" else len(plans))
    parts = [
        (group, group.rows[start : start + step], _facts(scores, group, start, step, draws))
        for group in group_rows(tuple(plans), size, values.device)
        for start in range(0, len(group.rows), step)
    ]
    results: list[Selection | NonFiniteScores | None] = [None] * len(plans)
    for (group, rows, _), facts in zip(parts, _fetch([facts for _, _, facts in parts]), strict=True):
        select = _sampled if group.family == "sample" else _greedy
        for row, numbers in zip(rows, facts, strict=True):
            results[row] = select(group, numbers, draws[row]) if isfinite(numbers[0]) else NonFiniteScores()
    return results


def _facts(scores: Logits, group: Group, start: int, step: int, draws: Sequence[float | None]) -> Tensor:
    """[rows, facts] float64, still on the device, of the group's next `step` rows from `start`.

    Facts of every row: lowest, second, total (of the raw scores); then what `_greedy` or `_sampled` reads; then for
    each alternative its token, raw score and processed score. Scores are relative to the row's best.
    """
    rows = slice(start, start + step)
    units = [_unit(row, group.family, draws[row]) for row in group.rows[rows]]
    values = scores.values[rows if group.index is None else group.index[rows]]
    summary = summarise(values)
    raw = Logits(summary.shifted, scores.axis)
    leading = rank(Logits(values, scores.axis), group.width) if group.width else raw
    processed = leading if group.narrowed else raw
    for kind, parameters in zip(group.kinds, group.parameters, strict=True):
        processed = _APPLY[kind](processed, parameters[rows])

    floats, integers = [summary.lowest, summary.second, summary.total], []
    if group.family == "sample":
        settled = settle(processed)
        drawn = draw(probabilities(settled), torch.tensor(units, dtype=torch.float64, device=values.device)[:, None])
        chosen = summary.shifted.gather(1, drawn.token), settled.values.gather(1, drawn.column)
        floats += [*chosen, drawn.total, drawn.interval]
        integers += [drawn.column, drawn.token]
    else:
        if group.kinds:
            floats.append(probabilities(settle(processed)).values.cumsum(-1)[:, -1:])
        integers.append(summary.token)
    if group.narrowed:
        integers.append((processed.values > -torch.inf).sum(-1, keepdim=True))
    facts = [*floats, torch.cat(integers, 1).double()]
    if group.logprobs_top and leading.tokens is not None:
        best = leading.values[:, : group.logprobs_top]
        kept = processed.values[:, : group.logprobs_top] if group.narrowed else best
        facts += [leading.tokens[:, : group.logprobs_top].double()]
        facts += [scale(best, best[:, :1], None), scale(kept, best[:, :1], processed.temperature)]
    return torch.cat(facts, 1)


def _unit(row: int, family: Family, unit: float | None) -> float:
    if (unit is None) != (family == "greedy") or not (unit is None or 0.0 <= unit < 1.0):
        raise WrongDraw(row, family, str(unit))
    return 0.0 if unit is None else unit


def _fetch(parts: list[Tensor]) -> list[list[list[float]]]:
    """Bring all parts to the host in one transfer: for each part its rows of numbers."""
    if len(parts) == 1:
        return [parts[0].tolist()]
    flat = torch.cat([part.reshape(-1) for part in parts]).cpu() if parts else torch.empty(0)
    pieces = flat.split([part.numel() for part in parts])
    return [piece.view(part.shape).tolist() for piece, part in zip(pieces, parts, strict=True)]


def _greedy(group: Group, numbers: list[float], unit: None) -> Selection:
    _, second, total_raw, *more = numbers
    log_raw = log_total = log(total_raw)
    if group.kinds:
        # No transform changes which token is best, and relative to itself the best one scores 0.
        log_total = log(more.pop(0))
    token = int(more.pop(0))
    support = int(more.pop(0)) if group.narrowed else group.size
    alternatives = _alternatives(more, log_raw, log_total) if more else ()
    return Selection(token, support, -log_raw, -log_total, -second, None, None, None, alternatives)


def _sampled(group: Group, numbers: list[float], unit: float) -> Selection:
    _, second, total_raw, raw, processed, total, start, end, column, token = numbers[:10]
    more = numbers[10:]
    log_raw = log(total_raw)
    # Without transforms the two are one distribution, summed twice in two orders.
    log_total = log(total) if group.kinds else log_raw
    support = int(more.pop(0)) if group.narrowed else group.size
    alternatives = _alternatives(more, log_raw, log_total) if more else ()
    start = start if column else 0.0
    return Selection(
        int(token), support, raw - log_raw, processed - log_total, -second, unit, start, end, alternatives
    )


def _alternatives(numbers: list[float], log_raw: float, log_total: float) -> tuple[Alternative, ...]:
    count = len(numbers) // 3
    columns = numbers[:count], numbers[count : 2 * count], numbers[2 * count :]
    return tuple(
        Alternative(int(token), raw - log_raw, processed - log_total)
        for token, raw, processed in zip(*columns, strict=True)
    )
