"""Work in calls and lines of Python: unlike time, the same on a slow and on a busy machine."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


def calls(work: Callable[[], object]) -> int:
    """How many functions, of Python and of C, `work` calls on this thread."""
    count = 0

    def seen(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    with uncollected():
        before = sys.getprofile()
        sys.setprofile(seen)
        try:
            work()
        finally:
            sys.setprofile(before)
    return count


def lines(work: Callable[[], object]) -> int:
    """How many lines of Python `work` runs on this thread."""
    count = 0

    def seen(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return seen

    with uncollected():
        before = sys.gettrace()
        sys.settrace(seen)
        try:
            work()
        finally:
            sys.settrace(before)
    return count


@contextmanager
def uncollected() -> Iterator[None]:
    """The garbage of earlier tests is not collected here: what it has to say at its end would be counted too."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
