"""docs/reference/errors.md has a row for every typed error; the numbers of docs/guide/operations.md are the code's."""

from __future__ import annotations

import re

import runbook

from decodelog.fsm import errors
from decodelog.fsm.errors import Defect, Problem, Transient
from decodelog.runtime.loop.pace import Pace
from decodelog.store.database.connection import BUSY_TIMEOUT_MS, REACHED

TEXT = (runbook.PAGE.parents[1] / "guide/operations.md").read_text("utf-8")
EVERY = {each.code for each in runbook.problems(Problem)} - {kind.code for kind in runbook.KINDS}


def test_the_list_of_errors_is_what_the_errors_say() -> None:
    assert runbook.PAGE.read_text("utf-8") == runbook.page(), "run `make docs`"


def test_every_code_has_one_entry() -> None:
    entries = re.findall(r"^\| `(\w+)` \|", runbook.page(), flags=re.MULTILINE)
    assert sorted(entries) == sorted(EVERY | {code for code, *_ in runbook.OTHERS})


def test_every_error_is_imported_from_one_place() -> None:
    own = [each for each in runbook.problems(Problem) if each.__module__.startswith(errors.__name__)]
    assert len(own) == len(EVERY) + len(runbook.KINDS)
    assert [each for each in own if vars(errors).get(each.__name__) is not each] == []
    named = {each.__name__: "".join(word.title() for word in each.code.split("_")) for each in own}
    assert [name for name, code in named.items() if code not in (name, "Problem")] == []


def test_whoever_must_act_is_told_what_to_do() -> None:
    for kind in (Transient, Defect):
        assert [each.code for each in runbook.problems(kind) if each.code not in runbook.GUIDANCE] == []
    assert set(runbook.GUIDANCE) <= EVERY


def test_its_numbers_are_those_of_the_code() -> None:
    pace = Pace()
    assert (pace.lease_ms, pace.claim_ms, pace.inbox_ms, pace.patience_ms) == (10_000, 200, 50, 60_000)
    assert (BUSY_TIMEOUT_MS, REACHED["connect_timeout"]) == (10_000, 10)
    for words in (
        "A lease is 10 s",
        "every 50 ms",
        "every 200 ms",
        "`Pace.patience_ms`, 60 s",
        "`connect_timeout` of\n  10 s",
    ):
        assert words in TEXT, words
