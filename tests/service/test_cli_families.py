"""Several choices from the command line: run, kill, go on, look at, and end all of them or one alone."""

from __future__ import annotations

import random
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from commandline import TEXT, decodelog, ended, jobs, process, script, stderr_of, stdout_of, wait_for
from databases import database_store
from sqlalchemy import delete

from decodelog.service.database import opened
from decodelog.service.lab.demo import committed_twice
from decodelog.store.database import tables

CHOICES = ("--n", 3, "--temperature", 1)
ENDLESS = ("--max-new-tokens", "until_context")


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """A model to which all capital letters are equally likely, so that texts differ by their noise alone."""
    rows = [[-1e4] * 65 + [0.0] * 26]
    return script(tmp_path / "flat", script={"rows": rows, "then": "repeat"})


def headed(results: list[dict[str, Any]]) -> str:
    """What `run` prints of a family."""
    return "\n".join(f"==> {each['job']} <==\n{each['text']}\n" for each in results)


@pytest.mark.contract("POL-7", "OUT-7")
def test_run_prints_each_choice_under_its_heading_and_all_of_them_as_json(sqlite_url: str, flat: Path) -> None:
    request = ("run", "--model", flat, "--prompt", "Go", *CHOICES, "--max-new-tokens", 9, "--idempotency-key", "k")
    ran = decodelog(*request, db=sqlite_url)
    told = decodelog(*request, "--json", db=sqlite_url).json
    family, results = told["family"], told["choices"]
    assert list(told) == ["family", "choices"]
    assert [each["job"] for each in results] == [f"{family}.{choice}" for choice in range(3)]
    assert len({each["text"] for each in results}) == 3
    assert (ran.code, ran.stdout) == (0, headed(results))
    assert f"family {family}\n" in ran.stderr
    assert [line.split()[:2] for line in ran.stderr.splitlines()[-3:]] == [[each["job"], "length:"] for each in results]
    assert decodelog("show", family, "--json", db=sqlite_url).json == told
    shown = decodelog("show", family[:8], db=sqlite_url).stdout
    assert [shown.count(each["text"]) for each in results] == [1, 1, 1]
    assert shown.count("==> ") == 3
    for choice, each in enumerate(results):
        assert decodelog("show", f"{family[:8]}.{choice}", "--json", db=sqlite_url).json == each
        seed = decodelog("events", each["job"], "--json", db=sqlite_url).lines[0]["envelope"]["rng"]["seed"]
        alone = ("--prompt", "Go", *CHOICES[2:], "--seed", seed, "--choice", choice, "--max-new-tokens", 9)
        again = decodelog("run", "--model", flat, *alone, "--json", db=sqlite_url).json
        assert (again["identity"], again["token_ids"]) == (each["identity"], each["token_ids"])
    assert decodelog("resume", family, db=sqlite_url).stdout == ran.stdout
    assert decodelog("audit", family, "--json", db=sqlite_url).json["jobs"] == 3


@pytest.mark.contract("ENV-8", "POL-7")
def test_submit_names_the_family_and_another_n_under_its_key_is_refused(database_url: str, flat: Path) -> None:
    request = ("submit", "--model", flat, "--prompt", "Go", "--temperature", 1, "--idempotency-key", "order 17")
    first = decodelog(*request, "--n", 3, "--json", db=database_url).json
    assert first == {"family": first["family"], "jobs": [f"{first['family']}.{j}" for j in range(3)], "created": True}
    assert decodelog(*request, "--n", 3, "--json", db=database_url).json == first | {"created": False}
    assert decodelog(*request, "--n", 3, db=database_url).stdout == f"{first['family']}\n"
    for other in ((), ("--n", 2), ("--n", 4)):
        refused = decodelog(*request, *other, "--json", db=database_url)
        assert (refused.code, refused.error["code"], refused.error["field"]) == (2, "idempotency_conflict", "n")
    assert sorted(row.job for row in jobs(database_url)) == first["jobs"]
    assert decodelog("worker", "--drain", db=database_url).code == 0
    assert {row.finish for row in jobs(database_url)} == {"length"}


