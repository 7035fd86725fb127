"""What a kernel is: one class for each transform, made of the numbers of its definition in `fsm.request.transforms`.

Cuts go over whole rows, with a few numbers a row. Edits touch the tokens that they name, or that the row's history
names. Numbers are checked where a request is: the kernels take them as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...fsm.errors import WrongScores
from ...fsm.request.schema import Plane
from ...fsm.request.transforms import OneTransform
from .history import History, Key
from .scores import Logits

Ids = NDArray[np.int64]
Amounts = NDArray[np.float64]
Mask = NDArray[np.bool_]

NO_IDS: Final[Ids] = np.empty(0, dtype=np.int64)
NO_AMOUNTS: Final[Amounts] = np.empty(0, dtype=np.float64)


class Beside(NamedTuple):
    """What a row's transforms read beside its scores, where they do.

    past   its history
    mask   [V] the tokens that it may become
    noise  the draws of this step, by the domains that the plan's transforms draw from
    """

    past: History | None = None
    mask: Mask | None = None
    noise: Mapping[int, float] | None = None


class Kind:
    """What is common to both. Instances are values, equal where they do the same.

    removes    whether it can take a token out
    looks_back whether its effect depends on the tokens before
    remembers  what it needs a history to keep, each as a class of memories and its arguments
    domain     the noise that it draws once a step; 0: none
    """

    __slots__ = ()
    removes: ClassVar[bool] = False
    looks_back: ClassVar[bool] = False
    domain: ClassVar[int] = 0

    @property
    def remembers(self) -> tuple[Key, ...]:
        return ()

    def settled(self, size: int) -> Kind | None:
        """What is to be done over a vocabulary of `size`; None where that is nothing."""
        return self

    @classmethod
    def of(cls, definition: OneTransform) -> Self:
        """The kernel of a definition; it takes the fields in their order."""
        return cls(*(_plain(value) for name, value in definition if name != "kind"))


class Cut(Kind):
    """One of a whole row.

    ranks       whether it looks at the best tokens first
    keeps_best  whether the best token is always left
    """

    __slots__ = ()
    ranks: ClassVar[bool] = False
    keeps_best: ClassVar[bool] = True

    @property
    def numbers(self) -> tuple[float, ...]:
        """What is handed to `kernel` of each row."""
        return tuple(map(float, astuple(self)))  # type: ignore[call-overload]

    @classmethod
    def most(cls, column: Sequence[Any]) -> int | None:
        """How many of the best tokens the rows of a column look at, where the host knows that."""
        return None

    @classmethod
    def kernel(cls, column: Sequence[Any]) -> Callable[..., Logits]:
        """From logits, the numbers [B, 1] float64 of the column's rows, and their draws where there is a domain."""
        raise NotImplementedError


class Edit(Kind):
    """One of some tokens."""

    __slots__ = ()

    def touched(self, beside: Beside) -> tuple[Ids, Amounts]:
        """The tokens of one row that it touches now, and a number for each where it needs one."""
        raise NotImplementedError

    @classmethod
    def apply(cls, values: Tensor, temperature: Tensor | None, column: Sequence[Any], beside: Sequence[Beside]) -> None:
        """Change `values` [B, V], contiguous, in place, by one edit of this kind a row."""
        raise NotImplementedError


KERNELS: Final[dict[type[OneTransform], type[Kind]]] = {}
K = TypeVar("K", bound=type[Kind])


def runs(definition: type[OneTransform]) -> Callable[[K], K]:
    """Make a class the kernel of a transform."""

    def register(kernel: K) -> K:
        kernel.domain = definition.domain
        KERNELS[definition] = kernel
        return kernel

    return register


def needed(past: History | None, kind: Kind) -> History:
    """The history that a kind looks back on. Errors: WrongScores where the row has none."""
    if past is None:
        raise WrongScores("decide", f"a history of the row for {type(kind).__name__}", "none")
    return past


def _plain(value: Any) -> Any:
    if isinstance(value, Plane):
        return tuple(each for _, each in value)
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value
