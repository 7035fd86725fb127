"""What the policy does to one row: a family and an ordered list of transforms, checked when it is made.

Every numeric edge has one meaning:

    temperature  0          the best token alone (the lowest id of equals); `Plan.of` makes it a greedy plan
                 < 1e-5     the same: nothing but rounding is left of the others
                 1          off
    top_k        1          the best token alone
                 >= V       off; in `Plan.of` 0 is off too
    top_p        0          the best token alone
                 1          off
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from ...fsm.errors import SchemaViolation

TEMPERATURE_LEAST = 1e-5

Family = Literal["greedy", "sample"]


@dataclass(frozen=True, slots=True)
class Temperature:
    """Divide the scores by `value`, finite and >= 0."""

    value: float

    def __post_init__(self) -> None:
        if not (_is_number(self.value) and 0 <= self.value < math.inf):
            raise SchemaViolation("policy.temperature", f"{self.value!r} is no finite number of at least 0")


@dataclass(frozen=True, slots=True)
class TopK:
    """Keep the `value` best tokens, an integer >= 1; of equal scores the lowest ids."""

    value: int

    def __post_init__(self) -> None:
        if type(self.value) is not int or self.value < 1:
            raise SchemaViolation("policy.top_k", f"{self.value!r} is no integer of at least 1")


@dataclass(frozen=True, slots=True)
class TopP:
    """Keep the best tokens up to and with the one that brings their probability to `value`, in [0, 1]."""

    value: float

    def __post_init__(self) -> None:
        if not (_is_number(self.value) and 0 <= self.value <= 1):
            raise SchemaViolation("policy.top_p", f"{self.value!r} is no number from 0 to 1")


Transform = Temperature | TopK | TopP


@dataclass(frozen=True, slots=True)
class Plan:
    """How one row becomes one token.

    family        "greedy": the best of the transformed scores, no draw; "sample": one draw. The transforms here never
                  change which token is best, so under greedy they shape the log-probability and the support alone
    transforms    applied in this order
    logprobs_top  how many of the best tokens to report with the choice, >= 0
    """

    family: Family
    transforms: tuple[Transform, ...] = ()
    logprobs_top: int = 0
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.family not in ("greedy", "sample"):
            raise SchemaViolation("policy.family", f"{self.family!r} is neither greedy nor sample")
        if type(self.logprobs_top) is not int or self.logprobs_top < 0:
            raise SchemaViolation("policy.logprobs_top", f"{self.logprobs_top!r} is no integer of at least 0")
        # Plans are dictionary keys in every step, and their parts do not change.
        object.__setattr__(self, "_hash", hash((self.family, self.transforms, self.logprobs_top)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def stochastic(self) -> bool:
        """Whether the row consumes a draw."""
        return self.family == "sample"

    @classmethod
    def of(cls, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, logprobs_top: int = 0) -> Plan:
        """The plan of the usual three numbers, in the usual order; 0, 0 and 1 are as the module's table says."""
        warm = Temperature(temperature)
        cuts: tuple[Transform, ...] = (*([TopK(top_k)] if top_k != 0 else []), TopP(top_p))
        if temperature == 0:
            return cls("greedy", (), logprobs_top)
        return cls("sample", (warm, *cuts), logprobs_top)

    def settled(self, size: int) -> tuple[Transform, ...]:
        """The transforms that do something over a vocabulary of `size`, with the edges written out as `TopK(1)`."""
        return tuple(settled for transform in self.transforms if (settled := _settle(transform, size)) is not None)


def _settle(transform: Transform, size: int) -> Transform | None:
    match transform:
        case Temperature(value) if value < TEMPERATURE_LEAST:
            return TopK(1)
        case TopP(0):
            return TopK(1)
        case TopK(value) if value >= size:
            return None
        case Temperature(1) | TopP(1):
            return None
    return transform


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
