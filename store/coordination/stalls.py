"""Jobs whose tenures stall: what is counted, and when such a job may be claimed again.

A tenure stalls that ends without a release and has brought no token, however far it came: a process may die of a job
while it loads the model, or compiles the grammar. Nobody sees it end; the next claim does, which counts it in the
statement that it is anyway. Whoever asks for a job by name sees what it does to the process: that tenure
is not counted.
"""

from __future__ import annotations

from typing import Any

from ...fsm.limits import TENURES_STALLED_MAX

SPREAD = 1000


def doubled(stalled: int) -> int:
    """How many times the delay of the first stall; it grows no more once the job is to be given up."""
    return 2 ** (min(stalled, TENURES_STALLED_MAX) - 1) if stalled else 0


def spread(number: Any, fence: Any) -> Any:
    """0 to SPREAD (exclusive), differently for jobs that stall together: of the job's number and its new fence.

    Both are integers, or the database's expressions of them.
    """
    return (number * 7919 + fence * 104_729) % SPREAD
