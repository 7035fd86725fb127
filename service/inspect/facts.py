"""What a job is, whoever worked on it: the events and the result without what tells of tenures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...fsm.machine.events import AttemptStarted, LanesRebuilt

TENURE: Final = (AttemptStarted, LanesRebuilt)
"""Events that say who works on a job, and nothing of what it is."""

COUNTS: Final = ("attempts", "recomputed_tokens")
"""What a result's usage says of tenures."""


def answer(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result as callers see it, without what counts tenures."""
    usage = {key: count for key, count in result.get("usage", {}).items() if key not in COUNTS}
    return {**result, "usage": usage}
