"""What a caller sees of a prompt: its text (an echo), and its tokens' log-probabilities."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256
from typing import Final, NamedTuple

from ..errors import BrokenInvariant
from ..output.detokenize import decode
from .receipt import Alternative, pack_alternatives

DOMAIN: Final = b"decodelog.prompt.v1"
_TOKEN = struct.Struct("<I?B?d")


class PromptToken(NamedTuple):
    """One token of a prompt.

    piece, hidden   its exact bytes, and whether it is special
    logprob_raw     its log-probability after the tokens before it, nats, <= 0; None for the first, which follows
                    nothing, and where none was asked for. No transform of a policy applies to a prompt
    alternatives    the best tokens in its place, best first, where they were asked for; raw and processed are equal
    """

    piece: bytes
    hidden: bool
    logprob_raw: float | None = None
    alternatives: tuple[Alternative, ...] = ()


class PromptWish(NamedTuple):
    """What a request asks to see of its prompt.

    echo    its text comes before the output's
    top     alternatives to record for each token; None: no log-probabilities either
    """

    echo: bool
    top: int | None


def digest(tokens: Sequence[PromptToken]) -> bytes:
    """SHA-256 over every field of every token; the job's first receipt is chained to it.

    BrokenInvariant where a number does not fit.
    """
    parts = [DOMAIN]
    try:
        for piece, hidden, logprob, alternatives in tokens:
            parts.append(
                _TOKEN.pack(
                    len(piece), hidden, len(alternatives), logprob is not None, 0.0 if logprob is None else logprob
                )
            )
            parts += (piece, pack_alternatives(alternatives))
    except struct.error as problem:
        raise BrokenInvariant(clause="POL-6", reason=f"a prompt cannot be recorded so ({problem})") from problem
    return sha256(b"".join(parts)).digest()


def check(tokens: Sequence[PromptToken], prompt: int, wish: PromptWish) -> None:
    """Raise BrokenInvariant unless there is one token for each of the prompt, with just what was asked for."""
    if len(tokens) != prompt:
        raise BrokenInvariant(clause="POL-6", reason=f"{len(tokens)} tokens are recorded of a prompt of {prompt}")
    for index, token in enumerate(tokens):
        scored = wish.top is not None and index > 0
        if (token.logprob_raw is not None) is not scored or len(token.alternatives) != (wish.top or 0) * scored:
            asked = f"log-probabilities of {1 + (wish.top or 0)} tokens" if scored else "no log-probability"
            raise BrokenInvariant(clause="POL-6", reason=f"prompt token {index} is to have {asked}, and has others")
        if any(each.piece is None or each.logprob != each.logprob_raw for each in token.alternatives):
            raise BrokenInvariant(clause="POL-6", reason=f"an alternative to prompt token {index} is not a prompt's")


def text_of(tokens: Sequence[PromptToken], skip_special: bool) -> tuple[str, int]:
    """The prompt's text, decoded by itself, and its size in bytes."""
    shown = b"".join([token.piece for token in tokens if not (token.hidden and skip_special)])
    return decode(b"", shown, final=True)[0], len(shown)
