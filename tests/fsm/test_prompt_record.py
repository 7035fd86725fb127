"""What is recorded of a prompt: exactly what was asked for, every field in the digest that the receipts follow on."""

from __future__ import annotations

from typing import Any

import pytest

from decodelog.fsm.errors import BrokenInvariant
from decodelog.fsm.evidence.prompt_record import PromptToken, PromptWish, check, digest, text_of
from decodelog.fsm.evidence.receipt import Alternative

BEST = (Alternative(7, -0.25, -0.25, b"g"), Alternative(8, -1.5, -1.5, b"h"))
SCORED = (PromptToken(b"a", True), PromptToken(b"b", False, -0.5, BEST), PromptToken(b"c", False, -0.75, BEST))
BARE = tuple(PromptToken(token.piece, token.hidden) for token in SCORED)
ECHO, SCORES_ONLY, TWO = PromptWish(True, None), PromptWish(False, 0), PromptWish(False, 2)


def changed(place: int, tokens: tuple[PromptToken, ...] = SCORED, **facts: Any) -> tuple[PromptToken, ...]:
    """The tokens with other facts of one of them."""
    return tuple(token._replace(**facts) if at == place else token for at, token in enumerate(tokens))


def bare_alternatives(count: int) -> tuple[PromptToken, ...]:
    return tuple(token._replace(alternatives=BEST[:count]) if place else token for place, token in enumerate(SCORED))


@pytest.mark.contract("POL-6")
def test_what_was_asked_for_is_taken() -> None:
    check(BARE, 3, ECHO)
    check(bare_alternatives(0), 3, SCORES_ONLY)
    check(bare_alternatives(1), 3, PromptWish(True, 1))
    check(SCORED, 3, TWO)
    check((), 0, ECHO)


@pytest.mark.contract("POL-6")
@pytest.mark.parametrize(
    ("tokens", "wish", "reason"),
    [
        (SCORED[:2], TWO, "2 tokens are recorded of a prompt of 3"),
        ((*SCORED, SCORED[2]), TWO, "4 tokens are recorded of a prompt of 3"),
        (changed(2, logprob_raw=None), TWO, "prompt token 2 is to have log-probabilities of 3 tokens"),
        (changed(1, alternatives=BEST[:1]), TWO, "prompt token 1 is to have log-probabilities of 3 tokens"),
        (changed(2, alternatives=()), TWO, "prompt token 2 is to have log-probabilities of 3 tokens"),
        (changed(2, alternatives=(*BEST, BEST[0])), TWO, "prompt token 2 is to have log-probabilities of 3 tokens"),
        (changed(0, logprob_raw=-1.0), TWO, "prompt token 0 is to have no log-probability"),
        (changed(0, alternatives=BEST), TWO, "prompt token 0 is to have no log-probability"),
        (SCORED, SCORES_ONLY, "prompt token 1 is to have log-probabilities of 1 tokens"),
        (BARE, SCORES_ONLY, "prompt token 1 is to have log-probabilities of 1 tokens"),
        (SCORED, ECHO, "prompt token 1 is to have no log-probability"),
        (changed(1, BARE, alternatives=BEST), ECHO, "prompt token 1 is to have no log-probability"),
        (changed(1, alternatives=(BEST[0], BEST[1]._replace(piece=None))), TWO, "alternative to prompt token 1"),
        (changed(2, alternatives=(BEST[0]._replace(piece=None), BEST[1])), TWO, "alternative to prompt token 2"),
        (changed(2, alternatives=(BEST[0]._replace(logprob=-0.3), BEST[1])), TWO, "alternative to prompt token 2"),
        (changed(2, alternatives=(BEST[0], BEST[1]._replace(logprob_raw=-1.6))), TWO, "alternative to prompt token 2"),
    ],
)
def test_what_was_not_asked_for_and_what_lacks_are_refused(
    tokens: tuple[PromptToken, ...], wish: PromptWish, reason: str
) -> None:
    with pytest.raises(BrokenInvariant, match=reason) as caught:
        check(tokens, 3, wish)
    assert caught.value.clause == "POL-6"


@pytest.mark.contract("POL-6", "FSM-5")
def test_every_field_of_every_token_is_in_the_digest() -> None:
    others = [
        changed(0, piece=b"x"),
        changed(2, piece=b"cd"),
        changed(0, hidden=False),
        changed(1, logprob_raw=-0.25),
        changed(1, logprob_raw=None),
        changed(1, logprob_raw=0.0),
        changed(2, alternatives=BEST[:1]),
        changed(2, alternatives=BEST[::-1]),
        *[
            changed(2, alternatives=(BEST[0], BEST[1]._replace(**facts)))
            for facts in ({"token": 9}, {"logprob_raw": -2.0}, {"logprob": -2.0}, {"piece": b"i"}, {"piece": b""})
        ],
        SCORED[:2],
        SCORED[::-1],
        (PromptToken(b"ab", True), *SCORED[1:]),
        (),
    ]
    assert len({digest(tokens) for tokens in [SCORED, *others]}) == 1 + len(others)
    assert digest(SCORED) == digest(tuple(SCORED))


def test_a_number_that_does_not_fit_is_a_fault_of_the_record() -> None:
    with pytest.raises(BrokenInvariant, match="cannot be recorded") as caught:
        digest(changed(1, alternatives=BEST * 200))
    assert caught.value.clause == "POL-6"


def test_a_prompts_text_leaves_out_hidden_special_tokens() -> None:
    """The text of a prompt leaves out special tokens where they are not shown."""
    tokens = (PromptToken(b"<s>", True), PromptToken(b"\xc3", False), PromptToken(b"\xa9", False))
    assert text_of(tokens, skip_special=True) == ("é", 2)
    assert text_of(tokens, skip_special=False) == ("<s>é", 5)
    assert text_of(tokens[:2], skip_special=True) == ("\N{REPLACEMENT CHARACTER}", 1)
