"""Processes that are to be killed: copies of this one, which has loaded everything and has no other thread.

Starting an interpreter and importing torch takes more than a second, a copy some milliseconds.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ...fsm.points import POINTS, Reached

PATIENCE_S = 60
ANYWHERE = "anywhere"
MOMENT_S = 0.0001
Mark = Callable[[str, int], None]
Body = Callable[[Reached, Mark], None]


class Place(NamedTuple):
    """The n-th time that a process reaches a point; or ANYWHERE, n moments after its start, whatever it does then."""

    point: str
    nth: int


class Ended(NamedTuple):
    """How a process ended.

    signal  the signal that ended it, or 0
    code    its exit code where no signal did
    points  what it reached, in order, whichever thread it was
    told    job -> the newest event that somebody outside has been told of
    words   what it said on standard error
    seconds from its start to its end
    """

    signal: int
    code: int
    points: list[str]
    told: dict[str, int]
    words: str
    seconds: float

    @property
    def killed(self) -> bool:
        return self.signal == signal.SIGKILL

    @property
    def well(self) -> bool:
        return not self.signal and not self.code


def run(body: Body, folder: Path, kill: Place | None = None) -> Ended:
    """Run `body` in a process of its own, which is killed at `kill`. This process must have one thread only.

    A process that has not ended after PATIENCE_S seconds is ended by SIGALRM.
    """
    if threading.active_count() > 1:
        raise RuntimeError("a copy of a process has none of its threads, and may wait for one")
    marks, words = folder / "marks", folder / "words"
    marks.write_bytes(b"")
    words.write_bytes(b"")
    begin = time.monotonic()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            signal.alarm(PATIENCE_S)
            os.dup2(os.open(words, os.O_WRONLY), sys.stderr.fileno())
            _child(body, os.open(marks, os.O_WRONLY | os.O_APPEND), kill)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)  # what this process does at its end is its own, and not its copies'
    if kill is not None and kill.point == ANYWHERE:
        time.sleep(kill.nth * MOMENT_S)
        os.kill(pid, signal.SIGKILL)  # not waited for yet, so the number is still its own
    _, status = os.waitpid(pid, 0)
    seconds = time.monotonic() - begin
    lines = marks.read_text().splitlines()
    told: dict[str, int] = {}
    for _, job, sequence in (line.split(" ") for line in lines if line.startswith("= ")):
        told[job] = max(int(sequence), told.get(job, 0))
    return Ended(
        os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
        os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0,
        [line for line in lines if not line.startswith("= ")],
        told,
        words.read_text("utf-8", "replace"),
        seconds,
    )


def _child(body: Body, marks: int, kill: Place | None) -> None:
    """Run `body`. What it reaches and tells is in the file before anything else happens: a kill takes nothing back."""
    counts: Counter[str] = Counter()

    def at(point: str) -> None:
        if point not in POINTS:
            raise KeyError(point)
        counts[point] += 1
        os.write(marks, f"{point}\n".encode())
        if kill == (point, counts[point]):
            os.kill(os.getpid(), signal.SIGKILL)

    def mark(job: str, sequence: int) -> None:
        os.write(marks, f"= {job} {sequence}\n".encode())

    body(at, mark)
