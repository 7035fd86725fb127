"""Sealing, erasing and sweeping many jobs where the database goes away in the middle: what was done is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commandline import decodelog, jobs

from decodelog.fsm.errors import DatabaseLocked
from decodelog.service.retention import sweep as sweeping

pytestmark = [pytest.mark.contract("LOG-9"), pytest.mark.contract("LOG-2")]

COMMANDS = {"seal": ("seal", "--all"), "erase": ("erase",), "sweep": ("sweep", "--seal-after", "0s")}


@pytest.fixture
def names(short_model: Path, sqlite_url: str) -> list[str]:
    request = ("--model", short_model, "--prompt", "Go", "--max-new-tokens", 3)
    for _ in range(3):
        assert decodelog("run", *request, db=sqlite_url).code == 0
    return [row.job for row in jobs(sqlite_url)]


def locked_at(number: int, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is held by somebody else when this job, counted from 0, is sealed or erased."""
    real, calls = getattr(sweeping, what), list[int]()

    def flaky(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == number + 1:
            raise DatabaseLocked("db", "held")
        return real(*given)

    monkeypatch.setattr(sweeping, what, flaky)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_was_done_is_told_with_the_error(
    command: str, names: list[str], sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = "erase" if command == "erase" else "seal"
    given = (*COMMANDS[command], *(names if command == "erase" else ()))
    with monkeypatch.context() as patch:
        locked_at(2, what, patch)
        ended = decodelog(*given, "--json", db=sqlite_url)
    told = ended.json
    assert (ended.code, [each["job"] for each in told["jobs"]]) == (1, names[:2])
    assert all(each["erased" if what == "erase" else "sealed"] for each in told["jobs"])
    assert (told["error"]["code"], told["scrubbed"]) == ("database_locked", command == "seal")
    done = [row.sealed_ms or row.erased_ms for row in jobs(sqlite_url)]
    assert [each is not None for each in done] == [True, True, False]
    again = decodelog(*given, "--json", db=sqlite_url)
    assert (again.code, again.json["jobs"][-1]["job"], "error" in again.json) == (0, names[2], False)


def test_people_read_the_same(names: list[str], sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    locked_at(1, "seal", monkeypatch)
    ended = decodelog("seal", "--all", db=sqlite_url)
    assert (ended.code, ended.stdout.startswith(f"{names[0]} is sealed: ")) == (1, True)
    assert "error[database_locked]" in ended.stderr
    assert "run the same command again for the rest" in ended.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_where_nothing_was_done_nothing_but_the_error_is_told(
    command: str, names: list[str], sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked_at(0, "erase" if command == "erase" else "seal", monkeypatch)
    ended = decodelog(*COMMANDS[command], *(names if command == "erase" else ()), "--json", db=sqlite_url)
    assert (ended.code, list(ended.json), ended.error["code"]) == (2, ["error"], "database_locked")
    assert all(row.sealed_ms is row.erased_ms is None for row in jobs(sqlite_url))


def test_a_sweep_reports_what_it_erased_before_a_locked_database(
    names: list[str], short_model: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep tells what it erased where sealing finds the database locked."""
    request = ("--model", short_model, "--prompt", "Go", "--max-new-tokens", 3, "--retain", "0s")
    assert decodelog("run", *request, db=sqlite_url).code == 0
    locked_at(0, "seal", monkeypatch)
    ended = decodelog(*COMMANDS["sweep"], "--json", db=sqlite_url)
    gone = jobs(sqlite_url)[-1].job
    assert (ended.code, ended.json["jobs"]) == (1, [{"job": gone, "erased": True}])
    assert ended.error["code"] == "database_locked"
