"""What a file may say of names: jobs by one rule, and models by what they are, not by where they are to lie."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commandline import decodelog, jobs, script
from test_restore import SAYS, contents, here, model, stage, there
from test_snapshot_files import Stage

from decodelog.fsm.errors import BrokenSnapshot, LimitExceeded, NotAdmissible, SchemaViolation
from decodelog.fsm.request.names import check_job_name, check_model_name, choice_in
from decodelog.service.archive.restore import restore
from decodelog.service.jobs.naming import choice_of, choices_of, family_of
from decodelog.service.jobs.submit import admit_job
from decodelog.store.archive.bundle import Bundle, write
from decodelog.store.engine import DatabaseStore
from decodelog.store.memory.log import MemoryStore

pytestmark = pytest.mark.contract("ENV-1", "RES-2")

__all__ = ["here", "model", "stage", "there"]

BAD = ["", "\x1b]52;c;x\x07", "--help", "-x", "a b", "a\nb", "a/b", "../a", "é", "a.", ".0", "a.b", "a.01", "a.1024"]
BAD += ["a.1" + "0" * 44, "a.0.1", "a.\u0661", "x" * 1_000_000, "a\0"]
GOOD = ["a", "0", "job-1", "a_b", "019ab1c2d3e4f5a6b7c8d9", "a.0", "a.1023", "x" * 200]


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_no_job_may_have_is_refused_by_the_rule(name: str) -> None:
    with pytest.raises((SchemaViolation, LimitExceeded)):
        check_job_name(name)


@pytest.mark.parametrize("name", GOOD)
def test_a_name_of_letters_digits_and_a_choice_is_taken(name: str) -> None:
    check_job_name(name)


def test_a_choice_beyond_any_that_is_asked_for_is_none() -> None:
    assert choice_in("a.1023") == ("a", 1023)
    for name in ("a.1024", "a.1" + "0" * 44, "a." + "9" * 5000, "a.01", "a.\u0661", "a"):
        assert (choice_of(name), choices_of(name), family_of(name)) == (None, 1, name)


@pytest.mark.parametrize("name", ["", "--help", "-", "a\x1bb", "a\nb", "a\0b", "\u202e", "/" + "x" * 5000])
def test_a_model_name_that_nobody_could_type_is_refused(name: str) -> None:
    with pytest.raises((SchemaViolation, LimitExceeded)):
        check_model_name(name)


@pytest.mark.parametrize("name", [name for name in BAD if name])
def test_no_door_takes_such_a_name(name: str, stage: Stage, there: DatabaseStore, tmp_path: Path) -> None:
    job = stage.submit()
    (log,) = contents(stage.store)
    with (tmp_path / "logs").open("wb") as out:
        write(out, [log._replace(job=name, row=replace(log.row, job=name))])
    with (tmp_path / "logs").open("rb") as file:
        faults = Bundle(file).faults
    assert [fault.job for fault in faults if "no job may have" in fault.detail] == [""]
    with pytest.raises(BrokenSnapshot):
        restore(there, tmp_path / "logs")
    envelope = stage.store.read(job)
    event = next(iter(envelope)).events[0]
    for store in (there, MemoryStore()):
        with pytest.raises((SchemaViolation, LimitExceeded)):
            store.admit(name, log.row.identity, "model", 1, event, None)
        assert list(store.rows()) == []


@pytest.mark.parametrize("name", ["", "--help", "a\x1b[2Jb", "x" * 1_000_000])
def test_a_model_of_such_a_name_is_neither_restored_nor_submitted(
    name: str, stage: Stage, there: DatabaseStore, tmp_path: Path
) -> None:
    stage.submit()
    (log,) = contents(stage.store)
    with (tmp_path / "logs").open("wb") as out:
        write(out, [log._replace(row=replace(log.row, model=name))])
    with pytest.raises(BrokenSnapshot, match="its model is none"):
        restore(there, tmp_path / "logs")
    with pytest.raises((SchemaViolation, LimitExceeded)):
        admit_job(there, name, "job", None, None)  # type: ignore[arg-type]
    assert there.rows() == []


# ---- where a model lies ----------------------------------------------------------------------------------------------


def brought(stage: Stage, there: DatabaseStore, file: Path, named: str | None = None, **how: Any) -> str:
    """Restore the newest job, of which the file says that its model is `named`; the model's name there."""
    (log,) = contents(stage.store)
    with file.open("wb") as out:
        write(out, [log if named is None else log._replace(row=replace(log.row, model=named))])
    restore(there, file, **how)
    return there.rows()[0].model


