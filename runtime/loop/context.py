"""What a worker and its engines work with, beside the store and the models: one value, the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...fsm.errors import Problem, Transient
from ...fsm.failpoints import Reached, unheard
from ...fsm.machine.state import State
from ...fsm.reading.emission import Emission
from ..host import THREADS, Host
from .pace import PACE, Pace

if TYPE_CHECKING:
    from .segments import Segments

Sink = Callable[[str, Sequence[Emission], State], None]
"""Receives what a job has made visible, after it is durable; on the writer's thread or the crank's, never on both at
once. What it raises does not touch the job."""

Notice = Callable[[str, Problem], None]
"""Receives a job that was refused or lost, and why."""

WaitNotice = Callable[[Transient | None], None]
"""Receives why the database is waited for, once the wait has been noticed, and None when it is over."""

Dead = Callable[[Collection[str]], Collection[str]]
"""Which of these workers are known to be gone, so that their jobs need not wait for the lease."""


def unnoticed(job: str, problem: Problem) -> None: ...


def untold(problem: Transient | None) -> None: ...


def nobody(workers: Collection[str]) -> Collection[str]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Who is told what, how fast things happen, and where.

    form      how lost lanes come back: "prefill" is one call over the processed prefix; "reexecute" repeats the calls
              that made them, by the log, and is bit-exact on one stack at the price of one call a token
    segments  keeps the K/V rows of the jobs in hand on disk, where given; those come first, and only what they lack
              is computed. `Worker.run` closes it
    at        told the points of `fsm.failpoints` that are the runtime's
    host      where threads run, and their time
    """

    sink: Sink | None = None
    notice: Notice = unnoticed
    told: WaitNotice = untold
    dead: Dead = nobody
    form: str = "prefill"
    pace: Pace = PACE
    segments: Segments | None = None
    at: Reached = unheard
    host: Host = THREADS


DEFAULT = Context()
SEQUENTIAL = Context(pace=replace(PACE, beside=False))
"""Appends are waited for in each turn, and no thread is started."""
