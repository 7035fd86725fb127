"""What must hold for the logs after a kill, and at the end. Each finding is a sentence; no findings is good."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ....fsm.errors import ContentErased, Problem, UnknownJob
from ....fsm.machine.events import AttemptStarted, Event, RequestAdmitted
from ....fsm.machine.states import Status
from ....fsm.ports import JobRow, Record
from ....fsm.reading.load import load
from ....fsm.reading.transcript import Transcript
from ...inspect.audit import audit
from ...inspect.facts import TENURE, answer
from ..demo import repeated
from .child import Ended
from .scenes import Scene, cancel_id

ABSENT = "absent"


class HasJobs(Protocol):
    """A scene, of this campaign or of another."""

    @property
    def jobs(self) -> list[str]: ...


class Log(NamedTuple):
    """One job as a reader finds it."""

    row: JobRow
    records: Sequence[Record]
    result: Mapping[str, Any]
    twice: int

    @property
    def facts(self) -> list[Event]:
        """What happened to the job, whoever worked on it."""
        return [event for record in self.records for event in record.events if not isinstance(event, TENURE)]

    @property
    def cuts(self) -> set[int]:
        """How many facts there are after each append: between them the log never stands."""
        cuts, count = set(), 0
        for record in self.records:
            count += sum(not isinstance(event, TENURE) for event in record.events)
            cuts.add(count)
        return cuts

    @property
    def tenures(self) -> int:
        return sum(isinstance(event, AttemptStarted) for record in self.records for event in record.events)

    @property
    def steps(self) -> int:
        """Appends of turns: all but the admission and what begins a tenure."""
        first = (record.events[0] for record in self.records)
        return sum(not isinstance(event, RequestAdmitted | AttemptStarted) for event in first)

    @property
    def answer(self) -> dict[str, Any]:
        """The result without what counts tenures."""
        return answer(self.result)

    @property
    def as_stored(self) -> tuple[Sequence[Record], Mapping[str, Any]]:
        return self.records, self.result


class Scan(NamedTuple):
    """A scene's jobs as they are found, without those that do not exist; `answers`: what became of their cancels."""

    logs: dict[str, Log]
    faults: list[str]
    answers: dict[str, str | None]

    @property
    def state(self) -> str:
        """The states that the jobs are in, each once."""
        found = {log.row.status.value for log in self.logs.values()} or {ABSENT}
        return "+".join(sorted(found))


def scan(store: Any, scene: HasJobs) -> Scan:
    """Read, verify and audit the scene's jobs."""
    logs: dict[str, Log] = {}
    faults: list[str] = []
    for job in scene.jobs:
        try:
            row = store.row(job)
            records, transcript = _read(store, job)
        except UnknownJob:
            continue
        except Problem as problem:
            faults.append(f"{job}: {problem}")
            continue
        logs[job] = Log(
            row, records, transcript.result(), repeated(event for record in records for event in record.events)
        )
    report = audit(store)
    faults += [f"audit: {fault.job} event {fault.sequence} [{fault.kind}] {fault.detail}" for fault in report.faults]
    faults += [f"{job}: {log.twice} committed twice" for job, log in logs.items() if log.twice]
    return Scan(logs, faults, {job: store.outcome(cancel_id(job)) for job in scene.jobs})


def _read(store: Any, job: str) -> tuple[list[Record], Transcript]:
    """What a job's log says; nothing where its content is erased."""
    transcript = Transcript()
    try:
        records = list(store.read(job))
    except ContentErased:
        return [], transcript
    load(transcript, records)
    return records, transcript


def after_kill(scene: Scene, ended: Ended, before: Scan, found: Scan, whole: Scan) -> Iterator[str]:
    """Old or new: each log is the undisturbed one up to one of its appends, and all jobs of a turn agree on it.

    before  what the process found; found  what it left; whole  what the undisturbed process left
    """
    yield from found.faults
    for job, sequence in ended.told.items():
        if job not in found.logs or found.logs[job].row.head.sequence < sequence:
            yield f"{job}: event {sequence} was shown and is not in the log"
    if scene.start is Status.CLOSED:
        yield from _old_or_new(before, found, whole)
        return
    for job, log in found.logs.items():
        facts, all_facts = log.facts, whole.logs[job].facts
        if facts != all_facts[: len(facts)]:
            yield f"{job}: its events are not those of the undisturbed run"
        if len(facts) not in whole.logs[job].cuts:
            yield f"{job}: its log ends inside an append"
    if before.logs and scene.tenures == 1:
        yield from _turn(ended, before, found, whole)


def _old_or_new(before: Scan, found: Scan, whole: Scan) -> Iterator[str]:
    """The log of an ended job is all as it was, or all as it was to become."""
    for job, log in found.logs.items():
        if log.as_stored not in (before.logs[job].as_stored, whole.logs[job].as_stored):
            yield f"{job}: its log is neither the old one nor the new one"


def _turn(ended: Ended, before: Scan, found: Scan, whole: Scan) -> Iterator[str]:
    """A turn of several jobs is one append: it is there for all of them or for none, and a durable one is there."""
    done = ended.points.count("turn.durable")
    taken = {job: log.steps - before.logs[job].steps for job, log in found.logs.items()}
    most = {job: log.steps - before.logs[job].steps for job, log in whole.logs.items()}
    if not any(all(taken[job] == min(turn, most[job]) for job in taken) for turn in (done, done + 1)):
        yield f"{done} turns were durable, and the jobs have {list(taken.values())} of {list(most.values())}"


def after_end(scene: Scene, killed: Scan, found: Scan, whole: Scan, retry: Ended) -> Iterator[str]:
    """The end is that of the undisturbed run, reached by one tenure more."""
    if not retry.well:
        yield f"the process that went on ended with {retry.code or -retry.signal}: {retry.last}"
    yield from found.faults
    if found.answers != whole.answers:
        yield f"the commands were answered with {found.answers}, and undisturbed with {whole.answers}"
    for job, expected in whole.logs.items():
        if (log := found.logs.get(job)) is None:
            yield f"{job}: it is lost"
            continue
        if log.facts != expected.facts:
            yield f"{job}: its events are not those of the undisturbed run"
        if log.answer != expected.answer:
            yield f"{job}: its result is not that of the undisturbed run"
        if log.row.owner is not None:
            yield f"{job}: it has ended and {log.row.owner} holds it"
        yield from _tenures(job, killed.logs.get(job), log, scene)


def _tenures(job: str, killed: Log | None, log: Log, scene: Scene) -> Iterator[str]:
    live = killed is None or killed.row.finish is None
    begun, due = log.tenures - (0 if killed is None else killed.tenures), scene.tenures if live else 0
    if due is not None and begun != due and scene.start is not Status.CLOSED:
        yield f"{job}: {begun} tenures began after the kill, and {due} were due"
