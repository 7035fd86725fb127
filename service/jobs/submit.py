"""Submission: a draft is sealed for a model, loaded or registered, and made durable before it is acknowledged."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ...fsm.errors import ContentErased, IdempotencyConflict
from ...fsm.limits import SEED_MAX
from ...fsm.machine.events import Parent, RequestAdmitted
from ...fsm.ports import Store
from ...fsm.request.draft import Draft
from ...fsm.request.envelope import Envelope, admit, first_difference
from ...fsm.request.names import check_model_name
from ...fsm.request.seal import seal
from ...fsm.request.transforms import Grammar
from .naming import check_key, choices_of, family_of

if TYPE_CHECKING:
    from ...runtime.model.port import Described

T = TypeVar("T")

DIGITS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Of names: 5 bits each, and none that is read as another."""
CHANCE_DIGITS: Final = 8
TIME_DIGITS: Final = 9


class Submitted(NamedTuple):
    """The durable job, its sealed request, and whether this call created it (else it was attached to)."""

    job: str
    envelope: Envelope
    created: bool


def new_job_name(now_ms: int) -> str:
    """A name that its first two or three characters tell apart from others: 8 of chance, then 9 of milliseconds."""
    return _digits(secrets.randbits(5 * CHANCE_DIGITS), CHANCE_DIGITS) + _digits(now_ms, TIME_DIGITS)


def named_ms(job: str) -> int | None:
    """The time in a name that `new_job_name` has made, now or as it was at first; None of another one."""
    family = family_of(job)
    if len(family) == 22 and set(family) <= set("0123456789abcdef"):  # the first form had chance behind the time
        return int(family[:12], 16)
    if len(family) != CHANCE_DIGITS + TIME_DIGITS or not set(family) <= set(DIGITS):
        return None
    return reduce(lambda value, digit: value * 32 + DIGITS.index(digit), family[CHANCE_DIGITS:], 0)


def _digits(value: int, count: int) -> str:
    return "".join(DIGITS[value >> shift & 31] for shift in range(5 * (count - 1), -1, -5))


def submit(
    store: Store,
    model: Described,
    name: str,
    draft: Draft,
    now_ms: int,
    idempotency_key: str | None = None,
    retain_ms: int | None = None,
) -> Submitted:
    """Seal `draft` for `model` (found by `name`) and admit it, one choice; `family` submits several.

    With an idempotency key the same request attaches to the job that has it, running or finished; another request is
    an IdempotencyConflict that names the first field that differs.
    """
    check_key(idempotency_key)

    def admit_at(sealed_ms: int) -> Submitted:
        envelope = seal(draft, model.facts, model.runtime, model.text, fresh_seed(idempotency_key), sealed_ms)
        check_grammar(envelope, model)
        return admit_job(store, name, new_job_name(now_ms), envelope, idempotency_key, retain_ms=retain_ms)

    return on_its_own_date(admit_at, now_ms)


def on_its_own_date(admit_at: Callable[[int], T], now_ms: int) -> T:
    """Admit a request that is sealed at `now_ms`; where its key's job is another, once more at the time of that one.

    A chat template may write the date into the prompt, and the same request of another day is to attach all the same.
    """
    try:
        return admit_at(now_ms)
    except IdempotencyConflict as conflict:
        sealed_ms = named_ms(conflict.job)
        if sealed_ms is None or not conflict.field.startswith("prompt."):
            raise
        return admit_at(sealed_ms)


def admit_job(
    store: Store,
    name: str,
    job: str,
    envelope: Envelope,
    idempotency_key: str | None,
    parent: Parent | None = None,
    retain_ms: int | None = None,
) -> Submitted:
    """Make `envelope` durable under the name `job`, or attach to what holds the key, or else the name.

    retain_ms   how long its content may stay from its end on

    A key's job says by its name how many choices were asked for; another number is an IdempotencyConflict at `n`.
    """
    check_model_name(name)
    admitted = RequestAdmitted(job, envelope.canonical_bytes(), parent)
    try:
        admission = store.admit(
            job, envelope.identity, name, len(envelope.prompt.token_ids), admitted, idempotency_key, retain_ms,
            envelope.artifact_digest,
        )  # fmt: skip
    except IdempotencyConflict as conflict:
        with suppress(ContentErased):  # then nobody knows any more in what they differ
            conflict.field = first_difference(_envelope_of(store, conflict.job), envelope) or conflict.field
        field = conflict.field
        conflict.field = "n" if field == "rng.choice" and choices_of(conflict.job) != choices_of(job) else field
        raise
    if idempotency_key is not None and choices_of(admission.job) != choices_of(job):
        raise IdempotencyConflict(idempotency_key, admission.job, envelope.identity, envelope.identity, "n")
    return Submitted(admission.job, envelope, admission.created)


def check_grammar(envelope: Envelope, model: Described) -> None:
    """Compile the request's grammar, if it has one, over the model's tokenizer. Errors: GrammarRefused."""
    for transform in envelope.policy.transforms:
        if isinstance(transform, Grammar):
            from ...runtime.grammar.parser import grammars_of

            grammars_of(model).parser(transform, envelope.termination.ending_ids)


def fresh_seed(idempotency_key: str | None) -> int:
    """A seed for a draft that gives none. One key has one seed, so that repeating a submission is the same request."""
    if idempotency_key is None:
        return secrets.randbelow(SEED_MAX + 1)
    return int.from_bytes(sha256(idempotency_key.encode()).digest()[:8]) % (SEED_MAX + 1)


def _envelope_of(store: Store, job: str) -> Envelope:
    for record in store.read(job):
        for event in record.events:
            if isinstance(event, RequestAdmitted):
                return admit(event.envelope)
    raise LookupError(job)
