"""Databases that are not there, not databases, locked, full or damaged: each a typed error that says what to do."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from databases import Server, database_store
from sqlalchemy import text
from steps import Writer, admit

from decodelog.fsm.errors import (
    DatabaseFault,
    DatabaseFull,
    DatabaseLocked,
    DatabaseReadOnly,
    DatabaseUnavailable,
    FolderMissing,
    Rejected,
    SchemaMissing,
    SchemaNewer,
    Transient,
    UnsupportedDatabase,
)
from decodelog.fsm.ports import Outcome
from decodelog.store.database import schema
from decodelog.store.engine import open_store


@pytest.mark.contract("LOG-2")
@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "it is no database URL"),
        ("decodelog.db", "it is no database URL"),
        ("sqlite://", "a database in memory would end with its connection"),
        ("sqlite:///:memory:", "a database in memory would end with its connection"),
        ("sqlite:///file:x?mode=memory&uri=true", "it is no plain file"),
        ("mysql://host/name", "there is no support for mysql"),
        ("postgresql+asyncpg://host/name", "there is no support for postgresql+asyncpg"),
        ("oracle+nonsense://host/name", "there is no support for oracle+nonsense"),
        ("memory://shared", "there is no support for memory"),
    ],
)
def test_a_url_that_cannot_be_used_says_why(url: str, reason: str) -> None:
    for ask in (open_store, schema.upgrade):
        with pytest.raises(UnsupportedDatabase) as problem:
            ask(url)
        assert reason in problem.value.reason
        assert isinstance(problem.value, Rejected)


@pytest.mark.contract("LOG-2")
def test_a_password_does_not_reach_an_error() -> None:
    with pytest.raises(DatabaseUnavailable) as problem:
        open_store("postgresql://user:secret@127.0.0.1:1/name")
    assert isinstance(problem.value, Transient)
    assert "secret" not in str(problem.value)
    assert "try again" in str(problem.value)


@pytest.mark.contract("LOG-2")
def test_a_file_that_is_not_there_is_not_created(tmp_path: Path) -> None:
    file = tmp_path / "decodelog.db"
    for ask in (open_store, schema.check, schema.current):
        with pytest.raises(SchemaMissing):
            ask(f"sqlite:///{file}")
    assert not file.exists()


@pytest.mark.contract("LOG-2")
def test_a_directory_and_a_file_of_something_else_are_no_databases(tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("not a database, and long enough to be read as the header of one" * 20)
    for path, reason in ((tmp_path, "it is a directory"), (note, "the file is no SQLite database")):
        for ask in (open_store, schema.upgrade):
            with pytest.raises(UnsupportedDatabase) as problem:
                ask(f"sqlite:///{path}")
            assert problem.value.reason == reason
    assert note.read_text().startswith("not a database")


@pytest.mark.contract("LOG-2")
@pytest.mark.parametrize("later", [False, True])
def test_a_database_that_was_refused_is_not_changed(tmp_path: Path, later: bool) -> None:
    """Neither another program's, nor one of a later release."""
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("CREATE TABLE notes (text)")
        other.execute("INSERT INTO notes VALUES ('not ours')")
        if later:
            other.execute("CREATE TABLE alembic_version (version_num)")
            other.execute("INSERT INTO alembic_version VALUES ('0999')")
    before = file.read_bytes()
    asks: list[Callable[[str], object]] = [open_store, schema.check, *([schema.upgrade] if later else [])]
    for ask in asks:
        with pytest.raises(SchemaNewer if later else SchemaMissing):
            ask(f"sqlite:///{file}")
        assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["other.db"]


@pytest.mark.contract("LOG-2")
def test_a_store_restores_the_write_ahead_mode_of_a_file(sqlite_url: str) -> None:
    """A store writes ahead also where someone has changed the file's mode."""
    file = sqlite_url.removeprefix("sqlite:///")

    def mode(pragma: str = "journal_mode") -> Any:
        with closing(sqlite3.connect(file)) as other:
            return other.execute(f"PRAGMA {pragma}").fetchone()[0]

    assert mode() == "wal"
    assert mode("journal_mode = DELETE") == "delete"
    schema.check(sqlite_url)
    assert mode() == "delete"
    database_store(sqlite_url).close()
    assert mode() == "wal"


@pytest.mark.contract("LOG-2")
def test_the_mode_of_a_file_is_changed_when_those_who_write_it_have_ended(sqlite_url: str) -> None:
    file = sqlite_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseLocked, match="try again"):
            open_store(sqlite_url, busy_timeout_ms=50)
        end = threading.Timer(0.1, other.execute, ["ROLLBACK"])
        end.start()
        database_store(sqlite_url).close()
        end.join()
    with closing(sqlite3.connect(file)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.contract("LOG-2")
def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FolderMissing, match="make it, or name another file") as problem:
        schema.upgrade(f"sqlite:///{tmp_path / 'missing' / 'decodelog.db'}")
    assert problem.value.folder == str(tmp_path / "missing")
    for ask in (open_store, schema.check, schema.current):
        with pytest.raises(FolderMissing):
            ask(f"sqlite:///{tmp_path / 'missing' / 'decodelog.db'}")


