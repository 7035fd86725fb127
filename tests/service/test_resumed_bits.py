"""A job of the real model whose processes are killed or stopped: it is run again to the same bits, and little twice."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from commandline import decodelog, ended, jobs, process, wait_for

from decodelog.fsm.machine.events import LanesRebuilt
from decodelog.fsm.ports import JobRow
from decodelog.service.database import opened
from decodelog.service.streams.reading import events_of

MODEL = "smollm2-135m-instruct"
PROMPT = "The river carries the mountains to the sea, slowly, grain by grain, and what it leaves behind is a valley"
ASKED = ("--model", MODEL, "--prompt", PROMPT, "--ignore-eos", "--max-new-tokens", 20)
STEPS_LOST_MAX = 8
"""Steps that a kill may find on their way to the disk: those of `WAITING_MAX` turns, and those that wait for them."""


class Life(NamedTuple):
    """Signals that end a job's processes, each once it has four tokens more, and what those processes are told."""

    signals: Sequence[signal.Signals]
    options: Sequence[Sequence[object]]


KILL, TERM, CTRL_C = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
KEPT, BY_CALLS = ("--cache-dir", "{}"), ("--rebuild", "reexecute")

LIVES = {
    "nothing kept": Life([KILL, TERM, CTRL_C], [(), (), (), BY_CALLS]),
    "kept": Life([KILL, CTRL_C], [KEPT, KEPT, KEPT]),
}


def has(tokens: int, row: JobRow) -> bool:
    return row.output >= tokens


def rebuilt(url: str, job: str) -> list[LanesRebuilt]:
    with opened(url) as log:
        return [each.event for each in events_of(log, job) if isinstance(each.event, LanesRebuilt)]


@pytest.mark.contract("RES-2", "RES-3", "RES-4", "LOG-10")
@pytest.mark.timeout(600)  # each process loads the model, and a busy machine is slow at it
@pytest.mark.parametrize("life", LIVES)
def test_a_job_whose_processes_ended_is_run_again_to_the_same_bits(life: str, sqlite_url: str, tmp_path: Path) -> None:
    command: tuple[Any, ...] = ("run", *ASKED)
    for number, (sent, options) in enumerate(zip(LIVES[life].signals, LIVES[life].options, strict=False), 1):
        given = [str(each).format(tmp_path / "kept") for each in options]
        with process(*command, *given, db=sqlite_url) as running:
            wait_for(sqlite_url, partial(has, 4 * number))
            running.send_signal(sent)
            assert ended(running).code != 0
        command = ("resume", jobs(sqlite_url)[0].job)
    (row,) = jobs(sqlite_url)
    last = [str(each).format(tmp_path / "kept") for each in LIVES[life].options[-1]]
    assert decodelog(*command, *last, "--json", db=sqlite_url).json["finish_reason"] == "length"

    if life == "kept":  # the audit asks the same
        assert decodelog("compare", row.job, "--reexecute", db=sqlite_url).stdout.startswith("the same at all 6 levels")
    told = decodelog("audit", row.job, "--reexecute", "--json", db=sqlite_url)
    assert (told.code, told.json["faults"], told.json["proven"]) == (0, [], True)
    made = rebuilt(sqlite_url, row.job)
    assert len(made) == len(LIVES[life].signals)
    assert life != "kept" or max(each.tokens for each in made) <= STEPS_LOST_MAX
    assert [each.form for each in made] == [_form(options) for options in LIVES[life].options[1:]]


def _form(options: Sequence[object]) -> str:
    return "tensors" if options == KEPT else "reexecute" if options == BY_CALLS else "prefill"
