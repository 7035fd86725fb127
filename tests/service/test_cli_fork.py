"""fork, from the command line."""

from __future__ import annotations

from pathlib import Path

from commandline import decodelog


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
