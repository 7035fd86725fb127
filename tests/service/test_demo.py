"""The demonstration: what it does with a model, and that its verdict can be another one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commandline import decodelog, script

from decodelog.fsm.evidence.receipt import Receipt, Selection
from decodelog.fsm.machine.events import DecisionMade, Event, OutputCommitted
from decodelog.fsm.reading.audit import Fault
from decodelog.service.database import open_database
from decodelog.service.inspect.audit import Report
from decodelog.service.lab import demo
from decodelog.service.streams.reading import Numbered
from decodelog.store.memory.log import MemoryStore


@pytest.mark.contract("FSM-6", "LOG-3")
def test_two_kills_change_nothing_and_the_last_line_says_so(long_model: Path, tmp_path: Path) -> None:
    # So many tokens that the model, which says thousands a second, is still speaking when a busy machine looks at it.
    shown = decodelog("demo", "--model", long_model, "--max-new-tokens", 2000, "--keep", tmp_path / "kept")
    assert shown.code == 0, shown.stdout + shown.stderr
    *text, last = shown.stdout.splitlines()
    found = re.fullmatch(
        r"tokens and text identical \(2000 tokens, (\d+) characters\) after 2 kills; "
        r"(\d+) tokens recomputed, 0 committed twice",
        last,
    )
    assert found, last
    assert len("".join(text)) == int(found[1])
    assert len(re.findall(r"kill -9 \d+ after \d+ tokens", shown.stderr)) == 2
    kept = f"sqlite:///{tmp_path / 'kept' / 'killed.db'}"
    (listed,) = decodelog("jobs", "--json", db=kept).json
    assert decodelog("show", listed["job"], "--json", db=kept).json["usage"]["recomputed_tokens"] == int(found[2])


def test_a_child_that_fails_is_reported_with_its_last_words(tmp_path: Path) -> None:
    model = script(tmp_path / "broken", script={"text": "abc"}, faults=[{"step": 0, "kind": "nan"}])
    failed = decodelog("demo", "--model", model, "--json")
    assert (failed.code, failed.error["code"]) == (2, "child_failed")
    assert "non_finite_scores" in failed.error["reason"]


def test_different_answers_are_told_apart(short_model: Path, long_model: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'both.db'}"
    request = ("--user", "Hi", "--max-new-tokens", 90, "--json")
    one, other = (
        decodelog("run", "--model", model, *request, db=url).json["job"] for model in (short_model, long_model)
    )
    log = open_database(url)
    same = demo.compare(log, one, log, one, 2, Report(1, 1, []))
    different = demo.compare(log, one, log, other, 2, Report(1, 1, []))
    log.close()
    assert (same.ok, same.line().partition(" (")[0]) == (True, "tokens and text identical")
    assert (different.ok, different.line().partition(" (")[0]) == (False, "tokens and text DIFFERENT")
    assert not same._replace(committed_twice=1).ok
    assert not same._replace(audited=Report(1, 1, [A_FAULT])).ok


A_FAULT = Fault("job", 1, "gap", "")


@pytest.mark.parametrize(
    ("commits", "twice"),
    [
        ([(1, b"a"), (2, b"b"), (3, b"c")], 0),
        ([(1, b"a"), (2, b"b"), (2, b"c")], 1),
        ([(1, b"a"), (2, b"a"), (3, b"c")], 1),
        ([(1, b"a"), (1, b"a"), (1, b"a")], 2),
    ],
)
def test_commits_of_one_output_or_one_receipt_are_counted(
    commits: list[tuple[int, bytes]], twice: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def events(log: object, job: str) -> list[Numbered]:
        chosen = Selection(1, 1, 0.0, 0.0, 1.0)
        told: list[Event] = []
        for output, receipt in commits:
            told += (DecisionMade(Receipt(output - 1, 0, chosen, b"x", False, receipt)), OutputCommitted(output, b""))
        return [Numbered(sequence, event) for sequence, event in enumerate(told, start=1)]

    monkeypatch.setattr(demo, "events_of", events)
    assert demo.committed_twice(MemoryStore(), "job") == twice
