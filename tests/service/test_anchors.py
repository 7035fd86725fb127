"""Anchors: what no chain can prove is found by heads that were kept outside of the database."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commandline import decodelog, script
from sqlalchemy import text

from decodelog.fsm.machine.events import AttemptStarted, Event
from decodelog.fsm.ports import EMPTY_HEAD, Head
from decodelog.service.database import opened
from decodelog.service.inspect.anchors import Anchor, Anchors, anchored, keep
from decodelog.store.engine import DatabaseStore
from decodelog.store.log.chain import digest, kept
from decodelog.store.log.codec import decode, encode
from decodelog.store.reading.audit import Reached

pytestmark = pytest.mark.contract("LOG-3")


OF_ONE_JOB = (("snapshots", "job_id"), ("appends", "job_id"), ("jobs", "id"))


@pytest.fixture
def db(database_url: str, tmp_path: Path) -> str:
    """A database with two jobs that have ended and one that waits, and where their model lies."""
    model = script(tmp_path / "model", script={"text": "Hi"})
    for command in ("run", "run", "submit"):
        assert decodelog(command, "--model", model, "--prompt", "G", db=database_url).code == 0
    return database_url


@pytest.fixture
def file(db: str, tmp_path: Path) -> Path:
    """Anchors of these jobs."""
    path = tmp_path / "kept" / "anchors"
    path.parent.mkdir()
    assert held(db, path)["ok"]
    return path


def held(db: str, path: Path) -> Any:
    return decodelog("audit", "--all", "--anchor", path, "--json", db=db).json


def faults(db: str, path: Path) -> list[tuple[str, str]]:
    return [(fault["job"], fault["kind"]) for fault in held(db, path)["faults"]]


def names(db: str) -> list[str]:
    with opened(db) as store:
        return [row.job for row in store.rows()]


def run(db: str, *statements: str) -> None:
    with opened(db) as store:
        assert isinstance(store, DatabaseStore)
        with store._database.transaction() as connection:
            for statement in statements:
                connection.execute(text(statement))


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_heads_are_added_as_logs_grow_and_no_line_is_ever_changed(db: str, file: Path) -> None:
    first = file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [line.get("job") for line in lines(file)[1:]] == names(db)
    assert held(db, file)["ok"]
    assert file.read_bytes() == first  # nothing has changed
    assert decodelog("worker", "--drain", db=db).code == 0
    assert held(db, file)["ok"]
    assert file.read_bytes().startswith(first)
    assert [line["job"] for line in lines(file)[4:]] == names(db)[2:]
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_database_that_went_back_is_named_job_by_job(sqlite_url: str, tmp_path: Path) -> None:
    db, file = sqlite_url, tmp_path / "anchors"
    model = script(tmp_path / "model", script={"text": "Hi"})
    for command in ("run", "run", "submit"):
        assert decodelog(command, "--model", model, "--prompt", "G", db=db).code == 0
    assert held(db, file)["ok"]
    old = tmp_path / "old.db"
    with sqlite3.connect(db.removeprefix("sqlite:///")) as connection:
        connection.execute("VACUUM INTO ?", (str(old),))
    waiting = names(db)[2]
    assert decodelog("worker", "--drain", db=db).code == 0
    decodelog("submit", "--model", tmp_path / "model", "--prompt", "G", db=db)
    late = names(db)[3]
    assert held(db, file)["ok"]
    assert decodelog("audit", "--all", db=f"sqlite:///{old}").code == 0  # by itself it is sound
    assert faults(f"sqlite:///{old}", file) == [(waiting, "anchor"), (late, "anchor")]
    assert lines(file)[-1]["job"] == late  # what is not proven is not anchored


def test_a_job_that_is_gone_is_named(db: str, file: Path) -> None:
    gone, *_ = names(db)
    run(
        db,
        "DELETE FROM snapshots WHERE job_id = 1",
        "DELETE FROM appends WHERE job_id = 1",
        "DELETE FROM jobs WHERE id = 1",
    )
    assert decodelog("audit", "--all", db=db).code == 0
    told = held(db, file)["faults"]
    assert [(fault["job"], fault["kind"]) for fault in told] == [(gone, "anchor")]
    assert "is not there" in told[0]["detail"]


def forge(store: DatabaseStore, job: str) -> None:
    """Write a log anew with all its digests, with another worker in it."""
    (log,) = [each._replace(rows=list(each.rows)) for each in store.logs(job)]
    chain, before = EMPTY_HEAD.chain, 0
    with store._database.transaction() as connection:
        for row in log.rows:
            payload = encode(tuple(map(another, decode(row.payload, row.key, job, row.first))), row.key)
            chain = digest(chain, row.first, row.key, payload)
            values = {"first": row.first, "payload": payload, "mark": kept(chain, before, row.last), "chain": chain}
            of = "job_id = (SELECT id FROM jobs WHERE job = :job)"
            connection.execute(
                text(f"UPDATE appends SET payload = :payload, chain = :mark WHERE {of} AND first = :first"),
                {"job": job} | values,
            )
            before = row.last
        connection.execute(text("UPDATE jobs SET chain = :chain WHERE job = :job"), {"chain": chain, "job": job})


def another(event: Event) -> Event:
    return replace(event, worker="somebody else") if isinstance(event, AttemptStarted) else event


def test_a_log_that_was_written_anew_with_all_its_digests_is_named(db: str, file: Path) -> None:
    one, *_ = names(db)
    with opened(db) as store:
        assert isinstance(store, DatabaseStore)
        forge(store, one)
    assert decodelog("audit", "--all", db=db).code == 0  # nothing in the database says so
    told = held(db, file)["faults"]
    assert [(fault["job"], fault["kind"]) for fault in told] == [(one, "anchor")]
    assert "with another digest" in told[0]["detail"]


def test_a_live_job_that_was_anchored_as_ended_is_named(db: str, file: Path) -> None:
    """A live job that is said to have ended is named though its head is the same."""
    waiting = names(db)[2]
    (anchor,) = [Anchor(**line) for line in lines(file)[1:] if line["job"] == waiting]
    anchors = Anchors(file.read_bytes(), file)
    chain = bytes.fromhex(anchor.chain)
    same = Reached(Head(anchor.sequence, chain), None, (chain,))
    assert list(anchors.faults({waiting: same}, [waiting])) == []
    for changed, told in [
        (same._replace(finish="length"), "with finish None, and its row says length"),
        (same._replace(asked=(bytes(32),)), "with another digest"),
        (same._replace(asked=()), "has no digest there any more"),
        (same._replace(head=Head(anchor.sequence - 1, chain)), "its log ends at event"),
    ]:
        (fault,) = anchors.faults({waiting: changed}, [waiting])
        assert (fault.job, told in fault.detail) == (waiting, True)


def test_what_is_sealed_and_erased_after_it_has_ended_still_holds(db: str, file: Path) -> None:
    one, two, _ = names(db)
    assert decodelog("seal", one, db=db).code == 0
    assert decodelog("erase", two, db=db).code == 0
    assert held(db, file)["ok"]
    assert decodelog("erase", one, db=db).code == 0
    assert held(db, file)["ok"]


def test_a_job_that_was_sealed_before_its_end_was_anchored_is_not_proven(db: str, file: Path) -> None:
    waiting = names(db)[2]
    assert decodelog("worker", "--drain", db=db).code == 0
    assert decodelog("seal", waiting, db=db).code == 0
    told = held(db, file)["faults"]
    assert [(fault["job"], fault["kind"]) for fault in told] == [(waiting, "anchor")]


def test_one_job_is_held_to_its_own_anchors(db: str, file: Path) -> None:
    gone, kept, _ = names(db)
    run(
        db,
        "DELETE FROM snapshots WHERE job_id = 1",
        "DELETE FROM appends WHERE job_id = 1",
        "DELETE FROM jobs WHERE id = 1",
    )
    assert decodelog("audit", kept, "--anchor", file, db=db).code == 0
    assert decodelog("audit", gone, "--anchor", file, "--json", db=db).error["code"] == "unknown_job"


@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        "{}\n",
        '{"anchors":"decodelog.anchors.v2"}\n',
        '{"anchors":"decodelog.anchors.v1"}',
        '{"anchors":"decodelog.anchors.v1"}\n\n',
        '{"anchors":"decodelog.anchors.v1"}\n[]\n',
        '{"anchors":"decodelog.anchors.v1"}\n{"job":"a","sequence":1,"chain":"00","finish":null}\n',
        '{"anchors":"decodelog.anchors.v1"}\n{"job":"a","sequence":true,"chain":"' + "0" * 64 + '","finish":null}\n',
        '{"anchors":"decodelog.anchors.v1"}\n{"job":"a","sequence":-1,"chain":"' + "0" * 64 + '","finish":null}\n',
        '{"anchors":"decodelog.anchors.v1"}\n' + "[" * 100_000 + "\n",
    ],
)
def test_a_file_that_holds_no_anchors_is_refused_and_left(db: str, tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken"
    path.write_text(text)
    assert decodelog("audit", "--all", "--anchor", path, "--json", db=db).error["code"] == "broken_anchors"
    assert path.read_text() == text


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFCHR])
def test_what_is_no_file_is_neither_waited_for_nor_replaced(db: str, tmp_path: Path, kind: int) -> None:
    path = tmp_path / "other"
    try:
        os.mknod(path, kind | 0o600, os.makedev(1, 5))  # a pipe; or /dev/zero, which has no end
    except PermissionError:
        path.symlink_to("/dev/zero")
    told = decodelog("audit", "--all", "--anchor", path, "--json", db=db)
    assert (told.code, told.error["code"]) == (2, "broken_anchors")
    assert stat.S_IFMT(path.stat().st_mode) == kind


def test_a_file_in_no_folder_is_refused(db: str, tmp_path: Path) -> None:
    told = decodelog("audit", "--all", "--anchor", tmp_path / "no" / "anchors", "--json", db=db)
    assert (told.code, told.error["code"]) == (2, "unwritable_output")


def test_two_audits_at_a_time_lose_no_line(tmp_path: Path) -> None:
    """The second one waits, and reads what the first has written."""
    path, digest = tmp_path / "anchors", "0" * 64

    def add(name: str) -> None:
        for number in range(20):
            with anchored(path):
                keep(path, [Anchor(name, number, digest, None)])

    threads = [threading.Thread(target=add, args=(name,)) for name in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(path)) == 61
    with anchored(path) as anchors:
        assert anchors.asked() == {"one": 19, "two": 19, "three": 19}
