"""How far a job is: prompt, output, processed and unprocessed tokens, and the equation that binds them."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import BrokenInvariant
from .states import Suffix

EMPTY, PENDING_NEXT_CALL = Suffix.EMPTY, Suffix.PENDING_NEXT_CALL


class Frontier(NamedTuple):
    """Token counts of one decoder-only cached job, never derived from each other and checked after every fold.

    prompt L, output O, processed P (K/V rows exist for exactly these: K = P and every lane's frontier is P),
    unprocessed |U|, and the tag of U. All in tokens, all >= 0.
    """

    prompt: int
    output: int
    processed: int
    unprocessed: int
    suffix: Suffix

    @classmethod
    def admitted(cls, prompt: int) -> Frontier:
        """Before any call; a prompt of no tokens is a BrokenInvariant."""
        return cls(prompt, 0, 0, prompt, PENDING_NEXT_CALL).checked()

    def after_call(self, processed: int, lanes: int) -> Frontier:
        """ALL_NEW of a call over `processed` tokens, which must be all of U, that left every lane at `lanes`."""
        prompt, output, _, unprocessed, _ = self
        return Frontier(prompt, output, lanes, unprocessed - processed, EMPTY).checked()

    def after_commit(self) -> Frontier:
        """One more output token, which no model call has seen."""
        prompt, output, processed, unprocessed, _ = self
        return Frontier(prompt, output + 1, processed, unprocessed + 1, PENDING_NEXT_CALL).checked()

    def after_close(self) -> Frontier:
        """No call will come: what is unprocessed stays so."""
        suffix = Suffix.CLOSED_UNPROCESSED if self.unprocessed else EMPTY
        return self._replace(suffix=suffix).checked()

    def checked(self) -> Frontier:
        """Raise BrokenInvariant unless P + |U| = L + O and the tag says what |U| says."""
        prompt, output, processed, unprocessed, suffix = self
        if processed + unprocessed != prompt + output:
            raise BrokenInvariant(
                clause="FSM-3", reason=f"P {processed} + U {unprocessed} is not L {prompt} + O {output}"
            )
        if processed < 0 or unprocessed < 0 or (unprocessed == 0) is not (suffix is EMPTY):
            raise BrokenInvariant(clause="FSM-3", reason=f"U holds {unprocessed} tokens and is tagged {suffix}")
        return self
