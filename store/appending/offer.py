"""An append on its way in: its bytes, its digests, and its outcome where the log does not simply take it."""

from __future__ import annotations

from typing import NamedTuple

from ...fsm.errors import MisformedAppend
from ...fsm.machine.events import Event, count
from ...fsm.ports import Append, AppendResult, Head, Outcome
from ..log import chain
from ..log.codec import decode, encode
from ..log.stored import Stored

KEY_BYTES = 32

JOBS_REMEMBERED = 4096
"""Of how many jobs an appender remembers where their logs end, beside those of its newest batch."""


class Offer(NamedTuple):
    """An append as it would be stored, and the head after it."""

    append: Append
    row: Stored
    head: Head

    def done(self, outcome: Outcome) -> AppendResult:
        return AppendResult(outcome, self.head)


def offer(append: Append) -> Offer:
    """Encode an append; one that no log could hold is a MisformedAppend."""
    entries, key, (before, digest_before) = append.entries, append.key, append.expected
    if not entries:
        raise MisformedAppend(append.job, "it has no events")
    if len(key) != KEY_BYTES or len(digest_before) != KEY_BYTES:
        raise MisformedAppend(append.job, f"its key and chain have {len(key)} and {len(digest_before)} bytes, not 32")
    if append.status.terminal is not (append.finish is not None):
        raise MisformedAppend(append.job, f"its status is {append.status} and its finish is {append.finish}")
    try:
        payload = encode(entries, key)
    except (TypeError, ValueError, OverflowError, KeyError) as problem:
        raise MisformedAppend(append.job, f"an event cannot be written ({problem!r})") from problem
    first, last = before + 1, before + count(entries)
    digest = chain.digest(digest_before, first, key, payload)
    row = Stored(first, last, append.fence, key, chain.kept(digest, before, last), payload)
    return Offer(append, row, Head(last, digest))


class Tenancy(NamedTuple):
    """What a job's row says about who may append: its head, its fence, and how it ended, or None while it is live."""

    head: Head
    fence: int
    finish: str | None


def refusal(offered: Offer, job: Tenancy, before: bytes | None, there: Stored | None) -> AppendResult | None:
    """The outcome of an append that was not taken; None where nothing prevents it.

    before   the digest that the log has at the expected sequence, None where no append ends there
    there    the append that follows it in the log, if any

    In order of precedence: what is there already stays a duplicate after the job has ended or changed hands.
    """
    append, row, head = offered.append, offered.row, job.head
    same_place = before == append.expected.chain
    if same_place and there is not None and (there.key, there.payload) == (row.key, row.payload):
        return offered.done(Outcome.DUPLICATE)
    if job.finish is not None:
        return AppendResult(Outcome.TERMINAL, head, f"the job ended at event {head.sequence} ({job.finish})")
    if append.fence != job.fence:
        return AppendResult(Outcome.FENCED, head, f"fence {append.fence} was given, and the job has fence {job.fence}")
    if not same_place:
        return AppendResult(
            Outcome.STALE, head, f"{misplaced(append.expected, head, before)}; its head is {told(head)}"
        )
    if there is not None:
        return AppendResult(Outcome.CONFLICT, head, difference(offered, there))
    return None


def misplaced(expected: Head, head: Head, before: bytes | None) -> str:
    """Why the log never had the expected head."""
    if expected.sequence > head.sequence:
        return f"the log does not reach event {expected.sequence}"
    if before is None:
        return f"no append ends at event {expected.sequence}"
    return f"at event {expected.sequence} the chain is {before.hex()[:16]}, not {expected.chain.hex()[:16]}"


def difference(offered: Offer, there: Stored) -> str:
    """The first thing in which the stored append differs from the offered one."""
    append, first = offered.append, there.first
    if there.key != append.key:
        return f"at event {first} the log has key {there.key.hex()[:16]}, not {append.key.hex()[:16]}"
    for offset, pair in enumerate(
        zip(decode(there.payload, there.key, append.job, first), append.events, strict=False)
    ):
        if pair[0] != pair[1]:
            return f"event {first + offset} differs: {named(*pair)}"
    return f"the log has events {first} to {there.last} there, and {first} to {offered.row.last} were given"


def named(held: Event, given: Event) -> str:
    """Two different events, by their tags or by the fields that differ."""
    if type(held) is not type(given):
        return f"the log has {held.tag}, not {given.tag}"
    fields = [name for name in type(held).__dataclass_fields__ if getattr(held, name) != getattr(given, name)]
    return f"{held.tag} has another {' and another '.join(fields)}"


def told(head: Head) -> str:
    return f"event {head.sequence} with chain {head.chain.hex()[:16]}"
