"""Compares jobs by their logs, and a job with a second run of its request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ...fsm.errors import ContentErased, EvidenceSealed
from ...fsm.machine.events import RequestAdmitted
from ...fsm.ports import EventLog, JobRow
from ...fsm.reading.audit import Fault
from ...fsm.reading.compare import LEVELS, SHOWN, Difference, Run, compare, run_of, shown
from ...fsm.reading.rebuilds import rebuilds
from ...fsm.request.finish import FROM_OUTSIDE, FinishReason
from ..streams.reading import events_of, transcript_of

if TYPE_CHECKING:
    from ...runtime.model.port import Model

SIDE_MAX = 80
"""Characters shown of each side of a difference."""

OWN_ENDS = set(FinishReason) - FROM_OUTSIDE


def run_in(log: EventLog, job: str, level: str = LEVELS[0]) -> Run:
    """The run of a job, from its log, for a comparison from `level` on.

    Errors: UnknownJob, CorruptRecord, and what the fold finds broken; EvidenceSealed where the log is sealed and the
    level needs evidence that it no longer has.
    """
    if level in SHOWN:
        return shown(transcript_of(log, job))
    return run_of(numbered.event for numbered in events_of(log, job))


class Verdict(NamedTuple):
    """What a comparison came to.

    found   the first difference, if there is one
    steps   those that both runs have
    level   the first that counted
    ended   whether the left run had ended, and the right one
    """

    found: Difference | None
    steps: int
    level: str
    ended: tuple[bool, bool]

    @property
    def same(self) -> bool:
        """Whether no difference was found."""
        return self.found is None


def against(left: Run, right: Run, level: str = LEVELS[0]) -> Verdict:
    """The verdict on two runs, from `level` on."""
    steps = min(len(left.steps), len(right.steps))
    return Verdict(compare(left, right, level), steps, level, (left.ended, right.ended))


def reexecuted(log: EventLog, model: Model, job: str, level: str = LEVELS[0], run: Run | None = None) -> Run:
    """What the job's request gives when it is run again from its first call, in memory, as far as the job has come.

    It makes the calls that the log records: where the job went on with lanes that were made again, so does this run.
    Where it ended by itself this run goes on to its own end too, unless it has more tokens by then.

    level   the first that the run is to be compared at
    run     what the log says of the job, where that is known

    Errors: those of `run_again`, and of the log.
    """
    from .second_run import run_again

    admitted = next(numbered.event for numbered in events_of(log, job))
    if not isinstance(admitted, RequestAdmitted):
        raise TypeError("a log begins with its admission")
    known = run_in(log, job, level) if run is None else run
    steps = len(known.steps) + 1 if _by_itself(known) else len(known.steps)
    lost = rebuilds(numbered.event for numbered in events_of(log, job))
    return run_in(run_again(admitted, model, steps, lost), job, level)


def against_reexecution(log: EventLog, model: Model, job: str, level: str = LEVELS[0]) -> Verdict:
    """The verdict on a job and its request run again, from `level` on.

    Of a job that was cancelled or failed only the steps are compared: the request did not decide its end.
    Errors: as `reexecuted`.
    """
    left = run_in(log, job, level)
    right = reexecuted(log, model, job, level, left)
    verdict = against(left if _by_itself(left) else left._replace(ending=None), right, level)
    return verdict._replace(ended=(left.ended, right.ended))


def reexecution_faults(log: EventLog, model: Model, job: str) -> list[Fault]:
    """What `against_reexecution` finds, as a fault of the kind "reexecution"; of a sealed log at the levels it has.

    A job that is sealed or erased while it is read is read again. Errors: as `reexecuted`; ContentErased.
    """
    row = log.row(job)
    try:
        return _faults(log, model, row)
    except (ContentErased, EvidenceSealed):
        now = log.row(job)
        if (now.sealed_ms, now.erased_ms) == (row.sealed_ms, row.erased_ms):
            raise
        return _faults(log, model, now)


def _faults(log: EventLog, model: Model, row: JobRow) -> list[Fault]:
    level = LEVELS[0] if row.sealed_ms is None else SHOWN[0]
    verdict = against_reexecution(log, model, row.job, level)
    return [] if verdict.found is None else [Fault(row.job, row.head.sequence, "reexecution", told(verdict))]


def told(verdict: Verdict) -> str:
    """The verdict of a comparison in words."""
    found, steps, level, ended = verdict
    if found is None:
        counted = len(LEVELS) - LEVELS.index(level)
        levels = f"all {counted} levels" if level == LEVELS[0] else f"the last {counted} levels, from {level} on"
        return f"the same at {levels}, {steps} steps{'' if all(ended) else ', as far as both have come'}"
    left, right = _sides(found)
    return f"{found.level}: step {found.step} differs in {found.name}: {left} and {right}"


def plain(verdict: Verdict) -> dict[str, Any]:
    """The verdict for JSON."""
    found, steps, level, (left, right) = verdict
    facts = {"same": found is None, "from": level, "ended": {"left": left, "right": right}}
    if found is None:
        return facts | {"steps": steps}
    place = {"step": found.step, "level": found.level, "name": found.name}
    return facts | place | dict(zip(("left", "right"), _sides(found), strict=True))


def _by_itself(run: Run) -> bool:
    """Whether the request itself decided the run's end."""
    return run.ending is not None and run.ending.finish in OWN_ENDS


def _sides(found: Difference) -> list[str]:
    """Both sides as texts; long ones are cut to the part where they differ."""
    texts = [side.hex() if isinstance(side, bytes) else str(side) for side in (found.left, found.right)]
    parting = next((place for place, (one, other) in enumerate(zip(*texts, strict=False)) if one != other), 0)
    begin = max(0, parting - SIDE_MAX // 2) if max(map(len, texts)) > SIDE_MAX else 0
    return [_part(text, begin) for text in texts]


def _part(text: str, begin: int) -> str:
    end = begin + SIDE_MAX
    return f"{'...' if begin else ''}{text[begin:end]}{'...' if len(text) > end else ''}"
