"""The machine of one job: triggers, receipts, invariants."""

from __future__ import annotations

from dataclasses import dataclass

from .problem import Defect, Rejected


@dataclass(eq=False)
class IllegalTransition(Rejected):
    code = "illegal_transition"
    says = "a job in state {state} does not take {trigger}; nothing was changed: read its state again"
    state: str
    trigger: str


@dataclass(eq=False)
class Terminal(Rejected):
    code = "terminal"
    says = "the job is {state} ({reason}) and takes nothing more; submit a new job"
    state: str
    reason: str


@dataclass(eq=False)
class ReceiptConflict(Rejected):
    code = "receipt_conflict"
    says = "step {step} already has receipt {held}, so {offered} is refused; fold the log again and use its receipt"
    step: int
    held: str
    offered: str


@dataclass(eq=False)
class BrokenInvariant(Defect):
    code = "broken_invariant"
    says = "{clause}: {reason}; stop this job and audit its log"
    clause: str
    reason: str


@dataclass(eq=False)
class BrokenTable(Defect):
    code = "broken_table"
    says = "the transition table is wrong: {reason}; correct fsm/machine/table.py"
    reason: str
