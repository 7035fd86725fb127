"""What the policy of an envelope must satisfy beyond its schema. Each check returns why it fails, or None.

A docstring says what must hold.
"""

from __future__ import annotations

from collections.abc import Iterator

from .envelope import Envelope
from .transforms import AllowedTokens, BannedTokens, Cut, ForcedToken, ForcedTokens, Temperature


def greedy_reshapes(envelope: Envelope) -> str | None:
    """A greedy policy has no transform that only sampling has a use for."""
    policy = envelope.policy
    idle = [entry.kind for entry in policy.transforms if isinstance(entry, Cut)]
    if policy.family == "greedy" and idle:
        return f"greedy draws nothing, so it has no use for {idle[0]}; leave it out"
    return None


def temperature_missing(envelope: Envelope) -> str | None:
    """A sampling policy states its temperature."""
    policy = envelope.policy
    stated = any(isinstance(entry, Temperature) for entry in policy.transforms)
    return "sampling must state its temperature" if policy.family == "sample" and not stated else None


def too_many_logprobs(envelope: Envelope) -> str | None:
    """No more alternatives are asked for than the vocabulary has tokens."""
    top, size = envelope.policy.logprobs_top, envelope.text_interface.vocabulary_size
    return None if top <= size else f"{top} alternatives do not exist in a vocabulary of {size}"


def ids(envelope: Envelope) -> Iterator[int]:
    """Every token id that the policy names."""
    for entry in envelope.policy.transforms:
        yield from entry.named_ids()


def no_token_left(envelope: Envelope) -> str | None:
    """What is allowed, without what is banned and what ends too early, leaves a token to every step."""
    allowed, banned = _allowed_and_banned(envelope)
    size = envelope.text_interface.vocabulary_size
    left = allowed - banned if allowed is not None else None
    if not (left if left is not None else len(banned) < size):
        return "nothing that it allows is left without what it bans"
    early = envelope.termination.ending_ids if envelope.termination.min_new_tokens else frozenset[int]()
    if not (left - early if left is not None else len(banned | early) < size):
        return "all that it leaves would end the output before min_new_tokens"
    return None


def forced_token_conflict(envelope: Envelope) -> str | None:
    """Each forced token is in reach, and no list of the same policy removes it."""
    allowed, banned = _allowed_and_banned(envelope)
    end = envelope.termination
    for forced in _forced(envelope):
        token = f"token {forced.token_id} at step {forced.step}"
        if forced.step >= end.max_new_tokens:
            return f"{token} is beyond max_new_tokens"
        if forced.token_id in banned or (allowed is not None and forced.token_id not in allowed):
            return f"{token} is banned or not allowed"
        if forced.step < end.min_new_tokens and forced.token_id in end.ending_ids:
            return f"{token} would end the output before min_new_tokens"
    return None


def _allowed_and_banned(envelope: Envelope) -> tuple[frozenset[int] | None, frozenset[int]]:
    allowed, banned = None, frozenset[int]()
    for entry in envelope.policy.transforms:
        if isinstance(entry, AllowedTokens):
            allowed = frozenset(entry.token_ids)
        elif isinstance(entry, BannedTokens):
            banned = frozenset(entry.token_ids)
    return allowed, banned


def _forced(envelope: Envelope) -> Iterator[ForcedToken]:
    for entry in envelope.policy.transforms:
        if isinstance(entry, ForcedTokens):
            yield from entry.tokens
