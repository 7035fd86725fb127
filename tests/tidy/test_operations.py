"""docs/operations.md has an entry for every typed error, and its commands and names exist."""

from __future__ import annotations

import re

import runbook
from typer.main import get_command

from decodelog.fsm import errors
from decodelog.fsm.errors import Defect, Problem, Transient
from decodelog.runtime.loop.worker import Pace
from decodelog.service.cli.app import app
from decodelog.store.database.connection import BUSY_TIMEOUT_MS, REACHED

TEXT = runbook.PAGE.read_text("utf-8")
EVERY = {each.code for each in runbook.problems(Problem)} - {kind.code for kind in runbook.KINDS}


def test_the_runbook_is_what_the_errors_say() -> None:
    assert runbook.page(TEXT) == TEXT, "run `make docs`"


def test_every_code_has_one_entry() -> None:
    entries = re.findall(r"^\| `(\w+)` \|", TEXT.partition(runbook.MARK)[2], flags=re.MULTILINE)
    assert sorted(entries) == sorted(EVERY | {code for code, *_ in runbook.OTHERS})


def test_every_error_is_imported_from_one_place() -> None:
    own = [each for each in runbook.problems(Problem) if each.__module__.startswith(errors.__name__)]
    assert len(own) == len(EVERY) + len(runbook.KINDS)
    assert [each for each in own if vars(errors).get(each.__name__) is not each] == []


def test_whoever_must_act_is_told_what_to_do() -> None:
    for kind in (Transient, Defect):
        assert [each.code for each in runbook.problems(kind) if each.code not in runbook.GUIDANCE] == []
    assert set(runbook.GUIDANCE) <= EVERY


def test_the_commands_that_it_names_exist() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for block in re.findall(r"`decodelog ([a-z]+)(?: ([a-z]+))?", TEXT):
        assert block[0] in commands, block
        assert block[0] != "db" or block[1] in commands["db"].real.commands, block


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
