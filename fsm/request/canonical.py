"""The canonical form of a value, and the identity that is its digest.

Bytes are RFC 8785 (JSON canonicalization): keys sorted by UTF-16 unit, ECMAScript numbers (so 1.0 is written 1, and
-0.0 is 0), no white space. What RFC 8785 leaves open is declared here: what order means in each list, and which
Unicode form each text has. A schema attaches these marks to its fields with `Annotated`.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import Any, Final

import rfc8785

REQUEST_DOMAIN: Final = b"numinens.request.v1"


class ListOrder(Enum):
    """What the order of a list's elements means."""

    ORDERED = "the order is part of the value"
    SET = "no order and no repetition; the canonical value is ascending"
    # No field of version 1 is one; it is declared so that a schema need not stretch SET when one comes.
    MULTISET = "no order; repetitions count; the canonical value is ascending"


class TextForm(Enum):
    """Which texts are legal, and when two are the same."""

    VERBATIM = "Unicode scalar values, compared as their UTF-8 bytes; nothing is normalised"
    NAME = "printable ASCII, without a blank at either end"
    HEX_DIGEST = "64 lower-case hexadecimal digits"


def canonical_bytes(value: Any) -> bytes:
    """RFC 8785 bytes of a value of dicts, lists or tuples, strings, ints, finite floats, booleans and None."""
    return rfc8785.dumps(value)


def ordered_json(value: Any) -> str:
    """A value as RFC 8785 writes it, but with the keys of its objects in their own order: for a text in which they say
    something, as a schema's do. No white space; numbers and strings have one form."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{ordered_json(key)}:{ordered_json(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(ordered_json, value)) + "]"
    return canonical_bytes(value).decode()


def request_identity(canonical: bytes) -> str:
    """SHA-256 of the domain tag and the canonical bytes, in hexadecimal."""
    return hashlib.sha256(REQUEST_DOMAIN + canonical).hexdigest()
