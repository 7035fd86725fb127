"""The Python API: what the command line does, for a program; killed anywhere and started again, it goes on."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import PATIENCE_S, TEXT, script
from commandline import decodelog as command

import decodelog
from decodelog.fsm.errors import (
    IdempotencyConflict,
    NoSuchStep,
    SchemaViolation,
    UnknownJob,
    UnknownModel,
    UnsupportedDatabase,
)
from decodelog.runtime.families.scripted.model import load_scripted


@pytest.fixture
def log(sqlite_url: str) -> Iterator[decodelog.Log]:
    with decodelog.open(sqlite_url) as opened:
        yield opened


@pytest.fixture
def job(log: decodelog.Log, short_model: Path) -> decodelog.Job:
    """A job that has ended."""
    made = log.submit(str(short_model), prompt="say")
    assert "".join(piece.text for piece in made.run()) == TEXT
    return made


def test_a_job_is_submitted_run_read_and_proven(log: decodelog.Log, job: decodelog.Job) -> None:
    result = job.result()
    assert (result.text, result.finish_reason, result.state, result.error) == (TEXT, "eos", "CLOSED", None)
    assert bytes(result.token_ids[:-1]) == TEXT.encode()
    assert result.usage.completion_tokens == len(TEXT.encode()) + 1
    assert result.plain == command("show", job.name, "--json", db=log.url).json
    assert [piece.text for piece in job.stream()] == [piece.text for piece in job.run()]
    report = job.audit(reexecute=True)
    assert (report.ok, report.faults, report.not_run) == (True, [], [])
    assert job.compare().same
    assert log.jobs() == [job] == [log.job("@last")] == [log.job(job.name[:9])]


@pytest.mark.contract("OUT-7")
def test_a_stream_goes_on_after_any_event(job: decodelog.Job) -> None:
    pieces = list(job.stream())
    for at in (0, 3, len(pieces) - 1):
        rest = list(job.stream(after=pieces[at].sequence))
        assert rest == pieces[at + 1 :]
    numbers = [each.sequence for each in job.events()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_chat_may_be_given_as_its_messages(log: decodelog.Log, short_model: Path) -> None:
    model = str(short_model)
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    one = log.submit(model, user="Hi", system="Be short.", max_new_tokens=1)
    other = log.submit(model, messages=messages, max_new_tokens=1)
    assert one.row.identity == other.row.identity
    for given in ({"user": "Hi", "messages": messages}, {"system": "Be short."}, {}, {"prompt": "a", "n": 2}):
        with pytest.raises(SchemaViolation):
            log.submit(model, **given)


def test_requests_are_refused_with_the_errors_of_the_command_line(log: decodelog.Log, short_model: Path) -> None:
    model = str(short_model)
    with pytest.raises(SchemaViolation, match="temprature"):
        log.submit(model, prompt="a", temprature=1)
    with pytest.raises(UnknownModel):
        log.submit("no-such-model", prompt="a")
    with pytest.raises(UnknownJob):
        log.job("nothing")
    job = log.submit(model, prompt="a", key="k", max_new_tokens=2)
    assert log.submit(model, prompt="a", key="k", max_new_tokens=2) == job
    with pytest.raises(IdempotencyConflict):
        log.submit(model, prompt="b", key="k", max_new_tokens=2)
    with pytest.raises(TimeoutError, match="worker"):
        job.result(timeout=0)
    with pytest.raises(SchemaViolation, match="prefill"):
        next(job.run(rebuild="magic"))
    with pytest.raises(SchemaViolation, match="repaired"):
        job.snapshot("file", form="whole")
    assert not Path("file").exists()
    with pytest.raises(NoSuchStep):
        job.fork(9)


def test_several_choices_are_several_jobs(log: decodelog.Log, tmp_path: Path) -> None:
    model = str(script(tmp_path / "seeded", script={"seed": 1}))
    jobs = log.submit_choices(model, prompt="a", n=3, temperature=1.0, seed=5, max_new_tokens=4)
    texts = ["".join(piece.text for piece in job.run()) for job in jobs]
    assert len(jobs) == 3
    assert [job.result().text for job in jobs] == texts


def test_a_worker_beside_the_program_runs_what_is_submitted(log: decodelog.Log, short_model: Path) -> None:
    requests = [{"prompt": "a", "max_new_tokens": count} for count in range(1, 6)]
    with log.worker() as worker:
        jobs = log.submit_many(str(short_model), requests)
        assert [job.result(PATIENCE_S).usage.completion_tokens for job in jobs] == list(range(1, 6))
    assert worker.left == {}
    late = log.submit(str(short_model), prompt="a")
    assert late.state == "ADMITTED"
    log.worker().drain()
    assert late.result().text == TEXT


def test_leaving_the_loop_leaves_the_job_to_be_gone_on_with(log: decodelog.Log, long_model: Path) -> None:
    """No lease and no thread is left, also where the iterator is only forgotten."""
    job = log.submit(str(long_model), prompt="a", max_new_tokens=200)
    for enough in (3, 9):
        seen = ""
        for piece in job.run():
            seen += piece.text
            if len(seen) >= enough:
                break
        gc.collect()
        assert job.row.owner is None
        assert [thread.name for thread in threading.enumerate() if "worker" in thread.name] == []
    assert job.peek().text.startswith(seen)
    whole = "".join(piece.text for piece in job.run())
    assert whole.encode() == (TEXT.encode() * 3)[: len(whole.encode())]
    assert job.audit().ok


def test_a_job_is_forked_cancelled_and_explained(log: decodelog.Log, long_model: Path, job: decodelog.Job) -> None:
    fork = job.fork(4, max_new_tokens=3, key="fork")
    assert job.fork(4, max_new_tokens=3, key="fork") == fork
    list(fork.run())
    assert fork.result().parent == (job.name, 4)
    assert str(job.explain(2)).startswith("decision  output token 2")
    assert job.explain(2).facts["step"] == 2
    waiting = log.submit(str(long_model), prompt="a")
    ended = waiting.cancel()
    assert ended is not None
    assert (ended.outcome, ended.effective) == ("cancelled", True)
    assert waiting.result().finish_reason == "cancelled"


@pytest.mark.contract("RES-2")
def test_a_job_travels_as_a_file(log: decodelog.Log, long_model: Path, tmp_path: Path) -> None:
    job = log.submit(str(long_model), prompt="a", max_new_tokens=40)
    for piece in job.run():
        if piece.sequence > 30:
            break
    taken = job.snapshot(tmp_path / "job.dlog", tensors=False)
    assert decodelog.verify(tmp_path / "job.dlog").ok
    with decodelog.open(f"sqlite:///{tmp_path}/other.db") as other:
        (back,) = other.restore(tmp_path / "job.dlog", model=str(long_model))
        assert (back.job, back.sequence) == (job.name, taken.sequence)
        there = "".join(piece.text for piece in other.job(job.name).run())
    assert there == "".join(piece.text for piece in job.run())
    with decodelog.open("memory://") as memory, pytest.raises(UnsupportedDatabase):
        memory.restore(tmp_path / "job.dlog")
    written = log.export(tmp_path / "all.dlog", redact=True)
    assert (written.jobs, decodelog.verify(tmp_path / "all.dlog").erased) == (1, 1)


def test_a_model_of_ones_own_has_a_name_of_ones_own(sqlite_url: str, short_model: Path) -> None:
    own = {"mine": load_scripted(short_model)}
    with decodelog.open(sqlite_url, models=own) as log:
        job = log.submit("mine", prompt="a")
        assert "".join(piece.text for piece in job.run()) == TEXT
        assert job.row.model == "mine"
    with decodelog.open(sqlite_url) as log, pytest.raises(UnknownModel):
        log.submit("mine", prompt="a")


PROGRAM = """
import sys, decodelog
with decodelog.open(sys.argv[1]) as log:
    job = log.submit(sys.argv[2], prompt="a", max_new_tokens=300, key="answer-17")
    for piece in job.run():
        print(piece.text, end="", flush=True)
    print("|", job.result().finish_reason, job.audit().ok, len(log.jobs()))
