"""Edits: transforms that touch the tokens which they name, or which the row's history names.

All rows of a group go at once: the places of all their tokens make one index. Every function is deterministic and
treats each row by itself. Arithmetic is float64 and is rounded once, to a dtype of at least float32; a result beyond
its range stays at the end of it, and a removed token (-inf) stays removed unless it is forced.

Axes: B rows, V vocabulary, N places. Places are flat indexes into [B, V], each at most once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...fsm.errors import OwnTransformFault, WrongScores
from ...fsm.request.transforms import Grammar, edits, lists
from ...fsm.request.transforms.edits import Scope
from ..faults import is_fault, told
from .history import Counts, Followers, Key, Repeats, Text
from .kinds import NO_AMOUNTS, NO_IDS, Amounts, Beside, Edit, Ids, needed, runs
from .ranking import in_order_of_token
from .registry import TextSoFar, registered
from .scores import Logits, require


def edit(scores: Logits, columns: Sequence[Sequence[Edit]], beside: Sequence[Beside]) -> Logits:
    """Apply edits of one kind after another; each column has one edit a row.

    scores  values [B, V] of any float dtype, ranked or not
    beside  [B] what the edits of each row read
    returns logits in order of token id, fresh, float32 or float64. No host sync, but for a program's own transforms.
    """
    require(scores, Logits, "edit")
    scores = in_order_of_token(scores)
    half = scores.values.dtype not in (torch.float32, torch.float64)
    values = scores.values.to(torch.float32 if half else scores.values.dtype, copy=True)
    for column in columns:
        column[0].apply(values, scores.temperature, column, beside)
    return Logits(values, scores.axis, None, scores.temperature)


def _tensor(array: NDArray[np.int64] | Amounts, like: Tensor) -> Tensor:
    return torch.from_numpy(array).to(like.device)


class Places:
    """The places that a column of edits touches.

    counts   [B] how many of each row
    rows     [N] the row of each
    flat     [N] each as an index into all values
    amounts  [N] the number of each, where the edits have them
    """

    def __init__(self, values: Tensor, column: Sequence[Edit], beside: Sequence[Beside]) -> None:
        touched = [change.touched(row) for change, row in zip(column, beside, strict=True)]
        self._values = values
        self._ids = [ids for ids, _ in touched]
        self._amounts = [amounts for _, amounts in touched]
        self.counts = [len(ids) for ids in self._ids]
        self.rows = np.repeat(np.arange(len(column)), self.counts)

    def __bool__(self) -> bool:
        return any(self.counts)

    @property
    def flat(self) -> Tensor:
        return _tensor(np.concatenate(self._ids) + self.rows * self._values.shape[1], self._values)

    @property
    def amounts(self) -> Tensor:
        return _tensor(np.concatenate(self._amounts), self._values)


class Remove(Edit):
    """Edits that remove what they touch."""

    __slots__ = ()
    removes = True

    @classmethod
    def apply(cls, values: Tensor, temperature: Tensor | None, column: Sequence[Any], beside: Sequence[Beside]) -> None:
        if places := Places(values, column, beside):
            values.view(-1)[places.flat] = -torch.inf


class Keep(Edit):
    """Edits that remove what they do not touch."""

    __slots__ = ()
    removes = True

    @classmethod
    def apply(cls, values: Tensor, temperature: Tensor | None, column: Sequence[Any], beside: Sequence[Beside]) -> None:
        places, flat = Places(values, column, beside).flat, values.view(-1)
        kept = flat[places]
        values.fill_(-torch.inf)
        flat[places] = kept


class Shift(Edit):
    """Edits that change the scores of what they touch, by an amount each."""

    __slots__ = ()

    @classmethod
    def changed(cls, before: Tensor, amounts: Tensor, warmth: Tensor | float) -> Tensor:
        """[N] float64 after, from before and the amounts; the scores are still to be divided by `warmth`."""
        return before + amounts * warmth  # which what is added to them is not

    @classmethod
    def apply(cls, values: Tensor, temperature: Tensor | None, column: Sequence[Any], beside: Sequence[Beside]) -> None:
        if not (places := Places(values, column, beside)):
            return
        flat, at = values.view(-1), places.flat
        before = flat[at].double()
        warmth = 1.0 if temperature is None else temperature[_tensor(places.rows, values), 0]
        after = cls.changed(before, places.amounts, warmth)
        largest = torch.finfo(values.dtype).max
        after = torch.where(before == -torch.inf, before, after.clamp(-largest, largest))
        flat[at] = after.to(values.dtype)


@dataclass(frozen=True, slots=True)
class _Penalty(Shift):
    """A penalty over the tokens of a scope."""

    value: float
    scope: Scope
    looks_back = True

    @property
    def remembers(self) -> tuple[Key, ...]:
        return ((Counts, self.scope),)

    def settled(self, size: int) -> Edit | None:
        return None if self.value == 0 else self


@runs(edits.RepetitionPenalty)
class RepetitionPenalty(_Penalty):
    """Divide positive and multiply negative scores of the scope's tokens by `value`, finite and > 0."""

    __slots__ = ()

    def settled(self, size: int) -> Edit | None:
        return None if self.value == 1 else self

    def touched(self, beside: Beside) -> tuple[Ids, Amounts]:
        ids = needed(beside.past, self).memory(Counts, self.scope).seen().ids
        return ids, np.full(len(ids), float(self.value))

    @classmethod
    def changed(cls, before: Tensor, amounts: Tensor, warmth: Tensor | float) -> Tensor:
        return torch.where(before < 0, before * amounts, before / amounts)