@pytest.mark.parametrize("command", ["events", "tail", "explain"])
def test_what_reads_one_job_says_that_a_family_is_several(sqlite_url: str, flat: Path, command: str) -> None:
    submit = ("submit", "--model", flat, "--prompt", "Go", *CHOICES, "--max-new-tokens", 3, "--json")
    family = decodelog(*submit, db=sqlite_url).json
    assert decodelog("resume", family["family"], db=sqlite_url).code == 0
    refused = decodelog(command, family["family"], "--json", db=sqlite_url)
    assert (refused.code, refused.error["code"], refused.error["jobs"]) == (2, "family_meant", family["jobs"])
    assert f"from {family['jobs'][0]} to {family['jobs'][2]}" in refused.error["message"]
    assert decodelog(command, family["jobs"][1], db=sqlite_url).code == 0


@pytest.mark.contract("FSM-9")
def test_cancel_ends_what_runs_of_a_family_and_leaves_what_has_ended(sqlite_url: str, flat: Path) -> None:
    submit = ("submit", "--model", flat, "--prompt", "Go", *CHOICES, "--max-new-tokens", 5, "--json")
    family, (first, second, third), _ = decodelog(*submit, db=sqlite_url).json.values()
    other = decodelog("submit", "--model", flat, "--prompt", "Go", *CHOICES, "--json", db=sqlite_url).json
    decodelog("resume", first, db=sqlite_url)
    assert decodelog("cancel", third, db=sqlite_url).stdout == f"{third} is cancelled with 0 tokens\n"
    assert [row.job for row in jobs(sqlite_url) if row.finish] == [third, first]
    cancelled = decodelog("cancel", family, db=sqlite_url)
    assert cancelled.code == 0
    assert cancelled.stdout.splitlines() == [
        f"{first} had ended already (length) with 5 tokens",
        f"{second} is cancelled with 0 tokens",
        f"{third} is cancelled with 0 tokens",
    ]
    told = decodelog("cancel", family, "--json", db=sqlite_url).json
    finishes = [(each["job"], each["finish_reason"]) for each in told["jobs"]]
    assert (told["family"], finishes) == (family, [(first, "length"), (second, "cancelled"), (third, "cancelled")])
    assert {row.finish for row in jobs(sqlite_url) if row.job in other["jobs"]} == {None}
    assert decodelog("resume", other["family"], "--rebuild", "reexecute", db=sqlite_url).code == 0
    late = decodelog("cancel", other["family"], "--json", db=sqlite_url)
    assert (late.code, late.error["code"], late.error["reason"]) == (2, "terminal", "length")


def test_a_family_that_was_submitted_in_part_says_so(sqlite_url: str, flat: Path) -> None:
    submit = ("submit", "--model", flat, "--prompt", "Go", *CHOICES, "--max-new-tokens", 3, "--json")
    family, (first, *_), _ = decodelog(*submit, db=sqlite_url).json.values()
    with (
        closing(database_store(sqlite_url)) as store,
        store._database.transaction() as connection,
    ):  # as a killed submission leaves it
        connection.execute(delete(tables.jobs).where(tables.jobs.c.job == first))
    resumed = decodelog("resume", family, "--json", db=sqlite_url)
    assert [each["job"][-2:] for each in resumed.json["choices"]] == [".1", ".2"]
    assert f"only 2 of 3 choices of {family} were admitted" in resumed.stderr
    assert "only 2 of 3" in decodelog("show", family, db=sqlite_url).stderr


@pytest.mark.contract("POL-7", "FSM-6", "LOG-1", "LOG-7", "RES-4")
def test_a_family_whose_process_is_killed_ends_as_if_nothing_had_happened(
    database_url: str, flat: Path, tmp_path: Path
) -> None:
    sampled = ("--n", 3, "--temperature", 1, "--seed", 5, "--batch-width", 3)
    request = ("run", "--model", flat, "--prompt", "Go", *sampled, "--max-new-tokens", 200)
    killed = random.randrange(1, 100)
    print("killed after", killed, "tokens")  # shown where the test fails
    with process(*request, db=database_url) as running:
        wait_for(database_url, lambda row: row.output >= killed)
        running.send_signal(signal.SIGKILL)
    family = jobs(database_url)[0].job.partition(".")[0]
    resumed = decodelog("resume", family, db=database_url)
    found = decodelog("show", family, "--json", db=database_url).json["choices"]
    alone = decodelog(*request, "--json", db=f"sqlite:///{tmp_path / 'alone.db'}").json["choices"]
    same = ("identity", "finish_reason", "text", "token_ids")
    assert [[each[name] for name in same] for each in found] == [[each[name] for name in same] for each in alone]
    assert (resumed.code, resumed.stdout) == (0, headed(found))
    assert [each["usage"]["attempts"] for each in found] == [2, 2, 2]
    with opened(database_url) as log:
        assert [committed_twice(log, row.job) for row in log.rows()] == [0, 0, 0]
    assert decodelog("audit", "--json", db=database_url).json["ok"]


