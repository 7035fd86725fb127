"""How often a worker does things, and how much of them at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SNAPSHOT_EVENTS: Final = 3072
"""Events between two snapshots of a job: about a thousand tokens, which load in a few milliseconds."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often things happen, in milliseconds, and how many jobs are held at once.

    claim_ms, claim_ms_max   between two claims, and up to half as long again; twice as long each time that nothing is
             found, up to the second
    claims_max   jobs that one claim may take: those in hand wait while it loads them
    stalled_ms   see `Caution.delay_ms`
    load_ms      how long a model, or a grammar, may take to be made ready; its jobs are given back then
    absent_ms    after which a model that is not here is looked for again
    patience_ms  how long a database that is away, full or locked is waited for
    beside   whether appends run beside the next call; None: where that gains time
    snapshot_events   events of a job after which its next snapshot is kept
    """

    lease_ms: int = 10_000
    claim_ms: int = 200
    claim_ms_max: int = 2_000
    claims_max: int = 8
    stalled_ms: int = 2_000
    inbox_ms: int = 50
    idle_ms: int = 50
    lanes_max: int = 16
    load_ms: int = 300_000
    absent_ms: int = 60_000
    patience_ms: int = 60_000
    beside: bool | None = None
    snapshot_events: int = SNAPSHOT_EVENTS


PACE = Pace()
"""The ordinary pace."""
