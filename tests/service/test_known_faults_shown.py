"""Kinds of fault that are seen at the command line: a cut that nobody is told of, and doors that differ."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import decodelog, jobs, script


@pytest.fixture
def db(sqlite_url: str) -> str:
    return sqlite_url


@pytest.mark.contract("FSM-7", "OUT-7")
def test_a_cut_after_one_token_says_length_everywhere(db: str, short_model: Path) -> None:
    """A cut after one token says length in result stream events and listings."""
    ran = decodelog("run", "--model", short_model, "--prompt", "Go", "--max-new-tokens", 1, "--json", db=db)
    job = ran.json["job"]
    assert (ran.json["finish_reason"], ran.json["text"], ran.json["usage"]["completion_tokens"]) == ("length", "R", 1)
    assert "length: 3 prompt + 1 new tokens" in ran.stderr
    assert decodelog("tail", job, "--json", db=db).lines[-1]["finish"] == "length"
    closed = decodelog("events", job, "--json", db=db).lines[-1]
    assert (closed["event"], closed["reason"], closed["triggers"]) == ("request.closed", "length", ["length"])
    (listed,) = decodelog("jobs", "--json", db=db).json
    assert (listed["finish_reason"], listed["usage"]["completion_tokens"]) == ("length", 1)
    assert "length" in decodelog("jobs", db=db).stdout.splitlines()[-1]
    assert "CLOSED (length)" in decodelog("show", job, db=db).stdout
    assert decodelog("explain", job, "--json", db=db).json["finish_reason"] == "length"
    (row,) = jobs(db)
    assert row.finish == "length"


@pytest.mark.contract("OUT-5", "FSM-7")
def test_a_cut_structure_says_that_it_is_not_whole(db: str, short_model: Path) -> None:
    cut = decodelog(
        "run", "--model", short_model, "--prompt", "Go", "--regex", "R[a-z]+ c", "--max-new-tokens", 4, "--json", db=db
    )
    assert (cut.json["finish_reason"], cut.json["structure_complete"]) == ("length", False)
    assert "the structure is not complete" in cut.stderr
    assert "the structure is not complete" in decodelog("show", cut.json["job"], db=db).stdout


@pytest.mark.contract("ENV-7", "POL-5", "ENV-4")
def test_a_seed_means_the_same_through_run_and_through_submit_and_worker(db: str, tmp_path: Path) -> None:
    """Every byte scores the same, so that a seed that is lost on the way is another answer."""
    flat = script(tmp_path / "flat", script={"rows": [[0.0] * 256], "then": "repeat"})
    request = ("--model", flat, "--prompt", "Go", "--temperature", 1, "--seed", 11, "--max-new-tokens", 16)
    ran = decodelog("run", *request, "--json", db=db).json
    submitted = decodelog("submit", *request, db=db).stdout.strip()
    assert decodelog("worker", "--drain", db=db).code == 0
    worked = decodelog("show", submitted, "--json", db=db).json
    assert worked["job"] != ran["job"]
    assert (worked["identity"], worked["token_ids"]) == (ran["identity"], ran["token_ids"])
    assert len(set(ran["token_ids"])) > 8
