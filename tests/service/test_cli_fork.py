"""fork, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import decodelog, jobs, script


def test_the_command_prints_the_job_and_show_says_where_it_comes_from(tmp_path: Path, short_model: Path) -> None:
    url = f"sqlite:///{tmp_path}/forks.db"
    parent = decodelog("run", "--model", short_model, "--prompt", "Go", "--json", db=url).json
    told = decodelog("fork", parent["job"], "--at", 4, "--max-new-tokens", 3, "--json", db=url).json
    assert told["parent"] == {"job": parent["job"], "step": 4}
    done = decodelog("resume", told["job"], "--json", db=url).json
    assert (done["parent"], done["usage"]["completion_tokens"]) == (told["parent"], 3)
    assert done["usage"]["prompt_tokens"] == parent["usage"]["prompt_tokens"] + 4
    listed = decodelog("events", told["job"], db=url).stdout.splitlines()[0]
    assert f"forked from {parent['job']} at step 4" in listed
    refused = decodelog("fork", parent["job"], "--at", 999, db=url)
    assert (refused.code, "no_such_step" in refused.stderr) == (2, True)
    assert decodelog("audit", db=url).code == 0


@pytest.mark.contract("LOG-9")
def test_a_fork_is_retained_as_long_as_its_parent_or_as_it_is_told(short_model: Path, database_url: str) -> None:
    request = ("run", "--model", short_model, "--prompt", "Go", "--max-new-tokens", 5)
    for retained in ((), ("--retain", "7d")):
        assert decodelog(*request, *retained, db=database_url).code == 0
        parent = jobs(database_url)[-1]
        for asked, kept in (((), parent.retain_ms), (("--retain", "1h"), 3_600_000)):
            assert decodelog("fork", parent.job, "--at", 3, *asked, db=database_url).code == 0
            assert jobs(database_url)[-1].retain_ms == kept
    assert parent.retain_ms == 7 * 86_400_000
    assert "retention too" in decodelog("fork", "--help").stdout


@pytest.mark.contract("ENV-6")
def test_a_folder_that_holds_another_model_by_now_gives_no_fork(tmp_path: Path, sqlite_url: str) -> None:
    model = script(tmp_path / "model", script={"text": "Hello there."})
    assert decodelog("run", "--model", model, "--prompt", "Go", "--max-new-tokens", 5, db=sqlite_url).code == 0
    script(model, script={"text": "Something else."})
    refused = decodelog("fork", jobs(sqlite_url)[0].job, "--at", 3, "--json", db=sqlite_url)
    assert (refused.code, refused.error["code"]) == (2, "model_not_here")
    assert refused.error["artifact"] == jobs(sqlite_url)[0].artifact
    assert len(jobs(sqlite_url)) == 1
