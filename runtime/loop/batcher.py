"""The model calls of a turn, and what is to be reported of them: ALL_NEW or ALL_OLD."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ...fsm.errors import ForeignLane, NoFreeSlot, NonFiniteScores, Problem
from ...fsm.machine.next_step import owes_prompt
from ...fsm.machine.transition import (
    Command,
    CompleteCall,
    FailCall,
    FailRequest,
    IssueDecision,
    RebuildLanes,
    RecordPrompt,
    TakeStep,
)
from ...fsm.ports import Outcome
from ..families.session import Decode, Prefill
from ..faults import is_fault, told
from ..model.port import Model, ModelSession, RowCache
from ..policy.scores import VocabularyAxis
from .context import DEFAULT, Context
from .job import Job
from .prompt_record import PromptScores
from .segments import Segments
from .turn_plan import COMMIT


class CallResult(NamedTuple):
    """What one call did for one job.

    report  what is to be said of it
    row     the job's row of the batch's scores; None where there is none to decide on
    """

    job: Job
    report: tuple[Command, ...]
    row: int | None = None

    def then(self, decision: IssueDecision) -> tuple[Command, ...]:
        """The report, the decision on the row, and its commit."""
        if len(self.report) == 1 and isinstance(call := self.report[0], CompleteCall):
            return (TakeStep(call, decision),)
        return (*self.report, decision, COMMIT)


class Batch(NamedTuple):
    """What one model call did: [rows, V] float32 score rows, and its jobs' parts in it."""

    results: list[CallResult]
    scores: Tensor | None = None


