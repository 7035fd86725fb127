"""Databases on the command line: gone, not durable, with passwords in their URLs, with many jobs; and whose files."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from commandline import decodelog, ended, process, wait_for
from databases import database_store
from sqlalchemy import insert, update

from decodelog.fsm.machine.states import Status
from decodelog.fsm.ports import EMPTY_HEAD, JobRow
from decodelog.service.advice import COMMANDS, advised
from decodelog.service.cli.board import Board
from decodelog.service.cli.commands import jobs as listing
from decodelog.service.cli.commands.run import _resume_command
from decodelog.service.inspect import doctor
from decodelog.store.appending import event_log
from decodelog.store.database.tables import jobs as jobs_table
from decodelog.store.engine import open_store

SECRET = "hunter2"
MANY = 60_000  # tokens, which take longer than what is done meanwhile


def remove(file: Path) -> None:
    for part in file.parent.glob(f"{file.name}*"):
        part.unlink()


def rename(file: Path) -> None:
    file.rename(file.with_name("other.db"))


@pytest.mark.contract("LOG-2", "OUT-7")
@pytest.mark.parametrize("take", [remove, rename])
def test_a_run_whose_database_is_taken_ends_without_success(
    take: Callable[[Path], None], long_model: Path, sqlite_url: str
) -> None:
    """A run whose database is taken ends soon and does not claim success."""
    file = Path(sqlite_url.removeprefix("sqlite:///"))
    with process("run", "--model", long_model, "--prompt", "Go", "--max-new-tokens", MANY, db=sqlite_url) as running:
        wait_for(sqlite_url, lambda row: row.output > 20)
        take(file)
        result = ended(running)
    assert result.code == 2
    assert "error[database_moved]" in result.stderr
    assert "Go on with" not in result.stderr
    assert "new tokens" not in result.stderr
    assert 20 <= len(result.stdout) < MANY
    assert not file.exists()


def test_a_worker_without_jobs_finds_out_too(sqlite_url: str) -> None:
    with process("worker", db=sqlite_url) as running:
        assert running.stderr is not None
        assert "working" in running.stderr.readline()
        remove(Path(sqlite_url.removeprefix("sqlite:///")))
        assert ended(running).code == 2


@pytest.mark.parametrize(
    "db",
    [
        f"postgresql://ada:{SECRET}@127.0.0.1:1/name",
        f"postgresql://ada:{SECRET}@host:port/name",
        f"postgresql://ada:{SECRET}",
        f"postgresql://ada:x@{SECRET}@127.0.0.1:1/name",
        f"postgresql:/ada:{SECRET}@host/name",
        f"mysql://ada:{SECRET}@host/name",
        f"postgresql://127.0.0.1:1/name?user=ada&password={SECRET}",
        f"postgresql://127.0.0.1:1/name?sslpassword={SECRET}",
        f"postgresql://127.0.0.1:1/name?nonsense=1&password={SECRET}",
        f"sqlite:///nowhere/at/all.db?password={SECRET}",
        f"sqlite://ada:{SECRET}@host/name.db",
        f"x:{SECRET}@y",
    ],
)
def test_no_command_says_a_password_of_the_databases_url(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for examination in ("_torch", "_models", "_rows"):  # they take seconds, and are not told the URL
        monkeypatch.setattr(doctor, examination, lambda *_: doctor.Check("left out", "ok", "not looked at"))
    for command in ("jobs", "doctor", "db check", "db upgrade", "worker --drain", "resume --all"):
        for form in ((), ("--json",)):
            told = decodelog(*command.split(), *form, db=db)
            assert told.code in (1, 2)
            assert SECRET not in told.stdout + told.stderr
    wrong = decodelog("jobs", db, "--json")  # an argument where there is none
    assert wrong.code == 2
    assert SECRET not in wrong.stdout + wrong.stderr


def test_the_way_to_go_on_has_no_password() -> None:
    url = f"postgresql://ada:{SECRET} x@host/name?sslpassword={SECRET}&sslmode=require"
    told = _resume_command("job-1", url, Path("kept here"))
    assert told == (
        "decodelog resume job-1 --db 'postgresql://ada:***@host/name?sslpassword=***&sslmode=require'"
        " --cache-dir 'kept here'"
    )
    assert _resume_command("job-1", None, None) == "decodelog resume job-1"


def test_the_command_that_helps_is_added_here(sqlite_url: str) -> None:
    from decodelog.fsm import errors

    codes = {each.code: each for each in vars(errors).values() if isinstance(each, type) and hasattr(each, "code")}
    assert set(COMMANDS) <= set(codes)
    assert advised(errors.UnknownJob("job-1")).endswith("; name an existing one: `decodelog jobs` lists all")
    assert advised(errors.JobNotEnded("job-1", "PENDING")).endswith(": `decodelog cancel job-1` ends it")
    assert advised(errors.DatabaseDenied("db", "no")) == str(errors.DatabaseDenied("db", "no"))
    assert "`decodelog jobs` lists all" in decodelog("show", "x", "--json", db=sqlite_url).error["message"]


def test_a_check_says_what_a_crash_may_take_back(postgres_url: str, sqlite_url: str, postgres_server: object) -> None:
    told = decodelog("db", "check", "--json", db=sqlite_url)
    assert (told.code, told.json["lacking"]) == (0, "")
    told = decodelog("db", "check", "--json", db=postgres_url)  # whose server is declared not to last
    assert (told.code, told.json["lacking"], told.json["declared"]) == (0, "fsync is off", True)
    admin = postgres_server.admin  # type: ignore[attr-defined]
    here = "ALTER ROLE CURRENT_USER IN DATABASE decodelog"
    admin.execute(f"{here} SET decodelog.durable = 'yes'")
    try:
        told = decodelog("db", "check", db=postgres_url)
        assert told.code == 1
        assert "fsync is off: a crash can take back what was answered; nothing is written there" in told.stderr
        checks = {check["name"]: check for check in decodelog("doctor", "--json", db=postgres_url).json["checks"]}
        assert checks["database"]["status"] == "fail"
        assert checks["database"]["advice"] == "fsync is off: turn that on, or nothing is written there"
        refused = decodelog("resume", "--all", "--json", db=postgres_url)
        assert (refused.code, refused.error["code"]) == (2, "database_not_durable")
    finally:
        admin.execute(f"{here} RESET decodelog.durable")


# ---- files ---------------------------------------------------------------------------------------------------------


def test_what_holds_content_is_its_owners_alone(short_model: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        (tmp_path / "made").mkdir()
        db, kept = f"sqlite:///{tmp_path}/made/new.db", tmp_path / "made" / "kept"
        ran = decodelog("run", "--model", short_model, "--prompt", "Go", "--max-new-tokens", 3, "--json", db=db)
        assert ran.code == 0
        job = ran.json["job"]
        assert decodelog("export", job, "--out", tmp_path / "made" / "job.dlog", db=db).code == 0
        assert decodelog("snapshot", job, "--out", tmp_path / "made" / "snapshot.dlog", db=db).code == 0
        assert not kept.exists()
        files = [path for path in (tmp_path / "made").rglob("*") if path.is_file()]
        assert len(files) >= 3
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    finally:
        os.umask(before)


# ---- many jobs -----------------------------------------------------------------------------------------------------


def fill(url: str, count: int) -> list[str]:
    """Jobs that are only rows, oldest first."""
    names = [f"job-{number:05d}" for number in range(count)]
    with closing(database_store(url)) as store, store._database.transaction() as connection:
        made = {"identity": "a" * 64, "model": "m", "created_ms": 1, "prompt": 5, "status": "ADMITTED", "output": 0}
        made |= {"sequence": 0, "chain": EMPTY_HEAD.chain, "tail": 0, "fence": 0}
        connection.execute(insert(jobs_table), [made | {"job": name} for name in names])
    return names


@pytest.mark.parametrize("page", [1, 7, 1000])
def test_jobs_are_listed_a_page_at_a_time(page: int, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "PAGE", page)
    monkeypatch.setattr(listing, "LISTED", 5)
    assert decodelog("jobs", "--json", db=database_url).json == []
    names = fill(database_url, 23)

    def table(*flags: object) -> tuple[list[str], str]:
        told = decodelog("jobs", *flags, db=database_url)
        head, *lines = told.stdout.splitlines()
        assert tuple(head.split()) == listing.COLUMNS
        return [line.split()[0] for line in lines], told.stderr

    assert [each["job"] for each in decodelog("jobs", "--json", db=database_url).json] == names
    assert [each["job"] for each in decodelog("jobs", "--json", "--last", 8, db=database_url).json] == names[-8:]
    shown, said = table()
    assert (shown, "18 older jobs are not shown; --all shows them" in said) == (names[-5:], True)
    assert table("--all") == (names, "")
    assert table("--last", 23)[0] == table("--last", 100)[0] == names
    assert table("--last", 1)[0] == names[-1:]
    assert table("--last", 1 << 70)[0] == names
    assert decodelog("jobs", "--all", "--last", 3, "--json", db=database_url).error["code"] == "conflicting_flags"


def test_jobs_of_one_state_are_listed_and_counted(database_url: str) -> None:
    names = fill(database_url, 9)
    with closing(database_store(database_url)) as store, store._database.transaction() as connection:
        ended = {"status": "CLOSED", "finish": "eos", "output": 30, "ended_ms": 3001, "output_max": 40}
        connection.execute(update(jobs_table).where(jobs_table.c.job.in_(names[::3])).values(ended))
        owner = {"owner": "host/boot/space/77/5/ab", "lease_until_ms": 5}
        connection.execute(update(jobs_table).where(jobs_table.c.job == names[1]).values(owner))

    def listed(*flags: object) -> list[list[str]]:
        return [line.split() for line in decodelog("jobs", *flags, db=database_url).stdout.splitlines()[1:]]

    assert [line[0] for line in listed("--state", "ENDED")] == names[::3]
    assert [line[0] for line in listed("--state", "live", "--limit", 2)] == names[-2:]
    assert listed("--state", "closed", "--limit", 1)[0][1:6] == ["CLOSED", "eos", "5", "30/40", "10.0"]
    assert "host:77" in listed("--limit", 8)[0]
    refused = decodelog("jobs", "--state", "asleep", "--json", db=database_url)
    assert (refused.code, refused.error["code"], "admitted" in refused.error["message"]) == (2, "wrong_use", True)


def test_a_look_at_all_jobs_is_one_query(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(sqlite_url, 40)
    asked: list[int] = []
    pages = event_log.DatabaseLog.pages

    def counted(self: Any, *given: Any) -> Iterator[list[JobRow]]:
        asked.append(len(given))
        return pages(self, *given)

    def enough(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(event_log.DatabaseLog, "pages", counted)
    monkeypatch.setattr(event_log.DatabaseLog, "row", None)
    monkeypatch.setattr("decodelog.service.cli.commands.jobs.time.sleep", enough)
    drawn: list[str] = []
    monkeypatch.setattr(Board, "_put", lambda self, text: drawn.append(text))
    with closing(database_store(sqlite_url)) as store, pytest.raises(KeyboardInterrupt):
        listing._watch(store, 15, tuple(Status))
    assert (len(asked), len(drawn)) == (1, 1)
    assert len(drawn[0].splitlines()) == 16


def test_no_more_jobs_are_held_than_a_page_has(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was listed is given up as the next page is asked for."""
    monkeypatch.setattr(event_log, "PAGE", 10)
    fill(sqlite_url, 200)
    with closing(open_store(sqlite_url)) as store:
        pages = [len(page) for page in store.pages()]
        assert pages == [10] * 20
        assert [len(page) for page in store.pages(15)] == [10, 5]
        assert store.count() == 200


def test_one_job_listed_as_json_is_one_line(database_url: str) -> None:
    names = fill(database_url, 3)
    told = decodelog("jobs", "--json", db=database_url)
    assert told.stdout.count("\n") == 1
    assert [each["job"] for each in json.loads(told.stdout)] == names
