"""Trials: processes are killed or stopped at random, others go on, and what is left is held to what is promised."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from mortal import LEASE_MS, SCENES, Load, Scene, noted, reading, sealing, store_of

from decodelog.fsm.limits import TENURES_STALLED_MAX
from decodelog.fsm.machine.events import LanesRebuilt
from decodelog.fsm.machine.states import Status
from decodelog.fsm.reading.rebuilds import rebuilds
from decodelog.service.inspect.compare import reexecution_faults
from decodelog.service.lab.torture.child import Body, Ended, Place, Running, start
from decodelog.service.lab.torture.databases import Ground, PostgresGround
from decodelog.service.lab.torture.outages import until_back
from decodelog.service.lab.torture.verdict import Log, Scan, scan
from decodelog.service.streams.reading import transcript_of

FIRST = ("claim.begin", "claim.committed", "tenure.claimed", "tenure.loaded", "tenure.started")
CALL = ("call.before", "call.prepared", "call.selected")
APPEND = ("turn.decided", "turn.begun", "append.begin", "append.executed", "append.commit", "append.committed")
PHASES = {"claim": FIRST, "prefill": CALL, "decode": CALL, "append": (*APPEND, "turn.durable", "turn.published")}
STEPS = 5  # a tenure lives through at most so many before it is killed
STEP_S = 0.15  # a kill at no point comes so long after one at most
POLL_S = 0.002
LATE_S = 150.0


class Moment(NamedTuple):
    """When a process is killed: as it reaches a point for the n-th time, or `after_s` seconds later."""

    phase: str
    place: Place
    after_s: float


class Trial:
    """One trial of a kind, on one database. Everything but the time that things take follows from `random`.

    kills      how many there were, by what was killed and when
    faults     what is wrong at the end, in words
    rebuilds   form and tokens computed again of each tenure that found lanes to make again, where all kept their rows
    parted     jobs whose lanes other calls had made again, and whose tokens are others than the undisturbed run's
    """

    def __init__(
        self, load: Load, ground: Ground, folder: Path, random: Random, whole: Callable[[Scene], Scan]
    ) -> None:
        self.kills: Counter[str] = Counter()
        self.faults: list[str] = []
        self.rebuilds: list[tuple[str, int]] = []
        self.parted = 0
        self.story: list[str] = []
        self._load, self._ground, self._folder, self._random = load, ground, folder, random
        self._kept = folder / "kept"
        self._all_kept = random.random() < 0.4
        self._some_kept = self._all_kept or random.random() < 0.5
        self._form = random.choice(("prefill", "reexecute", "any"))
        self._number = 0
        self._told: dict[str, int] = {}
        self.scene = random.choice([*SCENES.values()])
        self._jobs = self.scene.jobs
        self._whole = whole(self.scene)
        shutil.rmtree(self._kept, ignore_errors=True)

    def run(self, kind: str) -> None:
        with ExitStack() as self._ends:
            if kind == "submitter":
                self._submit()
            else:
                self._ground.lay(self.scene.name, lambda url: self._load.admit(url, self.scene))
            if kind == "reader":
                self._read()
            else:
                harms = {"worker": self._random.randint(4, 8), "pause": 3, "server": 3}.get(kind, 1)
                self._live(kind, harms)
            self._settle()
        self._judge()
        if kind == "sealer":
            self._seal()

    # ---- processes ---------------------------------------------------------------------------------------------------

    def _start(self, body: Body, name: str, kill: Place | None = None) -> tuple[Running, Path]:
        self._number += 1
        begun = f"{self._number}-{name}-"
        running = start(body, self._folder, kill, begun)
        self._ends.callback(running.end)
        return running, self._folder / f"{begun}marks"

    def _worker(self, moment: Moment | None = None) -> tuple[Running, Path]:
        kept = self._kept if self._all_kept or (self._some_kept and self._random.random() < 0.6) else None
        form = self._random.choice(("prefill", "reexecute")) if self._form == "any" else self._form
        exact = moment.place if moment is not None and not moment.after_s else None
        self.story.append(f"worker {form}{' kept' if kept else ''} {moment}")
        return self._start(self._load.working(self._ground.url, form, kept), "worker", exact)

    def _moment(self) -> Moment:
        draw = self._random
        phase = draw.choice(list(PHASES))
        points = [each for each in PHASES[phase] if self._ground.name == "sqlite" or each not in APPEND[3:5]]
        first = phase in ("claim", "prefill")
        # Workers that end without a token, one after the other, are taken for a job's doing; so these are not so many.
        if self._stalled() >= TENURES_STALLED_MAX - 2:
            return Moment("append", Place("turn.durable", 2 * STEPS), 0.0)
        nth = 1 if first else draw.randint(2, STEPS)
        return Moment(phase, Place(draw.choice(points), nth), draw.choice((0.0, draw.random() * STEP_S)))

    def _stalled(self) -> int:
        """How many tenures in a row may have brought no token; the newest is counted by the next claim only."""
        with store_of(self._ground.url) as store:
            rows = [store.row(job) for job in self._jobs]
        return max((row.stalled + (row.owner is not None) for row in rows if row.finish is None), default=0)

    def _until(self, running: Running, marks: Path, moment: Moment) -> bool:
        """Wait until a process has come to a moment; False where it ended before."""
        late = time.monotonic() + LATE_S
        while not running.ended():
            if marks.read_text().split("\n").count(moment.place.point) >= moment.place.nth:
                return not running.ended(moment.after_s)
            if time.monotonic() > late:
                self.faults.append(f"a process has not come to {moment} in {LATE_S:.0f} s")
                return False
            time.sleep(POLL_S)
        return False

    def _over(self, running: Running, what: str, signals: Sequence[int] = ()) -> Ended:
        """Wait for a process that must end well, or by one of these signals."""
        ended = running.wait()
        for job, sequence in ended.told.items():
            self._told[job] = max(sequence, self._told.get(job, 0))
        if not ended.well and ended.signal not in signals:
            self.faults.append(f"{what} ended with {ended.code or -ended.signal}: {ended.last}")
        return ended

    def _kill(self, running: Running, marks: Path, moment: Moment, what: str) -> bool:
        """Kill a process at a moment, and look at the logs; False where it ended before."""
        if not moment.after_s:
            killed = self._over(running, what, [signal.SIGKILL]).killed
        elif self._until(running, marks, moment):
            running.kill()
            killed = self._over(running, what, [signal.SIGKILL]).killed
        else:
            if self.faults:
                running.end()
            killed = self._over(running, what, [signal.SIGKILL]).killed
        self.kills[f"{what} {moment.phase}"] += killed
        self._look()
        return killed

    # ---- kinds -------------------------------------------------------------------------------------------------------

    def _live(self, kind: str, harms: int) -> None:
        """Run the jobs to their ends, by as many workers as it takes."""
        while not self.faults and not self._ended():
            moment = self._moment() if harms else None
            harm = "worker" if kind not in ("pause", "server") or self._random.random() < 0.3 else kind
            harms -= bool(harms)
            if moment is None:
                self._over(self._worker()[0], "worker")
            elif harm == "pause":
                self._pause(moment._replace(after_s=moment.after_s or POLL_S))
            elif harm == "server":
                self._quit(moment._replace(after_s=moment.after_s or POLL_S))
            else:
                self._kill(*self._worker(moment), moment, "worker")

    def _pause(self, moment: Moment) -> None:
        """Stop a worker for longer than its lease, have another one take over, and wake it: it may append no more."""
        sleeper, marks = self._worker(moment)
        if not self._until(sleeper, marks, moment):
            self._over(sleeper, "worker")
            return
        os.kill(sleeper.pid, signal.SIGSTOP)
        began = time.monotonic()
        self.kills[f"paused {moment.phase}"] += 1
        other, marks = self._worker()
        woken = Moment("append", Place("turn.durable", self._random.choice((1, 2, 4, 1000))), 0.0)
        # One that holds the database while it is stopped keeps all others out: it is woken after a while.
        late = began + 4 * LEASE_MS / 1000 + 4
        while not other.ended(POLL_S) and time.monotonic() < late:
            if marks.read_text().split("\n").count(woken.place.point) >= woken.place.nth:
                break
        self._look()
        os.kill(sleeper.pid, signal.SIGCONT)
        if self._random.random() < 0.5 and not other.ended(self._random.random() * STEP_S):
            other.kill()
        self.kills["worker taken over"] += self._over(other, "the one that took over", [signal.SIGKILL]).killed
        self._over(sleeper, "the one that was stopped")
        self._look()

    def _quit(self, moment: Moment) -> None:
        """End the server, or one of its processes, by SIGQUIT, as in a crash, and start it again."""
        ground = self._ground
        if not isinstance(ground, PostgresGround) or ground.server is None:
            raise TypeError("only a server of this command's own is ended")
        worker, marks = self._worker(moment)
        if self._until(worker, marks, moment):
            if self._random.random() < 0.5:
                ground.server.stop(signal.SIGQUIT)
                self.kills[f"server {moment.phase}"] += 1
            else:
                for backend in ground.backends()[-1:]:
                    with suppress(ProcessLookupError):
                        os.kill(backend, signal.SIGQUIT)  # the server then ends all others, and recovers
                        self.kills[f"backend {moment.phase}"] += 1
            also = self._random.random() < 0.4
            if also:
                worker.kill()
            time.sleep(self._random.random() * 0.3)
            ground.server.start()
            for pause_s in until_back(ground):
                time.sleep(pause_s)
            self.kills["worker and server"] += self._over(worker, "worker", [signal.SIGKILL]).killed
        self._over(worker, "worker", [signal.SIGKILL])
        self._look()

    def _submit(self) -> None:
        """Kill submitters; the next one submits the same under the same keys, and no job is there twice."""
        self._ground.lay("nothing", lambda url: None)
        for _ in range(3):
            point = self._random.choice(("admit.begin", "admit.executed", "admit.commit", "admit.committed"))
            place = Place(point, self._random.randint(1, len(self.scene.drafts)))
            moment = Moment("admit", place, self._random.choice((0.0, self._random.random() * 0.02)))
            body = self._load.submitting(self._ground.url, self.scene)
            exact = None if moment.after_s else place
            self._kill(*self._start(body, "submitter", exact), moment, "submitter")
        self._over(self._start(self._load.submitting(self._ground.url, self.scene), "submitter")[0], "submitter")
        with store_of(self._ground.url) as store:
            self._jobs = [row.job for row in store.rows()]
        if len(self._jobs) != len(self.scene.drafts) or set(self._jobs) != set(self._told):
            self.faults.append(f"{len(self.scene.drafts)} requests, told as {self._told}, are the jobs {self._jobs}")

    def _read(self) -> None:
        """Kill readers while a worker works, which is killed once, too: each goes on behind what was noted."""
        job, notes = self._random.choice(self._jobs), self._folder / "notes"
        notes.unlink(missing_ok=True)
        moment = self._moment()
        worker, marks = self._worker(moment)
        for _ in range(self._random.randint(2, 4)):
            reader, _marks = self._start(reading(self._ground.url, job, notes), "reader")
            had, wanted = len(noted(notes)), self._random.randint(1, 4)
            late = time.monotonic() + LATE_S
            while not reader.ended(POLL_S) and not worker.ended() and time.monotonic() < late:
                if len(noted(notes)) >= had + wanted:
                    break
            reader.ended(self._random.random() * STEP_S)
            reader.kill()
            self.kills["reader"] += self._over(reader, "reader", [signal.SIGKILL]).killed
        self._kill(worker, marks, moment, "worker")
        self._live("reader", 0)
        self._over(self._start(reading(self._ground.url, job, notes), "reader")[0], "reader")
        with store_of(self._ground.url) as store:
            whole = [(each.sequence, each.text) for each in transcript_of(store, job).emissions]
        if noted(notes) != whole:
            self.faults.append(f"{job}: readers have noted {noted(notes)} of {whole}")

    def _seal(self) -> None:
        """Kill sealers of the ended jobs: each log is the old one or the new one, and shows the same."""
        with store_of(self._ground.url) as store:
            before = {job: transcript_of(store, job) for job in self._jobs}
        with ExitStack() as self._ends:
            for _ in range(3):
                point = self._random.choice(("seal.begin", "seal.executed", "seal.commit", "seal.committed"))
                moment = Moment("seal", Place(point, 1), self._random.choice((0.0, self._random.random() * 0.02)))
                body = sealing(self._ground.url, self._kept)
                exact = None if moment.after_s else moment.place
                self._kill(*self._start(body, "sealer", exact), moment, "sealer")
            self._over(self._start(sealing(self._ground.url, self._kept), "sealer")[0], "sealer")
            self._settle()
        with store_of(self._ground.url) as store:
            for job, whole in before.items():
                after = transcript_of(store, job)
                if (repr(after.result()), repr(after.emissions)) != (repr(whole.result()), repr(whole.emissions)):
                    self.faults.append(f"{job}: sealed, it shows something else")
                if store.row(job).sealed_ms is None:
                    self.faults.append(f"{job}: it is not sealed")
                faults = reexecution_faults(store, self._load.model, job)
                self.faults += [f"sealed, run again: {job}: {fault.detail}" for fault in faults]
        left = list(self._kept.glob("*")) if self._kept.exists() else []
        self.faults += [f"a cache is left of an ended job: {path.name}" for path in left]

    # ---- looking -----------------------------------------------------------------------------------------------------

    def _ended(self) -> bool:
        with store_of(self._ground.url) as store:
            return all(store.row(job).status.terminal for job in self._jobs)

    def _scan(self) -> Scan:
        with store_of(self._ground.url) as store:
            return scan(store, self.scene._replace(names=[row.job for row in store.rows()]))

    def _look(self) -> Scan:
        """Audit all logs as they are, and hold them to what was shown."""
        found = self._scan()
        self.faults += found.faults
        for job, sequence in self._told.items():
            if job not in found.logs or found.logs[job].row.head.sequence < sequence:
                self.faults.append(f"{job}: event {sequence} was shown and is not in the log")
        return found

    def _settle(self) -> None:
        self._ground.wait_idle()

    def _judge(self) -> None:
        """At the end: audit, the model run again over each job, and the undisturbed run where bits are kept."""
        found, whole = self._look(), list(self._whole.logs.values())
        named = self._jobs == self.scene.jobs
        for (job, log), expected in zip(found.logs.items(), whole, strict=False):
            self.faults += self._differences(job, log, expected, named)
        with store_of(self._ground.url) as store:
            for job in found.logs:
                faults = reexecution_faults(store, self._load.model, job)
                self.faults += [f"run again: {job}: {fault.detail}" for fault in faults]

    def _differences(self, job: str, log: Log, expected: Log, named: bool) -> Iterator[str]:
        if log.row.status is not Status.CLOSED:
            yield f"{job}: it is {log.row.status} and not closed"
        if log.row.owner is not None:
            yield f"{job}: it has ended and {log.row.owner} holds it"
        events = [event for record in log.records for event in record.events]
        same = ids_of(log) == ids_of(expected)
        if rebuilds(events):  # its rows were made by other calls than the undisturbed run's
            self.parted += not same
        elif not same:
            yield f"{job}: its tokens are not those of the undisturbed run"
        elif named and (log.facts != expected.facts or log.answer != expected.answer):
            yield f"{job}: its events are not those of the undisturbed run"
        if self._all_kept:
            self.rebuilds += [(each.form, each.tokens) for each in events if isinstance(each, LanesRebuilt)]


def ids_of(log: Log) -> Any:
    """A job's output tokens, by their results."""
    return log.result["token_ids"]


def undisturbed(load: Load, ground: Ground, folder: Path, scene: Scene) -> Scan:
    """What becomes of a scene's jobs when nothing happens to them. Errors: RuntimeError, should they not end well."""
    ground.lay(scene.name, lambda url: load.admit(url, scene))
    ended = start(load.working(ground.url, "prefill", None), folder).wait()
    with store_of(ground.url) as store:
        whole = scan(store, scene)
    if not ended.well or whole.faults or whole.state != Status.CLOSED.value:
        raise RuntimeError(f"{scene.name}, undisturbed: {ended.last}; {whole.state}; {whole.faults}")
    return whole
