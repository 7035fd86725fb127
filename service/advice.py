"""The command that helps, which the command line adds to an error's message. The errors themselves name no commands."""

from __future__ import annotations

from typing import Any, Final

from ..fsm.errors import Problem
from ..fsm.errors.redaction import redacted

COMMANDS: Final = {
    "schema_missing": "`decodelog db upgrade` makes it",
    "schema_outdated": "`decodelog db upgrade`",
    "database_fault": "`decodelog db check`",
    "database_not_durable": "`decodelog db check` shows its settings",
    "database_moved": "`decodelog audit --all` shows what is in the file that is there now",
    "unknown_model": "`decodelog model fetch NAME` fetches one of those, `decodelog model register DIR` registers one",
    "model_not_fetched": "`decodelog model fetch {name}`",
    "model_not_here": "`decodelog worker --models DIR`, or `decodelog resume --models DIR`",
    "corrupt_model": "`decodelog model register DIR`",
    "fetch_failed": "`decodelog model fetch {name}`",
    "child_failed": "`decodelog doctor`",
    "not_an_export": "`decodelog export` and `decodelog snapshot` write such files",
    "unknown_job": "`decodelog jobs` lists all",
    "job_fault": "`decodelog export {job}`",
    "output_failed": "`decodelog jobs` shows what was done",
    "job_not_ended": "`decodelog cancel {job}` ends it",
    "content_erased": "`decodelog jobs` still lists it, and `decodelog audit {job}` proves its chain",
    "seal_refused": "`decodelog audit {job}`",
}
"""Code -> the command, as a template over the error's attributes."""


def advised(problem: Problem) -> str:
    """The message, and the command that helps where there is one."""
    command = COMMANDS.get(problem.code)
    return str(problem) if command is None else f"{problem}: {redacted(command.format(**vars(problem)))}"


def advised_facts(problem: Problem) -> dict[str, Any]:
    """The error's facts, with the message as it is on the command line."""
    return problem.facts() | {"message": advised(problem)}
