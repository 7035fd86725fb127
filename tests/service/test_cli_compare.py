"""compare, from the command line."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from commandline import TEXT, decodelog, script

from decodelog.fsm.ports import EventLog
from decodelog.fsm.reading.compare import LEVELS, Run
from decodelog.runtime.loop.batcher import Batcher
from decodelog.runtime.loop.engine import Engine
from decodelog.runtime.loop.job import Job
from decodelog.service.database import opened
from decodelog.service.inspect import compare
from decodelog.service.jobs.models import Models, home


def work(url: str, model: Path, job: str, worker: str, turns: int) -> None:
    """A tenure that goes on with a job for so many turns and is released."""
    with opened(url) as store:
        (claim,) = store.claim(worker, 10_000, 1, [job])
        engine = Engine(store, Models(home(), 1).load(str(model)))
        engine.adopt(Job.load(store, claim), worker)
        for _ in range(turns):
            engine.turn()
        engine.close()
        store.release(worker)


@pytest.mark.contract("RES-3")
def test_jobs_and_second_runs_are_compared_and_a_difference_fails(tmp_path: Path) -> None:
    """Two jobs and a job run again are compared and a difference is a failure."""
    url, flat = f"sqlite:///{tmp_path}/jobs.db", script(tmp_path / "flat", script={"seed": 3})
    request = ("run", "--model", flat, "--prompt", "Go", "--temperature", 1, "--max-new-tokens", 6, "--json")
    one, same, other = (decodelog(*request, "--seed", seed, db=url).json["job"] for seed in (1, 1, 2))
    assert decodelog("compare", one, same, db=url).stdout == "the same at all 6 levels, 6 steps\n"
    assert decodelog("compare", one, "--reexecute", "--json", db=url).json == {
        "same": True, "from": "state", "steps": 6, "ended": {"left": True, "right": True},
    }  # fmt: skip
    differs = decodelog("compare", one, other, "--json", db=url)
    assert (differs.code, differs.json["level"], differs.json["name"]) == (1, "policy", "draw")
    words = decodelog("compare", one, same, "--level", "decision", db=url).stdout
    assert words == "the same at the last 3 levels, from decision on, 6 steps\n"
    for level in LEVELS:
        found = decodelog("compare", one, other, "--level", level, "--json", db=url)
        assert found.code == 1 or level == "resume"
        assert found.json["from"] == level
        assert found.json.get("level", "resume") in LEVELS[LEVELS.index(level) :]
    assert decodelog("compare", one, db=url).code == 2
    assert decodelog("compare", one, same, "--reexecute", db=url).code == 2
    assert decodelog("compare", one, same, "--level", "text", db=url).code == 2
    help_text = decodelog("compare", "--help", db=url).stdout.replace("\n", "")
    assert all(level in help_text for level in LEVELS)


@pytest.mark.contract("RES-3")
@pytest.mark.parametrize("asked", [(), ("--echo",), ("--prompt-logprobs", 1), ("--final-cache", "repaired")])
def test_running_jobs_are_the_same_as_far_as_they_have_come(
    asked: tuple[object, ...], long_model: Path, sqlite_url: str
) -> None:
    """Whatever a tenure left after the last commit: itself, a rebuild, the repair call of a snapshot, or an end."""
    request = ("submit", "--model", long_model, "--prompt", "Go", "--max-new-tokens", 8, *asked, "--json")
    one, other = (decodelog(*request, db=sqlite_url).json["job"] for _ in range(2))

    def the_same(steps: int, ended: bool = False) -> None:
        for against in ((other,), ("--level", "sequence", other), ("--reexecute",)):
            words = decodelog("compare", one, *against, db=sqlite_url).stdout
            assert words.startswith("the same at ")
            assert words.endswith(f", {steps} steps, as far as both have come\n")
            told = decodelog("compare", one, *against, "--json", db=sqlite_url).json
            assert (told["same"], told["steps"], told["ended"]["left"]) == (True, steps, False)
            assert told["ended"]["right"] is (ended and "--reexecute" not in against)
        assert decodelog("audit", "--reexecute", db=sqlite_url).stdout.endswith("no fault\n")

    the_same(0)
    work(sqlite_url, long_model, one, "w1", 0)
    the_same(0)
    for job in (one, other):
        work(sqlite_url, long_model, job, "w2", 5)
    work(sqlite_url, long_model, one, "w3", 0)
    the_same(5)
    file = sqlite_url.removeprefix("sqlite:///") + ".dlog"
    assert decodelog("snapshot", one, "--out", file, "--form", "repaired", db=sqlite_url).code == 0
    the_same(5)
    assert decodelog("resume", other, db=sqlite_url).code == 0
    the_same(5, ended=True)


@pytest.mark.contract("RES-3")
@pytest.mark.parametrize(
    "asked",
    [
        ("--max-new-tokens", 5), ("--max-new-tokens", 5, "--final-cache", "repaired"), ("--stop", "sea"), (),
        ("--final-cache", "repaired"), ("--max-new-tokens", 0), ("--max-new-tokens", 0, "--prompt-logprobs", 1),
    ],
)  # fmt: skip
def test_a_job_that_ended_by_itself_is_run_again_to_its_end(
    asked: tuple[object, ...], short_model: Path, sqlite_url: str
) -> None:
    job = decodelog("run", "--model", short_model, "--prompt", "Go", *asked, "--json", db=sqlite_url).json["job"]
    for sealed in (False, True):
        level = ("--level", "sequence") if sealed else ()
        told = decodelog("compare", job, "--reexecute", *level, "--json", db=sqlite_url).json
        assert (told["same"], told["ended"]) == (True, {"left": True, "right": True})
        assert decodelog("seal", job, db=sqlite_url).code == 0


@pytest.mark.contract("RES-3")
def test_two_requests_are_not_the_same_where_nothing_is_committed_yet(tmp_path: Path) -> None:
    url, model = f"sqlite:///{tmp_path}/jobs.db", script(tmp_path / "model", script={"text": TEXT})
    other = script(tmp_path / "other", script={"text": "Other text. "})
    asked = ("--prompt", "Go", "--max-new-tokens", 6, "--json")
    done = decodelog("run", "--model", model, *asked, db=url).json["job"]

    def verdict(*flags: object, of: Path = model, prompt: str = "Go") -> tuple[str, str]:
        flags = ("--model", of, "--prompt", prompt, *flags)
        job = decodelog("submit", *flags, "--max-new-tokens", 9, "--json", db=url).json["job"]
        for ended in (False, True):
            if ended:
                assert decodelog("cancel", job, db=url).code == 0
            told = decodelog("compare", done, job, "--json", db=url)
            assert (told.code, told.json["step"]) == (1, 0)
            assert told.json["ended"] == {"left": True, "right": ended}
        return told.json["level"], told.json["name"]

    assert verdict(prompt="A quite different request") == ("state", "prompt")
    long, longer = (
        decodelog("submit", "--model", model, "--prompt", "x" * 99 + end, "--json", db=url).json["job"] for end in "yz"
    )
    parts = decodelog("compare", long, longer, "--json", db=url).json
    assert (", 121, " in parts["left"], ", 122, " in parts["right"]) == (True, True)  # where they differ is shown
    assert max(len(parts["left"]), len(parts["right"])) < 90
    assert verdict(of=other) == ("tensor", "checkpoint")
    assert verdict("--temperature", 1) == ("policy", "family")
    longer = decodelog("submit", "--model", model, "--prompt", "Go", "--max-new-tokens", 9, "--json", db=url).json
    words = decodelog("compare", done, longer["job"], db=url).stdout
    assert words == "the same at all 6 levels, 0 steps, as far as both have come\n"
    text = decodelog("run", "--model", model, "--prompt", "Ga", "--max-new-tokens", 6, "--json", db=url).json["job"]
    assert decodelog("compare", done, text, "--level", "sequence", db=url).code == 0


@pytest.mark.contract("RES-3", "LOG-3")
def test_a_reexecuting_audit_names_the_first_level_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit runs the model over the logs again and names the first level that fails."""
    url, flat = f"sqlite:///{tmp_path}/jobs.db", script(tmp_path / "flat", script={"seed": 3})
    request = ("run", "--model", flat, "--prompt", "Go", "--temperature", 1, "--max-new-tokens", 6, "--json")
    jobs = [decodelog(*request, "--seed", seed, db=url).json["job"] for seed in (1, 2)]
    waiting = decodelog("submit", "--model", flat, "--prompt", "Go", "--max-new-tokens", 3, "--json", db=url).json[
        "job"
    ]
    assert decodelog("cancel", waiting, db=url).code == 0
    assert decodelog("audit", "--reexecute", db=url).stdout.endswith("no fault\n")
    assert decodelog("seal", jobs[1], db=url).code == 0
    passed = decodelog("audit", "--reexecute", db=url)
    assert passed.code == 3
    assert f"{jobs[1]} was run again, and compared in part: it is sealed" in passed.stdout
    assert "no fault in what was proven; 1 compared in part\n" in passed.stdout
    other = decodelog(*request, "--seed", 5, db=url).json["job"]
    monkeypatch.setattr(compare, "reexecuted", lambda log, model, job, level, run: compare.run_in(log, other, level))
    (fault,) = decodelog("audit", jobs[1], "--reexecute", "--json", db=url).json["faults"]
    assert fault["detail"].startswith("sequence: step 0 differs in bytes")
    found = decodelog("audit", jobs[0], "--reexecute", "--json", db=url)
    (fault,) = found.json["faults"]
    assert (found.code, fault["job"], fault["kind"]) == (1, jobs[0], "reexecution")
    assert fault["detail"].startswith("policy: step 0 differs in draw")


