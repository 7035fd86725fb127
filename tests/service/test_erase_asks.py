"""Erasing asks on a terminal; where nobody can be asked it takes whole names, or --yes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from commandline import COMMAND, at_terminal, decodelog, jobs, script

pytestmark = pytest.mark.contract("LOG-9")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return script(tmp_path / "model", script={"text": "Answered"})


def run(model: Path, db: str, *more: Any) -> str:
    """Run a job to its end; its name."""
    assert decodelog("run", "--model", model, "--prompt", "Go", *more, db=db).code == 0
    return jobs(db)[-1].job


def test_where_nobody_can_be_asked_it_takes_whole_names_or_yes(model: Path, sqlite_url: str) -> None:
    """The beginning of a name finds another job as soon as there are others, and what is erased does not come back."""
    job, other = run(model, sqlite_url), run(model, sqlite_url)
    for given in ([job[:-1]], [job, other[:-3]]):
        refused = decodelog("erase", *given, "--json", db=sqlite_url)
        assert (refused.code, refused.error["code"]) == (2, "whole_name_needed")
        assert (refused.error["given"], refused.error["name"]) in ((job[:-1], job), (other[:-3], other))
    planned = decodelog("erase", job[:-1], "--dry-run", "--json", db=sqlite_url)
    assert (planned.code, planned.json) == (0, {"due": {"erase": [job], "seal": [], "uncache": []}})
    assert decodelog("erase", job, "--dry-run", "--yes", db=sqlite_url).stdout == f"{job} would be erased\n"
    assert all(row.erased_ms is None for row in jobs(sqlite_url))
    assert decodelog("erase", job[:-1], "--yes", db=sqlite_url).stdout == f"{job} is erased\n"
    assert decodelog("erase", other, db=sqlite_url).stdout == f"{other} is erased\n"
    assert decodelog("erase", job, "--dry-run", db=sqlite_url).stdout == ""


def test_a_familys_beginning_is_no_whole_name(model: Path, sqlite_url: str) -> None:
    run(model, sqlite_url, "--n", 2, "--temperature", 1, "--seed", 2)
    family = jobs(sqlite_url)[0].job.rpartition(".")[0]
    assert decodelog("erase", family[:-1], "--json", db=sqlite_url).error["name"] == family
    assert decodelog("erase", f"{family[:-1]}.0", "--json", db=sqlite_url).error["name"] == f"{family}.0"
    assert decodelog("erase", family, db=sqlite_url).code == 0


@pytest.mark.parametrize(("answer", "gone"), [("y\n", True), ("n\n", False), ("\n", False), ("\x04", False)])
def test_on_a_terminal_it_asks(answer: str, gone: bool, model: Path, sqlite_url: str) -> None:
    job = run(model, sqlite_url)
    code, got = at_terminal([*COMMAND, "erase", job[:-1], "--db", sqlite_url], answer)
    (row,) = jobs(sqlite_url)
    assert (code, row.erased_ms is not None) == (0 if gone else 2, gone)
    assert "Erase prompt, output and request of this job for good? [y/N]" in got
    assert (f"{job} is erased" in got, "nothing was erased" in got) == (gone, not gone)
