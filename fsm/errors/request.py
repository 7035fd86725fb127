"""The request: its raw bytes, its schema, and where it may run."""

from __future__ import annotations

from dataclasses import dataclass

from .problem import Defect, Rejected


@dataclass(eq=False)
class LimitExceeded(Rejected):
    code = "limit_exceeded"
    says = "{limit} is {value}, and the maximum is {maximum}; make it smaller"
    limit: str
    value: int | float
    maximum: int | float


@dataclass(eq=False)
class MalformedJson(Rejected):
    code = "malformed_json"
    says = "the request is not strict JSON at byte {offset}: {reason}; correct the text"
    offset: int
    reason: str


@dataclass(eq=False)
class SchemaViolation(Rejected):
    code = "schema_violation"
    says = "{path}: {reason}; correct that field"
    path: str
    reason: str


@dataclass(eq=False)
class UnknownVersion(Rejected):
    code = "unknown_version"
    says = "{found!r} is not a version that this program knows; use one of {known}"
    found: str
    known: list[str]


@dataclass(eq=False)
class NotAdmissible(Rejected):
    """The envelope is well formed and cannot be run as it stands (ENV-6, ENV-9)."""

    code = "not_admissible"
    says = "{check}: {reason}; change the request, or run it where that holds"
    check: str
    reason: str


@dataclass(eq=False)
class GrammarRefused(Rejected):
    """The output's grammar does not compile, or no text matches it; `language` names the kind of grammar."""

    code = "grammar_refused"
    says = "the {language} cannot be followed: {reason}; correct it"
    language: str
    reason: str


@dataclass(eq=False)
class BrokenLimits(Defect):
    code = "broken_limits"
    says = "the limits contradict each other: {reason}; correct fsm/limits.py"
    reason: str
