"""The root of every error, and its three kinds."""

from __future__ import annotations

from typing import Any, ClassVar

from .redaction import redacted, redacted_facts


def _revive(kind: type[Problem], facts: dict[str, Any]) -> Problem:
    problem = kind.__new__(kind)
    vars(problem).update(facts)
    return problem


class Problem(Exception):
    """The root: `code` is stable across releases, `says` is the message's template over the attributes."""

    code: ClassVar[str] = "problem"
    says: ClassVar[str] = "something went wrong"

    def __str__(self) -> str:
        return redacted(self.words())

    def words(self) -> str:
        """The message, with passwords that its attributes may hold; `str` leaves those out."""
        return self.says.format(**vars(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), dict(vars(self)))

    def facts(self) -> dict[str, Any]:
        """The code, the message and the typed attributes, ready for JSON and without passwords."""
        return {"code": self.code, "message": str(self), **redacted_facts(vars(self))}


class Rejected(Problem):
    """The caller must change the request; trying again unchanged cannot help."""


class Transient(Problem):
    """The same call may succeed later; the shell retries it a bounded number of times."""


class Defect(Problem):
    """An invariant is broken: stop, keep the evidence, and look."""