@pytest.mark.contract("LOG-2")
def test_a_database_held_by_another_process_is_locked_and_loses_nothing(sqlite_url: str) -> None:
    """A database that another process holds is locked and nothing is lost."""
    store = open_store(sqlite_url, busy_timeout_ms=50)
    writer = admit(store)
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for change in (
            lambda: store.append([writer.step()]),
            lambda: store.claim("worker-1", 1000, 1),
            lambda: admit(store, "job-2"),
            lambda: store.heartbeat("worker-1", 1000),
        ):
            with pytest.raises(DatabaseLocked, match="try again") as problem:
                change()
            assert isinstance(problem.value, Transient)
        assert len(list(store.read("job-1"))) == 1
        other.execute("ROLLBACK")
    (result,) = store.append([writer.step()])
    assert result.outcome is Outcome.APPENDED
    store.close()


@pytest.mark.contract("LOG-2")
def test_a_row_that_another_process_holds_is_locked_on_postgresql(postgres_url: str) -> None:
    store, other = open_store(postgres_url, busy_timeout_ms=50), database_store(postgres_url)
    writer = admit(store)
    with other._database.transaction() as connection:
        connection.execute(text("SELECT 1 FROM jobs FOR UPDATE"))
        with pytest.raises(DatabaseLocked, match="try again"):
            store.append([writer.step()])
    (result,) = store.append([writer.step()])
    assert result.outcome is Outcome.APPENDED
    store.close()
    other.close()


@pytest.mark.contract("LOG-2")
def test_a_full_disk_undoes_the_whole_batch(sqlite_url: str) -> None:
    """The limit on the file's pages is SQLite's own way to run out of space."""
    store = database_store(sqlite_url)
    writers = [admit(store, f"job-{number}") for number in range(40)]
    with store._database.single() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    def step() -> list[Writer]:
        results = store.append([writer.step() for writer in writers])
        return [writer.at(result.head) for writer, result in zip(writers, results, strict=True)]

    with pytest.raises(DatabaseFull, match="make room"):  # noqa: PT012 - some step or other
        while True:
            writers = step()
    heads = {store.row(writer.job).head.sequence for writer in writers}
    assert heads == {writers[0].head.sequence}
    with store._database.single() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 100000")
    step()
    assert {store.row(writer.job).head.sequence for writer in writers} == {writers[0].head.sequence + 3}
    store.close()


@pytest.mark.contract("LOG-2")
def test_connections_ended_by_the_server_are_an_error_once(postgres_url: str, postgres_server: Server) -> None:
    """Connections that the server ended are an error once and then made anew."""
    store = database_store(postgres_url)
    writer = admit(store)
    postgres_server.admin.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = 'decodelog'"
    )
    with pytest.raises(DatabaseUnavailable):
        store.append([writer.step()])
    results = [store.append([writer.step()]) for _ in range(2)]
    assert [result.outcome for (result,) in results] == [Outcome.APPENDED, Outcome.DUPLICATE]
    store.close()


@pytest.mark.contract("LOG-2")
def test_a_server_that_only_reads_is_away_and_not_broken(postgres_url: str, postgres_server: Server) -> None:
    """As one is to which a failover has not come yet."""
    store = database_store(postgres_url)
    writer = admit(store)
    name = "default_transaction_read_only"
    postgres_server.admin.execute(f"ALTER DATABASE decodelog SET {name} = on")
    try:
        store.close()
        for attempt in (lambda: store.append([writer.step()]), lambda: store.release("worker")):
            with pytest.raises(DatabaseReadOnly, match="point the URL at the primary"):
                attempt()
    finally:
        postgres_server.admin.execute(f"ALTER DATABASE decodelog RESET {name}")
    (result,) = store.append([writer.step()])
    assert result.outcome is Outcome.APPENDED
    store.close()


@pytest.mark.contract("LOG-2")
def test_a_vanished_host_is_waited_for_as_long_as_the_url_says(postgres_url: str) -> None:
    """A host that has vanished is not waited for for ever and the URL has the last word."""
    with closing(database_store(f"{postgres_url}&connect_timeout=3")) as store, store._database.single() as connection:
        driver: Any = connection.connection.dbapi_connection
        given = driver.info.get_parameters()
    assert (given["connect_timeout"], given["tcp_user_timeout"]) == ("3", "30000")


@pytest.mark.contract("LOG-2")
def test_tables_that_are_not_as_the_schema_says_are_a_defect(empty_url: str) -> None:
    schema.upgrade(empty_url)
    store = database_store(empty_url)
    with store._database.transaction() as connection:
        connection.execute(text("DROP TABLE refusals"))
    writer = admit(store)
    with pytest.raises(DatabaseFault, match="check its schema"):
        store.append([writer.step(fence=3)])
    store.close()
