"""The names of jobs and models, by one rule at every entrance: submission, restore, and files that are verified.

A job's name is a word of letters, digits, `_` and `-`, which begins with a letter or a digit; the jobs of a family have
its name, a dot and the number of their choice. A model's name is what a person could type as one argument.
"""

from __future__ import annotations

import re
from typing import Final

from ..errors import LimitExceeded, SchemaViolation
from ..limits import CHOICE_MAX, MODEL_NAME_CHARACTERS_MAX, NAME_CHARACTERS_MAX

CHOICE: Final = re.compile(r"(?P<family>.+)\.(?P<choice>0|[1-9][0-9]{0,3})", re.ASCII | re.DOTALL)
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def choice_in(job: str) -> tuple[str, int] | None:
    """The family and the choice that a job's name states; None where it states none."""
    found = CHOICE.fullmatch(job)
    if found is None or int(found["choice"]) > CHOICE_MAX:
        return None
    return found["family"], int(found["choice"])


def check_job_name(job: str) -> None:
    """Refuse a name that no job may have. Errors: LimitExceeded, SchemaViolation."""
    if len(job) > NAME_CHARACTERS_MAX:
        raise LimitExceeded("job name (characters)", len(job), NAME_CHARACTERS_MAX)
    named = choice_in(job)
    if _WORD.fullmatch(job if named is None else named[0]) is None:
        reason = f"{job!r} is no job's name: letters, digits, _ and - only, and .N for choice N of a family"
        raise SchemaViolation("job", reason)


def check_model_name(model: str) -> None:
    """Refuse a name that no model may have: empty, like an option, or not printable. Errors: as `check_job_name`."""
    if len(model) > MODEL_NAME_CHARACTERS_MAX:
        raise LimitExceeded("model name (characters)", len(model), MODEL_NAME_CHARACTERS_MAX)
    if not model or model.startswith("-") or not model.isprintable():
        raise SchemaViolation("model", f"{model!r} is no model's name: printable characters, and no - before them")
