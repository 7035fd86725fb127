"""What an admission appends: the first event of a job's log, under a key that follows from the submission."""

from __future__ import annotations

import json
from hashlib import sha256

from ...fsm.errors import ContentErased, IdempotencyConflict, JobNameTaken
from ...fsm.machine.events import Event, RequestAdmitted
from ...fsm.machine.states import Status
from ...fsm.ports import EMPTY_HEAD, Admission, Append
from ...fsm.request.names import check_job_name
from .offer import Offer, offer

DOMAIN = b"decodelog.admission.v1"


def admission(job: str, identity: str, event: Event) -> Offer:
    """The append that makes a job: the same job and identity always have the same key.

    Errors: SchemaViolation, LimitExceeded for a name that no job may have.
    """
    check_job_name(job)
    key = sha256(b"\0".join((DOMAIN, job.encode(), identity.encode()))).digest()
    return offer(Append(job, EMPTY_HEAD, 0, key, (event,), Status.ADMITTED, 0))


def output_max_of(event: Event) -> int | None:
    """The output tokens that a request may have at most; None of an event that says no such thing."""
    if not isinstance(event, RequestAdmitted):
        return None
    try:
        found = json.loads(event.envelope)["termination"]["max_new_tokens"]
    except (ValueError, LookupError, TypeError):
        return None
    return found if isinstance(found, int) else None


def attached(
    job: str, identity: str, key: str | None, held_job: str, held_identity: str, held_erased: bool
) -> Admission:
    """Attach a submission to the job that holds its idempotency key, or else its name; another request is refused.

    The same request is refused too where the job's content is erased: there is no result, and nothing runs twice.
    """
    if held_identity == identity:
        if held_erased:
            raise ContentErased(held_job)
        return Admission(held_job, created=False)
    if key is None or held_job == job:
        raise JobNameTaken(job, held_identity, identity)
    raise IdempotencyConflict(key, held_job, held_identity, identity)