@pytest.mark.contract("LOG-3", "ENV-9")
def test_a_job_that_cannot_be_run_again_is_named_and_the_others_are_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    models = [
        script(tmp_path / name, script={"text": f"{name} {TEXT}"}) for name in ("kept", "gone", "changed", "whole")
    ]
    asked = ("--prompt", "Go", "--max-new-tokens", 4, "--json")
    damaged, *names = (decodelog("run", "--model", of, *asked, db=url).json["job"] for of in (models[0], *models))
    with sqlite3.connect(tmp_path / "jobs.db") as connection:
        connection.execute("UPDATE appends SET payload = payload || x'00' WHERE id = 3")
    alone = decodelog("audit", "--json", db=url)
    assert {fault["job"] for fault in alone.json["faults"]} == {damaged}
    assert "not_run" not in alone.json
    (models[1] / "scripted.json").unlink()
    script(models[2], script={"text": "Something else. "})
    told = decodelog("audit", "--reexecute", "--json", db=url)
    assert (told.code, told.json["faults"]) == (1, alone.json["faults"])
    assert [(each["job"], each["code"]) for each in told.json["not_run"]] == [
        (names[1], "model_not_here"), (names[2], "model_not_here"),
    ]  # fmt: skip
    lines = decodelog("audit", "--reexecute", db=url).stdout.splitlines()
    assert any(line.startswith(f"{names[2]} could not be run again: ") for line in lines)
    assert lines[-1].endswith("faults in what was proven; 2 not run again")
    alone = decodelog("audit", names[1], "--reexecute", "--json", db=url)
    assert (alone.code, alone.json["ok"], alone.json["proven"]) == (3, True, False)  # it is no fault, and no proof
    assert decodelog("audit", names[1], "--reexecute", db=url).stdout.endswith("in what was proven; 1 not run again\n")
    assert decodelog("audit", names[1], db=url).code == 0
    passed = decodelog("audit", names[3], "--reexecute", "--json", db=url)
    assert (passed.code, passed.json["proven"], passed.json["not_run"]) == (0, True, [])
    assert decodelog("erase", names[3], db=url).code == 0
    gone = decodelog("audit", names[3], "--reexecute", "--json", db=url)
    assert (gone.code, [each["code"] for each in gone.json["not_run"]]) == (3, ["content_erased"])


