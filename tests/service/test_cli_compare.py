"""compare, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import decodelog, script

from decodelog.fsm.compare import LEVELS
from decodelog.service import compare


@pytest.mark.contract("RES-3")
def test_two_jobs_and_a_job_run_again_are_compared_and_a_difference_is_a_failure(tmp_path: Path) -> None:
    url, flat = f"sqlite:///{tmp_path}/jobs.db", script(tmp_path / "flat", script={"seed": 3})
    request = ("run", "--model", flat, "--prompt", "Go", "--temperature", 1, "--max-new-tokens", 6, "--json")
    one, same, other = (decodelog(*request, "--seed", seed, db=url).json["job"] for seed in (1, 1, 2))
    assert decodelog("compare", one, same, db=url).stdout == "the same at all 6 levels, 6 steps\n"
    assert decodelog("compare", one, "--reexecute", "--json", db=url).json == {"same": True, "steps": 6}
    differs = decodelog("compare", one, other, "--json", db=url)
    assert (differs.code, differs.json["level"], differs.json["name"]) == (1, "policy", "draw")
    words = decodelog("compare", one, same, "--level", "decision", db=url).stdout
    assert words == "the same at the last 3 levels, from decision on, 6 steps\n"
    for level in LEVELS:
        found = decodelog("compare", one, other, "--level", level, "--json", db=url)
        assert found.code == 1 or level == "resume"
        assert found.json.get("level", "resume") in LEVELS[LEVELS.index(level) :]
    assert decodelog("compare", one, db=url).code == 2
    assert decodelog("compare", one, same, "--reexecute", db=url).code == 2
    assert decodelog("compare", one, same, "--level", "text", db=url).code == 2
    help_text = decodelog("compare", "--help", db=url).stdout.replace("\n", "")
    assert all(level in help_text for level in LEVELS)


@pytest.mark.contract("RES-3", "LOG-3")
def test_an_audit_runs_the_model_over_the_logs_again_and_names_the_first_level_that_fails(
    tmp_path, monkeypatch
) -> None:
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
    assert (passed.code, "of 1 sealed jobs only bytes, text and end can be" in passed.stderr) == (0, True)
    other = decodelog(*request, "--seed", 5, db=url).json["job"]
    monkeypatch.setattr(compare, "reexecuted", lambda log, model, job, level: compare.run_in(log, other, level))
    (fault,) = decodelog("audit", jobs[1], "--reexecute", "--json", db=url).json["faults"]
    assert fault["detail"].startswith("sequence: step 0 differs in bytes")
    found = decodelog("audit", jobs[0], "--reexecute", "--json", db=url)
    (fault,) = found.json["faults"]
    assert (found.code, fault["job"], fault["kind"]) == (1, jobs[0], "reexecution")
    assert fault["detail"].startswith("policy: step 0 differs in draw")
