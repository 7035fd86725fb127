"""Names: of a job, of a family, and finding either by its beginning; and the keys that callers choose.

A family is the jobs of one submission that asked for n > 1 choices: FAMILY.0 to FAMILY.(n-1). The last is admitted
before the others, so it is always there and says what n was. No other job has a dot in its name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

from ...fsm.errors import AmbiguousJob, FamilyMeant, LimitExceeded, SchemaViolation, UnknownJob
from ...fsm.limits import IDEMPOTENCY_KEY_BYTES_MAX
from ...fsm.ports import Named
from ...fsm.request.names import choice_in

CANDIDATES_SHOWN = 5
CANDIDATES_READ = 1000  # of the newest names, for one that is none
LAST = "@last"
"""Means the newest job, or its family."""


class NamedJobs(NamedTuple):
    """What a name means: its whole text, and the one job or, in the order of their choices, a family's jobs."""

    name: str
    jobs: list[str]

    @property
    def is_family(self) -> bool:
        return self.jobs != [self.name]

    @property
    def missing(self) -> int:
        """How many choices a submission that was cut off has not admitted."""
        return choices_of(self.jobs[-1]) - len(self.jobs) if self.is_family else 0


def job_name(family: str, choice: int) -> str:
    """The name of a family's job."""
    return f"{family}.{choice}"


def family_of(job: str) -> str:
    """The name of a job's family, or of the job itself where it has none."""
    named = choice_in(job)
    return job if named is None else named[0]


def choice_of(job: str) -> int | None:
    """Which choice of its family a job is; None where it has none."""
    named = choice_in(job)
    return None if named is None else named[1]


def choices_of(job: str) -> int:
    """How many choices the submission asked for whose last choice is `job`."""
    choice = choice_of(job)
    return 1 if choice is None else choice + 1


def find(log: Named, prefix: str) -> NamedJobs:
    """The one job or family that begins with `prefix`; BEGINNING.J is choice J of the family that BEGINNING finds.

    "@last" is the newest.

    Errors: UnknownJob, AmbiguousJob (both list names).
    """
    try:
        return NamedJobs(log.row(prefix).job, [prefix])
    except UnknownJob:
        if prefix == LAST and (newest := log.names(last=1)):
            return find(log, family_of(newest[0]))
    beginning, choice = family_of(prefix), choice_of(prefix)
    families = _families(log.names(beginning)) if prefix else {}
    if prefix in families:
        return NamedJobs(prefix, families[prefix])
    found = [name for name in families if name.startswith(beginning)]
    if choice is not None:
        found = [job for name in found if (job := job_name(name, choice)) in families[name]]
    if len(found) == 1:
        return NamedJobs(found[0], families.get(found[0], found))
    if found:
        raise AmbiguousJob(prefix, len(found), found[-CANDIDATES_SHOWN:])
    others = _families(log.names(last=CANDIDATES_READ))
    raise UnknownJob(prefix, sorted(others, key=lambda name: _shared(name, prefix))[-CANDIDATES_SHOWN:])


def find_job(log: Named, prefix: str) -> str:
    """The whole name of the one job that `prefix` finds. Errors: those of `find`, and FamilyMeant."""
    found = find(log, prefix)
    if found.is_family:
        raise FamilyMeant(*found)
    return found.name


def _families(names: Iterable[str]) -> dict[str, list[str]]:
    """The jobs of each family in the order of their choices, and each job that has none by itself; oldest first."""
    families: dict[str, list[str]] = defaultdict(list)
    for name in names:
        families[family_of(name)].append(name)
    return {name: sorted(jobs, key=choices_of) for name, jobs in families.items()}


def _shared(name: str, prefix: str) -> int:
    """Characters that both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(name, prefix, strict=False)))


def check_key(idempotency_key: str | None) -> None:
    """Refuse a key that is empty, longer than its limit, or not text."""
    if idempotency_key is None:
        return
    if not idempotency_key or "\0" in idempotency_key:
        raise SchemaViolation("idempotency_key", "it must be a text of at least one character, none of them NUL")
    try:
        size = len(idempotency_key.encode())
    except UnicodeEncodeError as error:
        raise SchemaViolation("idempotency_key", "it holds characters that are no Unicode text") from error
    if size > IDEMPOTENCY_KEY_BYTES_MAX:
        raise LimitExceeded("idempotency_key_bytes", size, IDEMPOTENCY_KEY_BYTES_MAX)
