"""What is recorded of a prompt: its tokens' bytes, and the log-probability of each by the row of the token before it.

Axes: n rows of one part of the prompt, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

from ...fsm.errors import BrokenInvariant, NonFiniteScores
from ...fsm.evidence.prompt_record import PromptToken
from ...fsm.evidence.receipt import Alternative
from ..model.port import Text
from ..policy.ranking import rank
from ..policy.scores import Logits, VocabularyAxis
from ..policy.select import summarise


def unscored(prompt: Sequence[int], text: Text) -> tuple[PromptToken, ...]:
    """The prompt's tokens where only their text is asked for."""
    return tuple(PromptToken(text.pieces[token], text.is_special(token)) for token in prompt)


class PromptScores:
    """Takes a prompt's score rows part by part, in order, and keeps of each what is asked for.

    Raw log-probabilities, nats, in float64, as those of output tokens are; of equal alternatives the lowest id comes
    first.
    """

    def __init__(self, prompt: Sequence[int], top: int, axis: VocabularyAxis) -> None:
        self._prompt = prompt
        self._top = top
        self._axis = axis
        self._logprobs: list[float] = []
        self._best: list[list[tuple[int, float]]] = []
        self._seen = 0
        self._finite = True

    @torch.inference_mode()
    def take(self, rows: Tensor) -> None:
        """The next rows, [n, V] of any float dtype; the last of all scores no token of the prompt. One host sync."""
        following = self._prompt[self._seen + 1 : self._seen + 1 + len(rows)]
        self._seen += len(rows)
        if not following:
            return
        rows = rows[: len(following)]
        summary = summarise(rows)
        chosen = summary.shifted.gather(1, torch.tensor(following, device=rows.device)[:, None])
        logs = summary.total.log()
        facts = [summary.lowest, chosen - logs]
        if self._top:
            best = rank(Logits(rows, self._axis), self._top).tokens
            if best is None:
                raise BrokenInvariant(clause="POL-6", reason="ranked scores do not say whose they are")
            best = best[:, : self._top]
            facts += [best.double(), summary.shifted.gather(1, best) - logs]
        for lowest, logprob, *more in torch.cat(facts, 1).tolist():
            self._finite = self._finite and isfinite(lowest)
            self._logprobs.append(logprob)
            self._best.append(
                [(int(token), of) for token, of in zip(more[: self._top], more[self._top :], strict=True)]
            )

    def tokens(self, text: Text) -> tuple[PromptToken, ...] | NonFiniteScores:
        """What is to be recorded, once every row was taken; NonFiniteScores where a row has a NaN or an infinity."""
        if not self._finite:
            return NonFiniteScores()
        scored: list[tuple[float | None, list[tuple[int, float]]]] = [(None, [])]
        scored += zip(self._logprobs, self._best, strict=True)
        pieces = text.pieces
        return tuple(
            PromptToken(
                pieces[token],
                text.is_special(token),
                logprob,
                tuple(Alternative(other, of, of, pieces[other]) for other, of in best),
            )
            for token, (logprob, best) in zip(self._prompt, scored, strict=True)
        )
