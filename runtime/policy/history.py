"""What a row's penalties look back on: a pure function of its prompt and its committed tokens, kept as they come.

A token costs the same at any length, and memory grows by what the token adds. A history belongs to one job and is
built again from the job's log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .kinds import FrequencyPenalty, Ids, NoRepeatNgram, PresencePenalty, RepetitionPenalty, Scope
from .plan import Plan


class Seen(NamedTuple):
    """The tokens of a scope: ids [N] int64, each once, in the order of their coming; counts [N] float64, >= 1.

    Views of the history, good until it follows on: not to be written to.
    """

    ids: Ids
    counts: NDArray[np.float64]


class History:
    """One row's past, as far as its plan looks back: how often each token came, and what followed each sequence."""

    def __init__(self, plan: Plan, prompt: Sequence[int]) -> None:
        self.output = 0
        self._counts: dict[Scope, _Counts] = {}
        self._followers: dict[tuple[int, Scope], _Followers] = {}
        for transform in plan.transforms:
            match transform:
                case NoRepeatNgram(size, scope) if size > 1:
                    self._followers.setdefault((size, scope), _Followers(size))
                case RepetitionPenalty() | FrequencyPenalty() | PresencePenalty() | NoRepeatNgram():
                    self._counts.setdefault(transform.scope, _Counts())
        self._take(prompt, "prompt")

    @classmethod
    def of(cls, plan: Plan, prompt: Sequence[int]) -> History | None:
        """The history that rows of this plan need; None where they need none."""
        return cls(plan, prompt) if plan.looks_back else None

    def follow(self, *tokens: int) -> None:
        """Take the output tokens that come next."""
        self._take(tokens, "output")
        self.output += len(tokens)

    def seen(self, scope: Scope) -> Seen:
        """The tokens of a scope that the plan has a penalty for."""
        return self._counts[scope].seen()

    def completions(self, size: int, scope: Scope) -> Ids:
        """The tokens that would complete a sequence of `size` which the scope has already; like `Seen.ids`."""
        return self._followers[size, scope].now() if size > 1 else self._counts[scope].seen().ids

    def _take(self, tokens: Iterable[int], part: Scope) -> None:
        counts = [each for scope, each in self._counts.items() if scope in (part, "both")]
        followers = [(each, scope in (part, "both")) for (_, scope), each in self._followers.items()]
        for token in tokens:
            for each in counts:
                each.take(token)
            for table, counted in followers:
                table.take(token, counted)


class _Counts:
    """How often each token came, in two arrays that grow by doubling."""

    def __init__(self) -> None:
        self._at: dict[int, int] = {}
        self._ids = np.zeros(64, dtype=np.int64)
        self._counts = np.zeros(64, dtype=np.float64)

    def take(self, token: int) -> None:
        at = self._at.setdefault(token, len(self._at))
        if at == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._ids[at] = token
        self._counts[at] += 1

    def seen(self) -> Seen:
        return Seen(self._ids[: len(self._at)], self._counts[: len(self._at)])


class _Followers:
    """Which tokens came after each sequence of size - 1 tokens, where all of them were counted. size >= 2."""

    def __init__(self, size: int) -> None:
        self._before = size - 1
        self._recent: tuple[int, ...] = ()
        self._run = 0
        self._after: dict[tuple[int, ...], dict[int, None]] = {}

    def take(self, token: int, counted: bool) -> None:
        self._run = self._run + 1 if counted else 0
        if self._run > self._before:
            self._after.setdefault(self._recent, {})[token] = None
        self._recent = (*self._recent, token)[-self._before :]

    def now(self) -> Ids:
        after = self._after.get(self._recent, {})
        return np.fromiter(after, np.int64, len(after))
