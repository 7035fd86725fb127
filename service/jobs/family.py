"""A family: the n choices of one submission, each a job with an envelope of its own.

There is no row for the family itself, so nothing of it can disagree with its jobs. Its last choice is its anchor: it is
admitted first, holds the idempotency key, and by its name says n and how the others are called. A submission that is
cut off between two admissions leaves some of its choices, each a valid job. Repeated under its key it admits the rest:
a name attaches to the job that has it, as a key does, where the request is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...fsm.errors import SchemaViolation
from ...fsm.ports import Store
from ...fsm.request.draft import Draft
from ...fsm.request.envelope import Envelope
from ...fsm.request.seal import seal
from .naming import NamedJobs, check_key, family_of, job_name
from .submit import Submitted, admit_job, check_grammar, fresh_seed, new_job_name, on_its_own_date, submit

if TYPE_CHECKING:
    from ...runtime.model.port import Described


class Submission(NamedTuple):
    """The durable job or family, and whether this call created it (else it was attached to)."""

    found: NamedJobs
    created: bool


def submit_choices(
    store: Store,
    model: Described,
    name: str,
    draft: Draft,
    now_ms: int,
    idempotency_key: str | None = None,
    retain_ms: int | None = None,
) -> Submission:
    """Seal and admit the n choices of `draft`: one job where n is 1, else a family. See `submit.submit`.

    Whatever is refused is refused before the first admission. Another n under one key is an IdempotencyConflict.
    """
    if draft.n == 1:
        alone = submit(store, model, name, draft, now_ms, idempotency_key, retain_ms)
        return Submission(NamedJobs(alone.job, [alone.job]), alone.created)
    check_key(idempotency_key)
    last = draft.n - 1

    def admit_at(sealed_ms: int) -> tuple[Submitted, list[Envelope]]:
        envelopes = seal_choices(draft, model, fresh_seed(idempotency_key), sealed_ms)
        check_grammar(envelopes[0], model)
        anchor_name = job_name(new_job_name(now_ms), last)
        return admit_job(store, name, anchor_name, envelopes[last], idempotency_key, retain_ms=retain_ms), envelopes

    anchor, envelopes = on_its_own_date(admit_at, now_ms)
    family = family_of(anchor.job)
    for choice in range(last):
        admit_job(store, name, job_name(family, choice), envelopes[choice], None, retain_ms=retain_ms)
    return Submission(NamedJobs(family, [job_name(family, choice) for choice in range(draft.n)]), anchor.created)


def seal_choices(draft: Draft, model: Described, seed: int, now_ms: int | None = None) -> list[Envelope]:
    """The envelope of each choice: the one that the draft with that `choice`, and this seed if it has none, gets alone.

    Errors: those of `seal`, and SchemaViolation where the policy draws nothing that could tell choices apart.
    """
    alone = [draft.model_copy(update={"n": 1, "choice": choice}) for choice in range(draft.n)]
    envelopes = [seal(each, model.facts, model.runtime, model.text, seed, now_ms) for each in alone]
    policy = envelopes[0].policy
    if policy.family == "greedy":
        raise _all_the_same(draft.n, "a greedy policy", "a temperature above 0")
    if any(each.leaves_one_token() for each in policy.transforms):
        raise _all_the_same(draft.n, "a policy that leaves one token", "it more tokens to choose from")
    return envelopes


def _all_the_same(n: int, policy: str, instead: str) -> SchemaViolation:
    return SchemaViolation("n", f"{policy} would make all {n} choices the same; give {instead}, or n 1")
