"""Work in calls and lines of Python: unlike time, the same on a slow and on a busy machine."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

Work = Callable[[], object]

TRACE = (sys.gettrace, sys.settrace)
PROFILE = (sys.getprofile, sys.setprofile)


def calls(work: Work) -> int:
    """How many functions, of Python and of C, `work` calls on this thread."""
    return _count(work, PROFILE, {"call", "c_call"})


def lines(work: Work) -> int:
    """How many lines of Python `work` runs on this thread."""
    return _count(work, TRACE, {"line"})


def watched(work: Work, watch: Any, hook: Any = TRACE) -> None:
    """Run `work` under a trace function. The garbage of others is not collected meanwhile: it would be watched too."""
    get, put = hook
    before, collects = get(), gc.isenabled()
    gc.disable()
    put(watch)
    try:
        work()
    finally:
        put(before)
        if collects:
            gc.enable()


def _count(work: Work, hook: Any, events: set[str]) -> int:
    count = 0

    def watch(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event in events
        return watch

    watched(work, watch, hook)
    return count