"""


@pytest.mark.contract("API-2", "RES-4")
def test_a_killed_program_started_again_ends_the_same(sqlite_url: str, long_model: Path) -> None:
    """A program that is killed and started again ends as if nothing had happened."""
    program = [sys.executable, "-c", PROGRAM, sqlite_url, str(long_model)]
    shown = [0]
    for read in (20, 90):
        with subprocess.Popen(program, stdout=subprocess.PIPE) as running:
            assert running.stdout is not None
            shown.append(len(running.stdout.read(read)))
            running.send_signal(signal.SIGKILL)
    ended = subprocess.run(program, capture_output=True, text=True, check=True)
    text, _, said = ended.stdout.partition("|")
    assert text.encode() == (TEXT.encode() * 5)[: len(text.encode())]
    assert said == " length True 1\n"
    with decodelog.open(sqlite_url) as log:
        usage = log.job("@last").result().usage
    assert (usage.completion_tokens, usage.attempts) == (300, 3)


@pytest.mark.contract("API-3")
def test_threads_share_a_log(log: decodelog.Log, short_model: Path) -> None:
    texts: list[str] = []

    def one(number: int) -> None:
        job = log.submit(str(short_model), prompt="a", key=f"thread {number}")
        texts.append("".join(piece.text for piece in job.run()))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [TEXT] * 4
    assert log.audit().ok


OPEN = """
import sys, decodelog
log = decodelog.open(sys.argv[1])
pieces = log.submit(sys.argv[2], prompt="a", max_new_tokens=100_000).run()
print(next(pieces).text, flush=True)
results = log.map(sys.argv[2], [{"custom_id": f"{n}", "prompt": "b", "max_new_tokens": 5} for n in range(99)])
print(next(results)[0])
"""


@pytest.mark.contract("API-3")
def test_a_program_may_end_with_open_iterators(sqlite_url: str, long_model: Path) -> None:
    """Its workers are stopped, and their jobs are free."""
    program = [sys.executable, "-c", OPEN, sqlite_url, str(long_model)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout.splitlines()[-1], done.stderr) == (0, "0", "")
    with decodelog.open(sqlite_url) as log:
        assert {row.owner for row in log.rows()} == {None}


@pytest.mark.contract("API-3")
def test_a_log_that_is_closed_stops_its_workers(sqlite_url: str, long_model: Path) -> None:
    log = decodelog.open(sqlite_url)
    job = log.submit(str(long_model), prompt="a", max_new_tokens=100_000)
    pieces = job.run()
    next(pieces)
    log.close()
    with decodelog.open(sqlite_url) as again:
        assert again.job(job.name).row.owner is None
    pieces.close()


def test_a_request_for_several_choices_admits_none_by_mistake(log: decodelog.Log, tmp_path: Path) -> None:
    model = str(script(tmp_path / "seeded", script={"seed": 1}))
    with pytest.raises(SchemaViolation, match="submit_choices"):
        log.submit(model, prompt="a", n=2, temperature=1.0)
    assert log.jobs() == []
