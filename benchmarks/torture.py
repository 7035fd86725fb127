"""(i) Whether anything that befalls processes and databases changes a log: the quick crash matrix, counted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

from measuring import Figures

COMMAND = (sys.executable, "-m", "decodelog", "torture", "--quick", "--json")


def torture(rounds: int, note: Callable[[str], None]) -> Figures:
    """Kills and adversities of `decodelog torture --quick`, and how many of them did harm. Nothing here is timed."""
    note("killing processes, and taking their databases away")
    done = subprocess.run(COMMAND, capture_output=True, encoding="utf-8")
    try:
        report = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise RuntimeError(f"the crash matrix has ended with {done.returncode}: {done.stderr}") from error
    return {key: report[key] for key in ("torture_points", "torture_failures")}
