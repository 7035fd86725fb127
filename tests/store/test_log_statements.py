"""What an append costs a database: one transaction and one sync in SQLite, one round trip to PostgreSQL."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from databases import AnyStore, database_store
from sqlalchemy import event
from sqlalchemy.exc import TimeoutError
from steps import Writer, admit, write

from decodelog.fsm.errors import DatabaseUnavailable
from decodelog.fsm.ports import Outcome
from decodelog.store.appending import postgres_log, sqlite_log
from decodelog.store.appending.offer import offer
from decodelog.store.appending.sqlite_log import END, MOVE
from decodelog.store.database.connection import Database
from decodelog.store.engine import open_store


def step(store: AnyStore, writers: list[Writer]) -> list[Writer]:
    results = store.append([writer.step() for writer in writers])
    assert {result.outcome for result in results} == {Outcome.APPENDED}
    return [writer.at(result.head) for writer, result in zip(writers, results, strict=True)]


@pytest.mark.contract("LOG-2")
def test_every_sqlite_connection_syncs_each_commit_to_a_write_ahead_log(sqlite_url: str) -> None:
    store = database_store(sqlite_url, busy_timeout_ms=1234)
    with store._database.single() as one, store._database.transaction() as two:
        for connection in (one, two):
            settings = [
                connection.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
            ]
            assert settings == ["wal", 2, 1, 1234]
    store.close()


@pytest.mark.contract("LOG-2", "LOG-4")
def test_a_batch_is_one_immediate_transaction_in_sqlite(sqlite_url: str) -> None:
    store = database_store(sqlite_url)
    writers = step(store, [admit(store, f"job-{number}") for number in range(10)])
    statements = []
    transaction = store._database.driver.begin()
    driver = transaction.cursor.connection
    transaction.commit()
    driver.set_trace_callback(lambda statement: statements.append(statement.split()[0:2]))
    step(store, writers)
    driver.set_trace_callback(None)
    verbs = [" ".join(words) for words in statements]
    assert verbs[0] == "BEGIN IMMEDIATE"
    assert verbs[-1] == "COMMIT"
    assert (verbs.count("COMMIT"), verbs.count("UPDATE jobs"), verbs.count("INSERT INTO")) == (1, 10, 10)
    assert len(verbs) <= 24
    store.close()


@pytest.mark.contract("LOG-2", "LOG-4")
@pytest.mark.parametrize("jobs", [1, 10])
def test_a_batch_is_one_round_trip_to_postgresql(postgres_url: str, jobs: int) -> None:
    """Counted in the protocol: the client asks the server to answer (Sync) once, and it is ready again once."""
    store = database_store(postgres_url)
    writers = [admit(store, f"job-{number}") for number in range(jobs)]
    for _ in range(8):  # until the driver has prepared the statement
        writers = step(store, writers)
    with store._database.single() as connection:
        driver: Any = connection.connection.dbapi_connection
        protocol = driver.pgconn
    with tempfile.TemporaryFile("w+") as trace:
        protocol.trace(trace.fileno())
        step(store, writers)
        protocol.untrace()
        trace.seek(0)
        messages = [line.split("\t") for line in trace.read().splitlines()]
    sent = [message[3] for message in messages if message[1] == "F"]
    received = [message[3] for message in messages if message[1] == "B"]
    assert sent == ["Bind", "Describe", "Execute", "Sync"]
    assert received.count("ReadyForQuery") == 1
    store.close()


@pytest.mark.contract("LOG-2")
def test_an_append_that_finds_every_connection_in_use_is_a_typed_error(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = database_store(sqlite_url)
    writer = admit(store)

    def exhausted() -> None:
        raise TimeoutError("QueuePool limit of size 5 overflow 10 reached")

    monkeypatch.setattr(store._database.driver, "_engine", SimpleNamespace(raw_connection=exhausted))
    for _ in range(2):  # and it keeps no one waiting
        with pytest.raises(DatabaseUnavailable, match="every connection is in use"):
            store.append([writer.step()])
    monkeypatch.undo()
    (result,) = store.append([writer.step()])
    assert result.outcome is Outcome.APPENDED
    store.close()


@pytest.mark.contract("LOG-2", "LOG-4")
def test_an_append_to_postgresql_looks_its_jobs_up_one_by_one(postgres_url: str) -> None:
    """However many live jobs there are: a plan that holds each offer against each of them costs their product."""
    store = database_store(postgres_url)
    writers = [admit(store, f"job-{number}") for number in range(20)]
    appender: Any = store._appender
    with store._database.single() as connection:
        connection.exec_driver_sql(
            "INSERT INTO jobs (job, identity, model, created_ms, prompt, status, output, sequence, chain, tail, fence) "
            "SELECT 'other-' || n, identity, model, created_ms, prompt, status, output, sequence, chain, tail, fence "
            "FROM jobs, generate_series(1, 3000) AS n WHERE job = 'job-0'"
        )
        connection.exec_driver_sql("ANALYZE jobs")
    plans: list[str] = []

    def explained(statement: str, parameters: Any) -> list[tuple[int, None]]:
        with store._database.single() as connection:
            plans.extend(line for (line,) in connection.exec_driver_sql(f"EXPLAIN {statement}", parameters))
            return [(place, None) for place in range(1, 21)]

    with patch.object(type(store._database), "single", fake_single(store._database, explained)):
        appender._take([offer(writer.step()) for writer in writers], {f"job-{number}": number for number in range(20)})
    plan = "\n".join(plans)
    assert "Join Filter" not in plan
    assert not any("Scan" in line and " on jobs" in line and "Index" not in line for line in plans), plan
    store.close()


def fake_single(database: Database, execute: Callable[[str, Any], object]) -> Any:
    """`Database.single`, whose first connection only explains what it is given."""
    real = type(database).single

    @contextmanager
    def single(self: Database) -> Iterator[SimpleNamespace]:
        with patch.object(type(database), "single", real):
            yield SimpleNamespace(exec_driver_sql=execute)

    return single


@pytest.mark.contract("LOG-7")
def test_what_is_asked_of_owners_reads_their_jobs_and_no_others(database_url: str) -> None:
    """However many jobs wait: heartbeats, releases and the search for who is gone, as each database plans them."""
    store = database_store(database_url)
    admit(store, "job-0")
    columns = "identity, model, created_ms, prompt, status, output, sequence, chain, tail, fence"
    numbers = "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 3000)"
    with store._database.transaction() as connection:
        connection.exec_driver_sql(
            f"INSERT INTO jobs (job, {columns}) {numbers} SELECT 'other-' || n, {columns} FROM jobs, numbers"
        )
    store.claim("worker", 60_000, 8)
    explain = "EXPLAIN" if database_url.startswith("postgres") else "EXPLAIN QUERY PLAN"
    plans: list[str] = []

    def explained(
        connection: Any, cursor: object, statement: str, parameters: Any, context: object, many: bool
    ) -> None:
        if " jobs" in statement:
            with closing(connection.connection.dbapi_connection.cursor()) as beside:
                beside.execute(f"{explain} {statement}", parameters)
                plans.append("\n".join(str(row[-1]) for row in beside.fetchall()))

    for engine in (store._database._single, store._database._transactions):
        event.listen(engine, "before_cursor_execute", explained)
    assert store.owners() == {"worker"}
    assert len(store.heartbeat("worker", 60_000)) == 8
    store.release("worker")
    assert len(plans) >= 3
    for plan in plans:
        assert "ix_jobs_owned" in plan
        assert not any(each in plan for each in ("SCAN jobs", "ix_jobs_live", "Seq Scan on jobs")), plan
    store.close()


@pytest.mark.contract("LOG-7", "LOG-4")
def test_an_append_touches_no_index_of_sqlites_jobs(sqlite_url: str) -> None:
    store = database_store(sqlite_url)
    with store._database.single() as connection:
        for statement, touched in ((MOVE, False), (END, True)):
            parameters = (None,) * statement.count("?")
            operations = [row[1] for row in connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)]
            assert ("IdxInsert" in operations or "IdxDelete" in operations) is touched
    store.close()


@pytest.mark.contract("LOG-7", "LOG-4")
def test_an_append_touches_no_index_of_postgresqls_jobs(postgres_url: str) -> None:
    """Its update stays on its page (heap-only), as no indexed column has another value."""
    store = database_store(postgres_url)
    admit(store)
    ((_, fence, head, *_),) = store.claim("worker", 60_000, 1)
    writer = Writer("job-1", head, fence)
    counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'jobs'"
    with store._database.single() as connection:
        connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
    with store._database.single() as connection:
        before = connection.exec_driver_sql(counts).one()
    write(store, writer, 20)
    with store._database.single() as connection:
        connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
    with store._database.single() as connection:
        after = connection.exec_driver_sql(counts).one()
    assert [new - old for new, old in zip(after, before, strict=True)] == [20, 20]
    store.close()


@pytest.mark.contract("LOG-2")
def test_an_appender_does_not_remember_every_job(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that somebody else has by now never end here."""
    for module in (postgres_log, sqlite_log):
        monkeypatch.setattr(module, "JOBS_REMEMBERED", 3)
    store = database_store(database_url)
    writers = [admit(store, f"job-{number}") for number in range(10)]
    remembered = "_ids" if database_url.startswith("postgres") else "_ends"
    for writer in writers:
        step(store, [writer])
        assert len(getattr(store._appender, remembered)) <= 3
    writers = step(store, [writer.at(store.row(writer.job).head) for writer in writers])
    assert len(getattr(store._appender, remembered)) == 10  # a batch is remembered whole
    store.append([writers[0].last_step()])
    assert "job-0" not in getattr(store._appender, remembered)
    store.claim("another", 60_000, 10)
    assert store.append([writers[1].step()])[0].outcome is Outcome.FENCED
    assert "job-1" not in getattr(store._appender, remembered)
    store.close()


