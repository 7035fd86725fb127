"""The first JSON value of a byte stream, found a piece at a time.

RFC 8259 to the byte, with I-JSON's exclusions (RFC 7493: no repeated key in one object, no lone surrogate) and bounds
of its own. Between two pieces all that is known is a `Scan`: a plain value, as large as the nesting is deep and the
open objects have keys. Earlier bytes are never looked at again, and a byte costs the same anywhere.

What ends a value: an object, an array or a string its last byte; a number or a word (true, false, null) the byte after
it, a blank or one of `,]}`, or the end of the text.

No bound is a dead end: a numeral is refused at the byte that would leave it no room to become a number, a key at the
one that would leave no room for its character, and the comma after an object's last possible key.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from struct import Struct
from typing import Final, NamedTuple

from ..limits import BLANKS_MAX, JSON_DEPTH_MAX, JSON_KEY_BYTES_MAX, JSON_KEYS_MAX, NUMERAL_BYTES_MAX
from .standing import Standing

VALUE, ITEM, KEY, FIRST_KEY, COLON, NEXT = range(6)  # between tokens, where blanks may be
TEXT, ESCAPE, HEX, LOW_ESCAPE, LOW_U, CHARACTER = range(6, 12)  # in a string
WORD, MINUS, ZERO, DIGITS, POINT, FRACTION, EXPONENT, SIGN, POWER = range(12, 21)  # in a scalar
DONE, BROKEN = range(21, 23)

NUMERAL: Final = frozenset({MINUS, ZERO, DIGITS, POINT, FRACTION, EXPONENT, SIGN, POWER})
NUMBER: Final = frozenset({ZERO, DIGITS, FRACTION, POWER})  # a numeral that may end here

_BLANKS: Final = b" \t\n\r"
_ENDS: Final = b" \t\n\r,]}"
_WORDS: Final = {word[0]: word[1:] for word in (b"true", b"false", b"null")}
_ESCAPES: Final = dict(zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True))
_HEX: Final = b"0123456789abcdefABCDEF"
_PLAIN: Final = re.compile(rb"[ !#-\[\]-\x7f]+")
_DIGITS: Final = b"0123456789"
# Where the second byte of a character is bounded more narrowly than to 80..BF (Unicode, table 3-7).
_SECOND: Final = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}
_CHARACTER_BYTES_MAX: Final = 4
_KEY_DIGEST_BYTES: Final = 16
_UNBOUNDED: Final = 1 << 62
_HEAD: Final = Struct(">BIBhH")


class Scan(NamedTuple):
    """What is known between two bytes; every field is a plain value.

    mode     what may come next
    run      bytes of the blanks or of the numeral at hand
    partial  of the word at hand what must still come; of the escape its digits; of the character its first bytes
    key      bytes of the key at hand, its escapes resolved; None outside of keys
    opened   what encloses this place, outermost first: of an object the digests of its keys, None for an array
    """

    mode: int = VALUE
    run: int = 0
    partial: bytes = b""
    key: bytes | None = None
    opened: tuple[tuple[bytes, ...] | None, ...] = ()

    def packed(self) -> bytes:
        """All fields as bytes, one way only: different scans never give equal bytes."""
        mode, run, partial, key, opened = self
        parts = [_HEAD.pack(mode, run, len(partial), -1 if key is None else len(key), len(opened)), partial, key or b""]
        for keys in opened:
            parts.append((-1 if keys is None else len(keys)).to_bytes(4, "big", signed=True))
            parts += keys or ()
        return b"".join(parts)


START: Final = Scan()
"""Before the first byte."""


class Scanned(NamedTuple):
    """What a piece led to.

    end     bytes of the piece that were taken: up to the value's end where that was found, up to the first wrong byte,
            else all
    reason  what is wrong where the standing is INVALID
    """

    scan: Scan
    standing: Standing
    end: int
    reason: str = ""


def scan(before: Scan, piece: bytes) -> Scanned:
    """Take the next bytes, up to the value's end. Pure; a scan that is done or broken takes nothing more.

    piece  any bytes, any length: it may end within a character or an escape
    """
    if before.mode == DONE:
        return Scanned(before, Standing.COMPLETE, 0)
    place = _Place(*before)
    at, size = 0, len(piece)
    while at < size and place.mode < DONE:
        if place.mode == TEXT and (plain := _PLAIN.match(piece, at, at + place.room)):
            at = plain.end()
            place.take_text(plain[0])
            continue
        at += _TAKE[place.mode](place, piece[at])
    after = Scan(place.mode, place.run, place.partial, place.key, place.opened)
    if place.mode == DONE:
        return Scanned(after, Standing.COMPLETE, at)
    if place.mode == BROKEN:
        return Scanned(Scan(BROKEN), Standing.INVALID, at, place.reason or "the text is no JSON value")
    return Scanned(after, Standing.INCOMPLETE, at)


def finish(last: Scan) -> Standing:
    """Where the text stands if nothing follows."""
    if last.mode == DONE or (not last.opened and (last.mode in NUMBER or (last.mode == WORD and not last.partial))):
        return Standing.COMPLETE
    return Standing.INVALID if last.mode == BROKEN else Standing.INCOMPLETE


class _Place:
    """A Scan that moves. Each function below takes one byte: it returns 1, or 0 where the byte is not its own."""

    __slots__ = ("key", "mode", "opened", "partial", "reason", "run")

    def __init__(
        self, mode: int, run: int, partial: bytes, key: bytes | None, opened: tuple[tuple[bytes, ...] | None, ...]
    ) -> None:
        self.mode, self.run, self.partial, self.key, self.opened, self.reason = mode, run, partial, key, opened, ""

    def broken(self, reason: str) -> int:
        self.mode, self.reason = BROKEN, reason
        return 0

    def open(self, keys: tuple[bytes, ...] | None, mode: int) -> int:
        if len(self.opened) >= JSON_DEPTH_MAX:
            return self.broken(f"it nests deeper than {JSON_DEPTH_MAX}")
        self.opened, self.mode = (*self.opened, keys), mode
        return 1

    def close(self) -> int:
        self.opened = self.opened[:-1]
        return self.value_ended()

    def value_ended(self) -> int:
        self.run, self.mode = 0, NEXT if self.opened else DONE
        return 1

    def take_text(self, fresh: bytes) -> None:
        """Bytes of a string that stand for themselves, or for what was written as an escape."""
        if self.key is not None:
            self.key += fresh

    @property
    def room(self) -> int:
        """Bytes that the string at hand may still have; only a key's are bounded."""
        return _UNBOUNDED if self.key is None else JSON_KEY_BYTES_MAX - len(self.key)


