"""Behind a pooler that gives each transaction another server connection: nothing of a session is assumed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from databases import AnyStore, Server, database_store
from pooler import Pooler, pooled
from sqlalchemy import text
from steps import admit, write

from decodelog.fsm.errors import DatabaseLocked, DatabasePooled
from decodelog.fsm.ports import Command, Outcome
from decodelog.store.database import schema
from decodelog.store.engine import open_store

LONG_S = 120.0


@pytest.fixture
def through(postgres_url: str) -> Iterator[tuple[Pooler, str]]:
    """The pooler, and the URL of the database by way of it."""
    with pooled(postgres_url) as both:
        yield both


@pytest.fixture
def store(through: tuple[Pooler, str]) -> Iterator[AnyStore]:
    with closing(open_store(through[1])) as opened:
        yield opened


@pytest.mark.contract("LOG-2")
def test_a_session_is_not_kept_together_by_it(through: tuple[Pooler, str]) -> None:
    """What the other tests rest on: each transaction finds another session, and what was prepared is missing."""
    pooler, url = through
    with psycopg.connect(url, autocommit=True) as connection:
        pids = {connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone() for _ in range(6)}
        assert len(pids) == 3
        connection.execute("SET lock_timeout = 4711")
        timeouts = [connection.execute("SHOW lock_timeout", prepare=False).fetchone() for _ in range(6)]
        assert len(set(timeouts)) == 2
        with pytest.raises((psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement)):  # noqa: PT012
            for _ in range(20):
                connection.execute("SELECT 1", prepare=True)
    assert pooler.transactions > 10


@pytest.mark.contract("LOG-2", "LOG-4")
def test_a_log_is_written_and_read_through_it(store: AnyStore, postgres_url: str) -> None:
    writer = write(store, admit(store), 30)  # more often than it takes until a driver prepares a statement
    (result,) = store.append([writer.last_step()])
    assert result.outcome is Outcome.APPENDED
    admit(store, "job-2")
    for number in range(20):
        assert [claim.job for claim in store.claim(f"worker-{number}", 60_000, 1)] == ["job-2"]
        assert store.heartbeat(f"worker-{number}", 60_000) == {"job-2"}
        store.post(Command(f"c-{number}", "job-2", "cancel"))
        store.release(f"worker-{number}")
    assert len(store.pending(["job-2"])) == 20
    assert [log.job for log in store.logs()] == ["job-1", "job-2"]
    with closing(database_store(postgres_url)) as direct:
        assert len(list(direct.read("job-1"))) == 32


@pytest.mark.contract("LOG-2")
def test_an_append_is_one_round_trip_there_too(store: AnyStore, through: tuple[Pooler, str]) -> None:
    pooler, _ = through
    writers = [admit(store, f"job-{number}") for number in range(5)]
    write(store, writers[0], 1)
    before = pooler.transactions
    store.append([writer.step() for writer in writers[1:]])
    assert pooler.transactions == before + 2  # one to look the new jobs up, and one to append


@pytest.mark.contract("LOG-2")
def test_behind_a_pooler_lock_waits_and_syncs_are_the_same(
    through: tuple[Pooler, str], postgres_url: str, postgres_server: Server
) -> None:
    """A lock is waited for no longer and a commit is synced as without it."""
    pooler, url = through
    postgres_server.admin.execute("ALTER DATABASE decodelog SET synchronous_commit = off")
    try:
        with closing(database_store(url, busy_timeout_ms=50)) as store, closing(database_store(postgres_url)) as direct:
            writer = admit(store)
            with store._database.transaction() as connection:
                assert connection.scalar(text("SHOW synchronous_commit")) == "on"
                assert connection.scalar(text("SHOW lock_timeout")) == "50ms"
            with direct._database.transaction() as connection:
                connection.execute(text("SELECT 1 FROM jobs FOR UPDATE"))
                with pytest.raises(DatabaseLocked):
                    store.append([writer.step()])
            (result,) = store.append([writer.step()])
            assert result.outcome is Outcome.APPENDED
    finally:
        postgres_server.admin.execute("ALTER DATABASE decodelog RESET synchronous_commit")
    assert pooler.transactions


@pytest.mark.contract("LOG-2")
def test_a_database_is_made_through_it(empty_postgres_url: str) -> None:
    with pooled(empty_postgres_url) as (_, url):
        assert schema.upgrade(url) == schema.check(url) == schema.HEAD


@pytest.mark.contract("LOG-7")
def test_nobody_listens_through_it_unless_the_url_says_where(
    through: tuple[Pooler, str], store: AnyStore, postgres_url: str, postgres_server: Server
) -> None:
    _, url = through
    with closing(store.bell()) as bell:
        begin = time.monotonic()
        assert not bell.wait(0.05)
        assert time.monotonic() - begin >= 0.05
        admit(store)
        assert not bell.wait(0.05)
    listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    assert postgres_server.admin.execute(listening).fetchone() == (0,)
    folder = postgres_url.partition("host=")[2]
    with closing(open_store(f"{url}?listen={folder}")) as other, closing(other.bell()) as bell:
        assert postgres_server.admin.execute(listening).fetchone() == (1,)
        assert not bell.wait(0)
        admit(store, "job-2")
        assert bell.wait(LONG_S)


@pytest.mark.contract("LOG-2")
def test_statements_prepared_by_the_url_are_reported_as_pooled(through: tuple[Pooler, str]) -> None:
    """As a pooler may be told to keep them; where it was not, that is what is said."""
    _, url = through
    with pytest.raises(DatabasePooled) as problem:
        open_store(f"{url}?prepare_threshold=0")
    assert "leave prepare_threshold out of the URL" in str(problem.value)


@pytest.mark.contract("LOG-2")
@pytest.mark.parametrize(("given", "threshold"), [("0", 0), ("1", 1), ("none", None), (None, 5)])
def test_a_server_without_one_has_statements_prepared_as_the_url_says(
    postgres_url: str, given: str | None, threshold: int | None
) -> None:
    url = postgres_url if given is None else f"{postgres_url}&prepare_threshold={given}"
    with closing(database_store(url)) as store:
        write(store, admit(store), 10)
        with store._database.single() as connection:
            driver: Any = connection.connection.dbapi_connection
            prepared = driver.execute("SELECT count(*) FROM pg_prepared_statements").fetchone()[0]
        assert driver.prepare_threshold == threshold
        assert (prepared > 0) is (threshold is not None)
