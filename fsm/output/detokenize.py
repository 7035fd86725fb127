"""Exact token bytes to text, a piece at a time.

Text is decoded from bytes and never from token ids: a token has one fixed byte string, so a stream of tokens is a
stream of bytes, and no window, prefix offset or second decode of earlier ids is needed.
"""

from __future__ import annotations

from codecs import utf_8_decode


def decode(pending: bytes, fresh: bytes, final: bool = False) -> tuple[str, bytes]:
    """Decode as much of `pending + fresh` as can no longer change; return that text and the bytes still undecided.

    pending  0 to 3 bytes: an unfinished character, as an earlier call returned it
    fresh    the next exact bytes, any values, any length
    final    nothing follows: an unfinished character is ill-formed and is replaced too
    returns  (text, pending): never raises, and never takes back what it returned before

    Every maximal ill-formed subpart becomes one U+FFFD (The Unicode Standard, section 3.9, "U+FFFD Substitution of
    Maximal Subparts"), so the joined texts equal one `bytes.decode("utf-8", "replace")` of the whole.
    """
    data = pending + fresh
    text, consumed = utf_8_decode(data, "replace", final)
    left = data[consumed:]
    # CPython waits for a third byte here, for those who decode surrogates; no character begins so.
    if len(left) == 2 and left[0] == 0xED and left[1] >= 0xA0:
        return text + "\ufffd\ufffd", b""
    return text, left


def character_at(data: bytes, offset: int) -> int:
    """The index of the character that byte `offset` belongs to, of what `data` decodes to; at its end, their count.

    data  begins with a character's first byte; what follows it may make up one character more, and changes nothing
    """
    text, left = decode(b"", data[: offset + 1], final=offset >= len(data))
    return len(text) - (offset < len(data) and not left)
