"""Processes that are to be killed: copies of this one, which has loaded everything and has no other thread.

Starting an interpreter and importing torch takes more than a second, a copy some milliseconds.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ....fsm.failpoints import POINTS, Reached
from .signals import as_ever, held_back

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
    def last(self) -> str:
        """The last thing it said: its error, or where it stood when it was late."""
        lines = [line.strip() for line in self.words.splitlines() if line.strip()] or ["no word"]
        if self.signal == signal.SIGALRM:
            stood = [after for line, after in pairwise(lines) if "most recent call" in line]
            return f"not over after {PATIENCE_S} s; its threads stood at {'; '.join(stood)}"
        return lines[-1]

    @property
    def error(self) -> str:
        """The name of the error that ended it, or nothing."""
        return "" if self.well or self.signal else self.last.partition(":")[0].rpartition(".")[2]

    @property
    def well(self) -> bool:
        return not self.signal and not self.code


class Running:
    """A process that `start` has started."""

    def __init__(self, pid: int, marks: Path, words: Path) -> None:
        self.pid = pid
        self._marks, self._words = marks, words
        self._begin = time.monotonic()
        self._result: Ended | None = None
        self._end = os.pidfd_open(pid)
        self._ended = select.poll()
        self._ended.register(self._end, select.POLLIN)

    def ended(self, wait_s: float = 0.0) -> bool:
        """Whether it has ended, after waiting at most so long."""
        return self._result is not None or bool(self._ended.poll(wait_s * 1000))

    def kill(self) -> None:
        if self._result is None:  # not waited for yet, so the number is still its own
            os.kill(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill it, and wait for that; nothing where it has been waited for."""
        self.kill()
        self.wait()

    @property
    def told(self) -> dict[str, int]:
        """Job -> the newest event that somebody outside has been told of until now."""
        told: dict[str, int] = {}
        for _, job, sequence in (line.split(" ") for line in self._lines() if line.startswith("= ")):
            told[job] = max(int(sequence), told.get(job, 0))
        return told

    def wait(self) -> Ended:
        """Wait until it ends. One that has run for PATIENCE_S seconds says where it stands, and is ended by SIGALRM.

        Its seconds are counted one by one: the clock goes on while this process or that one is stopped.
        """
        if self._result is not None:
            return self._result
        seconds = 0
        while not self.ended(1.0):
            seconds += not self._stopped()
            if seconds >= PATIENCE_S:
                os.kill(self.pid, signal.SIGALRM)
        with held_back():
            _, status = os.waitpid(self.pid, 0)
            os.close(self._end)
            self._result = self._ended_with(status, time.monotonic() - self._begin)
        return self._result

    def _ended_with(self, status: int, seconds: float) -> Ended:
        return Ended(
            os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
            os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0,
            [line for line in self._lines() if not line.startswith("= ")],
            self.told,
            self._words.read_text("utf-8", "replace"),
            seconds,
        )

    def _lines(self) -> list[str]:
        return self._marks.read_text().splitlines()

    def _stopped(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"


def start(body: Body, folder: Path, kill: Place | None = None, name: str = "") -> Running:
    """Start `body` in a process of its own, which is killed at `kill`. This process must have one thread only.

    name    of its files in `folder`, where several run at a time
    """
    if threading.active_count() > 1:
        raise RuntimeError("a copy of a process has none of its threads, and may wait for one")
    marks, words = folder / f"{name}marks", folder / f"{name}words"
    marks.write_bytes(b"")
    words.write_bytes(b"")
    pid = os.fork()
    if not pid:
        code = 1
        try:
            as_ever()
            os.dup2(os.open(words, os.O_WRONLY), sys.stderr.fileno())
            faulthandler.register(signal.SIGALRM, all_threads=True, chain=True)
            _child(body, os.open(marks, os.O_WRONLY | os.O_APPEND), kill)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)  # what this process does at its end is its own, and not its copies'
    return Running(pid, marks, words)


def run(body: Body, folder: Path, kill: Place | None = None) -> Ended:
    """Run `body` as `start` does, and wait until it has ended; it does not outlive the call."""
    with ExitStack() as stack:
        with held_back():
            running = start(body, folder, kill)
            stack.callback(running.end)
        if kill is not None and kill.point == ANYWHERE:
            time.sleep(kill.nth * MOMENT_S)
            running.kill()
        return running.wait()


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
