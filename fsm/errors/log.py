"""What is appended to a log, and what is read from it."""

from __future__ import annotations

from dataclasses import dataclass

from .problem import Defect, Rejected


@dataclass(eq=False)
class MisformedAppend(Defect):
    code = "misformed_append"
    says = "an append to job {job} is refused before it reaches the log: {reason}; correct the caller"
    job: str
    reason: str


@dataclass(eq=False)
class CorruptRecord(Defect):
    """What is stored is not what was appended; `sequence` is the first event that cannot be trusted."""

    code = "corrupt_record"
    says = "the log of job {job} is damaged at event {sequence}: {reason}; restore a backup, and audit it"
    job: str
    sequence: int
    reason: str


@dataclass(eq=False)
class UnknownWireTag(Rejected):
    """A sound record of an event that this release does not know."""

    code = "unknown_wire_tag"
    says = "event {sequence} of job {job} has wire tag {tag}, unknown to this program; install a newer decodelog"
    job: str
    sequence: int
    tag: int


@dataclass(eq=False)
class UnknownSeal(Rejected):
    """A sound sealed log of a form that this release does not know."""

    code = "unknown_seal"
    says = "the log of job {job} is sealed in form {version}, unknown to this program; install a newer decodelog"
    job: str
    version: int
