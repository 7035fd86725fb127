"""One job of a store in memory: its row and its log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...fsm.machine.states import Status
from ...fsm.ports import EMPTY_HEAD, Caution, Claim, Head, JobRow
from ..appending.offer import Offer
from ..coordination.stalls import SPREAD, doubled, spread
from ..log.stored import Stored

if TYPE_CHECKING:
    from ...fsm.reading.snapshot import Snapshot


@dataclass(slots=True)
class MemoryJob:
    """A job's row, and its log as three lists of equal length: the appends, their last sequences, their digests."""

    job: str
    identity: str
    model: str
    idempotency_key: str | None
    created_ms: int
    prompt: int
    status: Status = Status.ADMITTED
    finish: str | None = None
    output: int = 0
    fence: int = 0
    owner: str | None = None
    lease_until_ms: int | None = None
    stalled: int = 0
    claimed_output: int | None = None
    counted: bool = False  # the newest tenure, should it stall
    claim_after_ms: int | None = None
    ended_ms: int | None = None
    retain_ms: int | None = None
    output_max: int | None = None
    sealed_ms: int | None = None
    erased_ms: int | None = None
    artifact: str = ""
    log: list[Stored] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    snapshot: Snapshot | None = None

    @property
    def head(self) -> Head:
        return Head(self.lasts[-1], self.digests[-1]) if self.log else EMPTY_HEAD

    def place(self, sequence: int) -> tuple[int, bytes | None]:
        """The index of the append that holds the next event, and the digest at `sequence` if an append ends there."""
        index = bisect_right(self.lasts, sequence)
        if index == 0:
            return 0, EMPTY_HEAD.chain if sequence == 0 else None
        return index, self.digests[index - 1] if self.lasts[index - 1] == sequence else None

    def take(self, offered: Offer, now_ms: int) -> None:
        append = offered.append
        self.log.append(offered.row)
        self.lasts.append(offered.row.last)
        self.digests.append(offered.head.chain)
        self.status, self.output = append.status, append.output
        if append.finish is not None:
            self.finish, self.owner, self.lease_until_ms, self.ended_ms = append.finish, None, None, now_ms
            self.snapshot = None

    def stand(self, rows: list[Stored]) -> None:
        """Have these rows in the place of the log's: as many, or one for all."""
        if len(rows) != len(self.log):
            self.lasts, self.digests = self.lasts[-1:], self.digests[-1:]
        self.log = rows

    def due(self, after_ms: int | None, now_ms: int) -> bool:
        """Whether it has content, and ended so long ago."""
        if self.erased_ms is not None or self.ended_ms is None or after_ms is None:
            return False
        return self.ended_ms + after_ms <= now_ms

    def free(self, now_ms: int, dead: Collection[str]) -> bool:
        expired = self.lease_until_ms is not None and self.lease_until_ms <= now_ms
        return self.finish is None and (self.owner is None or expired or self.owner in dead)

    def stalls(self, worker: str) -> bool:
        """Whether a claim by `worker` counts a stall."""
        brought = self.claimed_output is not None and self.output > self.claimed_output
        return self.owner not in (None, worker) and self.counted and not brought

    def suspect(self, worker: str, now_ms: int, asked: bool) -> bool:
        """Whether it stalls, and may be claimed by now."""
        if self.stalled == 0:
            return self.stalls(worker)
        return asked or self.owner == worker or (self.claim_after_ms or 0) <= now_ms

    def claim(self, number: int, worker: str, now_ms: int, lease_ms: int, caution: Caution) -> Claim:
        """Begin a tenure; see `stalls` for what it says of the one before."""
        if self.claimed_output is not None and self.output > self.claimed_output:
            self.stalled = 0
        self.stalled += self.stalls(worker)
        self.fence, self.owner, self.lease_until_ms = self.fence + 1, worker, now_ms + lease_ms
        self.claimed_output, self.counted = self.output, not caution.asked
        delay = caution.delay_ms * doubled(self.stalled)
        self.claim_after_ms = now_ms + delay + delay * spread(number, self.fence) // SPREAD if self.stalled else None
        return Claim(self.job, self.fence, self.head, self.model, self.stalled, self.artifact)

    def row(self) -> JobRow:
        return JobRow(
            self.job, self.identity, self.model, self.status, self.finish, self.prompt, self.output, self.head,
            self.fence, self.owner, self.lease_until_ms, self.idempotency_key, self.created_ms,
            self.stalled, self.ended_ms, self.retain_ms, self.sealed_ms, self.erased_ms, self.artifact,
            self.output_max,
        )  # fmt: skip
