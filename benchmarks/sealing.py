"""(k) What a long prompt costs before its job exists: sealing it, and admitting the envelope as text."""

from __future__ import annotations

from collections.abc import Callable

from jobs import seconds
from measuring import Figures, medians, take_turns
from scripted import scripted_model

from decodelog.fsm.request.draft import Draft
from decodelog.fsm.request.envelope import Envelope, admit
from decodelog.fsm.request.seal import seal

TOKENS = 4096
REPEATS = 10


def sealing(rounds: int, note: Callable[[str], None]) -> Figures:
    """Milliseconds for a prompt of 4,096 token ids, each time with the envelope's identity at the end."""
    note(f"{rounds} rounds of {REPEATS} prompts of {TOKENS} tokens")
    model = scripted_model()
    draft = Draft(token_ids=tuple(index % 256 for index in range(TOKENS)), max_new_tokens=64)

    def sealed() -> Envelope:
        return seal(draft, model.facts, model.runtime, model.text, 0)

    raw = sealed().canonical_bytes()

    def least(work: Callable[[], object]) -> Callable[[], float]:
        return lambda: min(seconds(work) for _ in range(REPEATS)) * 1e3

    sides = {"seal_ms": least(lambda: sealed().identity), "admit_ms": least(lambda: admit(raw).identity)}
    return medians(take_turns(sides, rounds))
