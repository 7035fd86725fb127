"""A store's time as a test has it: no lease runs out because a machine is slow, and each edge can be stood on."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, literal


class Clock:
    """Takes over the time of a store, in ms since 1970: the database's own, or that of one in memory."""

    def __init__(self, store: Any, now_ms: int = 1_000_000) -> None:
        self.now_ms = now_ms
        if hasattr(store, "_database"):
            # As an expression, where the statements ask the database for its time. Made anew for each statement.
            store._database.now_ms = lambda: literal(self.now_ms, BigInteger)
        else:
            store._clock = lambda: self.now_ms

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms
