"""What a row's transforms look back on: a pure function of its prompt and its committed tokens, kept as they come.

A token costs the same at any length, and memory grows by what the token adds. A history belongs to one job and is
built again from the job's log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .plan import Plan

Ids = NDArray[np.int64]
Part = Literal["prompt", "output"]


class Memory(Protocol):
    """What one transform, or several alike, need to know of the tokens before."""

    def take(self, tokens: Sequence[int], part: Part) -> None:
        """Take the tokens that come next, of one part of the text."""


Key = tuple[Any, ...]
"""A class of memories, and the arguments that one is made with."""

M = TypeVar("M", bound=Memory)


class Seen(NamedTuple):
    """The tokens of a scope: ids [N] int64, each once, in the order of their coming; counts [N] float64, >= 1.

    Views of the history, good until it follows on: not to be written to.
    """

    ids: Ids
    counts: NDArray[np.float64]


class History:
    """One row's past, as far as its plan looks back.

    output  how many output tokens there are
    """

    def __init__(self, plan: Plan, prompt: Sequence[int]) -> None:
        self.output = 0
        keys = [key for transform in plan.transforms for key in transform.remembers]
        self._memories: dict[Key, Memory] = {key: key[0](*key[1:]) for key in dict.fromkeys(keys)}
        self._take(prompt, "prompt")

    @classmethod
    def of(cls, plan: Plan, prompt: Sequence[int]) -> History | None:
        """The history that rows of this plan need; None where they need none."""
        return cls(plan, prompt) if plan.looks_back else None

    def follow(self, *tokens: int) -> None:
        """Take the output tokens that come next."""
        self._take(tokens, "output")
        self.output += len(tokens)

    def memory(self, kind: type[M], *arguments: Any) -> M:
        """One that a transform of the plan `remembers`."""
        return self._memories[kind, *arguments]  # type: ignore[return-value]

    def _take(self, tokens: Sequence[int], part: Part) -> None:
        for memory in self._memories.values():
            memory.take(tokens, part)


class Counts:
    """How often each token of a scope came, in two arrays that grow by doubling."""

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._at: dict[int, int] = {}
        self._ids = np.zeros(64, dtype=np.int64)
        self._counts = np.zeros(64, dtype=np.float64)

    def take(self, tokens: Sequence[int], part: Part) -> None:
        if self._scope not in (part, "both"):
            return
        for token in tokens:
            at = self._at.setdefault(token, len(self._at))
            if at == len(self._ids):
                self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._ids[at] = token
            self._counts[at] += 1

    def seen(self) -> Seen:
        return Seen(self._ids[: len(self._at)], self._counts[: len(self._at)])


class Followers:
    """Which tokens came after each sequence of size - 1 tokens, where the scope has all of them. size >= 2."""

    def __init__(self, size: int, scope: str) -> None:
        self._before = size - 1
        self._scope = scope
        self._recent: tuple[int, ...] = ()
        self._run = 0
        self._after: dict[tuple[int, ...], dict[int, None]] = {}

    def take(self, tokens: Sequence[int], part: Part) -> None:
        counted = self._scope in (part, "both")
        for token in tokens:
            self._run = self._run + 1 if counted else 0
            if self._run > self._before:
                self._after.setdefault(self._recent, {})[token] = None
            self._recent = (*self._recent, token)[-self._before :]

    def now(self) -> Ids:
        after = self._after.get(self._recent, {})
        return np.fromiter(after, np.int64, len(after))


class Repeats:
    """For each of the last `range_` tokens, how many tokens before it are the newest ones again.

    Where a token comes, each of these lengths follows from the one of the place before: it is one more where that place
    has the same token, and else 0. That is one pass over the window, whatever came before it.
    """

    def __init__(self, range_: int, breakers: tuple[int, ...]) -> None:
        self._range = range_
        self._breakers = frozenset(breakers)
        self._broken = np.array(breakers, dtype=np.int64)
        # Twice as long as needed, so that the window moves to the front only once in `range_` tokens.
        self._tokens = np.zeros(2 * range_, dtype=np.int64)
        self._lengths = np.zeros(2 * range_, dtype=np.int64)
        self._end = 0

    def take(self, tokens: Sequence[int], part: Part) -> None:
        for token in tokens[-self._range :]:
            if self._end == len(self._tokens):
                for array in (self._tokens, self._lengths):
                    array[: self._range] = array[self._range :]
                self._end = self._range
            start, end = max(0, self._end - self._range), self._end
            if token in self._breakers:
                self._lengths[start : end + 1] = 0
            else:
                same = self._tokens[start:end] == token
                self._lengths[start + 1 : end + 1] = np.where(same, self._lengths[start:end] + 1, 0)
                self._lengths[start] = 0
            self._tokens[end] = token
            self._end += 1

    def longest(self, least: int) -> tuple[Ids, Ids]:
        """The tokens [N] that came after at least so many, each once, and the most that each came after [N]."""
        start = max(0, self._end - self._range)
        window = self._tokens[start : self._end]
        # What begins before the window is not looked at.
        lengths = np.minimum(self._lengths[start : self._end], np.arange(len(window)))
        found = np.flatnonzero(lengths >= least)
        found = found[~np.isin(window[found], self._broken)]
        tokens, which = np.unique(window[found], return_inverse=True)
        most = np.zeros(len(tokens), dtype=np.int64)
        np.maximum.at(most, which, lengths[found])
        return tokens, most


class Text:
    """The tokens themselves, prompt and output, in arrays that grow by doubling."""

    def __init__(self) -> None:
        self._parts = {"prompt": np.zeros(64, dtype=np.int64), "output": np.zeros(64, dtype=np.int64)}
        self._counts = {"prompt": 0, "output": 0}

    def take(self, tokens: Sequence[int], part: Part) -> None:
        count = self._counts[part] + len(tokens)
        while count > len(self._parts[part]):
            self._parts[part] = np.concatenate((self._parts[part], np.zeros_like(self._parts[part])))
        self._parts[part][self._counts[part] : count] = tokens
        self._counts[part] = count

    def now(self, part: Part) -> Ids:
        """A view that cannot be written to."""
        view = self._parts[part][: self._counts[part]]
        view.flags.writeable = False
        return view
