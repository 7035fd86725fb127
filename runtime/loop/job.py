"""A job in a worker's hands: what is durable of it, and the step ahead of that on which the crank works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from ...fsm.errors import BrokenInvariant, Defect, LostTenure, Problem
from ...fsm.machine.events import DecisionMade, Event, OutputCommitted, TokenStep, expand
from ...fsm.machine.state import State
from ...fsm.machine.transition import Command, FailRequest, Proposal, StartAttempt, transitions
from ...fsm.ports import EMPTY_HEAD, Append, AppendResult, Claim, Head, Log, Outcome
from ...fsm.reading.load import load
from ...fsm.reading.transcript import Transcript
from ..families.session import Lane
from ..faults import told
from ..grammar.parser import Parser
from ..policy.history import History
from ..policy.plan import Plan
from ..policy.plans import plan_of

COMMAND_DOMAIN = b"decodelog.command.v1"
TAKEN = (Outcome.APPENDED, Outcome.DUPLICATE)


@dataclass(slots=True, eq=False)
class Job:
    """One job under one tenure.

    head, transcript   the log's, moved by `settle`, and only with events that are durable
    state, token       where the crank works: there, or ahead of it by the one proposal whose append is under way
                       (`advance`); token is the newest output token, None before the first. Nobody else may see them
    parser             where the output stands in the request's grammar, if it has one; it moves with `token`
    history            what the plan looks back on, where it does; it too moves with `token`
    deadline_ms        when it is to end as timed out, in ms since 1970, if ever
    prefilled          tokens whose rows one call made; each token of the lane after them had a call of its own
    kept               sequence of the newest snapshot that this tenure went on from or made, 0 without
    lost               why nothing more is appended to it from here, if so: the outcome of an append that found another
                       tenure, or an end that was made elsewhere
    fault              what was raised where its steps were written or published, if anything was: it goes no further
    detached           its reader failed: nothing more is published to it from here
    """

    claim: Claim
    head: Head
    transcript: Transcript
    state: State
    token: int | None
    plan: Plan
    prefilled: int
    lane: Lane | None = None
    parser: Parser | None = None
    deadline_ms: int | None = None
    detached: bool = False
    lost: str = ""
    fault: Problem | None = None
    history: History | None = None
    kept: int = 0
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.claim.job

    @classmethod
    def load(cls, log: Log, claim: Claim) -> Job:
        """Load the job from its newest snapshot, if that is of use, and its log from there on.

        Errors: LostTenure where somebody else has claimed the job since, and what the log's reader finds.
        """
        transcript, head, kept = _stand(log, claim.job)
        if head != claim.head:
            if (fence := log.row(claim.job).fence) != claim.fence:
                raise LostTenure(job=claim.job, outcome=Outcome.FENCED.value, detail=f"its fence is {fence}")
            raise BrokenInvariant(clause="LOG-3", reason=f"job {claim.job} ends at {head}, its row says {claim.head}")
        return cls.at(claim, head, transcript, kept)

    @classmethod
    def at(cls, claim: Claim, head: Head, transcript: Transcript, kept: int = 0) -> Job:
        """The job of a transcript that has come to the log's `head`."""
        if transcript.state is None:
            raise BrokenInvariant(clause="LOG-1", reason=f"job {claim.job} has no events")
        transcript.hand_over()  # what came before is the log's to show
        spec, tokens = transcript.state.spec, transcript.token_ids
        plan = plan_of(spec)
        history = History.of(plan, spec.prompt)
        if history is not None:
            history.follow(*tokens)
        token = tokens[-1] if tokens else None
        prefilled = transcript.rebuilt or len(spec.prompt)
        return cls(claim, head, transcript, transcript.state, token, plan, prefilled, history=history, kept=kept)

    @property
    def ended(self) -> bool:
        """Whether its end is durable."""
        state = self.transcript.state
        return state is not None and state.ending is not None

    @property
    def abandoned(self) -> bool:
        """Whether its reader failed, and its request has it end then."""
        return self.detached and self.state.spec.envelope.output.consumer_policy == "cancel"

    def propose(self, *commands: Command) -> Proposal:
        """What `commands` would append, and lead to; nothing has happened yet."""
        return transitions(self.state, commands)

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

    def advance(self, proposal: Proposal) -> None:
        """Go on from `proposal`, whose append is under way. Where that fails, the job must be dropped."""
        before = self.state
        for entry, state in zip(proposal.entries, proposal.states, strict=True):
            if isinstance(entry, TokenStep):
                self._take(entry.selection.token)
            elif isinstance(entry, OutputCommitted) and before.receipt is not None:
                self._take(before.receipt.selection.token)
            before = state
        self.state = proposal.state

    def _take(self, token: int) -> None:
        self.token = token
        if self.history is not None:
            self.history.follow(token)

    def settle(self, proposal: Proposal, result: AppendResult) -> None:
        """Take over what the log has taken, now or in an earlier try. LostTenure where it has not."""
        if result.outcome not in TAKEN:
            raise LostTenure(job=self.name, outcome=result.outcome.value, detail=result.detail)
        for entry, state in zip(proposal.entries, proposal.states, strict=True):
            self.transcript.follow(entry, state)
        self.head = result.head

    def record(self, log: Log, *commands: Command) -> None:
        """Propose, append and go on from there, for this job alone."""
        proposal = self.propose(*commands)
        if proposal.entries:
            self.settle(proposal, log.append([self.append_of(proposal, self.state)])[0])
            self.advance(proposal)

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


def fail(log: Log, claim: Claim, worker: str, problem: Problem) -> Job:
    """End a claimed job by a problem, from what its log says, and without working on it. Errors: as `Job.load`."""
    job = Job.load(log, claim._replace(head=log.row(claim.job).head))
    if job.ended:
        return job
    begun = job.state.tenure.fence == claim.fence
    start = () if begun else (StartAttempt(claim.fence, worker),)
    job.record(log, *start, FailRequest(problem.code, told(problem)))
    return job


def _stand(log: Log, job: str) -> tuple[Transcript, Head, int]:
    """A job's transcript, the head of its log, and the sequence of the snapshot that the load began with, 0 without."""
    if (kept := log.snapshot(job)) is not None:
        transcript = kept.transcript()
        try:
            head = load(transcript, log.follow(job, kept.head))
        except Defect:
            pass  # The snapshot is not the log's, or the log is damaged: reading all of it says which.
        else:
            return transcript, kept.head if head == EMPTY_HEAD else head, kept.head.sequence
    transcript = Transcript()
    return transcript, load(transcript, log.read(job)), 0
