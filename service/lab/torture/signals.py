"""Holds back signals that ask this process to end while it is in the middle of something."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held_back() -> Iterator[None]:
    """Let them wait until the end of the block, where what it made is known to whoever ends it.

    Handlers wait, and not the signals: another thread of the process, as numeric libraries have, would take those.
    """
    waiting: list[int] = []
    before = [signal.signal(number, lambda number, frame: waiting.append(number)) for number in ENDING]
    try:
        yield
    finally:
        for number, handler in zip(ENDING, before, strict=True):
            signal.signal(number, handler)
        for asked in waiting[:1]:
            signal.raise_signal(asked)


def as_ever() -> None:
    """Let them end this process at once."""
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
