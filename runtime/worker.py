"""The worker loop: claim, turn the crank, keep the leases alive, obey commands, let go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

from ..fsm.emission import Emission
from ..fsm.errors import LostTenure, PoisonJob, Problem, Transient
from ..fsm.finish import FinishReason
from ..fsm.limits import TENURES_STALLED_MAX
from ..fsm.points import Reached, unheard
from ..fsm.ports import CANCEL, Caution, Claim, Clock, Store
from ..fsm.state import State
from ..fsm.transition import FailRequest, StartAttempt
from .engine import Engine
from .host import THREADS, Host
from .job import Job
from .model import Model
from .patience import Patience, Told
from .segments import Segments
from .writer import SNAPSHOT_EVENTS, Sink

Admit = Callable[[Job, Model], None]
"""Refuses a job that this process must not run, with a typed error (ENV-9)."""

Notice = Callable[[str, Problem], None]
"""Hears of a job that was refused or lost, and why."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often things happen, in milliseconds, and how many jobs are held at once.

    claim_ms, claim_ms_max   between two claims, and up to half as long again; twice as long each time that nothing is
             found, up to the second
    claims_max   jobs that one claim may take: those in hand wait while it loads them
    stalled_ms   see `Caution.delay_ms`
    patience_ms  how long a database that is away, full or locked is waited for
    beside   whether appends run beside the next call; None: where that gains time
    snapshot_events   events of a job after which its next snapshot is kept
    """

    lease_ms: int = 10_000
    claim_ms: int = 200
    claim_ms_max: int = 2_000
    claims_max: int = 8
    stalled_ms: int = 2_000
    inbox_ms: int = 50
    idle_ms: int = 50
    lanes_max: int = 16
    patience_ms: int = 60_000
    beside: bool | None = None
    snapshot_events: int = SNAPSHOT_EVENTS


class Worker:
    """Runs jobs of one database until told to stop, or until none is left.

    name    a random incarnation: a restarted process is another worker
    load    finds and loads the model that a job names; called once a name
    segments    keeps the caches of the jobs in hand on disk, where given; `run` closes it
    dead    names the workers whose process is known to be gone, so that their jobs need not wait for the lease
    at      told the points of `fsm.points` that are the runtime's
    told    hears that the database is waited for, and that it is back
    host    where its threads run, and their time
    """

    def __init__(
        self,
        name: str,
        store: Store,
        load: Callable[[str], Model],
        admit: Admit,
        clock: Clock,
        sink: Sink | None = None,
        notice: Notice | None = None,
        dead: Callable[[Collection[str]], Collection[str]] | None = None,
        form: str = "prefill",
        pace: Pace = Pace(),
        segments: Segments | None = None,
        at: Reached = unheard,
        told: Told | None = None,
        host: Host = THREADS,
    ) -> None:
        self.name = name
        self._store = store
        self._load = load
        self._admit = admit
        self._clock = clock
        self._sink = None if sink is None else one_at_a_time(sink, host)
        self._notice = notice or (lambda job, problem: None)
        self._dead = dead or (lambda owners: ())
        self._form = form
        self._pace = pace
        self._segments = segments
        self._at = at
        self._patiently = Patience(pace.patience_ms / 1000, told, host)
        self._host = host
        self._engines: dict[str, Engine] = {}
        self._fault: Problem | None = None
        self._refused: set[str] = set()
        self._stopping = host.flag()
        self._beaten = host.flag()
        self._due: dict[str, int] = {}
        self._claim_ms = pace.claim_ms
        self._claims = self._claimed_ms = 0
        self._broken = False
        self._suspects: dict[str, int] = {}
        self._commands: dict[str, str] = {}

    def stop(self) -> None:
        """Finish the turn at hand, release every job, and return from `run`. Safe in a signal handler."""
        self._stopping.set()
        self._patiently.hurry()

    def run(self, jobs: Collection[str] | None = None, drain: bool = False) -> None:
        """Run claimable jobs (of `jobs`, where given). With `drain`, return when none of them is left to run."""
        heart = self._host.start(self._beat, f"heartbeat {self.name}")
        bell = self._store.bell()
        try:
            while not self._stopping.is_set():
                self._claim(jobs)
                if self._turn():
                    continue
                # A live job of somebody else's is awaited: it is ours, should its owner die.
                if drain and not self._patiently(lambda: self._store.waiting(jobs, self._refused)):
                    return
                if bell.wait(self._pace.idle_ms / 1000) and "claim" in self._due:
                    self._due["claim"] = min(self._due["claim"], self._claimed_ms + self._pace.claim_ms)
        except Exception as fault:
            # Whoever dies of a job must not give it back: the next claim then counts a tenure that has stalled.
            self._broken = not isinstance(fault, Transient)
            raise
        finally:
            bell.close()
            self._beaten.set()
            heart.join()
            self._release()
        if self._fault is not None:
            raise self._fault

    # ---- tenure -----------------------------------------------------------------------------------------------

    def _held(self) -> list[str]:
        return [name for engine in self._engines.values() for name in engine.jobs]

    def _every(self, what: str, interval_ms: int) -> bool:
        """True at most once an interval."""
        now = int(self._host.monotonic_s() * 1000)
        if now < self._due.get(what, 0):
            return False
        self._due[what] = now + interval_ms
        return True

    def _claim(self, jobs: Collection[str] | None) -> None:
        pace, held = self._pace, self._held()
        limit = min(pace.lanes_max - len(held), pace.claims_max)
        if limit <= 0 or not self._every("claim", self._spread(self._claim_ms)):
            return
        self._claimed_ms = int(self._host.monotonic_s() * 1000)
        store, lease_ms = self._store, pace.lease_ms
        # A job that is this worker's, and that it does not hold: the answer to its claim was lost.
        dead = {*self._dead(self._patiently(store.owners) - {self.name}), self.name}
        exclude = [*held, *self._refused]
        caution = Caution(suspects=0 if self._suspected() else 1, delay_ms=pace.stalled_ms)
        claims = self._patiently(lambda: store.claim(self.name, lease_ms, limit, jobs, dead, exclude, caution))
        for claim in claims:
            self._take(claim)
        # A worker with jobs in hand is not woken by the bell.
        idle = not claims and not held
        self._claim_ms = max(pace.claim_ms, min(2 * self._claim_ms, pace.claim_ms_max)) if idle else pace.claim_ms
        if len(claims) == limit:
            del self._due["claim"]  # there are more

    def _spread(self, interval_ms: int) -> int:
        """Up to half as long again, by this worker's name: workers that begin together do not go on so."""
        self._claims += 1
        chance = int.from_bytes(sha256(f"{self.name}/{self._claims}".encode()).digest()[:4]) / 2**32
        return interval_ms + int(interval_ms * chance / 2)

    def _suspected(self) -> bool:
        """Whether a job is in hand of which workers may die: its tenures stall, and this one has brought no token yet.

        Another such job is not taken beside it, so that no harmless one is held to be what the worker has died of.
        """
        jobs = {name: job for engine in self._engines.values() for name, job in engine.jobs.items()}
        self._suspects = {
            name: output
            for name, output in self._suspects.items()
            if name in jobs and jobs[name].state.frontier.output <= output
        }
        return bool(self._suspects)

    def _take(self, claim: Claim) -> None:
        """Load, check and adopt one claimed job; a job that cannot be run here is left for another worker."""
        try:
            self._at("tenure.claimed")
            if claim.stalled >= TENURES_STALLED_MAX:
                return self._give_up(claim)
            engine = self._engine(claim.model)
            job = self._patiently(lambda: Job.load(self._store, claim))
            self._at("tenure.loaded")
            self._admit(job, engine.model)
            if (deadline_ms := job.state.spec.envelope.termination.deadline_ms) is not None:
                job.deadline_ms = self._patiently(lambda: self._store.row(claim.job)).created_ms + deadline_ms
            if claim.stalled:
                self._suspects[claim.job] = job.state.frontier.output
            engine.adopt(job, self.name)
            self._at("tenure.started")
        except LostTenure as loss:
            self._notice(claim.job, loss)
        except Problem as problem:
            if not isinstance(problem, Transient):
                self._refused.add(claim.job)
            self._patiently(lambda: self._store.release(self.name, [claim.job]))
            self._notice(claim.job, problem)

    def _give_up(self, claim: Claim) -> None:
        """End a job of which one worker after the other has died, without working on it."""
        job = self._patiently(lambda: Job.load(self._store, claim))
        problem = PoisonJob(claim.job, claim.stalled)
        commands = StartAttempt(claim.fence, self.name), FailRequest(problem.code, str(problem))
        self._patiently(lambda: job.record(self._store, *commands))
        if self._segments is not None:
            self._segments.forget(job)
        if self._sink is not None:
            with suppress(Exception):  # as in the writer, a reader's fault is its own
                self._sink(job.name, job.transcript.hand_over(), job.state)

    def _engine(self, model: str) -> Engine:
        if model not in self._engines:
            self._engines[model] = Engine(
                self._store,
                self._load(model),
                self._sink,
                self._form,
                self._pace.beside,
                self._segments,
                self._at,
                self._patiently,
                self._pace.snapshot_events,
                self._host,
            )
        return self._engines[model]

    def _beat(self) -> None:
        """Extend the leases in the background: a model call may outlast one."""
        while not self._beaten.wait(self._pace.lease_ms / 3000):
            try:
                self._store.heartbeat(self.name, self._pace.lease_ms)
            except Transient:
                continue  # The lease has time for another beat; if none succeeds, the fence keeps us out.
            except Problem as problem:
                self._fault = problem
                self.stop()
                return

    def _release(self) -> None:
        """Let the append that is under way come to its end, and give every job back."""
        with ExitStack() as closing:
            if self._segments is not None:
                closing.callback(self._segments.close)
            if not self._broken:
                closing.callback(lambda: self._patiently(lambda: self._store.release(self.name)))
            for engine in self._engines.values():
                closing.callback(self._let_go, engine)

    def _let_go(self, engine: Engine) -> None:
        self._heed(engine.close())

    # ---- one turn ---------------------------------------------------------------------------------------------

    def _turn(self) -> bool:
        """One turn of every engine that holds jobs; False where none does."""
        busy = False
        for model, engine in self._engines.items():
            if engine.jobs:
                busy = True
                self._heed(engine.turn(partial(self._interruptions, model, engine)))
        return busy

    def _heed(self, lost: Sequence[LostTenure]) -> None:
        """Say which jobs were lost, and answer the commands whose jobs are no longer held."""
        for loss in lost:
            self._notice(loss.job, loss)
        if self._commands:
            held = set(self._held())
            for command_id, job in list(self._commands.items()):
                if job not in held:
                    self._settle(command_id, job)
                    del self._commands[command_id]

    def _interruptions(self, model: str, engine: Engine) -> Mapping[str, Sequence[FinishReason]]:
        """Jobs of `engine` that a command or a deadline ends now."""
        ended: dict[str, list[FinishReason]] = defaultdict(list)
        if self._every(f"inbox of {model}", self._pace.inbox_ms):
            for command in self._patiently(lambda: self._store.pending(list(engine.jobs))):
                if command.kind == CANCEL:
                    self._commands[command.command_id] = command.job
                    ended[command.job] = [FinishReason.CANCELLED]
        for job in engine.jobs.values():
            if job.deadline_ms is not None and self._clock() >= job.deadline_ms:
                ended[job.name].append(FinishReason.TIMEOUT)
        return ended

    def _settle(self, command_id: str, job: str) -> None:
        """Answer a command once its job has ended; where the job was lost instead, its next owner will answer."""
        row = self._patiently(lambda: self._store.row(job))
        if row.finish is not None:
            self._patiently(lambda: self._store.settle(command_id, row.finish or ""))


def one_at_a_time(sink: Sink, host: Host = THREADS) -> Sink:
    """Each engine publishes on a thread of its own; the reader is one."""
    lock = host.lock()

    def publish(job: str, emissions: Sequence[Emission], state: State) -> None:
        with lock:
            sink(job, emissions, state)

    return publish
