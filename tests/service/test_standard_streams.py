"""Standard streams that are closed, full or without a reader: never a traceback, and nothing is done twice for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import COMMAND, TEXT, decodelog, ended, environment, jobs, process
from typer.main import get_command

from decodelog.service.cli.app import app

DRIVER = Path(__file__).with_name("stream_states.py")

COMMANDS = """
--help
--version
jobs
jobs --json
show JOB
show JOB --json
show nothing --json
events JOB
tail JOB
explain JOB
compare JOB JOB
audit
export JOB --out EXPORT --force
verify EXPORT
restore EXPORT
snapshot JOB --no-tensors --out SNAPSHOT --force
db upgrade
db current
db check
model ls
model show nothing
model register nothing
model fetch nothing
diagram
doctor
torture --list
demo --max-new-tokens 1
cancel JOB
fork JOB --at 3
submit --model MODEL --prompt Go
run --model MODEL --prompt Go
run --model MODEL --prompt Go --json
resume JOB
resume --all
worker --drain
batch BATCH ANSWERS --model MODEL
seal JOB
sweep --dry-run
sweep
erase JOB
""".strip().splitlines()

# What says nothing on standard output, here.
SILENT = {"sweep", "sweep --dry-run", "worker --drain", "resume --all", "batch BATCH ANSWERS --model MODEL"}
# What goes on without a reader, and has then done what it was to do.
GOES_ON = {"restore EXPORT", "fork JOB --at 3", "submit --model MODEL --prompt Go", "run --model MODEL --prompt Go",
           "resume JOB"}  # fmt: skip


@pytest.mark.contract("OUT-8", "ENV-8")
def test_no_command_minds_how_its_streams_are(short_model: Path, sqlite_url: str, tmp_path: Path) -> None:
    """Every command, with each stream as it may be found; what was asked for is done, and told where it can be."""
    job = decodelog("run", "--model", short_model, "--prompt", "Go", "--json", db=sqlite_url).json["job"]
    words = {"JOB": job, "MODEL": str(short_model), "EXPORT": str(tmp_path / "x"), "SNAPSHOT": str(tmp_path / "s")}
    body = {"model": "m", "prompt": "Go", "max_tokens": 1}
    request = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    (tmp_path / "batch.jsonl").write_text(json.dumps(request), encoding="utf-8")
    words |= {"BATCH": str(tmp_path / "batch.jsonl"), "ANSWERS": str(tmp_path / "answers.jsonl")}
    commands = [[words.get(word, word) for word in line.split()] for line in COMMANDS]
    assert {line.split()[0] for line in COMMANDS} >= set(get_command(app).commands)  # type: ignore[attr-defined]
    given = environment(DECODELOG_DB=sqlite_url, DECODELOG_HOME=str(tmp_path))
    driver = [sys.executable, str(DRIVER), json.dumps(commands)]
    done = subprocess.run(driver, env=given, capture_output=True, encoding="utf-8", check=True, cwd=tmp_path)
    found = [json.loads(line)["ends"] for line in done.stdout.splitlines()]
    assert len(found) == len(COMMANDS)
    for line, ends in zip(COMMANDS, found, strict=True):
        whole = ends["whole"][0]
        assert not [said for _, said in ends.values() if "Traceback" in said or "unexpected" in said], (line, ends)
        assert ends["closed"][0] == ends["none"][0] == whole, (line, ends)
        if line in SILENT or whole == 2:
            assert ends["full"][0] == ends["left"][0] == whole, (line, ends)
            continue
        code, said = ends["full"]
        assert (code, said.count("error[output_failed]")) == (1, 1), (line, ends)
        assert ends["left"][0] in ((0,) if line in GOES_ON else (1, 128 + signal.SIGPIPE)), (line, ends)


@pytest.mark.contract("ENV-8")
@pytest.mark.parametrize(
    ("how", "code"), [(">&-", 0), (">&- 2>&-", 0), ("<&- >&- 2>&-", 0), ("| true", 0), ("> /dev/full", 1)]
)
def test_a_submission_that_was_admitted_says_so(how: str, code: int, short_model: Path, sqlite_url: str) -> None:
    """A caller that is told of a failure submits again, and has two jobs."""
    given = f"set -o pipefail; {' '.join(COMMAND)} submit --model {short_model} --prompt Go --db {sqlite_url} {how}"
    done = subprocess.run(["bash", "-c", given], stderr=subprocess.PIPE, encoding="utf-8", check=False)
    (row,) = jobs(sqlite_url)
    assert done.returncode == code
    assert "2>&-" in how or f"job {row.job} is admitted" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.contract("ENV-1")
def test_closed_standard_input_is_named(short_model: Path, sqlite_url: str) -> None:
    given = f"{' '.join(COMMAND)} submit --model {short_model} --prompt-file - --db {sqlite_url} <&-"
    done = subprocess.run(["bash", "-c", given], stderr=subprocess.PIPE, encoding="utf-8", check=False)
    assert (done.returncode, jobs(sqlite_url)) == (2, [])
    assert "error[unreadable_input]: - cannot be read: standard input is closed" in done.stderr


@pytest.mark.contract("OUT-8")
@pytest.mark.parametrize(("policy", "finish"), [("cancel", "cancelled"), ("detach", "eos")])
def test_closed_standard_output_is_a_reader_that_has_left(
    policy: str, finish: str, long_model: Path, short_model: Path, sqlite_url: str
) -> None:
    model = long_model if policy == "cancel" else short_model  # one must not end before its reader is missed
    request = f"run --model {model} --prompt Go --consumer-policy {policy} --db {sqlite_url}"
    done = subprocess.run(
        ["bash", "-c", f"{' '.join(COMMAND)} {request} >&-"], stderr=subprocess.PIPE, encoding="utf-8", check=False
    )
    (row,) = jobs(sqlite_url)
    assert (done.returncode, row.finish) == (0, finish)
    assert "nobody reads standard output" in done.stderr


@pytest.mark.contract("OUT-8", "LOG-7")
def test_a_run_whose_output_finds_no_room_keeps_its_job(long_model: Path, sqlite_url: str) -> None:
    request = f"run --model {long_model} --prompt Go --max-new-tokens 400 --db {sqlite_url} > /dev/full"
    given = ["bash", "-c", f"{' '.join(COMMAND)} {request}"]
    done = subprocess.run(given, stderr=subprocess.PIPE, encoding="utf-8", check=False)
    (row,) = jobs(sqlite_url)
    said = done.stderr
    assert (done.returncode, row.owner) == (1, None)
    assert "error[output_failed]: standard output cannot be written: No space left on device" in said
    assert f"decodelog resume {row.job}" in said
    with process("resume", row.job, db=sqlite_url) as resumed:
        assert ended(resumed).stdout.startswith(TEXT)


def test_a_file_that_is_opened_is_not_taken_for_a_closed_stream(short_model: Path, tmp_path: Path) -> None:
    """The number of a closed stream is the next that a file gets, and what others write there would be in the file."""
    program = (
        "import os; from decodelog.service.cli import standard; standard.prepare();"
        f"number = os.open({str(tmp_path / 'file')!r}, os.O_CREAT | os.O_WRONLY); os._exit(number)"
    )
    done = subprocess.run(["bash", "-c", '"$0" -c "$1" <&- >&- 2>&-', sys.executable, program], check=False)
    assert done.returncode > 2
    assert os.path.getsize(tmp_path / "file") == 0
