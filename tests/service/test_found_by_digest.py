"""Jobs whose model lies elsewhere by now, or is not here at all."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier, Thread
from time import sleep
from typing import Any

import pytest
from commandline import TEXT, decodelog, jobs, script
from tiny_checkpoint import checkpoint

import decodelog as package
from decodelog.fsm.errors import ModelNotHere
from decodelog.fsm.request.artifact import artifact_digest
from decodelog.service.jobs.models import Models

GOLDEN = "63f94f798cf095c0b860c07df0665eb537a830250bddfcf0648dae56de925dcb"
"""Jobs of every release are found by digests that are made so."""


@pytest.fixture
def moved(sqlite_url: str, short_model: Path, tmp_path: Path) -> Path:
    """A folder that holds the model of two jobs, which were submitted while it lay elsewhere."""
    for prompt in "ab":
        assert decodelog("submit", "--model", short_model, "--prompt", prompt, db=sqlite_url).code == 0
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    short_model.rename(shelf / "now here")
    script(shelf / "another", script={"text": "Another."})
    (shelf / "broken").mkdir()
    (shelf / "broken" / "scripted.json").write_text("{")
    return shelf


@pytest.mark.contract("ENV-9")
@pytest.mark.parametrize("how", ["--models", "DECODELOG_MODELS", "the checkpoint itself", "in place of another"])
def test_a_moved_model_is_found_by_its_digest(
    sqlite_url: str, moved: Path, short_model: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: tuple[object, ...] = ("--models", moved)
    if how == "DECODELOG_MODELS":
        monkeypatch.setenv("DECODELOG_MODELS", f"nowhere:{moved}")
        given = ()
    elif how == "the checkpoint itself":
        given = ("--models", "nowhere", "--models", moved / "now here")
    elif how == "in place of another":
        script(short_model, script={"text": "Where it lay before."})
    assert decodelog("worker", "--drain", *given, db=sqlite_url).code == 0
    rows = jobs(sqlite_url)
    assert [row.finish for row in rows] == ["eos", "eos"]
    assert decodelog("show", rows[0].job, "--json", db=sqlite_url).json["text"] == TEXT
    if how == "DECODELOG_MODELS":
        assert decodelog("audit", "--all", "--reexecute", db=sqlite_url).code == 0


@pytest.mark.contract("ENV-9")
def test_a_worker_without_the_model_says_so_once_and_ends(
    sqlite_url: str, moved: Path, long_model: Path, tmp_path: Path
) -> None:
    """Other jobs are run, and those of that model keep standing as they are."""
    other = script(tmp_path / "other", script={"text": "Other."})
    assert decodelog("submit", "--model", other, "--prompt", "a", db=sqlite_url).code == 0
    done = decodelog("worker", "--drain", db=sqlite_url)
    assert done.code == 1
    assert done.stderr.count("left to others") == 1
    assert "jobs of one model are left to others: no model here has the digest" in done.stderr
    rows = jobs(sqlite_url)
    assert [row.finish for row in rows] == [None, None, "eos"]
    assert [(row.owner, row.stalled) for row in rows[:2]] == [(None, 0), (None, 0)]
    assert rows[0].fence <= 2, "it was claimed again and again"
    listed = decodelog("jobs", "--json", db=sqlite_url).json
    assert [each["model_missed_by"] is not None for each in listed] == [True, True, False]
    assert decodelog("jobs", db=sqlite_url).stdout.count("ADMITTED (no worker has its model)") == 2
    assert "start one with --models DIR" in decodelog("show", rows[1].job, db=sqlite_url).stdout
    refused = decodelog("resume", rows[0].job, db=sqlite_url)
    assert refused.code == 2
    assert "error[model_not_here]" in refused.stderr
    decodelog("resume", rows[0].job, "--models", moved, db=sqlite_url)
    assert "no worker has its model" not in decodelog("jobs", db=sqlite_url).stdout


@pytest.mark.contract("ENV-9")
def test_a_program_is_told_of_a_model_that_is_not_here(sqlite_url: str, moved: Path) -> None:
    with package.open(sqlite_url) as log:
        with log.worker() as worker, pytest.raises(ModelNotHere):
            worker.wait(log.jobs()[1].name)
        with pytest.raises(ModelNotHere):
            list(log.jobs()[1].run())
        with log.worker(models=[str(moved)]):
            assert [job.result(timeout=60).text for job in log.jobs()] == [TEXT, TEXT]


@pytest.mark.contract("ENV-4", "ENV-6")
def test_the_digest_of_a_request_is_its_model_s(sqlite_url: str, short_model: Path) -> None:
    """Every fact that it is made of changes it."""
    with package.open(sqlite_url) as log:
        job = log.submit(str(short_model), prompt="a")
        facts = log.models.load(str(short_model)).facts
        assert job.row.artifact == facts.artifact
    parts: list[Any] = ["r", "a", "1", "2", "float32", "3", None]
    digests = {artifact_digest(*(f"{part}x" if place == other else part for place, part in enumerate(parts)))
               for other in range(-1, len(parts))}  # fmt: skip
    assert len(digests) == 1 + len(parts)
    assert artifact_digest(*parts) == GOLDEN


@pytest.mark.contract("CALL-3")
def test_threads_that_ask_for_one_model_at_once_share_it(
    tmp_path: Path, short_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, start, got = Models(tmp_path, lanes=1), Barrier(4), []
    read = Models._read

    def slow(self: Models, name: str) -> Any:
        sleep(0.05)
        return read(self, name)

    monkeypatch.setattr(Models, "_read", slow)

    def ask() -> None:
        start.wait()
        got.append(models.load(str(short_model)))

    threads = [Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 4
    assert len({id(model) for model in got}) == 1
    assert models.load("another name", got[0].facts.artifact) is got[0]
    short_model.rename(tmp_path / "moved")
    script(short_model, script={"text": "In its place."})
    fresh = Models(tmp_path, lanes=1, folders=[tmp_path])
    moved = fresh.load(str(short_model), got[0].facts.artifact)
    assert fresh.load(str(short_model)).facts.artifact != moved.facts.artifact == got[0].facts.artifact


# ---- model ls, model show ------------------------------------------------------------------------------------------


def test_a_checkpoint_is_shown_with_what_it_is_and_whether_it_loads(sqlite_url: str, tmp_path: Path) -> None:
    tiny = checkpoint(tmp_path / "tiny", generation={"temperature": 0.6, "eos_token_id": 256, "_x": 1})
    shown = decodelog("model", "show", tiny, "--json", db=sqlite_url)
    assert shown.code == 0
    told = shown.json
    assert (told["loads"], told["error"], told["registered_as"]) == (True, None, None)
    assert (told["vocabulary_size"], told["context_tokens_max"], told["eos_ids"]) == (258, 256, [256])
    assert told["network"]["layers"] == 2
    assert told["parameters"] == 258 * 32 + 32 + 2 * (2 * 32 + 2 * 32 * 32 + 2 * 16 * 32 + 3 * 48 * 32)
    assert (told["defaults"], told["defaults_followed"]) == ({"temperature": "0.6"}, False)
    assert {each["name"] for each in told["files"]} == {path.name for path in tiny.iterdir()}
    assert decodelog("model", "register", tiny, "--name", "prod", db=sqlite_url).stdout == f"{told['artifact']}\n"
    assert decodelog("model", "show", tiny, "--json", db=sqlite_url).json["registered_as"] == ["prod"]
    words = decodelog("model", "show", "prod", db=sqlite_url)
    assert words.code == 0
    assert "it is not on this machine" in words.stdout
    assert "no: temperature 0.6; give them with the request" in words.stdout
    (tiny / "model.safetensors").write_bytes(b"")
    broken = decodelog("model", "show", tiny, "--json", db=sqlite_url)
    assert broken.code == 1
    assert (broken.json["loads"], broken.json["error"]["code"]) == (False, "broken_artifact")


def test_models_are_listed_with_what_lies_in_given_folders(sqlite_url: str, tmp_path: Path) -> None:
    tiny = checkpoint(tmp_path / "shelf" / "tiny")
    checkpoint(tmp_path / "shelf" / "torn", seed=2)
    (tmp_path / "shelf" / "torn" / "config.json").write_text("{")
    digest = decodelog("model", "register", tiny, "--name", "prod", db=sqlite_url).stdout.strip()
    listed = decodelog("model", "ls", tmp_path / "shelf", "--json", db=sqlite_url).json
    by_name = {each["name"]: each for each in listed}
    assert (by_name["prod"]["kind"], by_name["prod"]["artifact"]) == ("registered", digest)
    assert (by_name["tiny"]["kind"], by_name["tiny"]["artifact"]) == ("checkpoint", digest)
    assert by_name["torn"]["error"]["code"] == "broken_artifact"
    table = decodelog("model", "ls", tmp_path / "shelf", db=sqlite_url).stdout
    assert digest[:12] in table
