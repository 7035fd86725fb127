"""doctor: what this machine has and lacks."""

from __future__ import annotations

import typer

from ...database import database_url
from ...jobs.models import home
from .. import terminal
from ..edge import FAILED
from . import options

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(db: options.Database = None, json: options.Json = False) -> None:
    from ...inspect.doctor import FAIL, examine

    with terminal.progress("checking"):
        checks = list(examine(database_url(db), home()))
    failed = any(check.status == FAIL for check in checks)
    if json:
        terminal.write_json({"ok": not failed, "checks": [check._asdict() for check in checks]})
    else:
        for check in checks:
            terminal.write_styled(f"{check.status:<5}", STYLES[check.status])
            terminal.write(f"{check.name:<18} {check.found}\n")
            if check.advice:
                terminal.write(f"{'':<24}{check.advice}\n")
    if failed:
        raise typer.Exit(FAILED)