class Batcher:
    """Makes the model calls of a turn, and keeps a job's fault from its mates.

    form, segments   see `Context`
    spare            rows of each lane beyond those that its job can need
    """

    def __init__(self, model: Model, context: Context = DEFAULT, spare: int = 0) -> None:
        self.model = model
        self._at = context.at
        self._form = context.form
        self._segments = context.segments
        self._spare = spare
        self._sessions: dict[int, ModelSession] = {}
        self._axis = VocabularyAxis(model.facts.vocabulary_size, model.facts.tokenizer_sha256)

    def call(self, calls: Iterable[Sequence[Job]]) -> list[Batch]:
        """Run the model once over the unprocessed suffixes of each call's jobs, or over what a lost lane held.

        A job that finds no free slot is in none of the batches.
        """
        batches = [batch for jobs in calls for batch in self._guarded(jobs)]
        return batches if self._segments is None else self._kept(batches, self._segments)

    def call_alone(self, job: Job) -> CallResult:
        """The call of one job. Errors: NoFreeSlot."""
        for batch in self.call([[job]]):
            return batch.results[0]
        raise NoFreeSlot(0)

    def _kept(self, batches: list[Batch], segments: Segments) -> list[Batch]:
        """The batches, with their lanes' new rows handed over to be kept; that a job's could not be is its fault."""
        jobs = [result.job for batch in batches for result in batch.results]
        faults = dict(segments.follow(self._holding(jobs)))
        if not faults:
            return batches
        return [
            Batch(
                [self._failed(each.job, faults[each.job]) if each.job in faults else each for each in results], scores
            )
            for results, scores in batches
        ]

    def _holding(self, jobs: Iterable[Job]) -> list[tuple[Job, RowCache]]:
        """Those that have a lane with rows which can be kept."""
        held = [(job, self.session(job).cache) for job in jobs if job.lane is not None]
        return [(job, cache) for job, cache in held if cache is not None]

    def let_go(self, job: Job) -> None:
        """Give the lane back of a job that goes on elsewhere, or has ended; keep or remove its rows."""
        if self._segments is not None:
            durable = job.durable
            if durable.ended or durable.lost == Outcome.TERMINAL:
                self._segments.forget(job)  # also where it was ended elsewhere: its content may be erased by now
            elif not durable.lost and durable.fault is None:
                for held, cache in self._holding([job]):
                    self._segments.finish(held, cache)
            self._segments.leave(job)
        self.release(job)

    def release(self, job: Job) -> None:
        """Give the job's lane back; its state is never used again."""
        lane, job.lane = job.lane, None
        if lane is not None:
            with suppress(ForeignLane):  # the session has given it up before
                self.session(job).release(lane)

    def session(self, job: Job) -> ModelSession:
        """The session of the job's batch width, opened when the first such job comes. Errors: UnequalRows."""
        width = job.state.spec.envelope.runtime.batch_width
        if width not in self._sessions:
            self._sessions[width] = self.model.session(width)
        return self._sessions[width]

    def _guarded(self, jobs: Sequence[Job]) -> list[Batch]:
        """ALL_OLD where a call fails; its lane may have been touched, so it is given up.

        Without a free slot a job is not called, and nothing is said of it.
        """
        try:
            return [self._call(self.session(jobs[0]), jobs)]
        except NoFreeSlot:
            return []
        except BaseException as fault:
            if not isinstance(fault, Exception) and not is_fault(fault):
                raise
            if len(jobs) > 1:
                # No lane moved. Each is called again by itself, and only those that fail alone have failed.
                return [batch for job in jobs for batch in self._guarded([job])]
            return [Batch([self._failed(jobs[0], fault)])]

    def _failed(self, job: Job, fault: BaseException) -> CallResult:
        self.release(job)
        cause = fault.code if isinstance(fault, Problem) else f"model_call.{type(fault).__name__}"
        return CallResult(job, (FailCall(cause, told(fault)),))

    def _call(self, session: ModelSession, jobs: Sequence[Job]) -> Batch:
        first = jobs[0]
        processed = first.state.frontier.processed
        if first.lane is None:
            first.lane = session.open(first.name, first.state.spec.rows + self._spare)
            if processed:
                return self._rebuild(session, first)
        watched = self._watched(first)  # a prefill has no mates
        calls: list[Prefill | Decode] = [
            Prefill(job.lane, job.state.spec.prompt, None if watched is None else watched.take)
            if job.token is None
            else Decode(job.lane, job.token)
            for job in jobs
            if job.lane is not None
        ]
        scores = self._scores(session, calls)
        reports = [
            CompleteCall(job.state.frontier.unprocessed, job.lane.length if job.lane else 0, digest)
            for job, digest in zip(jobs, score_digests(scores), strict=True)
        ]
        if watched is not None:
            return self._scored(first, reports[0], scores, watched)
        return Batch(
            [CallResult(job, (report,), row) for row, (job, report) in enumerate(zip(jobs, reports, strict=True))],
            scores,
        )

    def _scores(self, session: ModelSession, calls: Sequence[Prefill | Decode]) -> Tensor:
        """One model call: its score rows, with every lane advanced."""
        self._at("call.before")
        ticket = session.prepare(calls)
        self._at("call.prepared")
        scores = session.select(ticket)
        self._at("call.selected")
        return scores

    def _rebuild(self, session: ModelSession, job: Job) -> Batch:
        """Bring a lost lane back to the processed frontier; the job's transcript must have reached its state."""
        tokens, lane = job.durable.transcript.processed_tokens, job.lane
        if lane is None:
            raise RuntimeError("a rebuild needs an open lane")
        if (restored := self._restore(session, job, tokens)) is not None:
            return restored
        head = tokens if self._form == "prefill" else tokens[: job.prefilled]
        watched = self._watched(job)
        scores = self._scores(session, [Prefill(lane, head, None if watched is None else watched.take)])
        for token in tokens[len(head) :]:
            scores = self._scores(session, [Decode(lane, token)])
        job.prefilled = len(head)
        if job.state.frontier.unprocessed:
            return Batch([CallResult(job, (RebuildLanes(self._form, len(tokens), job.prefilled),))])
        report = RebuildLanes(self._form, len(tokens), job.prefilled, score_digests(scores)[0])
        if watched is not None:
            return self._scored(job, report, scores, watched)
        return Batch([CallResult(job, (report,), 0)], scores)

    def _restore(self, session: ModelSession, job: Job, tokens: Sequence[int]) -> Batch | None:
        """Bring the lane back from kept rows, and with the recorded decodes from there on; None where none are kept."""
        lane, scored = job.lane, not job.state.frontier.unprocessed
        if self._segments is None or lane is None or (cache := session.cache) is None:
            return None
        if self._watched(job) is not None:
            return None  # the prompt is to be scored, and its rows alone do not say how
        restored = self._segments.restore(job, cache, tokens, most=len(tokens) - scored)
        if restored is None:
            self._segments.forget(job)
            return None
        count, job.prefilled = restored
        scores: Tensor | None = None
        for token in tokens[count:]:
            scores = self._scores(session, [Decode(lane, token)])
        digest = score_digests(scores)[0] if scores is not None and scored else b""
        report = RebuildLanes("tensors", len(tokens) - count, job.prefilled, digest)
        return Batch([CallResult(job, (report,), 0 if scored else None)], scores)

    def _scored(self, job: Job, report: Command, scores: Tensor, watched: PromptScores) -> Batch:
        """A call that has scored the job's prompt too."""
        tokens = watched.tokens(self.model.text)
        if isinstance(tokens, NonFiniteScores):
            self.release(job)
            return Batch([CallResult(job, numeric_fault(tokens))])
        return Batch([CallResult(job, (report, RecordPrompt(tokens)), 0)], scores)

    def _watched(self, job: Job) -> PromptScores | None:
        """What takes the scores of the job's prompt, where the next call is to give them."""
        wish = job.state.spec.wish
        if wish is None or wish.top is None or not owes_prompt(job.state):
            return None
        return PromptScores(job.state.spec.prompt, wish.top, self._axis)


def numeric_fault(fault: Problem) -> tuple[Command, ...]:
    """A numeric fault is the job's own: its call counts as ALL_OLD, no token, and its lane is not used again."""
    return (FailCall(fault.code, str(fault)), FailRequest(fault.code, str(fault)))


def score_digests(scores: Tensor) -> list[bytes]:
    """SHA-256 of each row's float32 bytes; one transfer to the host where the scores are elsewhere."""
    rows = np.ascontiguousarray(scores.numpy(force=True))
    return [sha256(row).digest() for row in rows]
