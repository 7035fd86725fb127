"""A job in a worker's hands: the step on which the crank works, and the durable one behind it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...fsm.errors import BrokenInvariant, Defect, LostTenure, Problem
from ...fsm.machine.events import OutputCommitted, TokenStep
from ...fsm.machine.state import State
from ...fsm.machine.transition import Command, FailRequest, Proposal, StartAttempt, transitions
from ...fsm.ports import EMPTY_HEAD, Claim, Head, Log, Outcome
from ...fsm.reading.load import load
from ...fsm.reading.transcript import Transcript
from ..caches.arena import Lane
from ..faults import told
from ..grammar.parser import Parser
from ..policy.history import History
from ..policy.plan import Plan
from ..policy.plans import plan_of
from .durable_job import DurableJob


@dataclass(slots=True, eq=False)
class Job:
    """One job under one tenure, as the crank has it.

    durable       what the log has of it, which the writer moves
    state, token  where the crank works: there, or ahead of it by the one proposal whose append is under way
                  (`advance`); token is the newest output token, None before the first. Nobody else may see them
    parser        where the output stands in the request's grammar, if it has one; it moves with `token`
    history       what the plan looks back on, where it does; it too moves with `token`
    deadline_ms   when it is to end as timed out, in ms since 1970, if ever
    prefilled     tokens whose rows one call made; each token of the lane after them had a call of its own
    """

    durable: DurableJob
    state: State
    token: int | None
    plan: Plan
    prefilled: int
    lane: Lane | None = None
    parser: Parser | None = None
    deadline_ms: int | None = None
    history: History | None = None
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.durable.name

    @classmethod
    def load(cls, log: Log, claim: Claim) -> Job:
        """Load the job from its newest snapshot, if that is of use, and its log from there on.

        Errors: LostTenure where somebody else has claimed the job since, and what the log's reader finds.
        """
        transcript, head, kept = _read(log, claim.job)
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
        durable = DurableJob(claim, head, transcript, kept)
        return cls(durable, transcript.state, token, plan, prefilled, history=history)

    @property
    def abandoned(self) -> bool:
        """Whether its reader failed, and its request has it end then."""
        return self.durable.detached and self.state.spec.envelope.output.consumer_policy == "cancel"

    def propose(self, *commands: Command) -> Proposal:
        """What `commands` would append, and lead to; nothing has happened yet."""
        return transitions(self.state, commands)

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

    def record(self, log: Log, *commands: Command) -> None:
        """Propose, append and go on from there, for this job alone."""
        proposal = self.propose(*commands)
        if proposal.entries:
            self.durable.take_over(proposal, log.append([self.durable.append_of(proposal, self.state)])[0])
            self.advance(proposal)


def fail(log: Log, claim: Claim, worker: str, problem: Problem) -> Job:
    """End a claimed job by a problem, from what its log says, and without working on it. Errors: as `Job.load`."""
    job = Job.load(log, claim._replace(head=log.row(claim.job).head))
    if job.durable.ended:
        return job
    begun = job.state.tenure.fence == claim.fence
    start = () if begun else (StartAttempt(claim.fence, worker),)
    job.record(log, *start, FailRequest(problem.code, told(problem)))
    return job


def _read(log: Log, job: str) -> tuple[Transcript, Head, int]:
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
