"""What a job's own work raises, told apart from what is to end this thread or process."""

from __future__ import annotations

from typing import NamedTuple

from ..fsm.errors import JobFault, Problem

WORDS_MAX = 1000
"""Characters of a foreign error that are kept: some list all that they were given."""


class Raised(NamedTuple):
    """What was raised instead of an answer."""

    raised: BaseException


def is_fault(raised: BaseException) -> bool:
    """Whether it says that something went wrong there, and no more.

    A library in Rust raises its panics beyond Exception. What is no Exception otherwise is to end the thread or the
    process. A lack of memory is nobody's in particular.
    """
    if isinstance(raised, Exception):
        return not isinstance(raised, MemoryError)
    return any(kind.__name__ == "PanicException" for kind in type(raised).__mro__)


def fault_of(job: str, raised: BaseException) -> Problem:
    """The typed problem of a job whose work has raised; what is no fault is raised again."""
    if not is_fault(raised):
        raise raised
    return raised if isinstance(raised, Problem) else JobFault(job, type(raised).__name__, told(raised))


def told(raised: BaseException) -> str:
    """What it says, as a text of bounded length that every log can hold."""
    try:
        text = str(raised)
    except Exception:
        text = "its message cannot be read"
    text = text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    return text if len(text) <= WORDS_MAX else f"{text[:WORDS_MAX]}..."