def _between(place: _Place, byte: int) -> int:
    if byte in _BLANKS:
        place.run += 1
        return 1 if place.run <= BLANKS_MAX else place.broken(f"more than {BLANKS_MAX} blanks follow each other")
    place.run = 0
    mode = place.mode
    if mode in (VALUE, ITEM):
        return place.close() if byte == 0x5D and mode == ITEM else _begin(place, byte)
    if mode == NEXT:
        return _next(place, byte)
    if mode == COLON:
        place.mode = VALUE
        return 1 if byte == 0x3A else place.broken("a key must be followed by a colon")
    if byte == 0x22:
        place.mode, place.key = TEXT, b""
        return 1
    return place.close() if byte == 0x7D and mode == FIRST_KEY else place.broken("a key must follow")


def _begin(place: _Place, byte: int) -> int:
    if byte == 0x22:
        place.mode = TEXT
    elif byte == 0x7B:
        return place.open((), FIRST_KEY)
    elif byte == 0x5B:
        return place.open(None, ITEM)
    elif byte in _WORDS:
        place.mode, place.partial = WORD, _WORDS[byte]
    elif byte in b"-0123456789":
        place.mode, place.run = MINUS if byte == 0x2D else ZERO if byte == 0x30 else DIGITS, 1
    else:
        return place.broken("a value must follow")
    return 1


def _next(place: _Place, byte: int) -> int:
    keys = place.opened[-1]
    if byte == (0x5D if keys is None else 0x7D):
        return place.close()
    if byte != 0x2C:
        return place.broken("a comma or the closing bracket must follow")
    if keys is not None and len(keys) >= JSON_KEYS_MAX:
        return place.broken(f"an object has more than {JSON_KEYS_MAX} keys")
    place.mode = VALUE if keys is None else KEY
    return 1


def _text(place: _Place, byte: int) -> int:
    if byte == 0x22:
        return place.value_ended() if place.key is None else _key_ended(place, place.key)
    if byte < 0x20:
        return place.broken("a control character stands in a string")
    if place.room < _CHARACTER_BYTES_MAX:
        return place.broken(f"a key is longer than {JSON_KEY_BYTES_MAX} bytes")
    if byte == 0x5C:
        place.mode = ESCAPE
        return 1
    if not 0xC2 <= byte <= 0xF4:
        return place.broken("the text is not UTF-8")
    place.mode, place.partial = CHARACTER, bytes((byte,))
    return 1


