"""A log in a program's hands: the database that jobs are in, and what this process needs to run them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ...fsm.errors import SchemaViolation, UnsupportedDatabase
from ...fsm.ports import JobRow
from ...fsm.request.draft import as_lists, draft_from
from ..archive.export import export
from ..archive.restore import Back, restore
from ..database import database_url, now_ms, open_database
from ..extras import extras_named
from ..inspect.audit import Report, audit, audit_anchored
from ..inspect.reexecution import again
from ..jobs.beside import end_all
from ..jobs.models import Models, home
from ..jobs.naming import find, find_job
from ..jobs.own import with_own
from ..jobs.voice import Say, unsaid
from .job import Job, check_rebuild, folder
from .values import Result

if TYPE_CHECKING:
    from ...fsm.request.registration import Registered
    from ...runtime.model.port import Model
    from ...store.archive.bundle import Written
    from ...store.engine import DatabaseStore
    from ...store.memory.log import MemoryStore
    from .worker import Working

LANES = 16


def open(
    url: str | None = None,
    *,
    create: bool = True,
    models: Mapping[str, Model] | None = None,
    lanes: int = LANES,
    say: Say = unsaid,
) -> Log:
    """Open a log.

    url      `sqlite:///FILE`, a PostgreSQL URL, or `memory://`, which ends with the process; None: DECODELOG_DB, else
             `sqlite:///decodelog.db`
    create   make a SQLite file that is not there yet; a PostgreSQL database is made ready by `decodelog db upgrade`
    models   loaded models of your own, by the names that jobs use; every process that runs such a job must pass it
    lanes    jobs that one model may hold at a time
    say      called with messages for people, such as that it is waiting for the database

    Errors: SchemaMissing, SchemaOutdated, SchemaNewer, UnsupportedDatabase, and the store's.
    """
    return Log(database_url(url), create, models, lanes, say)


class Log:
    """The jobs of one database. Threads may share it; a process that is forked opens one of its own.

    Close it, or use it as a context manager. What it has loaded and opened ends with it; jobs stay as they are.
    """

    def __init__(
        self,
        url: str,
        create: bool = True,
        models: Mapping[str, Model] | None = None,
        lanes: int = LANES,
        say: Say = unsaid,
    ) -> None:
        self.url = url
        self.say = say
        self._told: set[str] = set()
        self.models = Models(home(), lanes, models)
        self.store: DatabaseStore | MemoryStore = open_database(url, create)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the workers of this log, each after its step, and close the database's connections; idempotent."""
        end_all(self.store)
        self.store.close()

    # ---- jobs -------------------------------------------------------------------------------------------------

    def submit(
        self,
        model: str,
        *,
        user: str | None = None,
        system: str | None = None,
        key: str | None = None,
        retain_ms: int | None = None,
        **request: Any,
    ) -> Job:
        """Make a request durable, to be run by `Job.run` or by any worker.

        model       a fetched model's name, a checkpoint's folder, or a name of `open(models=...)`; or the name or the
                    digest of a registered one, for which this process needs neither weights nor torch
        user, system    a chat of one message, and what comes before it; else `messages`, `prompt` or `token_ids`
        key         an idempotency key: the same request under it attaches to the job that has it
        retain_ms   how long its content may stay from its end on
        request     the fields of a request (see `Draft`): temperature, seed, max_new_tokens, stop, ...

        Errors: SchemaViolation and others that name the field; IdempotencyConflict; UnknownModel; ExtraMissing;
        CorruptModel.
        """
        if request.get("n", 1) != 1:
            raise SchemaViolation("n", "it makes several jobs: call submit_choices")
        (job,) = self.submit_choices(model, user=user, system=system, key=key, retain_ms=retain_ms, **request)
        return job

    def submit_choices(
        self,
        model: str,
        *,
        user: str | None = None,
        system: str | None = None,
        key: str | None = None,
        retain_ms: int | None = None,
        **request: Any,
    ) -> list[Job]:
        """The same for a request with `n` choices: one job for each, in order. See `submit`."""
        from ..jobs.family import submit_choices
        from ..jobs.registering import describe, ignored_defaults, told_defaults

        if (user, system) != (None, None):
            request |= {"messages": _chat(user, system, request.get("messages"))}
        draft = draft_from(as_lists(with_own(request)))
        with extras_named():
            described, name = describe(self.store, self.models, model)
            asked = submit_choices(self.store, described, name, draft, now_ms(), key, retain_ms)
        ignored = ignored_defaults(described.facts, draft)
        if ignored and (artifact := described.facts.artifact) not in self._told:
            self._told.add(artifact)
            self.say(told_defaults(ignored))
        return [Job(self, job) for job in asked.found.jobs]

    def submit_many(self, model: str, requests: Iterable[Mapping[str, Any]]) -> list[Job]:
        """`submit` for each request, in order: each a mapping of the arguments that `submit` takes."""
        return [self.submit(model, **request) for request in requests]

    def job(self, name: str) -> Job:
        """The one job whose name begins with `name`; "@last" is the newest. Errors: UnknownJob, AmbiguousJob."""
        return Job(self, find_job(self.store, name))

    def jobs(self) -> list[Job]:
        """All jobs, oldest first."""
        return [Job(self, row.job) for row in self.store.rows()]

    def rows(self) -> list[JobRow]:
        """The listing of all jobs, oldest first."""
        return self.store.rows()

    def worker(
        self, *, models: Sequence[Path | str] = (), cache_dir: Path | str | None = None, rebuild: str = "prefill"
    ) -> Working:
        """A worker of this process: `with log.worker():` runs what jobs there are in a thread, until the block ends.

        `Working.drain()` runs in this thread until no job is left.

        models   folders in which this log looks for the models of jobs from now on, by their digests: each a
                 checkpoint or a folder of checkpoints
        """
        from .worker import Working

        check_rebuild(rebuild)
        self.models.look_in([Path(each) for each in models])
        return Working(self, folder(cache_dir), rebuild)

    def map(
        self,
        model: str,
        requests: Iterable[Mapping[str, Any]],
        *,
        key: str = "custom_id",
        prefix: str = "",
        cache_dir: Path | str | None = None,
    ) -> Generator[tuple[str, Result], None, None]:
        """Run requests here, many at a time, and give each one's name and result in their order.

        Kill the program and run it again: what has ended is only read, and the rest goes on.

        requests   mappings of the arguments that `submit` takes, read as they are needed, and one more that names them
        key        the argument that names a request: with `prefix` before it, its idempotency key

        Errors: those of `submit`, and what keeps this process from running a job.
        """
        from .worker import Working

        def submitted() -> Iterator[tuple[str, Job]]:
            for request in requests:
                name = str(request[key])
                rest = {field: value for field, value in request.items() if field != key}
                yield name, self.submit(model, key=prefix + name, **rest)

        with Working(self, folder(cache_dir), asked=True) as worker:
            for name, job in worker.in_order(submitted()):
                yield name, job.peek()

    # ---- models -----------------------------------------------------------------------------------------------

    def register_model(self, model: Path | str, name: str | None = None) -> Registered:
        """Keep in the database what it takes to submit for a model without having it; its weights stay where they are.

        model   a checkpoint's folder, or a fetched model's name
        name    what `submit` may call it from now on, in any process; a name that meant another model means this one

        Doing so again changes nothing. Errors: UnknownModel, BrokenArtifact, UnsupportedModel, SchemaViolation for what
        can be no name, ExtraMissing.
        """
        from ..jobs.registering import register

        return register(self.store, self.models, str(model), name).registered

    def registered_models(self) -> list[Registered]:
        """The models that are registered in this database, oldest first."""
        return self.store.registrations()

    # ---- proving and keeping ----------------------------------------------------------------------------------

    def audit(
        self, jobs: Sequence[str] | None = None, reexecute: bool = False, anchor: Path | str | None = None
    ) -> Report:
        """Prove the logs of these jobs, or of all, from what is stored: `ok`, `faults`, and with `reexecute` `not_run`.

        reexecute   also run each job's model again; the first difference is a fault
        anchor      a file of heads that the logs are held to, and to which those of sound logs are added
        """
        names = self._names(jobs)
        report = audit(self.store, names) if anchor is None else audit_anchored(self.store, names, Path(anchor))
        return again(self.store, self.models, names, report) if reexecute else report

    def export(
        self, path: Path | str, jobs: Sequence[str] | None = None, *, force: bool = False, redact: bool = False
    ) -> Written:
        """Write the logs of these jobs, or of all, to a file that anybody can verify."""
        return export(self.store, self._names(jobs), Path(path), force, redact)

    def restore(self, path: Path | str, *, model: str | None = None, cache_dir: Path | str | None = None) -> list[Back]:
        """Bring the jobs of a snapshot or an export into this database, after proving all of it.

        Errors: NotAnExport, BrokenSnapshot, RestoreConflict, UnsupportedDatabase for a log in memory.
        """
        from ...store.engine import DatabaseStore

        if not isinstance(self.store, DatabaseStore):
            raise UnsupportedDatabase(self.url, "what is restored there ends with this process")
        return restore(self.store, Path(path), folder(cache_dir), model)

    def _names(self, jobs: Sequence[str] | None) -> list[str] | None:
        """The whole names of jobs and families that these begin; None: of all."""
        return None if jobs is None else [job for each in jobs for job in find(self.store, each).jobs]


def _chat(user: str | None, system: str | None, messages: Any) -> list[dict[str, str]]:
    """The chat of these messages. Errors: SchemaViolation where `messages` are given too, or only a system's."""
    if messages is not None:
        raise SchemaViolation("messages", "user or system is given too; give one of them")
    if user is None:
        raise SchemaViolation("user", "a system message alone asks for nothing; give user too")
    return [*([{"role": "system", "content": system}] if system is not None else []), {"role": "user", "content": user}]
