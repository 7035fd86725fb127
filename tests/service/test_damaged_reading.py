"""A damaged append in the middle of a log: what is proven before it is shown, and then the damage is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest
from commandline import TEXT, decodelog, jobs
from databases import database_store

from decodelog.fsm.errors import DatabaseUnavailable
from decodelog.fsm.ports import Record
from decodelog.service.database import opened
from decodelog.service.streams.reading import Follower

pytestmark = pytest.mark.contract("LOG-3", "OUT-7")

STEPS = 20  # whole in the log; the next one is damaged


@pytest.fixture
def job(short_model: Path, sqlite_url: str) -> str:
    name = str(decodelog("run", "--model", short_model, "--prompt", "Go", "--json", db=sqlite_url).json["job"])
    with opened(sqlite_url) as store:
        firsts = [record.first for record in store.read(name)]
    with closing(database_store(sqlite_url)) as store, store._database.transaction() as connection:
        connection.exec_driver_sql(
            f"UPDATE appends SET payload = CAST(payload || x'00' AS BLOB) WHERE first = {firsts[2 + STEPS]}"
        )
    return name


def test_show_has_the_text_before_it(job: str, sqlite_url: str) -> None:
    shown = decodelog("show", job, db=sqlite_url)
    assert (shown.code, shown.stdout.endswith(f"\n\n{TEXT[:STEPS]}\n")) == (2, True)
    assert "error[corrupt_record]" in shown.stderr
    told = decodelog("show", job, "--json", db=sqlite_url)
    assert (told.code, told.json["text"], told.json["damage"]["code"]) == (2, TEXT[:STEPS], "corrupt_record")
    assert told.json["usage"]["completion_tokens"] == STEPS


def test_tail_streams_as_far_and_events_lists_as_far(job: str, sqlite_url: str) -> None:
    for follow in ("--follow", "--no-follow"):
        read = decodelog("tail", job, follow, db=sqlite_url)
        assert (read.code, read.stdout, "error[corrupt_record]" in read.stderr) == (2, TEXT[:STEPS], True)
    *items, last = decodelog("tail", job, "--json", db=sqlite_url).lines
    assert ("".join(item["text"] for item in items), last["error"]["code"]) == (TEXT[:STEPS], "corrupt_record")
    assert decodelog("tail", job, "--from", items[-3]["sequence"], db=sqlite_url).stdout == TEXT[STEPS - 3 : STEPS]
    *events, last = decodelog("events", job, "--json", db=sqlite_url).lines
    assert ([event["event"] for event in events].count("output.committed"), "error" in last) == (STEPS, True)


def test_explain_answers_for_every_step_before_it(job: str, sqlite_url: str) -> None:
    for step in range(STEPS):
        told = decodelog("explain", job, "--step", step, "--json", db=sqlite_url)
        assert (told.code, told.json["text"]) == (2 if step == STEPS - 1 else 0, TEXT[step])
    assert told.json["damage"]["code"] == "corrupt_record"  # what came of the last one is not known
    newest = decodelog("explain", job, db=sqlite_url)
    assert (newest.code, f"output token {STEPS - 1} of job" in newest.stdout) == (2, True)
    assert "error[corrupt_record]" in newest.stderr
    beyond = decodelog("explain", job, "--step", STEPS, "--json", db=sqlite_url)
    assert (beyond.code, beyond.error["code"]) == (2, "corrupt_record")


def test_where_nothing_is_proven_the_damage_is_all(job: str, sqlite_url: str) -> None:
    with closing(database_store(sqlite_url)) as store, store._database.transaction() as connection:
        connection.exec_driver_sql("UPDATE appends SET payload = CAST(payload || x'00' AS BLOB) WHERE first = 1")
    for command in (("show",), ("tail", "--no-follow"), ("explain",), ("events",)):
        name, *more = command
        refused = decodelog(name, job, *more, "--json", db=sqlite_url)
        assert (refused.code, refused.error["code"]) == (2, "corrupt_record")
    assert len(jobs(sqlite_url)) == 1


def test_the_next_poll_hands_out_what_was_read_before_an_outage(short_model: Path, sqlite_url: str) -> None:
    """What was read before the database went away is handed out by the next poll."""
    name = str(decodelog("run", "--model", short_model, "--prompt", "Go", "--json", db=sqlite_url).json["job"])
    with opened(sqlite_url) as store:
        follower, records = Follower(store, name), list(store.read(name))

        def cut_off(job: str, after: int = 0) -> Iterator[Record]:
            yield from records[:9]
            raise DatabaseUnavailable("db", "away")

        with patch.object(store, "read", cut_off), pytest.raises(DatabaseUnavailable):
            follower.poll()
        assert "".join(emission.text for emission in follower.poll()) == TEXT
