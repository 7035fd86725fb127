"""Ctrl-C, from this process's first moment to its last: no traceback, and exit code 130.

Nothing heavy is imported here: until this module has run, the interpreter handles Ctrl-C in its own way.
"""

from __future__ import annotations

import os
import signal
import sys
from types import TracebackType
from typing import Any

EXIT_CODE = 128 + signal.SIGINT

_seen = False


def begin() -> None:
    """Until a command begins, there is nothing to undo: Ctrl-C ends the process at once. Ignored, it stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
        sys.excepthook, sys.unraisablehook = _untold, _unheard


def undo() -> None:
    """From now on it is raised inside the command, which undoes what is half done; a second one ends the process."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, _raise)


def over() -> None:
    """The command has ended: again there is nothing to undo."""
    if signal.getsignal(signal.SIGINT) in (_raise, _leave):
        signal.signal(signal.SIGINT, _leave)


def seen() -> bool:
    """Whether it was raised, even if a library has turned it into another error."""
    return _seen


def _leave(number: int, frame: object) -> None:
    os._exit(EXIT_CODE)


def _raise(number: int, frame: object) -> None:
    global _seen
    _seen = True
    signal.signal(signal.SIGINT, _leave)
    raise KeyboardInterrupt


def _untold(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An uncaught interruption prints no traceback; the interpreter then ends as the signal would end it."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


def _unheard(raised: Any) -> None:
    """An interruption where nothing can be raised, as in a finaliser, ends the process like a second one."""
    if issubclass(raised.exc_type, KeyboardInterrupt):
        os._exit(EXIT_CODE)
    sys.__unraisablehook__(raised)
