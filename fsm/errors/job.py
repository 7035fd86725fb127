"""Jobs by name: who works on one, whether there is one, and whose name it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from .problem import Defect, Rejected, Transient


@dataclass(eq=False)
class LostTenure(Rejected):
    """The log refused this worker's append: another tenure owns the job, or the job has ended."""

    code = "lost_tenure"
    says = "job {job} is no longer this worker's ({outcome}: {detail}); let it go, its log is whole"
    job: str
    outcome: str
    detail: str


@dataclass(eq=False)
class JobBusy(Transient):
    """A worker holds the job, and the operation needs exclusive use of it."""

    code = "job_busy"
    says = "job {job} is being worked on by {owner}; try again when it has ended, or stop that worker first"
    job: str
    owner: str


@dataclass(eq=False)
class PoisonJob(Rejected):
    """Workers that take the job die before its next token, again and again."""

    code = "poison_job"
    says = (
        "job {job} was given up: {tenures} workers in a row took it and ended without giving it back and without "
        "another token; find out what ended them (a crash, or too little memory), and submit it again"
    )
    job: str
    tenures: int


@dataclass(eq=False)
class JobFault(Defect):
    """Something raised in the work for one job: `cause` is the exception's name, `reason` what it says."""

    code = "job_fault"
    says = (
        "the work for job {job} hit a fault of this program or of a library ({cause}: {reason}); keep "
        "an export of its log, and report it"
    )
    job: str
    cause: str
    reason: str


@dataclass(eq=False)
class UnknownJob(Rejected):
    """`candidates` are the nearest names, where they were looked for."""

    code = "unknown_job"
    says = "there is no job {job}; name an existing one"
    job: str
    candidates: list[str] = field(default_factory=list)

    def words(self) -> str:
        nearest = f"the nearest are {', '.join(self.candidates)}" if self.candidates else ""
        return f"there is no job {self.job}; {nearest or 'name an existing one'}"


@dataclass(eq=False)
class NoSuchStep(Rejected):
    """`step` is the decision that was asked for, None for the newest; `count` how many the job has."""

    code = "no_such_step"
    says = "job {job} has no decision {step}; name one of its {count}"
    job: str
    step: int | None
    count: int

    def words(self) -> str:
        if not self.count:
            return f"job {self.job} has no decision yet; wait for its first token"
        return f"job {self.job} has no decision {self.step}; name one from 0 to {self.count - 1}"


@dataclass(eq=False)
class IdempotencyConflict(Rejected):
    """The key is taken by another request; `held` and `offered` are identities, `field` where they differ (ENV-8)."""

    code = "idempotency_conflict"
    says = (
        "idempotency key {key} belongs to job {job}, whose request differs at {field}; "
        "send that request again, or use another key"
    )
    key: str
    job: str
    held: str
    offered: str
    field: str = "identity"


@dataclass(eq=False)
class JobNameTaken(Rejected):
    """A job of that name exists and runs another request; `held` and `offered` are identities."""

    code = "job_name_taken"
    says = "job {job} exists with request {held}, not {offered}; choose another name"
    job: str
    held: str
    offered: str
