"""A job in a program's hands: run it, read it, end it, prove it."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...fsm.errors import SchemaViolation
from ...fsm.ports import JobRow
from ...fsm.reading.emission import Emission
from ..archive.export import export
from ..archive.snapshot import FORMS, REPAIRED, How, SnapshotReport, take
from ..database import now_ms
from ..extras import extras_named
from ..inspect.audit import Report
from ..inspect.compare import Verdict, against, against_reexecution, run_in
from ..inspect.explain import decision_of, explained
from ..jobs.cancel import Cancelled, cancel
from ..jobs.carry import carried
from ..jobs.fork import fork
from ..jobs.incarnation import new_worker_name
from ..jobs.own import with_own
from ..streams.reading import FOLLOW_S, Follower, Numbered, emissions_of, events_of, transcript_of
from .values import Explanation, Result, result_of

REBUILDS = ("prefill", "reexecute")

if TYPE_CHECKING:
    from ...store.archive.bundle import Written
    from .log import Log


class Job:
    """One job of a log. It holds nothing but its name: make as many of one job as you like, in any thread.

    name   its whole name
    log    the log that it is in
    """

    def __init__(self, log: Log, name: str) -> None:
        self.log = log
        self.name = name

    def __repr__(self) -> str:
        return f"<decodelog.Job {self.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and (self.name, self.log.url) == (other.name, other.log.url)

    def __hash__(self) -> int:
        return hash((self.name, self.log.url))

    # ---- running ----------------------------------------------------------------------------------------------

    def run(self, cache_dir: Path | str | None = None, rebuild: str = "prefill") -> Generator[Emission, None, None]:
        """Bring the job to its end in this process, and give its text from the beginning, as it becomes durable.

        Kill the process anywhere, and run the job again: it goes on from its next token, and all text comes again.
        Where another worker has the job, this gives its text, and takes the job over should that worker die. Leaving
        the loop, or closing the iterator, stops after the step at hand and leaves the job to be resumed.

        cache_dir   a folder where K/V rows are kept, so that a resume recomputes next to nothing
        rebuild     how lost rows are rebuilt: "prefill", or "reexecute" (bit-exact, slower)

        Errors: ExtraMissing without torch; UnknownModel, NotAdmissible and others that say why this process cannot.
        """
        check_rebuild(rebuild)
        log = self.log
        running = carried(log.store, log.models, [self.name], rebuild, folder(cache_dir), log.say)
        with extras_named(), closing(running) as pieces:
            for _, emission in pieces:
                yield emission

    def cancel(self, timeout: float = 30.0) -> Cancelled | None:
        """Ask for the job's end, keeping the tokens it has; None where its owner has not answered in `timeout` seconds.

        The command is durable either way, and the job's owner, or its next one, carries it out.
        """
        return cancel(self.log.store, self.name, new_worker_name(), timeout)

    def fork(self, at: int, *, key: str | None = None, retain_ms: int | None = None, **request: Any) -> Job:
        """A new job that continues from this one's first `at` output tokens. Fields left out of `request` are copied.

        Errors: NoSuchStep, NotAdmissible, IdempotencyConflict, and those of a request.
        """
        with extras_named():
            model = self.log.models.load(*self.row.wanted)
        made = fork(self.log.store, model, self.name, at, with_own(request), now_ms(), key, retain_ms)
        return Job(self.log, made.job)

    # ---- reading ----------------------------------------------------------------------------------------------

    @property
    def row(self) -> JobRow:
        """The job's listing: its state, counts, owner and times."""
        return self.log.store.row(self.name)

    @property
    def state(self) -> str:
        """ADMITTED, PREFILLED, DECIDED, PENDING, CLOSED or FAILED."""
        return self.row.status.value

    def stream(self, after: int = 0, follow: bool = True) -> Iterator[Emission]:
        """What becomes visible behind event `after`: during the run, after a crash and after the end.

        An emission's `sequence` is its event: `stream(after=last.sequence)` gives exactly the rest. With `follow` it
        goes on until the job has ended; this waits for the worker that runs the job, and runs nothing itself.
        """
        if not follow:
            yield from emissions_of(self.log.store, self.name, after + 1)
            return
        with closing(self.log.store.bell()) as bell:
            yield from emissions_of(self.log.store, self.name, after + 1, bell)

    def events(self, start: int = 1, follow: bool = False) -> Iterator[Numbered]:
        """The events of the job's log from number `start` on; with `follow`, also those to come until it ends."""
        if not follow:
            yield from events_of(self.log.store, self.name, start)
            return
        with closing(self.log.store.bell()) as bell:
            yield from events_of(self.log.store, self.name, start, bell)

    def result(self, timeout: float | None = None) -> Result:
        """The result, once the job has ended; this waits for the worker that runs it, and runs nothing itself.

        timeout   seconds; None: for as long as it takes. Errors: TimeoutError. `peek` does not wait.
        """
        until = None if timeout is None else time.monotonic() + timeout
        follower = Follower(self.log.store, self.name)
        with closing(self.log.store.bell()) as bell:
            follower.poll()
            while not follower.ended:
                left = FOLLOW_S if until is None else min(FOLLOW_S, until - time.monotonic())
                if left <= 0:
                    raise TimeoutError(f"job {self.name} has not ended in {timeout} s; is a worker running?")
                bell.wait(left)
                follower.poll()
        return result_of(self.name, follower.transcript)

    def peek(self) -> Result:
        """The result as far as the job has come."""
        return result_of(self.name, transcript_of(self.log.store, self.name))

    # ---- proving ----------------------------------------------------------------------------------------------

    def audit(self, reexecute: bool = False) -> Report:
        """Prove the job's log; with `reexecute` also run its model again and compare bit by bit. See `Log.audit`."""
        return self.log.audit([self.name], reexecute)

    def explain(self, step: int | None = None) -> Explanation:
        """Why output token `step`, counted from 0, was chosen; None: the newest. Errors: NoSuchStep."""
        return Explanation(explained(decision_of(self.log.store, self.name, step)))

    def compare(self, other: Job | None = None, level: str = "state") -> Verdict:
        """Compare with another job, or with this one's request run again; `same` where no difference was found.

        level   the first that counts, of state, tensor, policy, decision, sequence and resume
        """
        store = self.log.store
        if other is not None:
            return against(run_in(store, self.name, level), run_in(other.log.store, other.name, level), level)
        with extras_named():
            return against_reexecution(store, self.log.models.load(*self.row.wanted), self.name, level)

    def export(self, path: Path | str, *, force: bool = False, redact: bool = False) -> Written:
        """Write the job's log to a file that anybody can verify; `redact` leaves its content out."""
        return export(self.log.store, [self.name], Path(path), force, redact)

    def snapshot(
        self,
        path: Path | str,
        *,
        form: str = FORMS[0],
        tensors: bool = True,
        cache_dir: Path | str | None = None,
        force: bool = False,
    ) -> SnapshotReport:
        """Write the job as it stands to a file, to go on from anywhere.

        form        "pending-suffix", or "repaired": after a call over the token that was not processed yet
        tensors     with the cache's rows, which needs the model
        cache_dir   where rows of running jobs are kept
        """
        if form not in FORMS:
            raise SchemaViolation("form", f"it is one of {', '.join(FORMS)}")
        how = How(form, kept=folder(cache_dir), force=force)
        with extras_named():
            model = self.log.models.load(*self.row.wanted) if tensors or form == REPAIRED else None
            return take(self.log.store, model, self.name, Path(path), new_worker_name(), how)


def check_rebuild(rebuild: str) -> None:
    """Refuse an unknown way of rebuilding lost rows."""
    if rebuild not in REBUILDS:
        raise SchemaViolation("rebuild", f"it is one of {', '.join(REBUILDS)}")


def folder(given: Path | str | None) -> Path | None:
    """A folder as programs name it."""
    return None if given is None else Path(given)
