"""How complete a structure is: four states that must not be confused."""

from __future__ import annotations

from enum import IntEnum


class Standing(IntEnum):
    """Where a text stands in the structure that it is to have. The numbers are part of receipts and digests.

    INCOMPLETE  a beginning: more must follow
    COMPLETE    whole as it stands; more may follow
    TERMINATED  whole, and nothing may follow
    INVALID     no beginning of it, or one that nothing can complete
    """

    INCOMPLETE = 1
    COMPLETE = 2
    TERMINATED = 3
    INVALID = 4

    __hash__ = int.__hash__

    @property
    def whole(self) -> bool:
        return self is Standing.COMPLETE or self is Standing.TERMINATED
