"""What a JSON schema does not say and a grammar does not bound: repeated keys, numerals and nesting without end.

A token violates a bound exactly where the JSON scanner refuses its bytes. Scanning the whole vocabulary at each step
would be dear; which tokens can violate anything at all depends on the place and on facts of their bytes that are taken
once a tokenizer. Only these are scanned, so the mask is that of scanning all (a test compares the two).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...fsm.limits import JSON_DEPTH_MAX, JSON_KEY_BYTES_MAX, JSON_KEYS_MAX, NUMERAL_BYTES_MAX
from ...fsm.output.json_bytes import CHARACTER, DONE, NUMERAL, TEXT
from ...fsm.output.json_value import START, Scan, scan
from ...fsm.output.standing import Standing
from ..policy.kinds import Mask

_NUMERAL_BYTES = b"0123456789+-.eE"
_CHARACTER_BYTES_MAX = 4


class TokenFacts:
    """What the guards ask of each token; [V] arrays in the order of ids.

    sizes    bytes;  leading  bytes of the numeral that it begins with, if any
    quoted   it has a quotation mark, so it may end a string
    keyed    it can hold a whole key, or a numeral beyond the bound
    closing  the same from within a string, whose own end it must hold besides
    rise     the most brackets that one token opens;  longest  the most bytes that one has
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        quotes = np.array([piece.count(b'"') for piece in pieces])
        self.sizes = np.array([len(piece) for piece in pieces])
        self.leading = np.array([len(piece) - len(piece.lstrip(_NUMERAL_BYTES)) for piece in pieces])
        self.quoted: Mask = quotes > 0
        long = self.sizes > NUMERAL_BYTES_MAX
        self.keyed: Mask = (quotes >= 2) | long
        self.closing: Mask = (quotes >= 3) | (self.quoted & long)
        self.longest = int(self.sizes.max(initial=0))
        self.rise = max((piece.count(b"[") + piece.count(b"{") for piece in pieces), default=0)


class JsonGuard:
    """The scan of one output, and which tokens it forbids next."""

    def __init__(self, facts: TokenFacts, at: Scan = START) -> None:
        self._facts = facts
        self._scan = at

    def take(self, piece: bytes) -> bool:
        """Move over committed bytes; whether they keep the bounds."""
        found = scan(self._scan, piece)
        self._scan = found.scan
        return found.standing is not Standing.INVALID

    def restrict(self, allowed: Mask) -> None:
        """Remove from `allowed` [V] the tokens that would break a bound, in place."""
        risky = self._risky(allowed)
        if risky is None:
            return
        pieces, at = self._facts.pieces, self._scan
        for token in np.flatnonzero(risky & allowed).tolist():
            if scan(at, pieces[token]).standing is Standing.INVALID:
                allowed[token] = False

    def fork(self) -> JsonGuard:
        """An equal guard that moves by itself."""
        return JsonGuard(self._facts, self._scan)

    def _risky(self, allowed: Mask) -> Mask | None:
        """The tokens that can break a bound from here; None: none can."""
        facts, (mode, run, _, key, opened) = self._facts, self._scan
        if mode >= DONE:
            return None
        full = len(opened) + facts.rise > JSON_DEPTH_MAX or any(
            keys is not None and len(keys) >= JSON_KEYS_MAX for keys in opened
        )
        if TEXT <= mode <= CHARACTER:
            if key is None:
                return facts.quoted if full else facts.closing
            room = JSON_KEY_BYTES_MAX - len(key) - _CHARACTER_BYTES_MAX
            return facts.quoted if room >= facts.longest else facts.quoted | (facts.sizes > room)
        if full:
            return allowed
        if mode in NUMERAL and run + facts.longest >= NUMERAL_BYTES_MAX:
            return facts.keyed | ((facts.leading > 0) & (facts.leading >= NUMERAL_BYTES_MAX - run))
        return facts.keyed
