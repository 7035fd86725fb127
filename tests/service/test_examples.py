"""The examples run, in a folder of their own, and say first what they show; the one that survives is killed."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PAGES = sorted(EXAMPLES.glob("*.py"))


def run(name: str, folder: Path) -> str:
    return subprocess.run(
        [sys.executable, EXAMPLES / name], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


def test_every_example_says_first_what_it_shows() -> None:
    assert PAGES
    for page in PAGES:
        said = ast.get_docstring(ast.parse(page.read_text("utf-8"))) or ""
        assert said.endswith("."), page.name
        assert page.read_text("utf-8").startswith('"""'), page.name


@pytest.mark.contract("API-2")
def test_the_one_that_survives_is_killed_and_goes_on(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, EXAMPLES / "survives.py"], cwd=tmp_path, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        begun = running.stdout.read(60)
        running.send_signal(signal.SIGKILL)
    text = run("survives.py", tmp_path)
    assert text.encode().startswith(begun)
    assert "120 tokens, 2 tenures, " in text


def test_a_flipped_bit_is_named(tmp_path: Path) -> None:
    text = run("third_party_audit.py", tmp_path)
    assert "the file as it is: no fault" in text
    assert "with one bit flipped: " in text


def test_a_snapshot_goes_on_in_another_database(tmp_path: Path) -> None:
    text = run("carried_snapshot.py", tmp_path)
    assert "PENDING: " in text
    assert text.endswith("\n\nno fault\n")


def test_jobs_are_forked_and_compared(tmp_path: Path) -> None:
    text = run("fork_and_compare.py", tmp_path)
    assert "the same request again: the same" in text
    assert "with another seed: Difference(" in text


@pytest.mark.contract("API-4")
def test_a_model_of_ones_own_is_checked_run_and_audited(tmp_path: Path) -> None:
    text = run("own_model.py", tmp_path)
    assert text.endswith(".\naudited by running it again: the same\n")


def test_a_transform_of_ones_own_is_sealed_and_runs_again(tmp_path: Path) -> None:
    text = run("own_transform.py", tmp_path)
    assert "own: is fewer-neighbours, version 1, of the program that made the request" in text
    assert text.endswith("run again, to the same bits: True\n")


def test_many_requests_are_answered_in_order_and_read_the_second_time(tmp_path: Path) -> None:
    first = run("many_requests.py", tmp_path)
    assert [line.split()[0] for line in first.splitlines()] == ["q0", "q1", "q2", "q3"]
    assert run("many_requests.py", tmp_path) == first
