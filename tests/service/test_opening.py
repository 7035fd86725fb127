"""Making a database file: whole or not at all, by whoever is first."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from decodelog.fsm.errors import SchemaMissing
from decodelog.service.database import DATABASE_DEFAULT, database_url, open_database, opened
from decodelog.store import schema


@pytest.mark.contract("LOG-6")
def test_many_that_make_the_same_file_at_once_all_find_it_whole(empty_sqlite_url: str) -> None:
    ready, failures = threading.Barrier(6), []

    def make() -> None:
        ready.wait()
        try:
            with opened(empty_sqlite_url, create=True) as store:
                assert store.rows() == []
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert schema.check(empty_sqlite_url) == schema.HEAD
    folder = Path(empty_sqlite_url.removeprefix("sqlite:///")).parent
    assert [path.name for path in folder.iterdir() if "new" in path.name] == []


def test_a_file_that_is_there_is_never_filled_with_tables(empty_sqlite_url: str) -> None:
    path = Path(empty_sqlite_url.removeprefix("sqlite:///"))
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE somebody_elses (id)")
    connection.close()
    with pytest.raises(SchemaMissing):
        open_database(empty_sqlite_url, create=True)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("somebody_elses",)]
    connection.close()


def test_the_flag_comes_before_the_environment_and_that_before_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DECODELOG_DB", raising=False)
    assert database_url(None) == DATABASE_DEFAULT
    monkeypatch.setenv("DECODELOG_DB", "memory://")
    assert database_url(None) == "memory://"
    assert database_url("sqlite:///other.db") == "sqlite:///other.db"
