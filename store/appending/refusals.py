"""Appends that were refused because the job had ended or changed hands, kept beside the log with their reason."""

from __future__ import annotations

from typing import NamedTuple

from ...fsm.ports import AppendResult, Outcome
from .offer import Offer

RECORDED = frozenset({Outcome.FENCED, Outcome.TERMINAL})


class Refusal(NamedTuple):
    """One refused append: who offered what, and why it was not taken. `refused_ms` is in ms since 1970."""

    job: str
    first: int
    fence: int
    key: bytes
    outcome: Outcome
    reason: str
    refused_ms: int

    @classmethod
    def of(cls, offered: Offer, result: AppendResult, refused_ms: int) -> Refusal:
        row = offered.row
        return cls(offered.append.job, row.first, row.fence, row.key, result.outcome, result.detail, refused_ms)
