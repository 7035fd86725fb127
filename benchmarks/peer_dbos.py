"""DBOS: a workflow of trivial steps on its SQLite system database, set up as its documentation does."""

from __future__ import annotations

import time
from pathlib import Path

from dbos import DBOS

WARM = 30


@DBOS.step()
def step(index: int) -> int:
    return index


@DBOS.workflow()
def workflow(steps: int) -> float:
    """Seconds that `steps` steps take, after others that are not counted."""
    for index in range(WARM):
        step(index)
    begin = time.perf_counter()
    for index in range(steps):
        step(index)
    return time.perf_counter() - begin


def steps_per_second(directory: Path, name: str, steps: int) -> float:
    """Steps a second in a new database, while no other part of DBOS has work. Nothing is left running."""
    DBOS(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{directory / name}.sqlite",
            "log_level": "CRITICAL",
        }
    )
    DBOS.launch()
    try:
        return steps / workflow(steps)
    finally:
        DBOS.destroy()
