"""From a call's score rows to what follows on them, job by job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ...fsm.errors import BrokenInvariant, GrammarTooCostly, NonFiniteScores, Problem
from ...fsm.evidence.receipt import Selection
from ...fsm.evidence.rng import unit_draws
from ...fsm.machine.next_step import owes_repair
from ...fsm.machine.transition import CloseRequest, Command, FailRequest, IssueDecision
from ...fsm.request.finish import FinishReason
from ..faults import Raised, is_fault
from ..grammar.parser import Parser
from ..model.port import Text
from ..policy.decide import Decision, decide
from ..policy.kinds import Mask
from ..policy.scores import Logits, VocabularyAxis
from .batcher import Batch, CallResult, numeric_fault
from .job import Job

Answer = tuple[Command, ...] | Raised


def answers(batch: Batch, text: Text, axis: VocabularyAxis) -> list[tuple[Job, Answer]]:
    """What follows on each result of a call: its decision and commit where it has a row to be decided on."""
    found: list[tuple[Job, Answer]] = []
    rows: list[CallResult] = []
    for result in batch.results:
        try:
            if (commands := _undecided(result, batch.scores)) is None:
                rows.append(result)
            else:
                found.append((result.job, commands))
        except BaseException as raised:
            found.append((result.job, Raised(raised)))
    for result, selection in zip(rows, _selections(rows, batch.scores, axis), strict=True):
        try:
            found.append((result.job, _decided(result, selection, text)))
        except BaseException as raised:
            found.append((result.job, Raised(raised)))
    return found


def _undecided(result: CallResult, scores: Tensor | None) -> tuple[Command, ...] | None:
    """What follows on a result that has no row to be decided on; None for all others."""
    if result.row is None or scores is None:
        return result.report
    job = result.job
    state = job.state
    if owes_repair(state) or state.spec.max_new_tokens == 0:  # the row exists and is not consumed
        if not scores[result.row].isfinite().all():
            return numeric_fault(NonFiniteScores())  # what made such a row is no cache either
        return (*result.report, CloseRequest(state.due[0] if state.due else FinishReason.LENGTH))
    if job.parser is not None and (fault := _ungrammatical(job, job.parser)) is not None:
        return (*result.report, FailRequest(fault.code, str(fault)))
    return None


def _ungrammatical(job: Job, parser: Parser) -> Problem | None:
    """Bring the job's parser to the newest token; the fault of a job whose grammar has no way on from there."""
    try:
        if job.token is not None and parser.taken < job.state.frontier.output:
            parser.take(job.token)  # its receipt was recorded by an earlier tenure, and only committed by this one
        if parser.allowed().any():
            return None
    except GrammarTooCostly as fault:
        return fault
    return BrokenInvariant(clause="OUT-5", reason="the request's grammar has no token for what is committed")


def _decided(result: CallResult, selection: Decision | Raised, text: Text) -> tuple[Command, ...]:
    """A selection as its receipt and commit. What was raised over the row is raised here."""
    if isinstance(selection, Raised):
        raise selection.raised
    if not isinstance(selection, Selection):
        return numeric_fault(selection)
    token, pieces, parser = selection.token, text.pieces, result.job.parser
    if selection.alternatives:
        listed = tuple([each._replace(piece=pieces[each.token]) for each in selection.alternatives])
        selection = selection._replace(alternatives=listed)
    standing = None
    if parser is not None:
        try:
            standing = parser.take(token)
        except GrammarTooCostly as fault:
            return (*result.report, FailRequest(fault.code, str(fault)))
    return result.then(IssueDecision(selection, pieces[token], text.is_special(token), structure=standing))


def _selections(rows: Sequence[CallResult], scores: Tensor | None, axis: VocabularyAxis) -> Sequence[Decision | Raised]:
    """Decide all rows at once; where that raises, row by row, to find whose fault it is: a decision moves nothing.

    A row is decided the same way alone and in any batch.
    """
    if not rows or scores is None:
        return []
    jobs = [result.job for result in rows]
    try:
        return decide(
            Logits(scores if len(rows) == len(scores) else scores[[result.row for result in rows]], axis),
            [job.plan for job in jobs],
            _draws(jobs),
            axis,
            [job.history for job in jobs],
            _masks(jobs),
            _noises(jobs),
        )
    except BaseException as raised:
        if not is_fault(raised):
            raise
        if len(rows) == 1:
            return [Raised(raised)]
    return [selection for row in rows for selection in _selections([row], scores, axis)]


def _masks(jobs: Sequence[Job]) -> list[Mask | None] | None:
    """The tokens that each job's grammar allows; None for a job that has none, or for all of them."""
    if all(job.parser is None for job in jobs):
        return None
    return [None if job.parser is None else job.parser.allowed() for job in jobs]


def _draws(jobs: Sequence[Job]) -> list[float | None]:
    """Unit draws for the stochastic rows, addressed by (seed, choice, branch, step); None for the others."""
    units = _units(jobs, [index for index, job in enumerate(jobs) if job.plan.stochastic], 0)
    return [units.get(index) for index in range(len(jobs))]


def _noises(jobs: Sequence[Job]) -> list[dict[int, float] | None] | None:
    """What the transforms of each row draw, by their domains; None for a row whose transforms draw nothing, or all."""
    plans = [job.plan for job in jobs]
    if not (domains := frozenset[int]().union(*(plan.domains for plan in plans))):
        return None
    noises = [dict[int, float]() if plan.domains else None for plan in plans]
    for domain in domains:
        drawing = [index for index, plan in enumerate(plans) if domain in plan.domains]
        for index, unit in _units(jobs, drawing, domain).items():
            if (noise := noises[index]) is not None:
                noise[domain] = unit
    return noises


def _units(jobs: Sequence[Job], indexes: Sequence[int], domain: int) -> dict[int, float]:
    """Unit draws of some rows, by their indexes."""
    draws: dict[int, float] = {}
    by_algorithm: dict[str, list[int]] = defaultdict(list)
    for index in indexes:
        by_algorithm[jobs[index].state.spec.envelope.rng.algorithm].append(index)
    for algorithm, alike in by_algorithm.items():
        planes = [jobs[index].state.spec.envelope.rng for index in alike]
        steps = [jobs[index].state.frontier.output for index in alike]
        units = unit_draws(
            algorithm,
            np.array([plane.seed for plane in planes]),
            np.array([plane.choice for plane in planes]),
            0,
            np.array(steps),
            domain,
        )
        draws |= zip(alike, units.tolist(), strict=True)
    return draws
