"""Sealed and erased logs: what is refused, and what is no longer there."""

from __future__ import annotations

from dataclasses import dataclass

from .problem import Rejected


@dataclass(eq=False)
class JobNotEnded(Rejected):
    """An operation for ended jobs was asked for on a live one."""

    code = "job_not_ended"
    says = "job {job} is {state} and has not ended; cancel it first, or wait for its end"
    job: str
    state: str


@dataclass(eq=False)
class ContentErased(Rejected):
    """Prompt, output and request of a job are gone; its listing, its tenures and its chain are left."""

    code = "content_erased"
    says = (
        "the content of job {job} is erased and can no longer be read or run; "
        "its row is left, and its chain, which an audit still proves"
    )
    job: str


@dataclass(eq=False)
class CacheInUse(Rejected):
    """A cache that is kept on disk cannot be removed; nothing else was done."""

    code = "cache_in_use"
    says = "the cache that is kept in {path} cannot be removed ({reason}); stop what uses it, and do it again"
    path: str
    reason: str


@dataclass(eq=False)
class EvidenceSealed(Rejected):
    """A sealed log has no score digest, receipt, state digest, margin and draw of step `step` (from 0) any more."""

    code = "evidence_sealed"
    says = (
        "the log of job {job} is sealed and no longer has the score digest, receipt, state digest, margin and draw of "
        "step {step}; fork it or run its request again to get them, or compare with --level sequence"
    )
    job: str
    step: int


@dataclass(eq=False)
class SealRefused(Rejected):
    """The log was not sealed and is unchanged; `reason` is the first thing that prevented it."""

    code = "seal_refused"
    says = "the log of job {job} was not sealed and is unchanged: {reason}; audit it"
    job: str
    reason: str
