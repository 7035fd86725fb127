"""The writer: makes turns durable, in order, and publishes them; on a thread of its own, or in place."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from queue import Empty
from typing import NamedTuple

from ...fsm.errors import BrokenInvariant, LostTenure, MisformedAppend, Problem
from ...fsm.machine.state import State
from ...fsm.machine.transition import Proposal
from ...fsm.ports import Append, Durable, Log
from ...fsm.reading.emission import Emission
from ...fsm.reading.snapshot import Keep, Snapshot
from ..faults import fault_of
from ..host import THREADS, Host, Started
from .context import Context, Sink
from .durable_job import DurableJob


def one_at_a_time(sink: Sink, host: Host = THREADS) -> Sink:
    """Each engine publishes on a thread of its own; the reader is one."""
    lock = host.lock()

    def publish(job: str, emissions: Sequence[Emission], state: State) -> None:
        with lock:
            sink(job, emissions, state)

    return publish


class JobStep(NamedTuple):
    """One job's part of a turn: what is to be appended, and the state in which it was proposed."""

    job: DurableJob
    proposal: Proposal
    base: State


Turn = Sequence[JobStep]
TurnOutcome = list[LostTenure] | BaseException


class Pending(NamedTuple):
    """A turn whose statements are executed: what is left is the wait for the disk."""

    steps: Turn
    durable: Durable


class Writer:
    """Takes turns from one crank, which may be one turn ahead.

    Threads cost what they wake each other for. So the thread begins a turn that is waiting before it says what became
    of the one before: the crank sleeps while the interpreter is needed here, and computes while the disk is waited for.
    After a turn has failed as a whole no further one is taken: they would follow on what is not there.

    outstanding  turns that were put and not waited for
    """

    def __init__(self, log: Log, context: Context) -> None:
        self._log = log
        self._sink = context.sink
        self._at = context.at
        self._snapshot_events = context.pace.snapshot_events
        self._host = context.host
        self._turns = self._host.queue()  # of Turn, or None at the end
        self._outcomes = self._host.queue()  # of TurnOutcome
        self._thread: Started | None = None
        self.outstanding = 0

    def put(self, turn: Turn) -> None:
        """Have the thread write a turn after those before."""
        if self._thread is None:
            self._thread = self._host.start(self._serve, "writer")
        self._turns.put(turn)
        self.outstanding += 1

    def wait(self) -> list[LostTenure]:
        """Wait until the oldest outstanding turn is durable and published: the jobs that it has lost.

        Raises the store's error where it failed as a whole; then none is outstanding any more.
        """
        outcome: TurnOutcome = self._outcomes.get()
        self.outstanding -= 1
        if isinstance(outcome, BaseException):
            while self.outstanding:
                self._outcomes.get()
                self.outstanding -= 1
            raise outcome
        return outcome

    def write(self, turn: Turn) -> list[LostTenure]:
        """Write a turn here and now; none is outstanding. As `wait`."""
        return self._finish(self._begin(turn))

    def close(self) -> None:
        """End the thread; none is outstanding. Idempotent."""
        if self._thread is not None:
            self._turns.put(None)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        failure: BaseException | None = None
        before: TurnOutcome | None = None  # of the turn before, not said yet
        while True:
            try:
                turn: Turn | None = self._turns.get_nowait()
            except Empty:
                if before is not None:
                    self._outcomes.put(before)
                    before = None
                turn = self._turns.get()
            if turn is None:
                return
            pending: Pending | None = None
            try:
                pending = self._begin(turn) if failure is None else None
            except BaseException as error:
                failure = error
            if before is not None:
                self._outcomes.put(before)
            try:
                before = failure if pending is None else self._finish(pending)
            except BaseException as error:
                before = failure = error

    def _begin(self, turn: Turn) -> Pending:
        """Do what must be done before the wait for the disk. Jobs that are lost by now have no part in it."""
        steps, appends = list[JobStep](), list[Append]()
        for step in turn:
            job = step.job
            if job.lost or job.fault is not None:
                continue
            try:
                if job.transcript.state is not step.base:
                    raise BrokenInvariant(clause="LOG-4", reason=f"a step of job {job.name} does not follow on its log")
                appends.append(job.append_of(step.proposal, step.base))
                steps.append(step)
            except BaseException as raised:
                job.fault = fault_of(job.name, raised)
        try:
            durable = self._log.begin(appends)
        except MisformedAppend as fault:
            faulty = [step.job for step in steps if step.job.name == fault.job]
            for job in faulty:
                job.fault = fault
            if not faulty:
                raise
            return self._begin(turn)
        self._at("turn.begun")
        return Pending(steps, durable)

    def _finish(self, pending: Pending) -> list[LostTenure]:
        """Wait until the turn is durable, then take it over and publish it, job by job."""
        steps, durable = pending
        results = durable()
        self._at("turn.durable")
        lost: list[LostTenure] = []
        far: list[DurableJob] = []
        for (job, proposal, _), result in zip(steps, results, strict=True):
            try:
                job.take_over(proposal, result)
                self._publish(job, proposal.state)
                if job.head.sequence - job.kept >= self._snapshot_events:
                    far.append(job)
            except LostTenure as loss:
                job.lost = loss.outcome
                lost.append(loss)
            except BaseException as raised:
                job.fault = fault_of(job.name, raised)
        self._at("turn.published")
        if far:
            self._keep(far)
        return lost

    def _keep(self, jobs: Sequence[DurableJob]) -> None:
        """Keep snapshots of jobs that are far from their last ones.

        Nothing depends on them: where the store fails, the next turn tries again, and its append says what is wrong.
        """
        batch = list[tuple[DurableJob, Keep]]()
        for job in jobs:
            with suppress(Exception):  # what is wrong with its state, its next step says
                if (snapshot := Snapshot.of(job.transcript, job.head)) is not None:
                    batch.append((job, Keep(job.claim.fence, job.kept, snapshot)))
        if not batch:
            return
        with suppress(Problem):
            self._log.keep([keep for _, keep in batch])
            for job, keep in batch:
                job.kept = keep.snapshot.head.sequence

    def _publish(self, job: DurableJob, state: State) -> None:
        if self._sink is None or job.detached:
            job.transcript.moments.clear()
            return
        if not (emissions := job.transcript.hand_over()):
            return
        try:
            self._sink(job.name, emissions, state)
        except Exception:
            # The reader can come back to the log at any sequence number; whether the job goes on, its request says.
            job.detached = True
