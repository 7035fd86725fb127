"""A job in a worker's hands: its tenure, its log's head, its transcript, its lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from ..fsm.errors import BrokenInvariant, LostTenure
from ..fsm.events import DecisionMade, Event, OutputCommitted
from ..fsm.ports import Append, AppendResult, Claim, EventLog, Head, Outcome
from ..fsm.state import State
from ..fsm.transcript import Emission, Transcript
from ..fsm.transition import Command, Proposal, transitions
from .policy.history import History
from .policy.plan import Plan
from .policy.plans import plan_of
from .session import Lane

COMMAND_DOMAIN = b"decodelog.command.v1"


@dataclass(slots=True, eq=False)
class Job:
    """One job under one tenure. Only `adopt` moves it, and only with events that are durable.

    deadline_ms   when it is to end as timed out, in ms since 1970, if ever
    detached      its reader failed: nothing more is published to it from here
    history       what its plan looks back on, where it does; `past` brings it up to date
    """

    claim: Claim
    head: Head
    transcript: Transcript
    state: State
    plan: Plan
    lane: Lane | None = None
    deadline_ms: int | None = None
    detached: bool = False
    history: History | None = None

    @classmethod
    def load(cls, log: EventLog, claim: Claim) -> Job:
        """Fold the job's log from its first event."""
        transcript, head = Transcript(), claim.head
        for record in log.read(claim.job):
            for event in record.events:
                transcript.take(event)
            head = Head(record.last, record.chain)
        if transcript.state is None:
            raise BrokenInvariant(clause="LOG-1", reason=f"job {claim.job} has no events")
        if head != claim.head:
            raise BrokenInvariant(clause="LOG-3", reason=f"job {claim.job} ends at {head}, its row says {claim.head}")
        spec = transcript.state.spec
        plan = plan_of(spec)
        return cls(claim, head, transcript, transcript.state, plan, history=History.of(plan, spec.prompt))

    @property
    def name(self) -> str:
        return self.claim.job

    def past(self) -> History | None:
        """The history of the job's committed tokens, for the next decision; None where its plan needs none."""
        if self.history is not None:
            self.history.follow(self.transcript.token_ids)
            if self.history.output != self.state.frontier.output:
                reason = f"a history of {self.history.output} tokens cannot decide on step {self.state.frontier.output}"
                raise BrokenInvariant(clause="POL-2", reason=reason)
        return self.history

    def propose(self, *commands: Command) -> Proposal:
        """What `commands` would append, and lead to; nothing has happened yet."""
        return transitions(self.state, commands)

    def append_of(self, proposal: Proposal) -> Append:
        """The proposal as one conditional append."""
        state = proposal.state
        ending = state.ending
        return Append(
            job=self.name,
            expected=self.head,
            fence=self.claim.fence,
            key=self._key(proposal.events),
            events=proposal.events,
            status=state.status,
            output=state.frontier.output,
            finish=None if ending is None else (ending.finish or ending.cause),
        )

    def adopt(self, proposal: Proposal, head: Head) -> Sequence[Emission]:
        """Take over the state of durable events; what they made visible."""
        emitted = len(self.transcript.emissions)
        for event, state in zip(proposal.events, proposal.states, strict=True):
            self.transcript.take(event, state)
        self.head, self.state = head, proposal.state
        return self.transcript.emissions[emitted:]

    def settle(self, proposal: Proposal, result: AppendResult) -> Sequence[Emission]:
        """Adopt what the log has taken, now or in an earlier try; anything else means the tenure is lost."""
        if result.outcome is Outcome.APPENDED or result.outcome is Outcome.DUPLICATE:
            return self.adopt(proposal, result.head)
        raise LostTenure(job=self.name, outcome=result.outcome.value, detail=result.detail)

    def record(self, log: EventLog, *commands: Command) -> Sequence[Emission]:
        """Propose, append and adopt, for this job alone."""
        proposal = self.propose(*commands)
        if not proposal.events:
            return ()
        return self.settle(proposal, log.append([self.append_of(proposal)])[0])

    def _key(self, events: Sequence[Event]) -> bytes:
        """The decision receipt's id, or a digest of what the command is and where it stands."""
        for event in events:
            if isinstance(event, DecisionMade):
                return event.receipt.receipt_id
            if isinstance(event, OutputCommitted) and self.state.receipt is not None:
                return self.state.receipt.receipt_id
        place = f"{self.name}/{self.claim.fence}/{events[0].tag}".encode()
        return sha256(COMMAND_DOMAIN + self.head.chain + place).digest()
