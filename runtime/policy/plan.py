"""What the policy does to one row: a family and an ordered list of transforms.

Every numeric edge has one meaning; `fsm.request.edges` has those of requests. At the kernels

    temperature  0          the best token alone (the lowest id of equals); `Plan.of` makes it a greedy plan
                 < 1e-5     the same: nothing but rounding is left of the others
    top_k        >= V       off; in `Plan.of` 0 is off too
    top_p        0          the best token alone
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ...fsm.errors import SchemaViolation
from .cuts import Temperature, TopK, TopP
from .kinds import Kind

Family = Literal["greedy", "sample"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How one row becomes one token.

    family        "greedy": the best of the transformed scores, no draw; "sample": one draw
    transforms    applied in this order
    logprobs_top  how many of the best tokens to report with the choice, >= 0
    looks_back    whether the row needs a history: some transform depends on the tokens before
    domains       the noise that its transforms draw once a step, beside the choice's own
    """

    family: Family
    transforms: tuple[Kind, ...] = ()
    logprobs_top: int = 0
    looks_back: bool = field(init=False, repr=False, compare=False)
    domains: frozenset[int] = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.family not in ("greedy", "sample"):
            raise SchemaViolation("policy.family", f"{self.family!r} is neither greedy nor sample")
        if type(self.logprobs_top) is not int or self.logprobs_top < 0:
            raise SchemaViolation("policy.logprobs_top", f"{self.logprobs_top!r} is no integer of at least 0")
        object.__setattr__(self, "looks_back", any(each.looks_back for each in self.transforms))
        object.__setattr__(self, "domains", frozenset(each.domain for each in self.transforms if each.domain))
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
        cuts: tuple[Kind, ...] = (*([TopK(top_k)] if top_k != 0 else []), TopP(top_p))
        if temperature == 0:
            return cls("greedy", (), logprobs_top)
        return cls("sample", (warm, *cuts), logprobs_top)

    def settled(self, size: int) -> tuple[Kind, ...]:
        """The transforms that do something over a vocabulary of `size`, with the edges written out as `TopK(1)`."""
        return tuple(settled for transform in self.transforms if (settled := transform.settled(size)) is not None)