def by_hash(stage: Stage) -> str:
    return f"checkpoint-{stage.models.load(stage.model).facts.checkpoint_sha256[:16]}"


def test_a_folder_of_ones_own_with_just_that_model_is_taken(stage: Stage, there: DatabaseStore, tmp_path: Path) -> None:
    stage.submit()
    assert brought(stage, there, tmp_path / "logs") == stage.model


@pytest.mark.parametrize(
    "place", ["nowhere", "another model", "a pipe", "anybody's folder", "anybody's file", "relative", "no model"]
)
def test_another_place_is_not_looked_into_later(
    place: str, stage: Stage, there: DatabaseStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.submit()
    named = tmp_path / "named"
    if place != "nowhere":
        script(named, script={"text": "other"} if place == "another model" else SAYS)
    if place == "a pipe":
        (named / "scripted.json").unlink()
        os.mkfifo(named / "scripted.json")
    elif place == "no model":
        (named / "scripted.json").unlink()
    elif place == "anybody's folder":
        named.chmod(0o777)
    elif place == "anybody's file":
        (named / "scripted.json").chmod(0o666)
    monkeypatch.chdir(tmp_path)
    name = "named" if place == "relative" else str(named)
    assert brought(stage, there, tmp_path / "logs", name) == by_hash(stage)


def test_the_caller_says_where_it_lies_and_may_say_so_later(stage: Stage, there: DatabaseStore, tmp_path: Path) -> None:
    stage.submit()
    moved = script(tmp_path / "moved", script=SAYS)
    moved.chmod(0o777)  # whoever names it answers for it
    assert brought(stage, there, tmp_path / "logs", "/nowhere") == by_hash(stage)
    assert brought(stage, there, tmp_path / "logs", "/nowhere", model=str(moved)) == str(moved)
    assert brought(stage, there, tmp_path / "logs", "/nowhere") == str(moved)


def test_what_the_caller_names_must_be_that_model(stage: Stage, there: DatabaseStore, tmp_path: Path) -> None:
    stage.submit()
    other = script(tmp_path / "other", script={"text": "other"})
    with pytest.raises(NotAdmissible, match="another model"):
        brought(stage, there, tmp_path / "logs", model=str(other))
    assert there.rows() == []


def test_a_job_under_its_models_hash_is_refused_until_placed(model: str, sqlite_url: str, tmp_path: Path) -> None:
    """A job under its model's hash is refused until somebody says where that lies."""
    there = f"sqlite:///{tmp_path / 'there.db'}"
    job = decodelog("submit", "--model", model, "--prompt", "say", "--max-new-tokens", 3, db=sqlite_url).stdout.strip()
    assert decodelog("export", job, "--out", tmp_path / "logs", db=sqlite_url).code == 0
    Path(model).rename(tmp_path / "moved")
    assert decodelog("restore", tmp_path / "logs", db=there).code == 0
    refused = decodelog("resume", job, "--json", db=there)
    assert (refused.code, refused.error["code"]) == (2, "model_not_here")
    assert decodelog("restore", tmp_path / "logs", "--model", tmp_path / "moved", db=there).code == 0
    resumed = decodelog("resume", job, "--json", db=there)
    assert (resumed.code, resumed.json["usage"]["completion_tokens"]) == (0, 3)
    assert len(jobs(there)) == 1