def _key_ended(place: _Place, key: bytes) -> int:
    digest, keys = sha256(key).digest()[:_KEY_DIGEST_BYTES], place.opened[-1] or ()
    if digest in keys:
        return place.broken("a key is written twice in one object")
    place.opened = (*place.opened[:-1], (*keys, digest))
    place.mode, place.key = COLON, None
    return 1


def _escape(place: _Place, byte: int) -> int:
    if byte == 0x75:
        place.mode = HEX
        return 1
    if byte not in _ESCAPES:
        return place.broken("there is no such escape")
    place.mode = TEXT
    place.take_text(bytes((_ESCAPES[byte],)))
    return 1


def _hex(place: _Place, byte: int) -> int:
    """Four digits, and eight where the first four are the high half of a surrogate pair."""
    if byte not in _HEX:
        return place.broken("an escape has four hexadecimal digits")
    digits = place.partial = place.partial + bytes((byte,))
    if len(digits) not in (4, 8):
        return 1
    unit = int(digits[-4:], 16)
    if len(digits) == 4 and 0xD800 <= unit <= 0xDBFF:
        place.mode = LOW_ESCAPE
        return 1
    if (0xDC00 <= unit <= 0xDFFF) is (len(digits) == 4):
        return place.broken("half of a surrogate pair stands alone")
    code = unit if len(digits) == 4 else 0x10000 + ((int(digits[:4], 16) - 0xD800) << 10) + unit - 0xDC00
    place.mode, place.partial = TEXT, b""
    place.take_text(chr(code).encode())
    return 1


def _low_escape(place: _Place, byte: int) -> int:
    if byte != (0x5C if place.mode == LOW_ESCAPE else 0x75):
        return place.broken("half of a surrogate pair stands alone")
    place.mode = LOW_U if place.mode == LOW_ESCAPE else HEX
    return 1


def _character(place: _Place, byte: int) -> int:
    lead, taken = place.partial[0], len(place.partial)
    least, most = _SECOND.get(lead, (0x80, 0xBF)) if taken == 1 else (0x80, 0xBF)
    if not least <= byte <= most:
        return place.broken("the text is not UTF-8")
    place.partial += bytes((byte,))
    if taken + 1 == (2 if lead < 0xE0 else 3 if lead < 0xF0 else 4):
        whole, place.mode, place.partial = place.partial, TEXT, b""
        place.take_text(whole)
    return 1


def _word(place: _Place, byte: int) -> int:
    if not place.partial:
        return _scalar_ended(place, byte)
    if byte != place.partial[0]:
        return place.broken("a value must follow")
    place.partial = place.partial[1:]
    if not place.partial and place.opened:
        place.value_ended()
    return 1


def _numeral(place: _Place, byte: int) -> int:
    if place.mode == MINUS and byte in _DIGITS:
        after: int | None = ZERO if byte == 0x30 else DIGITS
    else:
        after = _AFTER_DIGIT.get(place.mode) if byte in _DIGITS else _AFTER_MARK.get((place.mode, byte))
    if after is None:
        return _scalar_ended(place, byte) if place.mode in NUMBER else place.broken("a numeral lacks a digit")
    place.mode = after
    place.run += 1
    if place.run + (after not in NUMBER) > NUMERAL_BYTES_MAX:
        return place.broken(f"a numeral is longer than {NUMERAL_BYTES_MAX} bytes")
    return 1


def _scalar_ended(place: _Place, byte: int) -> int:
    """The byte after a number or a word: it is not part of the value."""
    if byte not in _ENDS:
        return place.broken("a value is followed by what cannot follow it")
    place.value_ended()
    return 0


_AFTER_MARK: Final = {
    (ZERO, 0x2E): POINT,
    (DIGITS, 0x2E): POINT,
    (EXPONENT, 0x2B): SIGN,
    (EXPONENT, 0x2D): SIGN,
    **{(mode, byte): EXPONENT for mode in (ZERO, DIGITS, FRACTION) for byte in b"eE"},
}
_AFTER_DIGIT: Final = {
    DIGITS: DIGITS,
    POINT: FRACTION,
    FRACTION: FRACTION,
    EXPONENT: POWER,
    SIGN: POWER,
    POWER: POWER,
}

_TAKE: Final[tuple[Callable[[_Place, int], int], ...]] = (
    *[_between] * 6,
    _text,
    _escape,
    _hex,
    _low_escape,
    _low_escape,
    _character,
    _word,
    *[_numeral] * 8,
)
