"""(j) Ten thousand seeded schedules of faults: how many failed, and how long they take on all cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

from measuring import Figures

SCHEDULES = 10_000
SEED = 1_000_000  # others than those of the tests


def simulation(rounds: int, note: Callable[[str], None]) -> Figures:
    """As many processes as there are cores, each with its share of the seeds."""
    processes = os.cpu_count() or 1
    share = SCHEDULES // processes
    note(f"{share * processes} schedules of faults in {processes} processes")
    begin = time.monotonic()
    running = [_start(share, SEED + share * number) for number in range(processes)]
    reports = [json.loads(each.communicate()[0]) for each in running]
    return {
        "simulated_schedules": sum(report["simulated_schedules"] for report in reports),
        "simulated_failures": sum(report["simulated_failures"] for report in reports),
        "simulated_seconds": time.monotonic() - begin,
    }


def _start(count: int, seed: int) -> subprocess.Popen[str]:
    arguments = ("torture", "--simulate", str(count), "--seed", str(seed), "--json")
    command = (sys.executable, "-m", "decodelog", *arguments)
    return subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8")
