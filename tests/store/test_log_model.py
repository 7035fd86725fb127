"""Any sequence of calls gives the same answers from a database as from the store in memory, easier to trust.

Hypothesis looks for a sequence that tells them apart.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from databases import AnyStore, Server
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from steps import IDENTITY, Writer, digest, envelope

from decodelog.fsm.errors import Problem
from decodelog.fsm.ports import EMPTY_HEAD, Append, Caution, Command, Head, JobRow
from decodelog.store.appending.refusals import Refusal
from decodelog.store.database import schema
from decodelog.store.engine import open_store
from decodelog.store.log.sealed import seal
from decodelog.store.memory.log import MemoryStore
from decodelog.store.reading.audit import audit_rows

HOUR_MS = 3_600_000
JOBS = st.sampled_from(["job-1", "job-2", "job-3"])
WORKERS = st.sampled_from(["worker-1", "worker-2"])
KEYS = st.none() | st.sampled_from(["key-1", "key-2"])
IDENTITIES = st.sampled_from([IDENTITY, "b" * 64])
MISTAKES = st.sampled_from([*[""] * 12, "late", "later", "zombie", "unclaimed", "chain", "sequence", "other"])
ENDS = st.sampled_from([*["step"] * 10, "last_step", "cancel"])
COMMANDS = st.sampled_from(["a", "b", "c"])


@pytest.fixture(scope="module", autouse=True)
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A file with the schema, made once and copied for each example."""
    file = tmp_path_factory.mktemp("model") / "empty.db"
    schema.upgrade(f"sqlite:///{file}")
    StoresAgree.empty = file


@pytest.fixture(scope="module", autouse=True)
def server(postgres_server: Server) -> None:
    """One database of a real server, emptied for each example."""
    StoresAgreeOnPostgres.server = postgres_server


def answer(ask: Callable[[], object]) -> object:
    """What a call returned, or how it failed; times are not compared."""
    try:
        return ask()
    except Problem as problem:
        return problem.facts()


