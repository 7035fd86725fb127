"""Each cause of a database's error is one class, whose message says what to do about that cause."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

import psycopg
import pytest
from databases import Server, database_store
from psycopg import errors as sql
from sqlalchemy import text
from steps import admit, write

from decodelog.fsm.errors import (
    DatabaseDenied,
    DatabaseExhausted,
    DatabaseFault,
    DatabaseFull,
    DatabaseLocked,
    DatabaseMissing,
    DatabasePooled,
    DatabaseReadOnly,
    DatabaseTimeout,
    DatabaseUnavailable,
    Problem,
    Rejected,
    Transient,
    UnsupportedDatabase,
)
from decodelog.store.database import schema
from decodelog.store.database.faults import postgres_kind
from decodelog.store.engine import open_store

STATES = {
    "08006": DatabaseUnavailable, "08P01": DatabaseUnavailable,
    "25006": DatabaseReadOnly,
    "25P03": DatabaseTimeout, "25P04": DatabaseTimeout, "57014": DatabaseTimeout, "57P05": DatabaseTimeout,
    "26000": DatabasePooled, "42P05": DatabasePooled,
    "28000": DatabaseDenied, "28P01": DatabaseDenied, "42501": DatabaseDenied, "3F000": DatabaseDenied,
    "3D000": DatabaseMissing,
    "40001": DatabaseLocked, "40P01": DatabaseLocked, "55P03": DatabaseLocked,
    "53100": DatabaseFull,
    "53000": DatabaseExhausted, "53200": DatabaseExhausted, "53300": DatabaseExhausted, "53400": DatabaseExhausted,
    "57P01": DatabaseUnavailable, "57P02": DatabaseUnavailable, "57P03": DatabaseUnavailable,
    "57P04": DatabaseUnavailable, "58030": DatabaseUnavailable,
    "42P01": DatabaseFault, "42703": DatabaseFault, "22P02": DatabaseFault, "XX001": DatabaseFault,
}  # fmt: skip


@contextmanager
def on(server: Server, *statements: str, undo: Sequence[str] = ()) -> Iterator[None]:
    """Statements of an administrator, and what takes them back."""
    try:
        for statement in statements:
            server.admin.execute(statement)
        yield
    finally:
        for statement in undo:
            server.admin.execute(statement)


@pytest.mark.contract("LOG-2")
@pytest.mark.parametrize(("state", "kind"), STATES.items())
def test_each_state_has_its_class(state: str, kind: type[Problem]) -> None:
    assert postgres_kind(sql.lookup(state)("words"), "words") is kind


@pytest.mark.contract("LOG-2")
def test_no_two_causes_have_the_same_advice() -> None:
    kinds = {*STATES.values(), UnsupportedDatabase}
    advice = {str(kind("DB", "REASON")).partition("REASON")[2] for kind in kinds}
    assert len(advice) == len(kinds)
    backup = [kind for kind in kinds if "backup" in str(kind("DB", "REASON"))]
    assert backup == [DatabaseFault]


@pytest.fixture
def role(postgres_server: Server) -> Iterator[str]:
    """A role that may log in, and that owns and may do nothing."""
    undo = ("DROP OWNED BY guest", "DROP ROLE guest")
    with on(postgres_server, "CREATE ROLE guest LOGIN", "ALTER ROLE guest SET decodelog.durable = 'no'", undo=undo):
        yield "guest"


def as_role(url: str, role: str) -> str:
    return url.replace("postgres:@", f"{role}@", 1)


@pytest.mark.contract("LOG-2")
def test_a_role_that_may_not_create_is_told_to_be_granted_that(empty_postgres_url: str, role: str) -> None:
    with pytest.raises(DatabaseDenied, match=r"permission denied for schema public.*; grant the right") as problem:
        schema.upgrade(as_role(empty_postgres_url, role))
    assert isinstance(problem.value, Rejected)
    assert "backup" not in str(problem.value)


@pytest.mark.contract("LOG-2")
def test_a_role_that_may_only_select_reads_and_is_told_what_it_lacks(
    postgres_url: str, postgres_server: Server, role: str
) -> None:
    with closing(database_store(postgres_url)) as store:
        writer = write(store, admit(store), 1)
    with psycopg.connect(postgres_url, autocommit=True) as owner:
        owner.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO guest")
        try:
            with closing(open_store(as_role(postgres_url, role))) as store:
                assert len(list(store.read("job-1"))) == 2
                for change in (
                    lambda: store.append([writer.step()]),
                    lambda: admit(store, "job-2"),
                    lambda: store.heartbeat("worker", 1000),
                ):
                    with pytest.raises(DatabaseDenied, match="permission denied for table jobs"):
                        change()
        finally:
            owner.execute("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM guest")


@pytest.mark.contract("LOG-2")
@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda url: url.replace("postgres:@", "nobody_here@", 1), DatabaseDenied, 'role "nobody_here" does not exist'),
        (lambda url: url.replace("/decodelog?", "/nowhere?"), DatabaseMissing, 'database "nowhere" does not exist'),
        (lambda url: url + "&sslmode=sometimes", UnsupportedDatabase, "invalid sslmode value"),
        (lambda url: url.partition("?")[0] + "?host=/nowhere", DatabaseUnavailable, "No such file or directory"),
        (lambda url: url + "&timeout=0", UnsupportedDatabase, "there is no option timeout"),
        (lambda url: url + "&prepare_threshold=soon", UnsupportedDatabase, "its option prepare_threshold has a value"),
        (lambda url: url + "&prepare_threshold=-1", UnsupportedDatabase, "its option prepare_threshold has a value"),
        (lambda url: url + "&connect_timeout=soon", UnsupportedDatabase, "its option connect_timeout has a value"),
        (lambda url: url + "&autocommit=1", UnsupportedDatabase, "there is no option autocommit"),
        (lambda url: url + "&row_factory=x", UnsupportedDatabase, "there is no option row_factory"),
        (lambda url: url.replace("/decodelog?", f"/{'d' * 64}?"), UnsupportedDatabase, "longer than 63 bytes"),
        (lambda url: url.replace("postgres:@", f"{'u' * 64}@", 1), UnsupportedDatabase, "longer than 63 bytes"),
    ],
)
def test_a_url_that_leads_nowhere_says_what_is_wrong_with_it(
    postgres_url: str, change: Callable[[str], str], kind: type[Problem], words: str
) -> None:
    for ask in (open_store, schema.upgrade):
        with pytest.raises(kind) as problem:
            ask(change(postgres_url))
        assert words in problem.value.facts()["reason"]


@pytest.mark.contract("LOG-2")
def test_connections_that_are_used_up_may_come_back(postgres_url: str, postgres_server: Server, role: str) -> None:
    with (
        on(postgres_server, "ALTER ROLE guest CONNECTION LIMIT 0"),
        pytest.raises(DatabaseExhausted, match="too many connections for role") as problem,
    ):
        open_store(as_role(postgres_url, role))
    assert isinstance(problem.value, Transient)
    assert "raise the server's limit" in str(problem.value)


def gone(server: Server, pid: int) -> bool:
    """Whether the server has ended the session of that process."""
    query = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
    return server.admin.execute(query, (pid,)).fetchone() == (True,)


@pytest.mark.contract("LOG-2")
@pytest.mark.parametrize("setting", ["statement_timeout", "idle_in_transaction_session_timeout", "transaction_timeout"])
def test_a_limit_of_time_is_waited_out(postgres_url: str, postgres_server: Server, setting: str) -> None:
    """The server ends the statement, or the whole session: what was not answered was not done; the next one goes."""
    with (
        on(
            postgres_server,
            f"ALTER DATABASE decodelog SET {setting} = '3s'",
            undo=(f"ALTER DATABASE decodelog RESET {setting}",),
        ),
        closing(database_store(postgres_url)) as store,
    ):
        writer = admit(store)
        with (  # noqa: PT012 - on either line
            pytest.raises(DatabaseTimeout, match="raise that limit") as problem,
            store._database.transaction("judge") as connection,
        ):
            connection.execute(text("UPDATE jobs SET output = 7"))
            if setting == "statement_timeout":
                connection.execute(text("SELECT pg_sleep(60)"))
            else:
                pid = connection.scalar(text("SELECT pg_backend_pid()"))
                while not gone(postgres_server, pid):
                    time.sleep(0.02)  # idle, for longer than it may be
                connection.execute(text("SELECT 1"))
        assert isinstance(problem.value, Transient)
        assert store.row("job-1").output == 0
        write(store, writer, 1)
