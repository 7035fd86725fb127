"""A job as its log has it: the part of a job in hand that the writer moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from ...fsm.errors import LostTenure, Problem
from ...fsm.machine.events import DecisionMade, Event, OutputCommitted, TokenStep, expand
from ...fsm.machine.state import State
from ...fsm.machine.transition import Proposal
from ...fsm.ports import Append, AppendResult, Claim, Head, Outcome
from ...fsm.reading.transcript import Transcript

COMMAND_DOMAIN = b"decodelog.command.v1"
TAKEN = (Outcome.APPENDED, Outcome.DUPLICATE)


@dataclass(slots=True, eq=False)
class DurableJob:
    """What is durable of one job under one tenure, and what its appends have come to.

    head, transcript   the log's
    kept      sequence of the newest snapshot that this tenure went on from or made, 0 without
    lost      why nothing more is appended to it from here, if so: the outcome of an append that found another tenure,
              or an end that was made elsewhere
    fault     what was raised where its steps were written or published, if anything was: it goes no further
    detached  its reader failed: nothing more is published to it from here
    """

    claim: Claim
    head: Head
    transcript: Transcript
    kept: int = 0
    lost: str = ""
    fault: Problem | None = None
    detached: bool = False
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.claim.job

    @property
    def ended(self) -> bool:
        """Whether its end is durable."""
        state = self.transcript.state
        return state is not None and state.ending is not None

    def append_of(self, proposal: Proposal, base: State) -> Append:
        """The proposal, made in state `base`, as one conditional append at the end of what is durable."""
        state = proposal.state
        ending = state.ending
        return Append(
            self.name,
            self.head,
            self.claim.fence,
            self._key(proposal.entries, base),
            proposal.entries,
            state.status,
            state.frontier.output,
            None if ending is None else (ending.finish or ending.cause),
        )

    def take_over(self, proposal: Proposal, result: AppendResult) -> None:
        """Go on to what the log has taken, now or in an earlier try. LostTenure where it has not."""
        if result.outcome not in TAKEN:
            raise LostTenure(job=self.name, outcome=result.outcome.value, detail=result.detail)
        for entry, state in zip(proposal.entries, proposal.states, strict=True):
            self.transcript.follow(entry, state)
        self.head = result.head

    def _key(self, entries: Sequence[Event | TokenStep], base: State) -> bytes:
        """The decision receipt's id, or a digest of what the command is and where it stands."""
        for entry in entries:
            if isinstance(entry, TokenStep):
                return entry.receipt_id
            if isinstance(entry, DecisionMade):
                return entry.receipt.receipt_id
            if isinstance(entry, OutputCommitted) and base.receipt is not None:
                return base.receipt.receipt_id
        (first, *_) = expand(entries)
        place = f"{self.name}/{self.claim.fence}/{first.tag}".encode()
        return sha256(COMMAND_DOMAIN + self.head.chain + place).digest()
