"""A commit that is answered survives a crash: what a session can set for that is set, and without the rest none is."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import pytest
from databases import Server, database_store, postgres
from sqlalchemy import text
from steps import admit, write

from decodelog.fsm.errors import DatabaseNotDurable, Rejected
from decodelog.fsm.ports import Command
from decodelog.store.database import schema
from decodelog.store.database.settings import standing
from decodelog.store.engine import DatabaseStore, open_store


@contextmanager
def set_to(server: Server, where: str, **settings: str) -> Iterator[None]:
    """Settings of the whole server (SYSTEM), of the role or of the database for as long as the block lasts."""
    for name, value in settings.items():
        server.admin.execute(f"ALTER {where} SET {name.replace('__', '.')} = '{value}'")
    server.admin.execute("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        for name in settings:
            server.admin.execute(f"ALTER {where} RESET {name.replace('__', '.')}")
        server.admin.execute("SELECT pg_reload_conf()")


@pytest.fixture(scope="module")
def syncing() -> Iterator[Server]:
    """A server as it comes: every commit is synced, and nothing is declared."""
    with postgres() as server:
        yield server


def of_session(store: DatabaseStore, name: str) -> str:
    with store._database.transaction("judge") as connection:
        return str(connection.scalar(text(f"SHOW {name}")))


@pytest.mark.contract("LOG-2", "OUT-7")
@pytest.mark.parametrize("where", ["ROLE CURRENT_USER", "DATABASE decodelog", "SYSTEM"])
@pytest.mark.parametrize(
    ("given", "taken"),
    [("off", "on"), ("local", "on"), ("remote_write", "on"), ("on", "on"), ("remote_apply", "remote_apply")],
)
def test_a_commit_waits_for_the_disk_whatever_role_and_database_say(
    syncing: Server, where: str, given: str, taken: str
) -> None:
    with set_to(syncing, where, synchronous_commit=given), closing(database_store(syncing.clear())) as store:
        assert of_session(store, "synchronous_commit") == taken
        with store._database.single() as connection:
            assert connection.scalar(text("SHOW synchronous_commit")) == taken
        write(store, admit(store), 2)


@pytest.mark.contract("LOG-2", "OUT-7")
def test_a_setting_that_is_changed_while_a_session_lasts_does_not_reach_it(syncing: Server) -> None:
    with closing(database_store(syncing.clear())) as store:
        assert of_session(store, "synchronous_commit") == "on"
        with set_to(syncing, "SYSTEM", synchronous_commit="off"):
            for _ in range(50):  # a reload reaches a session with its next statement, or the one after it
                assert of_session(store, "synchronous_commit") == "on"


@pytest.mark.contract("LOG-2", "OUT-7")
@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_nothing_is_acknowledged_where_a_crash_can_take_it_back(syncing: Server, setting: str) -> None:
    url = syncing.clear()
    with closing(database_store(url)) as store:
        writer = admit(store)
        store.claim("worker-1", 60_000, 1)
    with set_to(syncing, "SYSTEM", **{setting: "off"}):
        wait_for(url, setting, "off")
        with closing(database_store(url)) as store:
            for change in (
                lambda: admit(store, "job-2"),
                lambda: store.append([writer.step(fence=1)]),
                lambda: store.claim("worker-2", 60_000, 1),
                lambda: store.heartbeat("worker-1", 60_000),
                lambda: store.post(Command("c", "job-1", "cancel")),
            ):
                with pytest.raises(DatabaseNotDurable, match=f"{setting} is off; turn that on") as problem:
                    change()
                assert isinstance(problem.value, Rejected)
            assert [row.job for row in store.rows()] == ["job-1"]  # reading promises nothing
            assert len(list(store.read("job-1"))) == 1
            assert store.pending(["job-1"]) == []
        with set_to(syncing, "DATABASE decodelog", decodelog__durable="no"), closing(database_store(url)) as store:
            write(store, admit(store, "job-3"), 1)
    wait_for(url, setting, "on")
    with closing(database_store(url)) as store:
        assert [row.job for row in store.rows()] == ["job-1", "job-3"]
        write(store, admit(store, "job-4"), 1)


def wait_for(url: str, setting: str, value: str) -> None:
    """Until the server has read its settings again."""
    while True:
        with psycopg.connect(url) as connection:
            if connection.execute("SELECT current_setting(%s)", (setting,)).fetchone() == (value,):
                return


@pytest.mark.contract("LOG-2")
def test_how_a_database_was_found_is_said(syncing: Server, sqlite_url: str) -> None:
    url = syncing.clear()
    with set_to(syncing, "DATABASE decodelog", synchronous_commit="off"):
        found = standing(url)
    assert found.settings == {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
    assert (found.lacking, found.notes) == (
        "",
        ["synchronous_commit is off for this role or database, and on for what this program writes"],
    )
    with set_to(syncing, "SYSTEM", fsync="off"):
        wait_for(url, "fsync", "off")
        found = standing(url)
        assert (found.settings["fsync"], found.lacking) == ("off", "fsync is off")
    wait_for(url, "fsync", "on")
    found = standing(sqlite_url)
    assert (found.settings, found.lacking, found.notes) == ({"journal_mode": "wal", "synchronous": "2"}, "", [])
    assert schema.check(url) == schema.HEAD


@pytest.mark.contract("LOG-2", "OUT-7")
def test_no_acknowledged_append_is_lost_whatever_the_role_says() -> None:
    """SIGQUIT, as of `pg_ctl stop -m immediate`: what is not on the disk is gone."""
    with postgres() as server:
        server.admin.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        server.admin.execute("ALTER ROLE CURRENT_USER SET synchronous_commit = off")
        server.admin.execute("SELECT pg_reload_conf()")
        with closing(open_store(server.clear())) as store:
            writer = write(store, admit(store), 40)
            server.restart(signal.SIGQUIT)
        with closing(open_store(server.url)) as store:
            assert store.row("job-1").output == writer.output == 40
            assert len(list(store.read("job-1"))) == 41