@pytest.mark.contract("LOG-2", "LOG-4")
def test_a_postgresql_appender_asks_for_unknown_jobs_alone(
    postgres_url: str,
) -> None:
    """An appender to PostgreSQL asks for the rows of the jobs that it does not know and of no others."""
    store = database_store(postgres_url)
    writers = [admit(store, f"job-{number}") for number in range(4)]
    known = step(store, writers[:1])
    asked: list[dict[str, object]] = []

    def seen(
        connection: object, cursor: object, statement: str, parameters: dict[str, object], context: object, many: bool
    ) -> None:
        if "unnest" not in statement:
            asked.append(parameters)

    event.listen(store._database._single, "before_cursor_execute", seen)
    writers[:2] = step(store, [*known, writers[1]])
    assert [list(given.values()) for given in asked] == [["job-1"]]
    step(store, writers[:2])
    assert len(asked) == 1
    appender: Any = store._appender
    assert set(appender._ids) == {"job-0", "job-1"}
    store.close()


@pytest.mark.contract("LOG-2")
def test_an_append_passes_its_two_points_in_order(database_url: str) -> None:
    """These are the places at which processes are killed to see that an append is whole or not at all."""
    passed: list[str] = []
    killing: list[str] = []

    def at(point: str) -> None:
        passed.append(point)
        if point in killing:
            raise KeyboardInterrupt

    store = open_store(database_url, at=at)
    writer = admit(store)
    passed.clear()
    (writer,) = step(store, [writer])
    of_append = [point for point in passed if point.startswith("append.")]
    assert (of_append[0], of_append[-1]) == ("append.begin", "append.committed")
    assert (of_append.count("append.begin"), of_append.count("append.committed")) == (1, 1)
    for point, there in (("append.begin", 0), ("append.committed", 1)):
        before = store.row(writer.job).head.sequence
        killing[:] = [point]
        with pytest.raises(KeyboardInterrupt):
            store.append([writer.step()])
        assert store.row(writer.job).head.sequence - before == 3 * there
    store.close()
