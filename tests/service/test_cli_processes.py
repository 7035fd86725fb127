"""What becomes of a job when processes are killed, stopped, left alone by their readers, or are two."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import TEXT, decodelog, ended, environment, jobs, process, script, stderr_of, stdout_of, wait_for

from decodelog.service.database import opened
from decodelog.service.lab.demo import committed_twice

TOKENS = 400


def kill_at(running: subprocess.Popen[str], url: str, tokens: int) -> None:
    """SIGKILL once a job has `tokens` committed tokens."""
    wait_for(url, lambda row: row.output >= tokens)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL


@pytest.mark.contract("FSM-4", "FSM-6", "LOG-1", "LOG-7", "OUT-7", "RES-4")
def test_a_job_whose_processes_are_killed_ends_as_if_nothing_had_happened(
    database_url: str, long_model: Path, tmp_path: Path
) -> None:
    first, second = random.randrange(1, TOKENS // 3), random.randrange(TOKENS // 3, TOKENS * 2 // 3)
    print("killed after", first, "and", second, "tokens")  # shown where the test fails
    sampled = ("--max-new-tokens", TOKENS, "--temperature", 1, "--seed", 5)
    request = ("run", "--model", long_model, "--prompt", "Go", *sampled)
    with process(*request, db=database_url) as running:
        kill_at(running, database_url, first)
    job = jobs(database_url)[0].job
    with process("resume", job, db=database_url) as running, process("resume", job, db=database_url) as waiting:
        kill_at(running, database_url, second)
        resumed = ended(waiting)  # it has followed the other one, or has run the job itself
    alone = decodelog(*request, "--json", db=f"sqlite:///{tmp_path / 'alone.db'}").json
    found = decodelog("show", job, "--json", db=database_url).json

    same = ("identity", "state", "finish_reason", "text", "token_ids")
    assert (resumed.code, resumed.stdout) == (0, f"{found['text']}\n")
    assert {name: found[name] for name in same} == {name: alone[name] for name in same}
    assert found["usage"]["attempts"] in (2, 3)
    assert found["usage"]["recomputed_tokens"] >= first
    with opened(database_url) as log:
        assert committed_twice(log, job) == 0
    assert decodelog("audit", "--json", db=database_url).json["ok"]


@pytest.mark.contract("OUT-5", "FSM-6", "LOG-1", "RES-4")
def test_a_structured_job_killed_inside_an_object_ends_the_same(sqlite_url: str, tmp_path: Path) -> None:
    """A structured job that is killed in the middle of an object ends as if nothing had happened."""
    text = json.dumps([{"n": index, "said": "} ] \\ é"} for index in range(12)], ensure_ascii=False)
    size = len(text.encode())
    model = script(tmp_path / "json", script={"text": text})
    schema = tmp_path / "schema.json"
    item = {"type": "object", "properties": {"n": {"type": "integer"}, "said": {"type": "string"}}}
    schema.write_text(json.dumps({"type": "array", "items": item | {"additionalProperties": False}}), encoding="utf-8")
    request = ("run", "--model", model, "--prompt", "Go", "--json-schema", schema, "--max-new-tokens", 999)
    killed = random.randrange(size // 5, size // 2)
    print("killed after", killed, "tokens")  # shown where the test fails
    with process(*request, db=sqlite_url) as running:
        kill_at(running, sqlite_url, killed)
    job = jobs(sqlite_url)[0].job
    resumed = decodelog("resume", job, "--json", db=sqlite_url).json
    assert (resumed["text"], resumed["finish_reason"]) == (text, "structured_complete")
    assert (resumed["structure_complete"], resumed["usage"]["attempts"]) == (True, 2)
    alone = decodelog(*request, "--json", db=f"sqlite:///{tmp_path / 'alone.db'}").json
    assert (alone["token_ids"], alone["identity"]) == (resumed["token_ids"], resumed["identity"])
    assert decodelog("audit", "--json", db=sqlite_url).json["ok"]


@pytest.mark.contract("LOG-7")
def test_two_workers_share_the_jobs_and_run_each_once(database_url: str, short_model: Path) -> None:
    submitted = {
        decodelog("submit", "--model", short_model, "--prompt", f"Go {number}", db=database_url).stdout.strip()
        for number in range(12)
    }
    with (
        process("worker", "--drain", "--lanes", 2, "--json", db=database_url) as one,
        process("worker", "--drain", "--lanes", 2, "--json", db=database_url) as other,
    ):
        reports = [ended(one), ended(other)]
    assert [report.code for report in reports] == [0, 0]
    done = [listing["job"] for report in reports for listing in report.lines]
    assert sorted(done) == sorted(submitted)
    assert {decodelog("show", job, "--json", db=database_url).json["text"] for job in submitted} == {TEXT}
    assert decodelog("audit", "--json", db=database_url).json["ok"]


@pytest.mark.contract("LOG-7", "FSM-9")
def test_a_worker_told_to_end_gives_its_job_back_at_once(sqlite_url: str, long_model: Path) -> None:
    decodelog("submit", "--model", long_model, "--prompt", "Go", "--max-new-tokens", "until_context", db=sqlite_url)
    with process("worker", db=sqlite_url) as running:
        wait_for(sqlite_url, lambda row: row.output >= 5)
        running.send_signal(signal.SIGTERM)
        stopped = ended(running)
    (row,) = jobs(sqlite_url)
    assert (stopped.code, row.owner, row.status.terminal) == (0, None, False)
    assert "decodelog resume --all" in stopped.stderr
    # Nobody owns it: the caller cancels it alone, and the job ends with what was committed.
    assert decodelog("cancel", row.job, db=sqlite_url).code == 0
    result = decodelog("show", row.job, "--json", db=sqlite_url).json
    assert (result["finish_reason"], len(result["token_ids"])) == ("cancelled", row.output)


@pytest.mark.contract("LOG-7", "OUT-7")
def test_ctrl_c_keeps_the_job_and_says_how_to_go_on(empty_sqlite_url: str, long_model: Path) -> None:
    with process(
        "run", "--model", long_model, "--prompt", "Go", "--max-new-tokens", 400, db=empty_sqlite_url
    ) as running:
        stdout_of(running).read(20)  # durable before it is shown, so the database is there by now
        running.send_signal(signal.SIGINT)
        stopped = ended(running)
    (row,) = jobs(empty_sqlite_url)
    assert stopped.code == 128 + signal.SIGINT
    assert f"decodelog resume {row.job} --db {empty_sqlite_url}" in stopped.stderr
    assert (row.owner, row.status.terminal) == (None, False)
    resumed = decodelog("resume", row.job[:-4], "--json", db=empty_sqlite_url).json
    assert (resumed["finish_reason"], len(resumed["token_ids"])) == ("length", 400)


@pytest.mark.contract("FSM-9", "LOG-8")
def test_a_second_terminal_cancels_a_running_job_at_what_is_committed(sqlite_url: str, long_model: Path) -> None:
    request = ("run", "--model", long_model, "--prompt", "Go", "--max-new-tokens", "until_context")
    with process(*request, db=sqlite_url) as running:
        row = wait_for(sqlite_url, lambda row: row.output >= 5)
        with process("resume", row.job, db=sqlite_url) as second_one:
            cancelled = decodelog("cancel", row.job, "--json", db=sqlite_url)
            told, told_second = ended(running), ended(second_one)
    result = decodelog("show", row.job, "--json", db=sqlite_url).json
    assert cancelled.json["finish_reason"] == result["finish_reason"] == "cancelled"
    assert (told.code, told_second.code) == (0, 0)
    assert told.stdout == told_second.stdout == f"{result['text']}\n"
    assert (
        len(result["token_ids"]) == result["usage"]["completion_tokens"] == cancelled.json["usage"]["completion_tokens"]
    )
    late = decodelog("cancel", row.job, db=sqlite_url)
    assert (late.code, "cancelled" in late.stdout) == (0, True)


@pytest.mark.contract("OUT-8")
def test_a_reader_that_leaves_does_not_change_the_job(sqlite_url: str, long_model: Path) -> None:
    request = ("run", "--model", long_model, "--prompt", "Go", "--max-new-tokens", 300)
    with process(*request, db=sqlite_url) as running:
        assert stdout_of(running).read(10) == TEXT[:10]
        stdout_of(running).close()
        code, said = running.wait(), stderr_of(running).read()
    (row,) = jobs(sqlite_url)
    assert (code, row.finish, row.output) == (0, "length", 300)
    assert "nobody reads standard output" in said


@pytest.mark.contract("OUT-8", "FSM-9")
def test_a_job_bound_to_its_reader_is_cancelled_with_it(sqlite_url: str, long_model: Path) -> None:
    """A job that is not to outlive its reader is cancelled when the reader leaves."""
    budget = ("--max-new-tokens", "until_context", "--consumer-policy", "cancel")
    with process("run", "--model", long_model, "--prompt", "Go", *budget, db=sqlite_url) as running:
        assert stdout_of(running).read(10) == TEXT[:10]
        stdout_of(running).close()
        code, said = running.wait(), stderr_of(running).read()
    (row,) = jobs(sqlite_url)
    assert (code, row.finish) == (0, "cancelled")
    assert "cancelled, as the request says" in said


@pytest.mark.contract("OUT-8", "FSM-9")
@pytest.mark.parametrize(("policy", "finish"), [("cancel", "cancelled"), ("detach", "length")])
def test_a_reader_of_the_result_alone_is_missed_too(
    sqlite_url: str, long_model: Path, policy: str, finish: str
) -> None:
    budget = ("--max-new-tokens", 3000, "--consumer-policy", policy, "--json")
    with process("run", "--model", long_model, "--prompt", "Go", *budget, db=sqlite_url) as running:
        wait_for(sqlite_url, lambda row: row.output > 3)
        stdout_of(running).close()
        running.wait()
        said = stderr_of(running).read()
    (row,) = jobs(sqlite_url)
    assert (row.finish, row.output < 3000) == (finish, finish == "cancelled")
    assert ("cancelled, as the request says" in said) == (finish == "cancelled")


@pytest.mark.contract("OUT-7")
def test_progress_on_a_terminal_leaves_the_data_alone(sqlite_url: str, short_model: Path) -> None:
    ours, theirs = pty.openpty()
    with process("run", "--model", short_model, "--prompt", "Go", db=sqlite_url, stderr=theirs) as running:
        assert ended(running).stdout == f"{TEXT}\n"
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # how a terminal ends
        while chunk := os.read(ours, 4096):
            seen += chunk
    os.close(ours)
    assert b"loading" in seen
    assert TEXT.encode() not in seen


@pytest.mark.contract("OUT-8", "OUT-7")
def test_a_reader_that_stalls_does_not_hold_the_job_up(sqlite_url: str, tmp_path: Path) -> None:
    long_piece = "x" * 4000
    model = script(tmp_path / "wide", script={"tokens": [258] * 100}, pieces=[long_piece])
    with process("run", "--model", model, "--prompt", "Go", db=sqlite_url) as running:
        wait_for(sqlite_url, lambda row: row.status.terminal)  # far more than a pipe holds, and nothing was read
        told = ended(running)
    assert (told.code, told.stdout) == (0, long_piece * 100 + "\n")


@pytest.mark.contract("OUT-7")
def test_a_stream_is_followed_from_any_place_while_the_job_runs(sqlite_url: str, long_model: Path) -> None:
    decodelog("submit", "--model", long_model, "--prompt", "Go", "--max-new-tokens", 300, db=sqlite_url)
    job = jobs(sqlite_url)[0].job
    with (
        process("tail", job, db=sqlite_url) as whole,
        process("events", job, "--follow", "--json", "--from", 50, db=sqlite_url) as rest,
        process("worker", "--drain", db=sqlite_url) as worker,
    ):
        told, events = ended(whole), ended(rest)
        assert ended(worker).code == 0
    assert told.stdout == decodelog("show", job, "--json", db=sqlite_url).json["text"] + "\n"
    assert events.stdout == decodelog("events", job, "--json", "--from", 50, db=sqlite_url).stdout
    assert events.lines[0]["sequence"] == 50


def test_reading_commands_load_no_model_code(sqlite_url: str, short_model: Path) -> None:
    job = decodelog("run", "--model", short_model, "--prompt", "Go", "--json", db=sqlite_url).json["job"]
    commands = [["--help"], ["jobs"], ["show", job], ["events", job], ["tail", job], ["audit"], ["db", "check"]]
    program = f"""
import sys
from decodelog.service.cli.app import app
for command in {commands!r}:
    try:
        app(command)
    except SystemExit as end:
        assert not end.code, command
heavy = {{"torch", "transformers", "gguf", "alembic", "tokenizers"}} & sys.modules.keys()
sys.exit(f"{{heavy}} loaded" if heavy else 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(DECODELOG_DB=sqlite_url),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
