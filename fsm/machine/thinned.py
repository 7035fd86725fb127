"""A thinned step: what a sealed log keeps of an ordinary step in the middle of a run of them.

All that a caller can see of a step is kept, and what only proves it is not: the digests of the score row and of the
state, the receipt's id, the margin, and the draw with its interval. Running the request again gives them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from ..evidence.receipt import Alternative, Selection
from .states import Trigger

NOT_KEPT: Final = b""
"""What stands for the id of a receipt that a sealed log does not have any more."""


@dataclass(frozen=True, slots=True)
class ThinnedCall:
    """That a call was completed; the digest of its score row is not kept."""

    tag: ClassVar[str] = Trigger.CALL_COMPLETED.value
    tokens: int
    lanes: int


@dataclass(frozen=True, slots=True)
class ThinnedDecision:
    """What was decided; the receipt itself is not kept, nor the margin, nor the draw with its interval."""

    tag: ClassVar[str] = Trigger.DECISION_MADE.value
    step: int
    branch: int
    token: int
    support: int
    logprob_raw: float
    logprob: float
    alternatives: tuple[Alternative, ...]
    piece: bytes
    hidden: bool


@dataclass(frozen=True, slots=True)
class ThinnedOutput:
    """That the token was committed; the digest of the state after it is not kept."""

    tag: ClassVar[str] = Trigger.OUTPUT_COMMITTED.value
    output: int


Thinned = ThinnedCall | ThinnedDecision | ThinnedOutput


class ThinnedStep(NamedTuple):
    """The three events of an ordinary step, thinned. The fields have the names that they have in a `TokenStep`.

    selection   its margin is NaN, and it has no draw: they are not kept
    """

    tokens: int
    lanes: int
    branch: int
    selection: Selection
    piece: bytes
    hidden: bool
    output: int

    @property
    def events(self) -> tuple[ThinnedCall, ThinnedDecision, ThinnedOutput]:
        tokens, lanes, branch, chosen, piece, hidden, output = self
        decision = ThinnedDecision(
            output - 1, branch, chosen.token, chosen.support, chosen.logprob_raw, chosen.logprob, chosen.alternatives,
            piece, hidden,
        )  # fmt: skip
        return ThinnedCall(tokens, lanes), decision, ThinnedOutput(output)
