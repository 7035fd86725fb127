"""The models that a worker does not have: their jobs are left to others, and it looks again now and then."""

from __future__ import annotations

from ...fsm.ports import ModelRef
from ..host import Host


class Absent:
    """again_ms   how long after it was missed a model is looked for again"""

    def __init__(self, again_ms: int, host: Host) -> None:
        self._again_ms, self._host = again_ms, host
        self._until_s: dict[ModelRef, float] = {}

    def add(self, model: ModelRef) -> bool:
        """Miss a model; whether that is new."""
        new = model not in self._until_s
        self._until_s[model] = self._host.monotonic_s() + self._again_ms / 1000
        return new

    def now(self) -> set[ModelRef]:
        """Those that are not looked for at this time."""
        now_s = self._host.monotonic_s()
        return {model for model, until_s in self._until_s.items() if until_s > now_s}
