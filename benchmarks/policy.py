"""(g) What the policy costs beside the transformers library's own processors."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from measuring import Figures, median_ratio, medians, take_turns
from scripted import one_thread
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from decodelog.runtime.policy.cuts import Temperature, TopK, TopP
from decodelog.runtime.policy.decide import decide
from decodelog.runtime.policy.edits import LogitBias, RepetitionPenalty
from decodelog.runtime.policy.history import History
from decodelog.runtime.policy.kinds import Kind as Transform
from decodelog.runtime.policy.plan import Plan
from decodelog.runtime.policy.scores import Logits, VocabularyAxis

ROWS, VOCABULARY, TOKENS, BIASES = 64, 49_152, 512, 300

USUAL = (
    (Temperature(0.8), TemperatureLogitsWarper(0.8)),
    (TopK(40), TopKLogitsWarper(40)),
    (TopP(0.9), TopPLogitsWarper(0.9)),
)
PENALTY = (RepetitionPenalty(1.2, "both"), RepetitionPenaltyLogitsProcessor(1.2))
BIAS = (
    LogitBias(tuple((token, 1.5) for token in range(BIASES))),
    SequenceBiasLogitsProcessor([[[token], 1.5] for token in range(BIASES)]),
)


def policy(rounds: int, note: Callable[[str], None]) -> Figures:
    """A decision for each of 64 rows over 49,152 tokens, over processors, softmax and multinomial on the same rows."""
    note(f"{ROWS} rows over {VOCABULARY:,} tokens, {rounds} rounds each")
    figures: Figures = {}
    for name, pairs in (("", USUAL), ("_edited", (BIAS, PENALTY, *USUAL))):
        with one_thread():
            mine, theirs = sides_of(pairs)
            times = take_turns({"mine": mine, "theirs": theirs}, rounds)
        figures |= medians({f"policy{name}_ms": times["mine"], f"processors{name}_ms": times["theirs"]})
        figures[f"policy_ratio{name}"] = median_ratio(times["mine"], times["theirs"])
    return figures


def sides_of(pairs: Sequence[tuple[Transform, LogitsProcessor]]) -> tuple[Callable[[], float], Callable[[], float]]:
    """Both sides, warm, on the same rows and the same tokens before them: milliseconds for all rows."""
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.normal(scale=3, size=(ROWS, VOCABULARY)).astype(np.float32))
    before = rng.integers(0, VOCABULARY, (ROWS, TOKENS))
    plan = Plan("sample", tuple(transform for transform, _ in pairs))
    pasts = [History.of(plan, text.tolist()) for text in before]
    scores, processors = Logits(rows, VocabularyAxis(VOCABULARY, "bench")), LogitsProcessorList(p for _, p in pairs)
    ids = cast(torch.LongTensor, torch.from_numpy(before))

    def mine() -> float:
        return spent(lambda: decide(scores, [plan] * ROWS, [0.37] * ROWS, pasts=pasts))

    def theirs() -> float:
        with torch.inference_mode():
            return spent(lambda: torch.multinomial(processors(ids, rows).softmax(-1), 1).tolist())

    mine(), theirs()
    return mine, theirs


def spent(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e3
