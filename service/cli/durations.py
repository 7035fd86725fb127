"""Durations as people write them: a number and a unit."""

from __future__ import annotations

import re
from typing import Final

import typer

from ...fsm.limits import RETAIN_MS_MAX

UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_WRITTEN = re.compile(r"^(\d{1,10})([smhd])$", re.ASCII)


def milliseconds(text: str, flag: str) -> int:
    """`90s`, `30m`, `12h` or `7d` in ms, at most RETAIN_MS_MAX; anything else is wrong use of `flag`."""
    match = _WRITTEN.match(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a number with s, m, h or d, like 7d", param_hint=flag)
    found = int(match[1]) * UNITS[match[2]]
    if found > RETAIN_MS_MAX:
        raise typer.BadParameter(f"{text} is longer than {RETAIN_MS_MAX // UNITS['d']}d", param_hint=flag)
    return found
