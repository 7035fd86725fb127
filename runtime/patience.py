"""A bounded retry of what may succeed later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..fsm.errors import Transient

Result = TypeVar("Result")

TRIES = 4
FIRST_WAIT_S = 0.05


def patiently(action: Callable[[], Result], sleep: Callable[[float], None]) -> Result:
    """Run `action` up to TRIES times, sleeping twice as long after each Transient; the last one is raised.

    Only for actions that are idempotent: an append whose answer was lost is found again as a duplicate.
    """
    for attempt in range(TRIES - 1):
        try:
            return action()
        except Transient:
            sleep(FIRST_WAIT_S * 2**attempt)
    return action()
