"""The first JSON value of a byte stream, found a piece at a time.

RFC 8259 to the byte, with I-JSON's exclusions (RFC 7493: no repeated key in one object, no lone surrogate) and bounds
of its own. Between two pieces all that is known is a `Scan`: a plain value, as large as the nesting is deep and the
open objects have keys. Earlier bytes are never read again, and the size of the `Scan` bounds the cost of a byte.

What ends a value: an object, an array or a string its last byte; a number or a word (true, false, null) the byte after
it, a blank or one of `,]}`, or the end of the text.

No bound is a dead end: a numeral is refused at the byte that would leave it no room to become a number, a key at the
one that would leave no room for its character, and the comma after an object's last possible key.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import Final, NamedTuple

from .json_bytes import BROKEN, DONE, NUMBER, TAKE, TEXT, VALUE, WORD, Opened, Place
from .standing import Standing

_PLAIN: Final = re.compile(rb"[ !#-\[\]-\x7f]+")
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
    opened: Opened = ()

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
    place = Place(*before)
    at, size = 0, len(piece)
    while at < size and place.mode < DONE:
        if place.mode == TEXT and (plain := _PLAIN.match(piece, at, at + place.room)):
            at = plain.end()
            place.take_text(plain[0])
            continue
        at += TAKE[place.mode](place, piece[at])
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