@runs(edits.FrequencyPenalty)
class FrequencyPenalty(_Penalty):
    """Subtract `value`, finite, once for each time that the scope has a token."""

    __slots__ = ()

    def touched(self, beside: Beside) -> tuple[Ids, Amounts]:
        ids, counts = needed(beside.past, self).memory(Counts, self.scope).seen()
        return ids, -self.value * counts


@runs(edits.PresencePenalty)
class PresencePenalty(_Penalty):
    """Subtract `value`, finite, once from each token that the scope has."""

    __slots__ = ()

    def touched(self, beside: Beside) -> tuple[Ids, Amounts]:
        ids = needed(beside.past, self).memory(Counts, self.scope).seen().ids
        return ids, np.full(len(ids), -float(self.value))


@runs(edits.Dry)
@dataclass(frozen=True, slots=True)
class Dry(Shift):
    """Subtract from each token what its definition says, by the length of the repetition that it would go on with."""

    multiplier: float
    base: float
    allowed_length: int
    range_: int
    breakers: tuple[int, ...]
    looks_back = True

    @property
    def remembers(self) -> tuple[Key, ...]:
        return ((Repeats, self.range_, self.breakers),)

    def settled(self, size: int) -> Edit | None:
        return None if self.multiplier == 0 else self

    def touched(self, beside: Beside) -> tuple[Ids, Amounts]:
        past = needed(beside.past, self).memory(Repeats, self.range_, self.breakers)
        ids, lengths = past.longest(self.allowed_length)
        beyond = (lengths - self.allowed_length).tolist()
        return ids, np.array([-edits.dry_shift(self.multiplier, self.base, each) for each in beyond], np.float64)


@runs(edits.NoRepeatNgram)
@dataclass(frozen=True, slots=True)
class NoRepeatNgram(Remove):
    """Remove the tokens that would complete a sequence of `value` tokens, >= 1, that the scope has already."""

    value: int
    scope: Scope
    looks_back = True

    @property
    def remembers(self) -> tuple[Key, ...]:
        return ((Followers, self.value, self.scope) if self.value > 1 else (Counts, self.scope),)

    def touched(self, beside: Beside) -> tuple[Ids, Amounts]:
        past = needed(beside.past, self)
        if self.value > 1:
            return past.memory(Followers, self.value, self.scope).now(), NO_AMOUNTS
        return past.memory(Counts, self.scope).seen().ids, NO_AMOUNTS


@runs(edits.LogitBias)
@dataclass(frozen=True, slots=True)
class LogitBias(Shift):
    """Add to the scores: `entries` are (token id, bias in nats, finite), each id once."""

    entries: tuple[tuple[int, float], ...]
    amounts: tuple[Ids, Amounts] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        amounts = np.array([bias for _, bias in self.entries], dtype=np.float64)
        object.__setattr__(self, "amounts", (_ids(token for token, _ in self.entries), amounts))

    def touched(self, beside: Beside) -> tuple[Ids, Amounts]:
        return self.amounts


@dataclass(frozen=True, slots=True)
class _Listed(Edit):
    """An edit of the tokens that it is made with, each given once."""

    tokens: tuple[int, ...]
    ids: Ids = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", _ids(self.tokens))

    def touched(self, beside: Beside) -> tuple[Ids, Amounts]:
        return self.ids, NO_AMOUNTS


