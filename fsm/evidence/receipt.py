"""The decision receipt: what was chosen from one score row, bound to everything the choice depended on."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from ..errors import BrokenInvariant
from ..output.standing import Standing

DOMAIN = b"decodelog.receipt.v1"
_HEAD = struct.Struct("<QIB")
_CHOICE = struct.Struct("<IIddd?B")
_DRAW = struct.Struct("<ddd")
_ALTERNATIVE = struct.Struct("<Idd")
_PIECE_BYTES = struct.Struct("<I")
_WITH_PIECES = 0x80  # beside the count of alternatives, which is smaller


class Alternative(NamedTuple):
    """One of the best tokens of the row. Log-probabilities in nats; raw is before any transform.

    piece   the token's exact bytes; None in what was recorded without them
    """

    token: int
    logprob_raw: float
    logprob: float
    piece: bytes | None = None


class Selection(NamedTuple):
    """What the policy did to one score row.

    token          id in the vocabulary of the envelope's tokenizer
    support        count of tokens that kept a probability after the transforms, >= 1
    logprob_raw    log-probability of the token before any transform, nats, <= 0
    logprob        the same after the transforms
    margin         best raw score minus the second best, >= 0; +inf where there is only one
    unit_draw      the uniform draw in [0, 1), or None where nothing was drawn
    start, end     the token's half-open interval of the cumulative distribution, start <= unit_draw < end
    alternatives   the top tokens by raw score, best first, where the request asks for them
    Margin and alternatives are the raw row's, whatever a grammar or another transform has removed of it.
    """

    token: int
    support: int
    logprob_raw: float
    logprob: float
    margin: float
    unit_draw: float | None = None
    start: float | None = None
    end: float | None = None
    alternatives: tuple[Alternative, ...] = ()

    def packed(self) -> bytes:
        """Little-endian bytes of every field: what a receipt id is a digest of.

        The bytes say whether a draw follows and how many alternatives, so different selections never have equal
        bytes, and none is a prefix of another.
        """
        token, support, raw, logprob, margin, draw, start, end, alternatives = self
        count = len(alternatives)
        if count and alternatives[0].piece is not None:
            count |= _WITH_PIECES
        packed = _CHOICE.pack(token, support, raw, logprob, margin, draw is not None, count)
        if draw is not None:
            packed += _DRAW.pack(draw, start, end)
        return packed + pack_alternatives(alternatives) if alternatives else packed


def pack_alternatives(alternatives: Sequence[Alternative]) -> bytes:
    """Little-endian bytes of alternatives, of a known count; BrokenInvariant where some have pieces and others none."""
    packed = b"".join([_ALTERNATIVE.pack(*alternative[:3]) for alternative in alternatives])
    pieces = [alternative.piece for alternative in alternatives if alternative.piece is not None]
    if pieces and len(pieces) != len(alternatives):
        raise BrokenInvariant(clause="FSM-5", reason="some alternatives have their bytes, and others not")
    return packed + b"".join([_PIECE_BYTES.pack(len(piece)) + piece for piece in pieces])


@dataclass(frozen=True, slots=True)
class Receipt:
    """One issued decision, consumed by exactly one commit.

    step        index of the output token that it decides, from 0; with `branch` and the envelope's choice it is
                also the counter of the noise, so no draw depends on when or where it was made
    branch      which branch of the job it decides; 0 where there is one
    piece       exact raw bytes of the token
    hidden      the token is special and not shown
    structure   where the token leaves the grammar's parser, where the request has a grammar
    receipt_id  SHA-256 over all of it, and over the binding, prior state and scores that `issue` takes
    """

    step: int
    branch: int
    selection: Selection
    piece: bytes
    hidden: bool
    receipt_id: bytes
    structure: Standing | None = None

    @property
    def marks(self) -> int:
        """`hidden` and `structure` in one number, 0 or 1 where there is no grammar."""
        return marked(self.hidden, self.structure)


def marked(hidden: bool, structure: Standing | None) -> int:
    return hidden if structure is None else hidden | structure << 1


def unmarked(marks: int) -> tuple[bool, Standing | None]:
    """`hidden` and `structure` of a receipt's marks; ValueError where no receipt has them."""
    return bool(marks & 1), Standing(marks >> 1) if marks > 1 else None


def issue(
    binding: bytes,
    step: int,
    branch: int,
    prior: bytes,
    scores: bytes,
    selection: Selection,
    piece: bytes,
    hidden: bool,
    structure: Standing | None = None,
) -> Receipt:
    """Make the receipt of one decision; the arguments are those of `identify` and of `Receipt`."""
    receipt_id = identify(binding, step, branch, prior, scores, selection, piece, hidden, structure)
    return Receipt(step, branch, selection, piece, hidden, receipt_id, structure)


def identify(
    binding: bytes,
    step: int,
    branch: int,
    prior: bytes,
    scores: bytes,
    selection: Selection,
    piece: bytes,
    hidden: bool,
    structure: Standing | None = None,
) -> bytes:
    """The id of the receipt of one decision.

    binding  digest of domain, request identity and job; the identity stands for score kind, vocabulary axis and map,
             ordered transforms, tie rule, RNG algorithm and key
    prior    digest of the PREFILLED state that the receipt is issued in, which covers every receipt before
    scores   SHA-256 of the score row's float32 bytes
    These are 32 bytes each and are not stored as fields: only somebody who has the state can issue the receipt
    again and get the same id. The other arguments are those of `Receipt`. A selection that no receipt can hold is a
    BrokenInvariant: a draw outside its own interval, only half of a draw, a number out of range.
    """
    check_draw(selection)
    try:
        head = _HEAD.pack(step, branch, hidden if structure is None else marked(hidden, structure))
        bound = b"".join((DOMAIN, binding, prior, scores, head, selection.packed(), piece))
    except struct.error as problem:
        raise BrokenInvariant(clause="FSM-5", reason=f"{selection} does not fit a receipt ({problem})") from problem
    return sha256(bound).digest()


def check_draw(selection: Selection) -> None:
    """A draw lies in its own interval; where nothing was drawn there is no interval either."""
    draw, start, end = selection.unit_draw, selection.start, selection.end
    if draw is None and start is None and end is None:
        return
    if draw is None or start is None or end is None or not 0.0 <= start <= draw < end <= 1.0:
        raise BrokenInvariant(clause="FSM-5", reason=f"draw {draw} is not inside [{start}, {end})")