class StoresAgree(RuleBasedStateMachine):
    """Both stores get every call. Writers may be wrong about the head, the fence and the step; some are zombies."""

    empty: Path
    offers = Bundle("offers")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.model = MemoryStore()
        self.store = open_store(self.emptied())

    def emptied(self) -> str:
        """The URL of a database with the schema and nothing in it."""
        shutil.copy(self.empty, self.folder / "decodelog.db")
        return f"sqlite:///{self.folder / 'decodelog.db'}"

    def teardown(self) -> None:
        assert audit_rows(self.store).ok
        self.store.close()
        shutil.rmtree(self.folder)

    def both(self, ask: Callable[[AnyStore], object]) -> object:
        expected, found = answer(lambda: ask(self.model)), answer(lambda: ask(self.store))
        assert found == expected
        return expected

    def heads(self, job: str) -> list[Head]:
        """Every head that the log has had."""
        if job not in [row.job for row in self.model.rows()]:
            return [EMPTY_HEAD]
        (row,) = [row for row in self.model.rows() if row.job == job]
        if row.sealed_ms is not None or row.erased_ms is not None:
            return [EMPTY_HEAD, row.head]  # the others are not kept
        return [EMPTY_HEAD, *[Head(record.last, record.chain) for record in self.model.read(job)]]

    @initialize()
    def two_jobs_one_of_them_claimed(self) -> None:
        self.admit("job-1", "key-1", IDENTITY)
        self.claim("worker-1", 1, [], None)
        self.admit("job-2", None, IDENTITY)

    @rule(job=JOBS, key=KEYS, identity=IDENTITIES)
    def admit(self, job: str, key: str | None, identity: str) -> None:
        self.both(lambda store: store.admit(job, identity, "scripted", 5, envelope(job), key))

    @rule(target=offers, wanted=st.lists(st.tuples(JOBS, MISTAKES, ENDS), min_size=1, max_size=3))
    def append(self, wanted: list[tuple[str, str, str]]) -> Any:
        """A batch of appends that are right, or wrong in one of the ways that there are."""
        batch = [self.offer(*one) for one in wanted]
        self.both(lambda store: store.append(batch))
        return multiple(*batch)

    @rule(batch=st.lists(offers, min_size=1, max_size=4))
    def append_again(self, batch: list[Append]) -> None:
        self.both(lambda store: store.append(batch))

    def offer(self, job: str, mistake: str, end: str) -> Append:
        heads = self.heads(job)
        fences = [row.fence for row in self.model.rows() if row.job == job]
        back = min({"late": 1, "later": 2}.get(mistake, 0), len(heads) - 1)
        head = heads[-1 - back]
        fence = max(0, sum(fences) + {"zombie": -1, "unclaimed": 1}.get(mistake, 0))
        writer = Writer(job, head, fence, max(0, len(heads) - 2 - back))
        if mistake == "chain":
            return writer.step(expected=Head(head.sequence, digest("another chain")))
        if mistake == "sequence":
            return writer.step(expected=Head(head.sequence + 1, head.chain))
        if mistake == "other":
            return replace(writer, head=heads[max(-2, -len(heads))]).step("other")
        offered: Append = getattr(writer, end)()
        return offered

    @rule(job=JOBS, after=st.integers(0, 30))
    def read(self, job: str, after: int) -> None:
        self.both(lambda store: list(store.read(job, after)))

    @rule(
        worker=WORKERS,
        limit=st.integers(1, 3),
        dead=st.lists(WORKERS, max_size=1),
        jobs=st.none() | st.sets(JOBS),
        caution=st.sampled_from(
            [None, Caution(0, 0), Caution(1, 0), Caution(1, HOUR_MS), Caution(1, HOUR_MS, asked=True)]
        ),
    )
    def claim(
        self, worker: str, limit: int, dead: list[str], jobs: set[str] | None, caution: Caution | None = None
    ) -> None:
        self.both(lambda store: store.claim(worker, HOUR_MS, limit, jobs, dead, caution=caution))

    @rule(job=JOBS)
    def seal(self, job: str) -> None:
        """The rows are the model's, which are the database's too."""

        def sealed_by(store: AnyStore) -> bool:
            row, rows = store.row(job), [row for log in self.model.logs(job) for row in log.rows]
            one = rows[0] if rows[0].sealed or rows[0].erased else seal(row.head, rows, list(store.read(job)), False)
            return store.seal(job, row.head, one)

        self.both(sealed_by)

    @rule(job=JOBS)
    def erase(self, job: str) -> None:
        self.both(lambda store: store.erase(job))

    @rule()
    def due(self) -> None:
        self.both(lambda store: (store.unsealed(0), store.past_retention()))

    @rule(worker=WORKERS)
    def heartbeat(self, worker: str) -> None:
        self.both(lambda store: store.heartbeat(worker, HOUR_MS))

    @rule(worker=WORKERS, jobs=st.none() | st.sets(JOBS))
    def release(self, worker: str, jobs: set[str] | None) -> None:
        self.both(lambda store: store.release(worker, jobs))

    @rule(command=COMMANDS, job=JOBS)
    def post(self, command: str, job: str) -> None:
        self.both(lambda store: store.post(Command(command, job, "cancel")))

    @rule(command=COMMANDS, outcome=st.sampled_from(["closed", "terminal"]))
    def settle(self, command: str, outcome: str) -> None:
        self.both(lambda store: store.settle(command, outcome))
        self.both(lambda store: store.outcome(command))

    @invariant()
    def same_listing_owners_and_inbox(self) -> None:
        def listing(store: AnyStore) -> list[JobRow]:
            return [timeless(row) for row in store.rows()]

        self.both(listing)
        self.both(lambda store: store.owners())
        self.both(lambda store: store.waiting(None, {"job-1"}))
        self.both(lambda store: store.pending({"job-1", "job-2", "job-3"}))

    @invariant()
    def same_logs_and_refusals(self) -> None:
        for row in self.model.rows():
            self.both(partial(timeless_refusals, row.job))
        self.both(lambda store: [(*log[:3], list(log.rows), log.damage) for log in store.logs()])


def timeless_refusals(job: str, store: AnyStore) -> list[Refusal]:
    return [refused._replace(refused_ms=0) for refused in store.refusals(job)]


def timeless(row: JobRow) -> JobRow:
    """A listing with the clock left out: only whether there is a time."""
    times: dict[str, Any] = {
        name: None if getattr(row, name) is None else 0 for name in ("ended_ms", "sealed_ms", "erased_ms")
    }
    return replace(row, created_ms=0, lease_until_ms=None, **times)


class StoresAgreeOnPostgres(StoresAgree):
    """The same over PostgreSQL."""

    server: Server

    def emptied(self) -> str:
        return self.server.clear()


StoresAgree.TestCase.settings = settings(max_examples=30, stateful_step_count=30)
StoresAgreeOnPostgres.TestCase.settings = settings(max_examples=10, stateful_step_count=30)


TestStoresAgree = pytest.mark.contract("LOG-1", "LOG-2", "LOG-7", "LOG-8", "LOG-9", "FSM-9")(StoresAgree.TestCase)


TestStoresAgreeOnPostgres = pytest.mark.contract("LOG-1", "LOG-2", "LOG-7", "LOG-8", "LOG-9", "FSM-9")(
    StoresAgreeOnPostgres.TestCase
)
