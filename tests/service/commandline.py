"""The command line for tests: in this process where only words matter, in a process of its own where its life does."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

from typer import testing
from typer.main import get_command

from decodelog.fsm.ports import JobRow
from decodelog.service.cli.app import app
from decodelog.service.database import open_database

# Thirty commands with hundreds of options take 30 ms to build, and are the same ones for every call of them.
assert hasattr(testing, "_get_command")
testing._get_command = cache(get_command)

COMMAND = (sys.executable, "-m", "decodelog")
POLL_S = 0.005
PATIENCE_S = 600.0  # far beyond what a busy machine needs: only what hangs comes to its end

TEXT = "Rivers carry the mountains to the sea, slowly, grain by grain: é 日本 \U0001f600. "


class Ended(NamedTuple):
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The one JSON value on standard output."""
        return json.loads(self.stdout)

    @property
    def lines(self) -> list[Any]:
        """Standard output as one JSON value a line."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def error(self) -> Any:
        """What was refused, and why."""
        return self.json["error"]


def decodelog(*arguments: object, db: str | None = None, stdin: str | None = None) -> Ended:
    """Run a command in this process. An exception that no command may raise is raised here."""
    given = [*map(str, arguments), *(["--db", db] if db else [])]
    result = testing.CliRunner().invoke(app, given, input=stdin, prog_name="decodelog")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ended(result.exit_code, result.stdout, result.stderr)


@contextmanager
def process(*arguments: object, db: str | None = None, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own, which does not outlive the block."""
    given = [*COMMAND, *map(str, arguments), *(["--db", db] if db else [])]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8", **options}
    started = subprocess.Popen(given, **options)
    try:
        yield started
    finally:
        if started.poll() is None:
            started.send_signal(signal.SIGKILL)
        started.communicate()


def stdout_of(running: subprocess.Popen[str]) -> IO[str]:
    assert running.stdout is not None
    return running.stdout


def stderr_of(running: subprocess.Popen[str]) -> IO[str]:
    assert running.stderr is not None
    return running.stderr


def ended(running: subprocess.Popen[str]) -> Ended:
    """Wait for a process to end by itself."""
    stdout, stderr = running.communicate(timeout=PATIENCE_S)
    return Ended(running.returncode, stdout, stderr)


def at_terminal(given: list[str], answer: str = "", **changes: str) -> tuple[int, str]:
    """Run a program likewise, with lines typed in beforehand. Newlines reach the test as they were written."""
    ours, theirs = pty.openpty()
    mode = termios.tcgetattr(theirs)
    mode[1] &= ~termios.OPOST
    mode[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, mode)
    os.write(ours, answer.encode())
    changes = {"TERM": "xterm-256color", **changes}
    running = subprocess.Popen(given, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**changes))
    os.close(theirs)
    got = b""
    with suppress(OSError):  # how a terminal ends
        while chunk := os.read(ours, 65536):
            got += chunk
    os.close(ours)
    return running.wait(), got.decode()


def jobs(url: str) -> list[JobRow]:
    """The jobs of a database, oldest first."""
    store = open_database(url)
    try:
        return store.rows()
    finally:
        store.close()


def wait_for(url: str, holds: Callable[[JobRow], bool]) -> JobRow:
    """The newest job of a database, once `holds` is true of it."""
    store = open_database(url)
    until = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < until:
            rows = store.rows()
            if rows and holds(rows[-1]):
                return rows[-1]
            time.sleep(POLL_S)
    finally:
        store.close()
    raise TimeoutError(f"it never came to that: {rows}")


def script(folder: Path, **config: Any) -> Path:
    """A scripted model in a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "scripted.json").write_text(json.dumps({"architecture": "scripted", **config}), encoding="utf-8")
    return folder


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with changes."""
    return {**os.environ, **changes}
