"""The crank: call, decide, append, adopt, publish, for every job in hand, one append a turn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import Tensor

from ..fsm.errors import LostTenure
from ..fsm.finish import FinishReason
from ..fsm.next_step import Step, due_reasons, next_step
from ..fsm.ports import EventLog
from ..fsm.receipt import Selection
from ..fsm.rng import unit_draws
from ..fsm.state import State
from ..fsm.transcript import Emission
from ..fsm.transition import (
    CloseRequest,
    Command,
    CommitOutput,
    FailCall,
    FailRequest,
    IssueDecision,
    Proposal,
    StartAttempt,
)
from .batcher import Batcher, Called
from .job import Job
from .model import Model
from .patience import patiently
from .policy.decide import Decision, decide
from .policy.scores import Logits, VocabularyAxis

APPEND_TRIES = 4

Sink = Callable[[str, Sequence[Emission], State], None]
"""Receives what a job has made visible, after it is durable. What it raises does not touch the job."""

Interruptions = Callable[[], Mapping[str, Sequence[FinishReason]]]
"""Jobs that are to end now, with the reasons; asked after the model calls of a turn and before its decisions."""


class Engine:
    """Turns the crank for jobs of one model.

    A turn runs each job's model call, consumes its score row, and makes the step of all jobs durable in one append.
    Nothing is adopted or published before that; a crash anywhere leaves the log at the old step or the new one.
    """

    def __init__(self, log: EventLog, model: Model, sink: Sink | None = None, form: str = "prefill") -> None:
        self.jobs: dict[str, Job] = {}
        self.model = model
        self._log = log
        self._sink = sink
        self._batcher = Batcher(model, form)
        self._axis = VocabularyAxis(model.facts.vocabulary_size, model.facts.tokenizer_sha256)

    def adopt(self, job: Job, worker: str) -> None:
        """Take a claimed job in hand: record the tenure and what it runs on.

        A recorded receipt that was not consumed is committed by the next turn, before any model call: nothing is drawn
        again.
        """
        start = StartAttempt(job.claim.fence, worker, self.model.recorded)
        self._publish(job, patiently(lambda: job.record(self._log, start), APPEND_TRIES))
        if not job.state.status.terminal:
            self.jobs[job.name] = job

    def drop(self, name: str) -> None:
        """Let go of a job: its lane is released, its log stays as it is."""
        job = self.jobs.pop(name, None)
        if job is not None:
            self._batcher.release(job)

    def turn(self, interruptions: Interruptions | None = None) -> list[LostTenure]:
        """One turn for every job in hand. Jobs that ended are let go of; jobs that were lost are returned.

        Raises a store error where the append failed as a whole; then nothing was adopted, and the jobs' lanes may be
        ahead of their logs: drop them.
        """
        by_step: dict[Step, list[Job]] = defaultdict(list)
        for job in self.jobs.values():
            by_step[next_step(job.state)].append(job)
        # A score row does not outlive its turn, so DECIDE also begins with a call: the one that brings the row back.
        called = self._batcher.call([*by_step[Step.CALL], *by_step[Step.DECIDE]])
        ended = interruptions() if interruptions is not None else {}

        proposals: list[tuple[Job, Proposal]] = []
        for job in by_step[Step.COMMIT]:
            proposals.append((job, job.propose(CommitOutput())))
        for job in by_step[Step.CLOSE]:
            proposals += [(job, job.propose(CloseRequest(reason))) for reason in due_reasons(job.state)[:1]]
        proposals = [(job, proposal) for job, proposal in proposals if job.name not in ended]
        proposals += self._decided([result for result in called if result.job.name not in ended])
        proposals += [
            (self.jobs[name], self.jobs[name].propose(CloseRequest(reason, tuple(also))))
            for name, (reason, *also) in ended.items()
            if name in self.jobs
        ]
        return self._append(proposals)

    def _decided(self, called: Sequence[Called]) -> list[tuple[Job, Proposal]]:
        """Consume the score rows of one turn's calls."""
        proposals: list[tuple[Job, Proposal]] = []
        batches: dict[int, list[Called]] = defaultdict(list)
        for result in called:
            if result.batch is None:
                proposals.append((result.job, result.job.propose(result.command)))
            else:
                batches[id(result.batch)].append(result)
        for results in batches.values():
            proposals += self._decide(results)
        return proposals

    def _decide(self, results: Sequence[Called]) -> list[tuple[Job, Proposal]]:
        proposals: list[tuple[Job, Proposal]] = []
        rows: list[Called] = []
        for result in results:
            # Zero output tokens asked for: the row exists and is not consumed.
            if result.job.state.spec.max_new_tokens == 0:
                proposals.append((result.job, result.job.propose(result.command, CloseRequest(FinishReason.LENGTH))))
            else:
                rows.append(result)
        if not rows:
            return proposals
        selections = decide(
            Logits(_rows(rows), self._axis),
            [result.job.plan for result in rows],
            _draws(rows),
            self._axis,
            [result.job.past() for result in rows],
        )
        for result, selection in zip(rows, selections, strict=True):
            proposals.append((result.job, result.job.propose(*self._commands(result, selection))))
        return proposals

    def _commands(self, result: Called, selection: Decision) -> tuple[Command, ...]:
        if not isinstance(selection, Selection):
            # A numeric fault is the job's own: the call counts as ALL_OLD, no token, and no reuse of the lane.
            self._batcher.release(result.job)
            fault = (selection.code, str(selection))
            return (FailCall(*fault), FailRequest(*fault))
        text = self.model.text
        token = selection.token
        issue = IssueDecision(selection, text.pieces[token], text.is_special(token))
        return (result.command, issue, CommitOutput())

    def _append(self, proposals: Sequence[tuple[Job, Proposal]]) -> list[LostTenure]:
        """Make the turn durable, then adopt and publish it, job by job."""
        lost: list[LostTenure] = []
        if not proposals:
            return lost
        appends = [job.append_of(proposal) for job, proposal in proposals]
        results = patiently(lambda: self._log.append(appends), APPEND_TRIES)
        for (job, proposal), result in zip(proposals, results, strict=True):
            try:
                emissions = job.settle(proposal, result)
            except LostTenure as loss:
                lost.append(loss)
                self.drop(job.name)
                continue
            self._publish(job, emissions)
            if job.state.status.terminal:
                self.drop(job.name)
        return lost

    def _publish(self, job: Job, emissions: Sequence[Emission]) -> None:
        if self._sink is None or job.detached or not emissions:
            return
        try:
            self._sink(job.name, emissions, job.state)
        except Exception:
            # The declared policy is to detach: the reader can come back to the log at any sequence number.
            job.detached = True


def _rows(results: Sequence[Called]) -> Tensor:
    """[rows, V]: the batch itself where every row is decided on, else a gather."""
    batch = results[0].batch
    if batch is None:
        raise RuntimeError("a decision needs a score row")
    if len(results) == batch.shape[0]:
        return batch
    return batch[[result.row for result in results]]


def _draws(results: Sequence[Called]) -> list[float | None]:
    """Unit draws for the stochastic rows, addressed by (seed, choice, branch, step); None for the others."""
    draws: list[float | None] = [None] * len(results)
    by_algorithm: dict[str, list[int]] = defaultdict(list)
    for index, result in enumerate(results):
        if result.job.plan.stochastic:
            by_algorithm[result.job.state.spec.envelope.rng.algorithm].append(index)
    for algorithm, indexes in by_algorithm.items():
        planes = [results[index].job.state.spec.envelope.rng for index in indexes]
        steps = [results[index].job.state.frontier.output for index in indexes]
        units = unit_draws(
            algorithm,
            np.array([plane.seed for plane in planes]),
            np.array([plane.choice for plane in planes]),
            0,
            np.array(steps),
        )
        for index, unit in zip(indexes, units.tolist(), strict=True):
            draws[index] = unit
    return draws
