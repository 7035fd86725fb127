"""Sealed and erased logs: what is refused, and what is no longer there."""

from __future__ import annotations

from dataclasses import dataclass

from .problem import Rejected


@dataclass(eq=False)
class JobNotEnded(Rejected):
    """What is for ended jobs only was asked of one that is live."""

    code = "job_not_ended"
    says = "job {job} is {state} and has not ended; cancel it first, or wait for its end"
    job: str
    state: str


@dataclass(eq=False)
class ContentErased(Rejected):
    """Prompt, output and request of a job are gone; its listing, its tenures and its chain are left."""

    code = "content_erased"
    says = (
        "the content of job {job} is erased, and nothing of it can be read, run or given again; "
        "what is left is its row, and its chain, which an audit proves"
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
        "the log of job {job} is sealed, and of its step {step} the score digest, receipt, state digest, margin and "
        "draw are not kept; fork it, or run its request again, to have them again, or compare with --level sequence"
    )
    job: str
    step: int


@dataclass(eq=False)
class SealRefused(Rejected):
    """The log is not sealed, and as it was; `reason` is the first thing that speaks against it."""

    code = "seal_refused"
    says = "the log of job {job} is not sealed, and as it was: {reason}; see what an audit of it says"
    job: str
    reason: str
