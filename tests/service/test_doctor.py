"""The doctor finds what is wrong, says what to do, and changes nothing."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from commandline import decodelog

from decodelog.service.inspect import doctor

CHECKS = ["python", "torch", "postgresql driver", "models", "rows", "models folder", "database", "database folder"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for models."""
    monkeypatch.setenv("DECODELOG_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def statuses(url: str) -> dict[str, str]:
    told = decodelog("doctor", "--json", db=url)
    found = {check["name"]: check["status"] for check in told.json["checks"]}
    assert list(found) == CHECKS
    assert told.json["ok"] is ("fail" not in found.values())
    assert told.code == (0 if told.json["ok"] else 1)
    for check in told.json["checks"]:
        assert check["found"]
        assert bool(check["advice"]) is (check["status"] != "ok")
    return found


def test_a_machine_that_is_ready(sqlite_url: str) -> None:
    found = statuses(sqlite_url)
    assert found["database"] == found["postgresql driver"] == found["database folder"] == "ok"
    assert found["models"] == "warn"
    lines = decodelog("doctor", db=sqlite_url).stdout
    assert "journal_mode wal, synchronous 2" in lines
    assert "run `decodelog model fetch smollm2-135m-instruct`" in lines


def test_a_server_that_does_not_wait_for_its_disk_is_a_warning(postgres_url: str) -> None:
    assert statuses(postgres_url)["database"] == "warn"
    lines = decodelog("doctor", db=postgres_url).stdout
    assert "fsync off, full_page_writes on, synchronous_commit on" in lines
    assert "fsync is off: declared, so that it is used all the same" in lines


def test_what_is_missing_is_a_warning_and_is_not_made(empty_sqlite_url: str, home: Path) -> None:
    assert statuses(empty_sqlite_url)["database"] == "warn"
    assert not Path(empty_sqlite_url.removeprefix("sqlite:///")).exists()
    assert not home.exists()


def test_a_broken_database_and_a_broken_model_are_both_reported(sqlite_url: str, home: Path) -> None:
    """A broken database and a broken model are failures beside each other."""
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    place = home / "models" / "smollm2-135m-instruct"
    place.mkdir(parents=True)
    (place / "decodelog.json").write_text(json.dumps({"release": "x", "files": {}}), encoding="utf-8")
    found = statuses(sqlite_url)
    assert (found["database"], found["models"], found["python"]) == ("fail", "fail", "ok")


def test_a_check_that_falls_over_is_a_failure_and_hides_no_other(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fall_over() -> doctor.Check:
        raise ImportError("no module named torch")

    monkeypatch.setattr(doctor, "_torch", fall_over)
    found = statuses(sqlite_url)
    assert (found["torch"], found["database"]) == ("fail", "ok")


def test_little_space_is_a_warning(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "FREE_BYTES_MIN", 1 << 60)
    assert statuses(sqlite_url)["database folder"] == "warn"
