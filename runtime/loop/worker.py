"""The worker loop: claim, turn the crank, keep the leases alive, obey commands, let go."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

from ...fsm.errors import JobFault, LostTenure, ModelNotHere, NoFreeSlot, PoisonJob, Problem, Transient
from ...fsm.limits import TENURES_STALLED_MAX
from ...fsm.ports import CANCEL, Caution, Claim, Clock, ModelRef, Store
from ...fsm.request.finish import FinishReason
from ..faults import fault_of
from ..model.port import Model
from .absent import Absent
from .context import DEFAULT, Context
from .engine import Engine
from .job import Job, fail
from .loading import Arrival, Loading
from .retry import Patience, patient
from .writer import one_at_a_time

Admit = Callable[[Job, Model], None]
"""Refuses a job that this process must not run, with a typed error (ENV-9)."""


class Worker:
    """Runs jobs of one database until told to stop, or until none is left.

    name    a random incarnation: a restarted process is another worker
    load    finds and loads the model that a job wants, on a thread; called once for each, and again where it has failed
    """

    def __init__(
        self,
        name: str,
        store: Store,
        load: Callable[[ModelRef], Model],
        admit: Admit,
        clock: Clock,
        context: Context = DEFAULT,
    ) -> None:
        self.name = name
        host, pace = context.host, context.pace
        self._patience = Patience(pace.patience_ms / 1000, context.told, host)
        self._store = patient(store, self._patience)
        self._load = load
        self._admit = admit
        self._clock = clock
        if context.sink is not None:
            context = replace(context, sink=one_at_a_time(context.sink, host))
        self._context, self._host, self._pace, self._at = context, host, pace, context.at
        self._notice = context.notice
        self._engines: dict[ModelRef, Engine] = {}
        self._fault: Problem | None = None
        self._full: set[ModelRef] = set()
        self._absent = Absent(pace.absent_ms, host)
        self._loading: dict[ModelRef, Loading[Model]] = {}
        self._arriving: dict[str, Arrival] = {}
        self._refused: set[str] = set()
        self._stopping = host.flag()
        self._beaten = host.flag()
        self._due: dict[str, int] = {}
        self._claim_ms = pace.claim_ms
        self._claims = self._claimed_ms = 0
        self._broken = False
        self._caution = Caution(suspects=1, delay_ms=pace.stalled_ms)
        self._suspects: dict[str, int] = {}
        self._commands: dict[str, str] = {}

    def stop(self) -> None:
        """Finish the turn at hand, release every job, and return from `run`. Safe in a signal handler."""
        self._stopping.set()
        self._patience.hurry()

    def run(self, jobs: Collection[str] | None = None, drain: bool = False, asked: bool = False) -> None:
        """Run claimable jobs (of `jobs`, where given). With `drain`, return when none of them is left to run.

        asked   somebody named these jobs and watches them; see `Caution`
        """
        self._caution = self._caution._replace(asked=asked)
        heart = self._host.start(self._beat, f"heartbeat {self.name}")
        bell = self._store.bell()
        try:
            while not self._stopping.is_set():
                self._claim(jobs)
                self._bring_in()
                if self._turn() or self._awaited():
                    continue
                # A live job of somebody else's is awaited: it is ours, should its owner die.
                if drain and not self._store.waiting(jobs, self._refused, self._absent.now()):
                    return
                if bell.wait(self._pace.idle_ms / 1000) and "claim" in self._due:
                    self._due["claim"] = min(self._due["claim"], self._claimed_ms + self._pace.claim_ms)
        except Exception as fault:
            # Whoever dies of a job must not give it back: the next claim then counts a tenure that has stalled.
            self._broken = not (self._caution.asked or isinstance(fault, Transient))
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
        return [*(name for engine in self._engines.values() for name in engine.jobs), *self._arriving]

    def _rooms(self) -> tuple[set[ModelRef], int]:
        """The models that have no room for another job, and how many more there is room for in the fullest other."""
        coming = Counter(arrival.claim.wanted for arrival in self._arriving.values())
        left = {model: engine.lanes - len(engine.jobs) - coming[model] for model, engine in self._engines.items()}
        full = {model for model, count in left.items() if count <= 0}
        return full, min([self._pace.lanes_max, *(count for count in left.values() if count > 0)])

    def _every(self, what: str, interval_ms: int) -> bool:
        """True at most once an interval."""
        now = int(self._host.monotonic_s() * 1000)
        if now < self._due.get(what, 0):
            return False
        self._due[what] = now + interval_ms
        return True

    def _claim(self, jobs: Collection[str] | None) -> None:
        pace, held = self._pace, self._held()
        if (self._full and self._full != self._rooms()[0]) or (self._suspects and not self._suspected()):
            self._due.pop("claim", None)  # what kept others from being claimed is over
        if len(held) >= pace.lanes_max or not self._every("claim", self._spread(self._claim_ms)) or self._suspected():
            return
        self._full, least = self._rooms()
        limit = min(pace.lanes_max - len(held), pace.claims_max, least)
        self._claimed_ms = int(self._host.monotonic_s() * 1000)
        store = self._store
        # A job that is this worker's, and that it does not hold: the answer to its claim was lost.
        dead = {*self._context.dead(store.owners() - {self.name}), self.name}
        exclude = [*held, *self._refused]
        barred = self._full | self._absent.now()
        claims = store.claim(self.name, pace.lease_ms, limit, jobs, dead, exclude, self._caution, barred)
        for claim in claims:
            self._take(claim)
        self._bring_in()
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

        Nothing is claimed beside it, so that no harmless job is held to be what the worker has died of.
        """
        jobs = {name: job for engine in self._engines.values() for name, job in engine.jobs.items()}
        self._suspects = {
            name: output
            for name, output in self._suspects.items()
            if name in self._arriving or (name in jobs and jobs[name].state.frontier.output <= output)
        }
        return bool(self._suspects)

    def _take(self, claim: Claim) -> None:
        """Begin with a claimed job; one of which workers die is ended."""
        self._at("tenure.claimed")
        if claim.stalled >= TENURES_STALLED_MAX and not self._caution.asked:
            return self._end(claim, PoisonJob(claim.job, claim.stalled))
        self._arriving[claim.job] = Arrival(claim)
        if claim.stalled:
            self._suspects[claim.job] = 0

    def _bring_in(self) -> None:
        """Adopt the jobs whose models and grammars are ready; those that cannot be run here are left to others."""
        for name, arrival in list(self._arriving.items()):
            try:
                if not self._adopted(arrival):
                    continue
            except LostTenure as loss:
                self._notice(name, loss)
            except BaseException as raised:
                problem = fault_of(name, raised)
                if isinstance(problem, JobFault) and arrival.job is not None:
                    self._end(arrival.claim, problem)
                else:
                    self._leave(name, problem, arrival.claim.wanted)
            del self._arriving[name]

    def _adopted(self, arrival: Arrival) -> bool:
        """Load, check and adopt one job as far as that can be done now; whether it is done with."""
        claim = arrival.claim
        if (engine := self._engine(claim.wanted)) is None:
            return False
        if (job := arrival.job) is None:
            job = arrival.job = self._patience(lambda: Job.load(self._store, claim))
            self._at("tenure.loaded")
            self._admit(job, engine.model)
            if (deadline_ms := job.state.spec.envelope.termination.deadline_ms) is not None:
                job.deadline_ms = self._store.row(claim.job).created_ms + deadline_ms
            if claim.stalled:
                self._suspects[claim.job] = job.state.frontier.output
        if job.state.spec.grammar is not None:
            if arrival.parser is None:
                what, action = f"the grammar of job {job.name}", partial(engine.parser_of, job)
                arrival.parser = Loading(what, action, self._pace.load_ms / 1000, self._host)
            if not (parser := arrival.parser.result()):
                return False
            job.parser = parser[0]
        if len(engine.jobs) >= engine.lanes:
            self._store.release(self.name, [job.name])
        else:
            engine.adopt(job, self.name)
            self._due.pop(f"inbox of {claim.wanted}", None)  # a command may have waited for it
            self._at("tenure.started")
        return True

    def _awaited(self) -> bool:
        """Wait for a moment where jobs are on their way to the crank; whether there are any."""
        parsers = (arrival.parser for arrival in self._arriving.values())
        loading: list[Loading[Any]] = [*self._loading.values(), *(each for each in parsers if each is not None)]
        if self._arriving and loading:
            loading[0].wait(self._pace.idle_ms / 1000)
        return bool(self._arriving)

    def _leave(self, job: str, problem: Problem, of: ModelRef | None = None) -> None:
        """Give a job back that this worker cannot go on with; unless that may pass, it is not claimed here again, and
        for a while no other of its model, where that is not here."""
        news = True
        if isinstance(problem, ModelNotHere) and of is not None:
            news = self._absent.add(of)
        elif not isinstance(problem, Transient):
            self._refused.add(job)
        self._store.release(self.name, [job])
        if news:
            self._notice(job, problem)

    def _end(self, claim: Claim, problem: Problem) -> None:
        """End a job by a problem of its own, without working on it; where even its log is no help, leave it."""
        try:
            job = self._patience(lambda: fail(self._store, claim, self.name, problem))
        except LostTenure as loss:
            return self._notice(claim.job, loss)
        except BaseException as raised:
            return self._leave(claim.job, fault_of(claim.job, raised))
        context = self._context
        if context.segments is not None:
            context.segments.forget(job)
        if context.sink is not None:
            with suppress(Exception):  # as in the writer, a reader's fault is its own
                context.sink(job.name, job.durable.transcript.hand_over(), job.state)

    def _engine(self, model: ModelRef) -> Engine | None:
        """The engine of a model; None while that is still being loaded. Errors: those of the loading."""
        if (engine := self._engines.get(model)) is not None:
            return engine
        if (loading := self._loading.get(model)) is None:
            loading = Loading(
                f"the model {model.name}", partial(self._loaded, model), self._pace.load_ms / 1000, self._host
            )
            self._loading[model] = loading
        try:
            if not (loaded := loading.result()):
                return None
        finally:
            if loading.ended:  # one that has failed is tried again for the next job
                del self._loading[model]
        engine = self._engines[model] = Engine(self._store, loaded[0], self._context)
        return engine

    def _loaded(self, wanted: ModelRef) -> Model:
        """The model, with its weights."""
        model = self._load(wanted)
        _ = model.recorded
        return model

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
            if self._context.segments is not None:
                closing.callback(self._context.segments.close)
            if not self._broken:
                closing.callback(self._store.release, self.name)
            for engine in self._engines.values():
                closing.callback(self._let_go, engine)

    def _let_go(self, engine: Engine) -> None:
        lost = engine.close()
        self._sort_out(engine)
        self._heed(lost)

    # ---- one turn ---------------------------------------------------------------------------------------------

    def _turn(self) -> bool:
        """One turn of every engine that holds jobs; False where none does."""
        busy = False
        for model, engine in self._engines.items():
            if engine.jobs:
                busy = True
                lost = engine.turn(partial(self._interruptions, model, engine))
                self._sort_out(engine)
                self._heed(lost)
        return busy

    def _sort_out(self, engine: Engine) -> None:
        """End the jobs that met a fault of their own, and give back those that found no room."""
        while engine.faulty:
            durable = engine.faulty.pop().durable
            if durable.fault is not None:
                self._end(durable.claim, durable.fault)
        while engine.crowded:
            job = engine.crowded.pop()
            if engine.lanes:
                self._store.release(self.name, [job.name])
            else:
                self._refused.add(job.name)  # it would find none however long it waits
                self._leave(job.name, NoFreeSlot(0))

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

    def _interruptions(self, model: ModelRef, engine: Engine) -> Mapping[str, Sequence[FinishReason]]:
        """Jobs of `engine` that a command or a deadline ends now."""
        ended: dict[str, list[FinishReason]] = defaultdict(list)
        if self._every(f"inbox of {model}", self._pace.inbox_ms):
            for command in self._store.pending(list(engine.jobs)):
                if command.kind == CANCEL:
                    self._commands[command.command_id] = command.job
                    ended[command.job] = [FinishReason.CANCELLED]
        for job in engine.jobs.values():
            if job.deadline_ms is not None and self._clock() >= job.deadline_ms:
                ended[job.name].append(FinishReason.TIMEOUT)
        return ended

    def _settle(self, command_id: str, job: str) -> None:
        """Answer a command once its job has ended; where the job was lost instead, its next owner will answer."""
        row = self._store.row(job)
        if row.finish is not None:
            self._store.settle(command_id, row.finish)