@pytest.mark.contract("LOG-7", "OUT-7")
def test_ctrl_c_keeps_a_family_and_says_how_to_go_on(sqlite_url: str, flat: Path) -> None:
    with process("run", "--model", flat, "--prompt", "Go", *CHOICES, *ENDLESS, db=sqlite_url) as running:
        heading = stdout_of(running).readline()
        stdout_of(running).read(20)  # the first choice streams while all of them run
        wait_for(sqlite_url, lambda row: row.output >= 20)
        running.send_signal(signal.SIGINT)
        stopped = ended(running)
    family = heading.removeprefix("==> ").partition(".")[0]
    assert stopped.code == 128 + signal.SIGINT
    assert f"decodelog resume {family} --db {sqlite_url}" in stopped.stderr
    assert [(row.owner, row.finish) for row in jobs(sqlite_url)] == [(None, None)] * 3
    assert min(row.output for row in jobs(sqlite_url)) > 0
    assert decodelog("cancel", family, db=sqlite_url).code == 0
    assert {row.finish for row in jobs(sqlite_url)} == {"cancelled"}


@pytest.mark.contract("OUT-8", "FSM-9")
def test_all_choices_bound_to_their_reader_are_cancelled_with_it(sqlite_url: str, flat: Path) -> None:
    """All choices that are not to outlive their reader are cancelled when it leaves."""
    budget = (*ENDLESS, "--consumer-policy", "cancel")
    with process("run", "--model", flat, "--prompt", "Go", *CHOICES, *budget, db=sqlite_url) as running:
        stdout_of(running).read(1)
        stdout_of(running).close()
        code, said = running.wait(), stderr_of(running).read()
    assert (code, [row.finish for row in jobs(sqlite_url)]) == (0, ["cancelled"] * 3)
    assert "cancelled, as the request says" in said


@pytest.mark.contract("OUT-8")
def test_all_choices_outlive_their_reader_where_nothing_else_was_asked_for(sqlite_url: str, long_model: Path) -> None:
    request = ("run", "--model", long_model, "--prompt", "Go", *CHOICES, "--max-new-tokens", 300)
    with process(*request, db=sqlite_url) as running:
        stdout_of(running).readline()
        assert stdout_of(running).read(10) == TEXT[:10]
        stdout_of(running).close()
        code = running.wait()
    assert (code, [(row.finish, row.output) for row in jobs(sqlite_url)]) == (0, [("length", 300)] * 3)


@pytest.mark.contract("POL-7")
def test_more_choices_than_run_at_a_time_all_come_to_their_end(sqlite_url: str, flat: Path) -> None:
    request = ("run", "--model", flat, "--prompt", "Go", "--n", 20, "--temperature", 1, "--max-new-tokens", 9)
    told = decodelog(*request, "--json", db=sqlite_url).json
    assert len({each["text"] for each in told["choices"]}) == 20
    assert [each["job"] for each in told["choices"]] == [f"{told['family']}.{choice}" for choice in range(20)]


@pytest.mark.contract("FSM-10")
def test_one_choice_that_fails_fails_the_command_and_not_the_others(sqlite_url: str, tmp_path: Path) -> None:
    rows = [[-1e4] * 65 + [0.0] * 3]
    config = {"script": {"rows": rows, "then": "repeat"}, "faults": [{"step": 2, "kind": "nan"}]}
    sampled = ("--n", 6, "--temperature", 1, "--seed", 5, "--stop-token-id", 65, "--batch-width", 6)
    ran = decodelog("run", "--model", script(tmp_path / "m", **config), "--prompt", "Go", *sampled, db=sqlite_url)
    states = {row.job: (row.status.value, row.finish) for row in jobs(sqlite_url)}
    assert (ran.code, set(states.values())) == (1, {("CLOSED", "stop_token"), ("FAILED", "non_finite_scores")})
    assert ran.stdout.count("==> ") == 6