@runs(lists.AllowedTokens)
class AllowedTokens(_Listed, Keep):
    """Remove every token but these ids, each given once."""

    __slots__ = ()


@runs(lists.BannedTokens)
class BannedTokens(_Listed, Remove):
    """Remove these ids, each given once."""

    __slots__ = ()


@runs(Grammar)
@dataclass(frozen=True, slots=True)
class MaskedTokens(Keep):
    """Remove every token that the row's mask of this step does not allow; `decide` is given the masks."""

    @classmethod
    def of(cls, definition: object) -> MaskedTokens:
        return cls()

    def touched(self, beside: Beside) -> tuple[Ids, Amounts]:
        if beside.mask is None:
            raise WrongScores("decide", "a mask of the row for MaskedTokens", "none")
        return np.flatnonzero(beside.mask), NO_AMOUNTS


@dataclass(frozen=True, slots=True)
class MinNewTokens(Remove):
    """Remove these ids, each given once, until `value` tokens are committed."""

    value: int
    tokens: tuple[int, ...]
    ids: Ids = field(init=False, repr=False, compare=False)
    looks_back = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", _ids(self.tokens))

    def touched(self, beside: Beside) -> tuple[Ids, Amounts]:
        return (self.ids if needed(beside.past, self).output < self.value else NO_IDS), NO_AMOUNTS


@runs(lists.ForcedTokens)
@dataclass(frozen=True, slots=True)
class ForcedTokens(Edit):
    """Remove every token but one at some steps: `entries` are (step, token id), each step once."""

    entries: tuple[tuple[int, int], ...]
    by_step: dict[int, Ids] = field(init=False, repr=False, compare=False)
    removes = looks_back = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_step", {step: _ids([token]) for step, token in self.entries})

    def touched(self, beside: Beside) -> tuple[Ids, Amounts]:
        return self.by_step.get(needed(beside.past, self).output, NO_IDS), NO_AMOUNTS

    @classmethod
    def apply(cls, values: Tensor, temperature: Tensor | None, column: Sequence[Any], beside: Sequence[Beside]) -> None:
        if places := Places(values, column, beside):
            values[_tensor(np.flatnonzero(places.counts), values)] = -torch.inf
            values.view(-1)[places.flat] = 0.0


@runs(lists.Own)
@dataclass(frozen=True, slots=True)
class Own(Edit):
    """Put what a function of this program makes of the row in its place."""

    name: str
    version: int
    sha256: str
    removes = looks_back = True

    @property
    def remembers(self) -> tuple[Key, ...]:
        return ((Text,),)

    @classmethod
    def apply(cls, values: Tensor, temperature: Tensor | None, column: Sequence[Any], beside: Sequence[Beside]) -> None:
        largest = torch.finfo(values.dtype).max
        for row, (own, each) in enumerate(zip(column, beside, strict=True)):
            before = values[row]
            # The scores are still to be divided by the temperature, and the function is to see them so.
            warmth = 1.0 if temperature is None else temperature[row]
            after = own.made_of((before.double() / warmth).float(), each).double() * warmth
            after = torch.where(after == -torch.inf, after, after.clamp(-largest, largest))
            values[row] = torch.where(before == -torch.inf, before, after.to(values.dtype))

    def made_of(self, row: Tensor, beside: Beside) -> Tensor:
        """What the function makes of a row [V] float32, its own. Errors: OwnTransformMissing, OwnTransformFault."""
        text = needed(beside.past, self).memory(Text)
        function, shape, device = registered(self.name, self.version, self.sha256).function, row.shape, row.device
        try:
            made: object = function(row, TextSoFar(text.now("prompt"), text.now("output")))
        except Exception as raised:
            if not is_fault(raised):
                raise
            raise OwnTransformFault(self.name, self.version, f"{type(raised).__name__}: {told(raised)}") from raised
        if not isinstance(made, Tensor) or (made.shape, made.dtype, made.device) != (shape, torch.float32, device):
            found = f"{list(made.shape)} {made.dtype} on {made.device}" if isinstance(made, Tensor) else type(made)
            wanted = f"{list(shape)} torch.float32 on {device}"
            raise OwnTransformFault(self.name, self.version, f"it is to be {wanted}, and is {found}")
        if not bool((made < torch.inf).all()):
            raise OwnTransformFault(self.name, self.version, "it has a NaN, or an infinity above 0")
        return made


def _ids(tokens: Any) -> Ids:
    return np.array(list(tokens), dtype=np.int64)