@pytest.mark.contract("LOG-3", "ENV-9")
def test_a_job_that_none_could_run_here_is_never_told_as_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever keeps it from being run: the model is gone, damaged or another, or a call fails."""
    url, model = f"sqlite:///{tmp_path}/jobs.db", script(tmp_path / "model", script={"text": TEXT})
    asked = ("--prompt", "Go", "--max-new-tokens", 4, "--json")
    job = decodelog("run", "--model", model, *asked, db=url).json["job"]
    assert decodelog("audit", "--reexecute", db=url).code == 0
    with monkeypatch.context() as patched:
        patched.setattr(Batcher, "_scores", failing)
        told = decodelog("audit", "--reexecute", "--json", db=url)
        assert (told.code, [each["code"] for each in told.json["not_run"]]) == (3, ["call_failed"])
    for content in ("", "{", json.dumps({"text": 1})):
        (model / "scripted.json").write_text(content)
        told = decodelog("audit", "--reexecute", "--json", db=url)
        assert (told.code, told.json["faults"], len(told.json["not_run"])) == (3, [], 1)
        assert decodelog("compare", job, "--reexecute", db=url).code == 2


def failing(*_: object) -> None:
    raise RuntimeError("no memory")


@pytest.mark.contract("LOG-9", "LOG-3")
@pytest.mark.parametrize(("command", "place"), [("seal", "in_part"), ("erase", "not_run")])
def test_a_job_sealed_or_erased_during_a_second_run_is_read_again(
    command: str, place: str, short_model: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is sealed or erased while it is run again is taken as what it is now."""
    asked = ("--prompt", "Go", "--max-new-tokens", 9, "--json")
    jobs = [decodelog("run", "--model", short_model, *asked, db=sqlite_url).json["job"] for _ in range(2)]
    run_in, left = compare.run_in, [jobs[0]]

    def meanwhile(log: EventLog, job: str, level: str) -> Run:
        if job in left:
            left.remove(job)
            assert decodelog(command, job, db=sqlite_url).code == 0
        return run_in(log, job, level)

    monkeypatch.setattr(compare, "run_in", meanwhile)
    told = decodelog("audit", "--reexecute", "--json", db=sqlite_url)
    assert (told.code, told.json["faults"], left) == (3, [], [])
    found = {place: [each["job"] for each in told.json[place]] for place in ("not_run", "in_part")}
    assert found == {"not_run": [], "in_part": [], place: [jobs[0]]}
