"""The one place that wires the runtime to the store."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ..fsm.admission import check, check_runtime
from ..fsm.ports import Store
from ..runtime.engine import Sink
from ..runtime.job import Job
from ..runtime.model import Model
from ..runtime.worker import Notice, Pace, Worker
from ..store import schema
from ..store.engine import open_store
from .incarnation import dead_workers, new_worker_name
from .models import Models

DATABASE_DEFAULT = "sqlite:///decodelog.db"
SQLITE_PREFIX = "sqlite:///"


def home() -> Path:
    """Where fetched models lie: DECODELOG_HOME, else decodelog's folder in the user's cache."""
    return Path(os.environ.get("DECODELOG_HOME") or Path.home() / ".cache" / "decodelog")


def database_url(given: str | None) -> str:
    """The database of this invocation: `given`, else DECODELOG_DB, else a file in the working directory."""
    return given or os.environ.get("DECODELOG_DB") or DATABASE_DEFAULT


def now_ms() -> int:
    """The wall clock, milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def open_database(url: str, create: bool = False) -> Store:
    """Open a database whose schema is current; with `create`, a SQLite file that does not exist yet is made.

    Errors: SchemaMissing, SchemaOutdated, SchemaNewer, DatabaseUnavailable, DatabaseLocked, UnsupportedDatabase.
    """
    if create and url.startswith(SQLITE_PREFIX) and not Path(url.removeprefix(SQLITE_PREFIX)).exists():
        schema.upgrade(url)
    return open_store(url, clock=now_ms)


def new_worker(
    store: Store,
    models: Models,
    sink: Sink | None = None,
    notice: Notice | None = None,
    form: str = "prefill",
    pace: Pace = Pace(),
) -> Worker:
    """A worker of this process under a fresh incarnation."""
    return Worker(
        name=new_worker_name(),
        store=store,
        load=models.load,
        admit=admit_job,
        clock=now_ms,
        sink=sink,
        notice=notice,
        dead=dead_workers,
        form=form,
        pace=pace,
    )


def admit_job(job: Job, model: Model) -> None:
    """Refuse a job whose artifact or runtime facts are not this process's (ENV-6, ENV-9)."""
    envelope = job.state.spec.envelope
    check(envelope, model.facts)
    check_runtime(envelope, model.runtime)
