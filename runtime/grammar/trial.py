"""Trials: what a library may hang in, die of or fill the memory with is first done by a child process."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

SHORT_S, LONG_S = 0.001, 0.05
WAITED_S = 60
MEMORY_LACKS = 3
MIB = 1 << 20


def trial(action: Callable[[], object], seconds: int, memory: int) -> str:
    """Do `action` in a copy of this process, and forget what came of it: empty where it ended, else why it did not.

    seconds  of a processor that it may take; a busy machine gives no less
    memory   bytes that it may take beyond those that this process has
    Whether it ended well, the caller finds out by doing it. Where no process can be copied, all is well.
    """
    if not hasattr(os, "fork"):
        return ""
    pid = os.fork()
    if not pid:
        _attempt(action, seconds, memory)
    wait_s, until_s = SHORT_S, time.monotonic() + WAITED_S
    late = False
    while not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if late := late or time.monotonic() > until_s:
            os.kill(pid, signal.SIGKILL)  # nobody else has waited for it, so that the number is its own
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, LONG_S)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not code:
        return ""
    if late and code == -signal.SIGKILL:
        return f"it comes to no end in {WAITED_S} s"
    if code == MEMORY_LACKS:
        return f"it takes more than {memory // MIB} MiB of memory"
    if code == -signal.SIGXCPU:
        return f"it takes more than {seconds} s"
    return f"a process ended over it ({code}), for which it may have {memory // MIB} MiB of memory"


def _attempt(action: Callable[[], object], seconds: int, memory: int) -> None:
    """The child's whole life. Its complaints are of no interest, nor is what is in its memory."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_CPU, seconds, spare=1)
        statm = Path("/proc/self/statm")
        if statm.exists():
            _limit(resource.RLIMIT_AS, int(statm.read_text().split()[0]) * resource.getpagesize() + memory)
        try:
            action()
            code = 0
        except MemoryError:
            code = MEMORY_LACKS
        except BaseException:
            code = 0  # an end, too
    finally:
        os._exit(code)


def _limit(kind: int, most: int, spare: int = 0) -> None:
    """`spare` beyond it the system ends the process, whatever it does."""
    _, hard = resource.getrlimit(kind)
    last = most + spare if hard == resource.RLIM_INFINITY else min(most + spare, hard)
    resource.setrlimit(kind, (min(most, last), last))
