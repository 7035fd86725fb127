"""From jobs that need the model to model calls, and from their results to commands: ALL_NEW or ALL_OLD."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ...fsm.errors import ForeignLane, NoFreeSlot, NonFiniteScores, Problem
from ...fsm.failpoints import Reached, unheard
from ...fsm.machine.next_step import owes_prompt
from ...fsm.machine.transition import Command, CompleteCall, FailCall, FailRequest, RebuildLanes, RecordPrompt
from ...fsm.ports import Outcome
from ..families.session import Decode, Prefill, Session
from ..faults import is_fault, told
from ..model.port import Caller, Model
from ..policy.scores import VocabularyAxis
from .job import Job
from .prompt_record import PromptScores
from .segments import Segments


class Called(NamedTuple):
    """What one call did for one job: what is to be reported, and its score row where there is one to decide on."""

    job: Job
    report: tuple[Command, ...]
    batch: Tensor | None = None
    row: int = 0


class Batcher:
    """Groups jobs into calls by their declared width and keeps a job's fault from its mates.

    form      how lost lanes come back: "prefill" is one call over the processed prefix; "reexecute" repeats the calls
              that made them, by the log, and is bit-exact on one stack at the price of one call a token
    segments  where rows are kept, if they are; those come first, and only what they lack is computed
    spare     rows of each lane beyond those that its job can need
    """

    def __init__(
        self,
        model: Model,
        form: str = "prefill",
        segments: Segments | None = None,
        at: Reached = unheard,
        spare: int = 0,
    ) -> None:
        self.model = model
        self._at = at
        self._form = form
        self._segments = segments
        self._spare = spare
        self._sessions: dict[int, Caller] = {}
        self._axis = VocabularyAxis(model.facts.vocabulary_size, model.facts.tokenizer_sha256)

    def call(self, jobs: Iterable[Job]) -> list[Called]:
        """Run the model once over each job's unprocessed suffix, or over what its lost lane held.

        Decodes share calls; a prefill, a rebuild, and a decode after a failed call are called alone.
        """
        together: dict[int, list[Job]] = defaultdict(list)
        done: list[Called] = []
        for job in jobs:
            width = job.state.spec.envelope.runtime.batch_width
            if job.lane is not None and job.token is not None and not job.state.tenure.failures:
                together[width].append(job)
            else:
                done += self._guarded([job])
        for mates in together.values():
            done += self._guarded(mates)
        if self._segments is not None:
            faults = dict(self._segments.follow(self._holding([result.job for result in done])))
            done = [self._failed(each.job, faults[each.job]) if each.job in faults else each for each in done]
        return done

    def _holding(self, jobs: Iterable[Job]) -> list[tuple[Job, Session]]:
        """Those that have a lane with rows which can be kept."""
        held = [(job, self.session(job)) for job in jobs if job.lane is not None]
        return [(job, session) for job, session in held if isinstance(session, Session)]

    def let_go(self, job: Job) -> None:
        """Give the lane back of a job that goes on elsewhere, or has ended; keep or remove its rows."""
        if self._segments is not None:
            if job.ended or job.lost == Outcome.TERMINAL:
                self._segments.forget(job)  # also where it was ended elsewhere: its content may be erased by now
            elif not job.lost and job.fault is None:
                for held, session in self._holding([job]):
                    self._segments.finish(held, session)
            self._segments.leave(job)
        self.release(job)

    def release(self, job: Job) -> None:
        """Give the job's lane back; its state is never used again."""
        lane, job.lane = job.lane, None
        if lane is not None:
            with suppress(ForeignLane):  # the session has given it up before
                self.session(job).release(lane)

    def session(self, job: Job) -> Caller:
        """The session of the job's batch width, opened when the first such job comes. Errors: UnequalRows."""
        width = job.state.spec.envelope.runtime.batch_width
        if width not in self._sessions:
            self._sessions[width] = self.model.session(width)
        return self._sessions[width]

    def _guarded(self, jobs: Sequence[Job]) -> list[Called]:
        """ALL_OLD where a call fails; its lane may have been touched, so it is given up.

        Without a free slot a job is not called, and nothing is said of it.
        """
        try:
            return self._call(self.session(jobs[0]), jobs)
        except NoFreeSlot:
            return []
        except BaseException as fault:
            if not isinstance(fault, Exception) and not is_fault(fault):
                raise
            if len(jobs) > 1:
                # No lane moved. Each is called again by itself, and only those that fail alone have failed.
                return [called for job in jobs for called in self._guarded([job])]
            return [self._failed(job, fault) for job in jobs]

    def _failed(self, job: Job, fault: BaseException) -> Called:
        self.release(job)
        cause = fault.code if isinstance(fault, Problem) else f"model_call.{type(fault).__name__}"
        return Called(job, (FailCall(cause, told(fault)),))

    def _call(self, session: Caller, jobs: Sequence[Job]) -> list[Called]:
        first = jobs[0]
        processed = first.state.frontier.processed
        if first.lane is None:
            first.lane = session.open(first.name, first.state.spec.rows + self._spare)
            if processed:
                return [self._rebuild(session, first)]
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
            return [self._scored(first, reports[0], scores, watched)]
        return [
            Called(job, (report,), scores, row) for row, (job, report) in enumerate(zip(jobs, reports, strict=True))
        ]

    def _scores(self, session: Caller, calls: Sequence[Prefill | Decode]) -> Tensor:
        """One model call: its score rows, with every lane advanced."""
        self._at("call.before")
        ticket = session.prepare(calls)
        self._at("call.prepared")
        scores = session.select(ticket)
        self._at("call.selected")
        return scores

    def _rebuild(self, session: Caller, job: Job) -> Called:
        """Bring a lost lane back to the processed frontier; the job's transcript must have reached its state."""
        tokens, lane = job.transcript.processed_tokens, job.lane
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
            return Called(job, (RebuildLanes(self._form, len(tokens), job.prefilled),))
        report = RebuildLanes(self._form, len(tokens), job.prefilled, score_digests(scores)[0])
        return Called(job, (report,), scores) if watched is None else self._scored(job, report, scores, watched)

    def _restore(self, session: Caller, job: Job, tokens: Sequence[int]) -> Called | None:
        """Bring the lane back from kept rows, and with the recorded decodes from there on; None where none are kept."""
        lane, scored = job.lane, not job.state.frontier.unprocessed
        if self._segments is None or lane is None or not isinstance(session, Session):
            return None
        if self._watched(job) is not None:
            return None  # the prompt is to be scored, and its rows alone do not say how
        restored = self._segments.restore(job, session, tokens, most=len(tokens) - scored)
        if restored is None:
            self._segments.forget(job)
            return None
        count, job.prefilled = restored
        scores: Tensor | None = None
        for token in tokens[count:]:
            scores = self._scores(session, [Decode(lane, token)])
        digest = score_digests(scores)[0] if scores is not None and scored else b""
        report = RebuildLanes("tensors", len(tokens) - count, job.prefilled, digest)
        return Called(job, (report,), scores if scored else None)

    def _scored(self, job: Job, report: Command, scores: Tensor, watched: PromptScores) -> Called:
        """A call that has scored the job's prompt too."""
        tokens = watched.tokens(self.model.text)
        if isinstance(tokens, NonFiniteScores):
            self.release(job)
            return Called(job, numeric_fault(tokens))
        return Called(job, (report, RecordPrompt(tokens)), scores)

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
