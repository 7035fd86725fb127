"""Bells, over memory, SQLite and PostgreSQL: who waits hears of what somebody else has done."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from databases import AnyStore
from steps import admit, write

from decodelog.fsm.ports import Bell, Command
from decodelog.store.coordination.bells import SqliteBell
from decodelog.store.database.sqlite_file import SqliteFile
from decodelog.store.engine import open_store

SOON_S, LONG_S = 0.05, 120.0


def silent(bell: Bell) -> Bell:
    """Hear what has rung already."""
    while bell.wait(SOON_S):
        pass
    return bell


@pytest.fixture
def other(store: AnyStore, store_url: str) -> Iterator[AnyStore]:
    """The same database as another process has it."""
    if store_url == "memory://":
        yield store
        return
    with closing(open_store(store_url)) as opened:
        yield opened


@pytest.mark.contract("LOG-7", "LOG-8")
def test_it_rings_for_submissions_commands_releases_and_ends(store: AnyStore, other: AnyStore) -> None:
    with closing(store.bell()) as bell:
        assert not silent(bell).wait(0)
        writer = admit(other)
        assert bell.wait(LONG_S)
        other.post(Command("c", "job-1", "cancel"))
        assert silent(bell) is bell
        other.post(Command("d", "job-1", "cancel"))
        assert bell.wait(LONG_S)
        other.claim("worker-1", 60_000, 1)
        silent(bell)
        other.release("worker-1")
        assert bell.wait(LONG_S)
        writer = write(other, writer.__class__(writer.job, writer.head, 1), 2)
        silent(bell)
        other.append([writer.last_step()])
        assert bell.wait(LONG_S)
        assert not silent(bell).wait(SOON_S)


@pytest.mark.contract("LOG-7")
def test_who_sleeps_is_woken_and_two_bells_are_two(store: AnyStore, other: AnyStore) -> None:
    heard = []
    with closing(store.bell()) as one, closing(store.bell()) as two:

        def sleep() -> None:
            heard.append(one.wait(LONG_S))

        sleeper = threading.Thread(target=sleep)
        sleeper.start()
        time.sleep(0.02)
        begin = time.monotonic()
        admit(other)
        sleeper.join(LONG_S)
        assert (heard, time.monotonic() - begin < LONG_S / 2) == ([True], True)
        assert two.wait(LONG_S)


def test_an_ordinary_step_rings_for_nobody_on_postgresql(postgres_url: str) -> None:
    with closing(open_store(postgres_url)) as store, closing(store.bell()) as bell:
        writer = admit(store)
        assert bell.wait(LONG_S)
        write(store, writer, 3)
        assert not bell.wait(SOON_S)


@pytest.mark.contract("LOG-2")
def test_a_lost_postgres_bell_reconnects_and_rings_once(postgres_url: str) -> None:
    """A lost PostgreSQL connection is made again and rings for what it missed."""
    with closing(open_store(postgres_url)) as store, closing(store.bell()) as bell:
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            listening = "FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND pid <> pg_backend_pid()"
            admin.execute(f"SELECT pg_terminate_backend(pid, 10000) {listening}")
        begin = time.monotonic()
        assert not bell.wait(SOON_S)
        assert time.monotonic() - begin >= SOON_S  # as long as asked: whoever polls does not poll faster
        assert bell.wait(LONG_S)
        admit(store)
        assert bell.wait(LONG_S)


def test_a_file_that_cannot_be_asked_is_a_bell_that_does_not_ring() -> None:
    with closing(SqliteBell(SqliteFile("/", "a folder"))) as bell:
        assert not bell.wait(SOON_S)
