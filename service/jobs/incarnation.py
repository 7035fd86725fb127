"""Names for worker processes, and which of them are gone.

A name is `host/boot/namespace/pid/start/random`: a process that ends takes its name with it, and another process on
the same machine can tell. A wrong answer costs nothing but a fence: a worker thought dead is only kept from appending.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Collection
from pathlib import Path

PID_DIGITS_MAX = 10
UNKNOWN = "unknown"

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")


def new_worker_name() -> str:
    """The name of this process's next worker; no two are equal."""
    pid = os.getpid()
    return f"{_machine()}/{pid}/{_started(pid) or UNKNOWN}/{secrets.token_hex(4)}"


def dead_workers(names: Collection[str]) -> frozenset[str]:
    """Those of `names` that were processes of this machine and run no more; of other machines nothing is known."""
    return frozenset(name for name in names if _is_dead(name))


def _is_dead(name: str) -> bool:
    machine, pid, started = [*name.rsplit("/", 3), "", ""][:3]
    if machine != _machine() or not pid.isdecimal() or len(pid) > PID_DIGITS_MAX:
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # It runs, as another user; the system may hide the rest from us.
    now = _started(int(pid))
    return now is not None and started != UNKNOWN and now != started


def _machine() -> str:
    """Host, boot and process namespace: within all three, a process id means one process."""
    boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else "unknown"
    space = os.readlink(_PID_NAMESPACE) if _PID_NAMESPACE.is_symlink() else "unknown"
    return f"{socket.gethostname()}/{boot}/{space}"


def _started(pid: int) -> str | None:
    """When a process started, in clock ticks since boot, or "ended" for a zombie; None where that cannot be read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return "ended" if fields[0] in "ZX" else fields[19]
