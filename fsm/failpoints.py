"""Where a process may die: every statement, sync and model call has a point before it and one after it, each by name.

Store and runtime call a function that they are given with the name of each point they reach. Tests use it to kill a
process at an exact place; in ordinary use the function does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Reached = Callable[[str], None]
"""Told the name of a point by whatever thread has reached it."""


def unheard(point: str) -> None:
    """The ordinary listener: it does nothing."""


OPERATIONS: Final = {
    "admit": "a submission is made durable",
    "append": "the steps of one turn are made durable, all as their jobs are expected to be",
    "judge": "one append that its job did not expect is looked at, and refused or taken",
    "claim": "a worker takes jobs",
    "heartbeat": "a worker extends its leases",
    "release": "a worker gives its jobs back",
    "post": "a command is put into the inbox",
    "snapshot": "snapshots of live jobs are kept",
    "restore": "logs from a file are brought back",
    "answer": "a command is settled with what became of it",
    "seal": "the rows of an ended job become one",
    "erase": "the content of an ended job's rows goes",
}
"""The store's transactions."""

MOMENTS: Final = {
    "begin": "before its transaction",
    "executed": "after one of its statements",
    "commit": "after its last statement and before the commit, with the sync",
    "committed": "after the commit",
}

ONE_STATEMENT: Final = frozenset({"append.executed", "append.commit"})
"""Points that PostgreSQL does not have: there the statement is the transaction, and the commit a part of it."""

POINTS: Final[dict[str, str]] = {
    f"{operation}.{moment}": f"{what}: {when}"
    for operation, what in OPERATIONS.items()
    for moment, when in MOMENTS.items()
} | {
    "tenure.claimed": "a job is claimed, and its log not read yet",
    "tenure.loaded": "its log is read, and the tenure not recorded yet",
    "tenure.started": "the tenure is recorded, and nothing done in it yet",
    "call.before": "before a model call",
    "call.prepared": "its rows are computed, and no lane has advanced",
    "call.selected": "its lanes have advanced, and no score row is consumed",
    "turn.decided": "the decisions of a turn are made, and nothing is on its way to the log",
    "turn.begun": "a turn's append has begun, and is not waited for",
    "turn.durable": "a turn is durable, and nothing of it is published",
    "turn.published": "a turn is published",
}
"""Every point, and what it is between."""
