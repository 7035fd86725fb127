"""Making a database file: whole or not at all, by whoever is first."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from decodelog.fsm.errors import SchemaMissing
from decodelog.service.database import DATABASE_DEFAULT, database_url, open_database
from decodelog.store.database import schema


@pytest.mark.contract("LOG-6")
def test_many_that_make_the_same_file_at_once_all_find_it_whole(empty_sqlite_url: str) -> None:
    program = f"""
from decodelog.service.database import opened
input()
with opened({empty_sqlite_url!r}, create=True) as store:
    assert store.rows() == []
"""
    command = [sys.executable, "-c", program]
    made = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    for process in made:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    assert [process.communicate()[1] for process in made] == [b""] * 3
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
