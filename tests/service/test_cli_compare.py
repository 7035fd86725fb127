"""compare, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import decodelog, script

from decodelog.fsm.compare import LEVELS


@pytest.mark.contract("RES-3")
def test_two_jobs_and_a_job_run_again_are_compared_and_a_difference_is_a_failure(tmp_path: Path) -> None:
    url, flat = f"sqlite:///{tmp_path}/jobs.db", script(tmp_path / "flat", script={"seed": 3})
    request = ("run", "--model", flat, "--prompt", "Go", "--temperature", 1, "--max-new-tokens", 6, "--json")
    one, same, other = (decodelog(*request, "--seed", seed, db=url).json["job"] for seed in (1, 1, 2))
    assert decodelog("compare", one, same, db=url).stdout == "the same at all 6 levels, 6 steps\n"
    assert decodelog("compare", one, "--reexecute", "--json", db=url).json == {"same": True, "steps": 6}
    differs = decodelog("compare", one, other, "--json", db=url)
    assert (differs.code, differs.json["level"], differs.json["name"]) == (1, "policy", "draw")
    for level in LEVELS:
        found = decodelog("compare", one, other, "--level", level, "--json", db=url)
        assert found.code == 1 or level == "resume"
        assert found.json.get("level", "resume") in LEVELS[LEVELS.index(level) :]
    assert decodelog("compare", one, db=url).code == 2
    assert decodelog("compare", one, same, "--reexecute", db=url).code == 2
    assert decodelog("compare", one, same, "--level", "text", db=url).code == 2
    help_text = decodelog("compare", "--help", db=url).stdout.replace("\n", "")
    assert all(level in help_text for level in LEVELS)
