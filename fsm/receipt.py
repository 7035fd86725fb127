"""The decision receipt: what was chosen from one score row, bound to everything that made it so."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from .errors import BrokenInvariant

DOMAIN = b"decodelog.receipt.v1"
_HEAD = struct.Struct("<QI")
_CHOICE = struct.Struct("<IIddd")
_DRAW = struct.Struct("<ddd")
_ALTERNATIVE = struct.Struct("<Idd")


class Alternative(NamedTuple):
    """One of the best tokens of the row. Log-probabilities in nats; raw is before any transform."""

    token: int
    logprob_raw: float
    logprob: float


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
        """Fixed-width little-endian bytes of every field: what a receipt id is a digest of."""
        packed = _CHOICE.pack(self.token, self.support, self.logprob_raw, self.logprob, self.margin)
        if self.unit_draw is not None and self.start is not None and self.end is not None:
            packed += b"\x01" + _DRAW.pack(self.unit_draw, self.start, self.end)
        if self.alternatives:
            packed += b"\x02" + b"".join(_ALTERNATIVE.pack(*alternative) for alternative in self.alternatives)
        return packed


@dataclass(frozen=True, slots=True)
class Receipt:
    """One issued decision, consumed by exactly one commit.

    step        index of the output token that it decides, from 0; with `branch` and the envelope's choice it is
                also the counter of the noise, so no draw depends on when or where it was made
    piece       exact raw bytes of the token
    hidden      the token is special and not shown
    receipt_id  SHA-256 over all of it, the job, the digest of the PREFILLED state it was issued in (which covers every
                earlier receipt), the score digest, and the request identity; the identity stands for score kind,
                vocabulary axis and map, ordered transforms, tie rule, RNG algorithm and key
    """

    step: int
    branch: int
    selection: Selection
    piece: bytes
    hidden: bool
    receipt_id: bytes


def issue(
    binding: bytes,
    step: int,
    branch: int,
    prior: bytes,
    scores: bytes,
    selection: Selection,
    piece: bytes,
    hidden: bool,
) -> Receipt:
    """Make the receipt of one decision.

    binding is the job's digest of (domain, request identity, job); prior the digest of the PREFILLED state; scores the
    SHA-256 of the score row's float32 bytes. None of them is a field: whoever holds the state can issue the receipt
    again, and only then has the same id. A selection whose draw lies outside its own interval is a BrokenInvariant.
    """
    draw = selection.unit_draw
    if draw is not None and not (selection.start or 0.0) <= draw < (selection.end or 0.0):
        raise BrokenInvariant(clause="FSM-5", reason=f"draw {draw} is outside [{selection.start}, {selection.end})")
    digest = sha256(binding)
    digest.update(_HEAD.pack(step, branch) + prior + scores + selection.packed() + (b"\x01" if hidden else b"\x00"))
    digest.update(piece)
    return Receipt(step, branch, selection, piece, hidden, digest.digest())
