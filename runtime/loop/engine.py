"""The crank: call, decide, append, publish, for every job in hand, one append a turn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from sys import maxsize as BOUNDLESS

from ...fsm.errors import BrokenInvariant, GrammarTooCostly, LostTenure, NonFiniteScores, Problem
from ...fsm.evidence.receipt import Selection
from ...fsm.failpoints import Reached, unheard
from ...fsm.machine.next_step import Step, due_reasons, next_step, owes_prompt, owes_repair
from ...fsm.machine.transition import (
    CloseRequest,
    Command,
    CommitOutput,
    FailRequest,
    IssueDecision,
    Proposal,
    RecordPrompt,
    StartAttempt,
)
from ...fsm.ports import Log
from ...fsm.request.finish import FinishReason
from ..faults import Raised, fault_of, told
from ..grammar.parser import LIBRARY, Parser, grammars_of
from ..host import THREADS, Host
from ..model.port import Model
from ..policy.decide import Decision
from ..policy.scores import VocabularyAxis
from .batcher import Batcher, Called, numeric_fault
from .job import Job
from .prompt_record import unscored
from .retry import Patience
from .segments import Segments
from .selections import selections
from .writer import SNAPSHOT_EVENTS, JobStep, Sink, Turn, Writer

COMMIT = CommitOutput()

BESIDE_CALL_MS = 1.0
BESIDE_JOBS_MAX = 16
"""An append runs beside the next call where that call is long, the jobs are few, or a server carries it out. With many
jobs and short calls two threads of this process want the interpreter all the time, and passing it between them costs
more than the sync that they hide."""

Interruptions = Callable[[], Mapping[str, Sequence[FinishReason]]]
"""Jobs that are to end now, with the reasons; asked after the model calls of a turn and before its decisions."""


class Engine:
    """Turns the crank for jobs of one model.

    faulty   jobs that were let go of because of a `fault` of theirs behind the crank: to be ended from their logs
    crowded  jobs that were let go of because the model has no room for them, as they are

    A turn runs each job's model call, consumes its score row, and hands the step of all jobs to a writer thread, which
    makes it durable in one append and then publishes it. The next turn's call and decision run meanwhile: they are one
    step ahead of the log, and nobody but the crank sees them. Its own append waits for the one before, and what that
    one invalidates is dropped, as any call is whose result was not kept. A crash anywhere leaves the log at the old
    step or the new one.
    """

    def __init__(
        self,
        log: Log,
        model: Model,
        sink: Sink | None = None,
        form: str = "prefill",
        beside: bool | None = None,
        segments: Segments | None = None,
        at: Reached = unheard,
        patience: Patience | None = None,
        snapshot_events: int = SNAPSHOT_EVENTS,
        host: Host = THREADS,
    ) -> None:
        self.jobs: dict[str, Job] = {}
        self.faulty: list[Job] = []
        self.crowded: list[Job] = []
        self.model = model
        self._lanes = model.lanes
        self._log = log
        self._at = at
        self._host = host
        self.batcher = Batcher(model, form, segments, at)
        self._patiently = patience or Patience(host=host)
        self._writer = Writer(log, sink, at, self._patiently, snapshot_events, host)
        self._beside = beside
        self._call_ms = 0.0
        self._axis = VocabularyAxis(model.facts.vocabulary_size, model.facts.tokenizer_sha256)

    def adopt(self, job: Job, worker: str) -> None:
        """Take a claimed job in hand: record the tenure and what it runs on, and an echo of the prompt where asked for.

        A recorded receipt that was not consumed is committed by the next turn, before any model call: nothing is drawn
        again.
        """
        if job.parser is None:
            job.parser = self.parser_of(job)
        recorded = [*self.model.recorded, *self.batcher.session(job).recorded]
        if job.parser is not None:
            recorded.append(LIBRARY)
        start = StartAttempt(job.claim.fence, worker, tuple(sorted(recorded)))
        commands: list[Command] = [start]
        wish = job.state.spec.wish
        if wish is not None and wish.top is None and owes_prompt(job.state):
            commands.append(RecordPrompt(unscored(job.state.spec.prompt, self.model.text)))
        self._patiently(lambda: job.record(self._log, *commands))
        if not job.state.status.terminal:
            self.jobs[job.name] = job

    @property
    def lanes(self) -> int:
        """How many jobs there is room for, those in hand included."""
        return BOUNDLESS if self._lanes is None else self._lanes

    def parser_of(self, job: Job) -> Parser | None:
        """The parser of the job's grammar after its committed tokens, if it has one and its output goes on.

        Errors: GrammarRefused; BrokenInvariant where the committed tokens are not of the grammar.
        """
        if (grammar := job.state.spec.grammar) is None or owes_repair(job.state):
            return None  # a repair decides nothing
        parser = grammars_of(self.model).parser(grammar, job.state.spec.ending_ids)
        try:
            parser.stand_after(job.transcript.token_ids)
            leads_on = parser.allowed().any()
        except GrammarTooCostly:
            return parser  # whose next mask costs as much, and ends the job
        if not leads_on and not due_reasons(job.state):
            raise BrokenInvariant(clause="OUT-5", reason="the request's grammar has no token for what is committed")
        return parser

    def drop(self, name: str) -> None:
        """Let go of a job: its lane is released, its log stays as it is."""
        job = self.jobs.pop(name, None)
        if job is not None:
            self.batcher.let_go(job)

    def turn(self, interruptions: Interruptions | None = None) -> list[LostTenure]:
        """One turn for every job in hand; what it appends is durable when `settle` or the next turn returns.

        Jobs whose end is durable are let go of, as are jobs that were lost, which are returned. Raises a store error
        where an append failed as a whole; the jobs are then ahead of their logs, and the engine is of no further use.
        """
        # A lane that is to be rebuilt needs every token before it, the newest ones too.
        lost = self.settle() if any(job.lane is None for job in self.jobs.values()) else []
        proposals = self._proposals(interruptions)
        if not proposals:
            return lost + self.settle()
        self._at("turn.decided")
        if self._beside or (self._beside is None and self._overlaps(len(proposals))):
            self._writer.put(self._advanced(proposals))
            return lost + self._wait(ahead=1)
        lost += self.settle()
        return lost + self._let_go(self._writer.write(self._advanced(proposals)))

    def settle(self) -> list[LostTenure]:
        """Wait for the appends that are under way; see `turn` for what it returns and raises."""
        return self._wait(ahead=0)

    def _wait(self, ahead: int) -> list[LostTenure]:
        lost: list[LostTenure] = []
        while self._writer.outstanding > ahead:
            lost += self._writer.wait()
        return self._let_go(lost)

    def _let_go(self, lost: list[LostTenure]) -> list[LostTenure]:
        """Drop the jobs whose end is durable, and those that were lost."""
        for loss in lost:
            self.drop(loss.job)
        for job in [job for job in self.jobs.values() if job.ended or job.fault is not None]:
            if job.fault is not None:
                self.faulty.append(job)
            self.drop(job.name)
        return lost

    def close(self) -> list[LostTenure]:
        """Wait for the appends that are under way, and let go of every job; see `turn`."""
        try:
            return self.settle()
        finally:
            for name in list(self.jobs):
                self.drop(name)
            self._writer.close()

    def _overlaps(self, jobs: int) -> bool:
        return self._log.elsewhere or self._call_ms >= BESIDE_CALL_MS or jobs <= BESIDE_JOBS_MAX

    def _advanced(self, proposals: Sequence[tuple[Job, Proposal]]) -> Turn:
        """The proposals as a turn for the writer; their jobs go on from there."""
        turn: list[JobStep] = []
        for job, proposal in proposals:
            if job.name in self.jobs:
                base = job.state
                try:
                    job.advance(proposal)
                except BaseException as raised:
                    _, proposal = self._failed(job, raised)
                    job.advance(proposal)  # it has no token
                turn.append(JobStep(job, proposal, base))
        return turn

    def _proposals(self, interruptions: Interruptions | None) -> list[tuple[Job, Proposal]]:
        """What each job's next step would append."""
        by_step: dict[Step, list[Job]] = defaultdict(list)
        proposals: list[tuple[Job, Proposal]] = []
        for job in self.jobs.values():
            try:
                by_step[next_step(job.state)].append(job)
            except BaseException as raised:
                proposals.append(self._failed(job, raised))
        # A score row does not outlive its turn, so DECIDE also begins with a call: the one that brings the row back.
        begin = self._host.monotonic_s()
        due = [*by_step[Step.CALL], *by_step[Step.DECIDE]]
        called = self.batcher.call(due)
        self._call_ms = (self._host.monotonic_s() - begin) * 1000
        if len(called) < len(due):
            self._make_room({result.job.name for result in called}, due)
        ended = dict(interruptions()) if interruptions is not None else {}
        for job in self.jobs.values():
            if job.abandoned:
                ended.setdefault(job.name, [FinishReason.CANCELLED])

        for job in by_step[Step.COMMIT]:
            proposals.append(self._proposed(job, COMMIT))
        for job in by_step[Step.CLOSE]:
            proposals += [self._proposed(job, CloseRequest(reason)) for reason in due_reasons(job.state)[:1]]
        if ended:
            proposals = [(job, proposal) for job, proposal in proposals if job.name not in ended]
            called = [result for result in called if result.job.name not in ended]
        proposals += self._decided(called)
        for name, (reason, *also) in ended.items():
            # A job may have come to its end while the interruption was on its way: the first end stands.
            held = self.jobs.get(name)
            if held is not None and not held.state.status.terminal:
                proposals.append(self._proposed(held, CloseRequest(reason, tuple(also))))
        return proposals

    def _proposed(self, job: Job, *commands: Command) -> tuple[Job, Proposal]:
        """What `commands` would append; where the job cannot take them, its end."""
        try:
            return job, job.propose(*commands)
        except BaseException as raised:
            return self._failed(job, raised)

    def _failed(self, job: Job, raised: BaseException) -> tuple[Job, Proposal]:
        """The end of a job by what was raised in its own work, which is nobody else's; see `fault_of`."""
        problem = fault_of(job.name, raised)
        self.batcher.release(job)
        return job, job.propose(FailRequest(problem.code, told(problem)))

    def _make_room(self, called: Collection[str], due: Sequence[Job]) -> None:
        """Let go of jobs that found no free slot, as they are, and remember how many find one."""
        for job in due:
            if job.name not in called:
                self.crowded.append(job)
                self.drop(job.name)
        self._lanes = len(self.jobs)

    def _decided(self, called: Sequence[Called]) -> list[tuple[Job, Proposal]]:
        """Consume the score rows of one turn's calls."""
        proposals: list[tuple[Job, Proposal]] = []
        batches: dict[int, list[Called]] = defaultdict(list)
        for result in called:
            if result.batch is None:
                proposals.append(self._proposed(result.job, *result.report))
            else:
                batches[id(result.batch)].append(result)
        for results in batches.values():
            proposals += self._decide(results)
        return proposals

    def _decide(self, results: Sequence[Called]) -> list[tuple[Job, Proposal]]:
        proposals: list[tuple[Job, Proposal]] = []
        rows: list[Called] = []
        for result in results:
            try:
                if (commands := self._undecided(result)) is None:
                    rows.append(result)
                else:
                    proposals.append((result.job, result.job.propose(*commands)))
            except BaseException as raised:
                proposals.append(self._failed(result.job, raised))
        for result, selection in zip(rows, selections(rows, self._axis), strict=True):
            try:
                proposals.append((result.job, result.job.propose(*self._commands(result, selection))))
            except BaseException as raised:
                proposals.append(self._failed(result.job, raised))
        return proposals

    def _undecided(self, result: Called) -> tuple[Command, ...] | None:
        """What follows on a row that is not to be decided on; None for all others."""
        # A repair, or zero output tokens asked for: the row exists and is not consumed.
        state = result.job.state
        if owes_repair(state) or state.spec.max_new_tokens == 0:
            return self._unconsumed(result, state.due)
        if (fault := _ungrammatical(result.job)) is not None:
            return (*result.report, FailRequest(fault.code, str(fault)))
        return None

    def _unconsumed(self, result: Called, due: Sequence[FinishReason]) -> tuple[Command, ...]:
        """The end of a job whose last row nobody uses; what made a row that is not finite is no cache either."""
        if result.batch is not None and not result.batch[result.row].isfinite().all():
            self.batcher.release(result.job)
            return numeric_fault(NonFiniteScores())
        return (*result.report, CloseRequest(due[0] if due else FinishReason.LENGTH))

    def _commands(self, result: Called, selection: Decision | Raised) -> tuple[Command, ...]:
        if isinstance(selection, Raised):
            raise selection.raised
        if not isinstance(selection, Selection):
            self.batcher.release(result.job)
            return numeric_fault(selection)
        text = self.model.text
        token, pieces = selection.token, text.pieces
        if selection.alternatives:
            listed = tuple([each._replace(piece=pieces[each.token]) for each in selection.alternatives])
            selection = selection._replace(alternatives=listed)
        standing = None
        if result.job.parser is not None:
            try:
                standing = result.job.parser.take(token)
            except GrammarTooCostly as fault:
                return (*result.report, FailRequest(fault.code, str(fault)))
        issue = IssueDecision(selection, pieces[token], text.is_special(token), structure=standing)
        return (*result.report, issue, COMMIT)


def _ungrammatical(job: Job) -> Problem | None:
    """Bring the job's parser to the newest token; the fault of a job whose grammar has no way on from there."""
    parser, token = job.parser, job.token
    if parser is None:
        return None
    try:
        if token is not None and parser.taken < job.state.frontier.output:
            parser.take(token)  # its receipt was recorded by an earlier tenure, and only committed by this one
        if parser.allowed().any():
            return None
    except GrammarTooCostly as fault:
        return fault
    return BrokenInvariant(clause="OUT-5", reason="the request's grammar has no token for what is committed")
