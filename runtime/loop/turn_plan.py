"""What each job in hand is to have next, grouped once a turn."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ...fsm.machine.next_step import Step, due_reasons, next_step
from ...fsm.machine.transition import CloseRequest, Command, CommitOutput
from .job import Job

COMMIT = CommitOutput()


class TurnPlan(NamedTuple):
    """A turn's work.

    calls     model calls, each with the jobs that it is over. Decodes of one batch width share one; a prefill, a
              rebuild, and a decode after a failed call are made alone. A score row does not outlive its turn, so a
              decision begins with a call too: the one that brings the row back
    commands  for jobs that need no call
    faults    what was raised in finding out what a job needs
    """

    calls: list[list[Job]]
    commands: list[tuple[Job, Command]]
    faults: list[tuple[Job, BaseException]]


def plan_turn(jobs: Iterable[Job]) -> TurnPlan:
    plan = TurnPlan([], [], [])
    together: dict[int, list[Job]] = {}
    for job in jobs:
        state = job.state
        try:
            step = next_step(state)
        except BaseException as raised:
            plan.faults.append((job, raised))
            continue
        if step is Step.CALL or step is Step.DECIDE:
            if job.lane is None or job.token is None or state.tenure.failures:
                plan.calls.append([job])
            else:
                together.setdefault(state.spec.envelope.runtime.batch_width, []).append(job)
        elif step is Step.COMMIT:
            plan.commands.append((job, COMMIT))
        elif step is Step.CLOSE:
            plan.commands.append((job, CloseRequest(due_reasons(state)[0])))
    plan.calls.extend(together.values())
    return plan
