"""The crank: plan, call, heed interruptions, decide, hand over; for every job in hand, one append a turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from sys import maxsize as BOUNDLESS

from ...fsm.errors import BrokenInvariant, GrammarTooCostly, LostTenure
from ...fsm.machine.next_step import due_reasons, owes_prompt, owes_repair
from ...fsm.machine.transition import CloseRequest, Command, FailCall, FailRequest, Proposal, RecordPrompt, StartAttempt
from ...fsm.ports import Log
from ...fsm.request.finish import FinishReason
from ..faults import Raised, fault_of, told
from ..grammar.parser import LIBRARY, Parser, grammars_of
from ..model.port import Model
from ..policy.scores import VocabularyAxis
from .batcher import Batch, Batcher
from .context import DEFAULT, Context
from .decisions import Answer, answers
from .job import Job
from .prompt_record import unscored
from .turn_plan import TurnPlan, plan_turn
from .writer import JobStep, Turn, Writer

BESIDE_CALL_MS = 1.0
BESIDE_JOBS_MAX = 16
"""An append runs beside the next call where that call is long, the jobs are few, or a server carries it out. With many
jobs and short calls two threads of this process want the interpreter all the time, and passing it between them costs
more than the sync that they hide."""

Ended = Mapping[str, Sequence[FinishReason]]
"""Jobs that are to end now, with the reasons."""

Interruptions = Callable[[], Ended]
"""Asked after the model calls of a turn and before its decisions."""


class Engine:
    """Turns the crank for jobs of one model.

    faulty   jobs that were let go of because of a fault of theirs behind the crank: to be ended from their logs
    crowded  jobs that were let go of because the model has no room for them, as they are

    A turn runs each job's model call, consumes its score row, and hands the step of all jobs to a writer thread, which
    makes it durable in one append and then publishes it. The next turn's call and decision run meanwhile: they are one
    step ahead of the log, and nobody but the crank sees them. Its own append waits for the one before, and what that
    one invalidates is dropped, as any call is whose result was not kept. A crash anywhere leaves the log at the old
    step or the new one.
    """

    def __init__(self, log: Log, model: Model, context: Context = DEFAULT) -> None:
        self.jobs: dict[str, Job] = {}
        self.faulty: list[Job] = []
        self.crowded: list[Job] = []
        self.model = model
        self.batcher = Batcher(model, context)
        self._log = log
        self._lanes = model.lanes
        self._at, self._host, self._beside = context.at, context.host, context.pace.beside
        self._writer = Writer(log, context)
        self._call_ms = 0.0
        self._axis = VocabularyAxis(model.facts.vocabulary_size, model.facts.tokenizer_sha256)

    # ---- the jobs in hand ------------------------------------------------------------------------------------------

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
        start = StartAttempt(job.durable.claim.fence, worker, tuple(sorted(recorded)))
        commands: list[Command] = [start]
        wish = job.state.spec.wish
        if wish is not None and wish.top is None and owes_prompt(job.state):
            commands.append(RecordPrompt(unscored(job.state.spec.prompt, self.model.text)))
        job.record(self._log, *commands)
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
            parser.stand_after(job.durable.transcript.token_ids)
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

    def close(self) -> list[LostTenure]:
        """Wait for the appends that are under way, and let go of every job; see `turn`."""
        try:
            return self.flush()
        finally:
            for name in list(self.jobs):
                self.drop(name)
            self._writer.close()

    # ---- one turn --------------------------------------------------------------------------------------------------

    def turn(self, interruptions: Interruptions | None = None) -> list[LostTenure]:
        """One turn for every job in hand; what it appends is durable when `flush` or the next turn returns.

        Jobs whose end is durable are let go of, as are jobs that were lost, which are returned. Raises a store error
        where an append failed as a whole; the jobs are then ahead of their logs, and the engine is of no further use.
        """
        # A lane that is to be rebuilt needs every token before it, the newest ones too.
        lost = self.flush() if any(job.lane is None for job in self.jobs.values()) else []
        plan = plan_turn(self.jobs.values())
        batches = self._call(plan)
        ended = self._interrupted(interruptions)
        proposals = self._decide(plan, batches, ended)
        return lost + self._hand_over(proposals)

    def flush(self) -> list[LostTenure]:
        """Wait for the appends that are under way; see `turn` for what it returns and raises."""
        return self._wait(ahead=0)

    def _call(self, plan: TurnPlan) -> list[Batch]:
        begin = self._host.monotonic_s()
        batches = self.batcher.call(plan.calls)
        self._call_ms = (self._host.monotonic_s() - begin) * 1000
        due = sum(map(len, plan.calls))
        if sum(len(batch.results) for batch in batches) < due:
            self._make_room(plan, {result.job.name for batch in batches for result in batch.results})
        return batches

    def _make_room(self, plan: TurnPlan, called: Collection[str]) -> None:
        """Let go of jobs that found no free slot, as they are, and remember how many find one."""
        for job in [job for jobs in plan.calls for job in jobs if job.name not in called]:
            self.crowded.append(job)
            self.drop(job.name)
        self._lanes = len(self.jobs)

    def _interrupted(self, interruptions: Interruptions | None) -> Ended:
        ended = dict(interruptions()) if interruptions is not None else {}
        for job in self.jobs.values():
            if job.abandoned:
                ended.setdefault(job.name, [FinishReason.CANCELLED])
        return ended

    def _decide(self, plan: TurnPlan, batches: Sequence[Batch], ended: Ended) -> list[tuple[Job, Proposal]]:
        """What each job's next step would append: an interruption's end goes before anything else."""
        found: list[tuple[Job, Answer]] = [(job, Raised(raised)) for job, raised in plan.faults]
        found += [(job, (command,)) for job, command in plan.commands]
        if ended:
            found = [(job, answer) for job, answer in found if job.name not in ended]
            batches = [
                Batch([each for each in results if each.job.name not in ended], scores) for results, scores in batches
            ]
            for name, (reason, *also) in ended.items():
                # A job may have come to its end while the interruption was on its way: the first end stands.
                job = self.jobs.get(name)
                if job is not None and not job.state.status.terminal:
                    found.append((job, (CloseRequest(reason, tuple(also)),)))
        for batch in batches:
            found += answers(batch, self.model.text, self._axis)
        return [self._proposed(job, answer) for job, answer in found]

    def _proposed(self, job: Job, answer: Answer) -> tuple[Job, Proposal]:
        """What the commands would append; where there is a fault instead, or the job cannot take them, its end."""
        try:
            if isinstance(answer, Raised):
                raise answer.raised
            if isinstance(answer[0], FailCall):
                self.batcher.release(job)  # its lane may have been touched
            return job, job.propose(*answer)
        except BaseException as raised:
            return job, self._end_of(job, raised)

    def _end_of(self, job: Job, raised: BaseException) -> Proposal:
        """The end of a job by what was raised in its own work, which is nobody else's; see `fault_of`."""
        problem = fault_of(job.name, raised)
        self.batcher.release(job)
        return job.propose(FailRequest(problem.code, told(problem)))

    def _hand_over(self, proposals: Sequence[tuple[Job, Proposal]]) -> list[LostTenure]:
        """Have the turn written, beside the next one's calls where that gains time."""
        if not proposals:
            return self.flush()
        self._at("turn.decided")
        beside = self._beside
        if beside is None:
            beside = self._log.elsewhere or self._call_ms >= BESIDE_CALL_MS or len(proposals) <= BESIDE_JOBS_MAX
        if beside:
            self._writer.put(self._advanced(proposals))
            return self._wait(ahead=1)
        lost = self.flush()
        return lost + self._let_go(self._writer.write(self._advanced(proposals)))

    def _advanced(self, proposals: Sequence[tuple[Job, Proposal]]) -> Turn:
        """The proposals as a turn for the writer; their jobs go on from there."""
        turn: list[JobStep] = []
        for job, proposal in proposals:
            if job.name in self.jobs:
                base = job.state
                try:
                    job.advance(proposal)
                except BaseException as raised:
                    proposal = self._end_of(job, raised)
                    job.advance(proposal)  # it has no token
                turn.append(JobStep(job.durable, proposal, base))
        return turn

    def _wait(self, ahead: int) -> list[LostTenure]:
        lost: list[LostTenure] = []
        while self._writer.outstanding > ahead:
            lost += self._writer.wait()
        return self._let_go(lost)

    def _let_go(self, lost: list[LostTenure]) -> list[LostTenure]:
        """Drop the jobs whose end is durable, and those that were lost."""
        for loss in lost:
            self.drop(loss.job)
        for job in [job for job in self.jobs.values() if job.durable.ended or job.durable.fault is not None]:
            if job.durable.fault is not None:
                self.faulty.append(job)
            self.drop(job.name)
        return lost
