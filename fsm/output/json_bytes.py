"""The bytes of JSON: what each of them may be at its place, and what the place is after it.

A place is a scan that moves. Each function below takes one byte and returns 1, or 0 where it is not one of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Final

from ..limits import BLANKS_MAX, JSON_DEPTH_MAX, JSON_KEY_BYTES_MAX, JSON_KEYS_MAX, NUMERAL_BYTES_MAX

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
_DIGITS: Final = b"0123456789"
# Where the second byte of a character is bounded more narrowly than to 80..BF (Unicode, table 3-7).
_SECOND: Final = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}
_CHARACTER_BYTES_MAX: Final = 4
_KEY_DIGEST_BYTES: Final = 16
_UNBOUNDED: Final = 1 << 62

Opened = tuple[tuple[bytes, ...] | None, ...]
"""What encloses a place, outermost first: of an object the digests of its keys, None for an array."""


class Place:
    """Where in a value the next byte stands; the fields of `Scan`, and what is wrong once it is broken."""

    __slots__ = ("key", "mode", "opened", "partial", "reason", "run")

    def __init__(self, mode: int, run: int, partial: bytes, key: bytes | None, opened: Opened) -> None:
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


def _between(place: Place, byte: int) -> int:
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


def _begin(place: Place, byte: int) -> int:
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


def _next(place: Place, byte: int) -> int:
    keys = place.opened[-1]
    if byte == (0x5D if keys is None else 0x7D):
        return place.close()
    if byte != 0x2C:
        return place.broken("a comma or the closing bracket must follow")
    if keys is not None and len(keys) >= JSON_KEYS_MAX:
        return place.broken(f"an object has more than {JSON_KEYS_MAX} keys")
    place.mode = VALUE if keys is None else KEY
    return 1


def _text(place: Place, byte: int) -> int:
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


def _key_ended(place: Place, key: bytes) -> int:
    digest, keys = sha256(key).digest()[:_KEY_DIGEST_BYTES], place.opened[-1] or ()
    if digest in keys:
        return place.broken("a key is written twice in one object")
    place.opened = (*place.opened[:-1], (*keys, digest))
    place.mode, place.key = COLON, None
    return 1


def _escape(place: Place, byte: int) -> int:
    if byte == 0x75:
        place.mode = HEX
        return 1
    if byte not in _ESCAPES:
        return place.broken("there is no such escape")
    place.mode = TEXT
    place.take_text(bytes((_ESCAPES[byte],)))
    return 1


def _hex(place: Place, byte: int) -> int:
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


def _low_escape(place: Place, byte: int) -> int:
    if byte != (0x5C if place.mode == LOW_ESCAPE else 0x75):
        return place.broken("half of a surrogate pair stands alone")
    place.mode = LOW_U if place.mode == LOW_ESCAPE else HEX
    return 1


def _character(place: Place, byte: int) -> int:
    lead, taken = place.partial[0], len(place.partial)
    least, most = _SECOND.get(lead, (0x80, 0xBF)) if taken == 1 else (0x80, 0xBF)
    if not least <= byte <= most:
        return place.broken("the text is not UTF-8")
    place.partial += bytes((byte,))
    if taken + 1 == (2 if lead < 0xE0 else 3 if lead < 0xF0 else 4):
        whole, place.mode, place.partial = place.partial, TEXT, b""
        place.take_text(whole)
    return 1


def _word(place: Place, byte: int) -> int:
    if not place.partial:
        return _scalar_ended(place, byte)
    if byte != place.partial[0]:
        return place.broken("a value must follow")
    place.partial = place.partial[1:]
    if not place.partial and place.opened:
        place.value_ended()
    return 1


def _numeral(place: Place, byte: int) -> int:
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


def _scalar_ended(place: Place, byte: int) -> int:
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

TAKE: Final[tuple[Callable[[Place, int], int], ...]] = (
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
