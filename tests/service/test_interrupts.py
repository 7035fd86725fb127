"""Ctrl-C at any moment: no traceback, and exit code 130."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commandline import COMMAND, ended, jobs, process, stdout_of

from decodelog.service.cli import edge, interrupts

PROGRAM = Path(__file__).with_name("interrupted_imports.py")
INTERRUPTED = 128 + signal.SIGINT


def at_import(nth: object, *command: object) -> subprocess.CompletedProcess[str]:
    given = [sys.executable, str(PROGRAM), str(nth), *map(str, command)]
    return subprocess.run(given, capture_output=True, encoding="utf-8", check=False)


@pytest.mark.contract("OUT-8")
def test_ctrl_c_while_modules_are_loaded_is_one_exit_code(short_model: Path, sqlite_url: str) -> None:
    """From the first module to the last: of this command, of torch, of what is loaded with the model."""
    request = ("submit", "--model", short_model, "--prompt", "Go", "--db", sqlite_url)
    counted = at_import("-", *request)
    modules = int(counted.stdout.splitlines()[-1])
    assert (counted.returncode, modules > 1000) == (0, True)
    drawn = random.sample(range(5, modules // 2), 4) + random.sample(range(modules // 2, modules - 5), 4)
    print("interrupted at", drawn, "of", modules)  # shown where the test fails
    for nth in (1, 2, *drawn):
        stopped = at_import(nth, *request)
        assert (stopped.returncode, stopped.stderr.count("Traceback"), "error[" in stopped.stderr) == (
            INTERRUPTED, 0, False,
        ), (nth, stopped.stderr)  # fmt: skip
    assert len(jobs(sqlite_url)) == 1  # a submission that was interrupted before its end was not admitted


def test_an_interruption_that_a_library_makes_an_error_of_is_still_one(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(interrupts, "_seen", False)
    hooks = sys.excepthook, sys.unraisablehook

    def command() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as interruption:
            raise ImportError("initialization failed") from interruption

    try:
        interrupts.begin()
        assert edge.run_to_end(command) == INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, before)
        sys.excepthook, sys.unraisablehook = hooks


def test_where_nothing_can_be_raised_the_process_ends() -> None:
    program = (
        "import signal; from decodelog.service.cli import interrupts; interrupts.begin(); interrupts.undo()\n"
        "class Last:\n"
        "    def __del__(self): signal.raise_signal(signal.SIGINT)\n"
        "Last()\n"
        "print('it goes on')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")


def test_who_ignores_it_goes_on_ignoring_it(sqlite_url: str) -> None:
    """As a shell has commands that it starts in the background do."""
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from decodelog.service.cli.entry import main\n"
        "signal.raise_signal(signal.SIGINT); main()\n"
    )
    given = [sys.executable, "-c", program, "jobs", "--json", "--db", sqlite_url]
    done = subprocess.run(given, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n")


def test_ctrl_c_while_it_waits(short_model: Path, sqlite_url: str) -> None:
    given = [*COMMAND, "submit", "--model", str(short_model), "--prompt", "Go", "--db", sqlite_url]
    job = subprocess.run(given, capture_output=True, encoding="utf-8", check=True).stdout.strip()
    with process("events", job, "--follow", db=sqlite_url) as running:
        assert "request.admitted" in stdout_of(running).readline()
        running.send_signal(signal.SIGINT)
        told = ended(running)
    assert (told.code, told.stderr) == (INTERRUPTED, "")
