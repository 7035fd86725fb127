"""Strict JSON: bounds on the raw bytes first, then a value in which nothing was truncated, merged or coerced.

RFC 8259 grammar, I-JSON's exclusions (RFC 7493): unique keys, no lone surrogate, integers that every reader can hold.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import LimitExceeded, MalformedJson, SchemaViolation
from ..limits import NESTING_DEPTH_MAX, NUMBER_BYTES_MAX, OBJECT_FIELDS_MAX, REQUEST_BYTES_MAX, SAFE_INTEGER_MAX

_KINDS = {dict: "an object", list: "a list", tuple: "a list", str: "a string", bool: "a boolean", int: "an integer"}

# The loops are possessive: a string that never ends costs one pass, not one for each way to split it.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NUMBER_TOO_LONG = re.compile(rb"[0-9.eE+-]{%d,}" % (NUMBER_BYTES_MAX + 1))
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")
_KEY_CHARACTERS_SHOWN = 60


def parse(raw: bytes) -> Any:
    """The value of one JSON text.

    raw: at most REQUEST_BYTES_MAX bytes of UTF-8 without a byte order mark.
    Objects become dicts in the text's order, arrays lists, numbers with a point or exponent the nearest double.
    Linear in the text's length.
    Raises LimitExceeded (size, nesting depth and number length before parsing, an object's fields in it),
    MalformedJson (with the byte offset), SchemaViolation (with the path: duplicate key, integer out of range, number
    that is not finite, lone surrogate).
    """
    text = _checked_text(raw)
    duplicates: dict[int, tuple[str, Any]] = {}
    try:
        value = json.JSONDecoder(object_pairs_hook=_objects(duplicates), parse_float=_double).decode(text)
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode())
        reason = error.msg[:1].lower() + error.msg[1:].removesuffix(" at").removesuffix(": ")
        raise MalformedJson(offset=offset, reason=reason) from error
    _check_values(value, (), duplicates)
    return value


def check_value(value: Any, path: tuple[str | int, ...]) -> None:
    """Check that a value built by a program is one that `parse` could give: dicts, lists, texts, finite safe numbers.

    path  where it stands. Raises LimitExceeded (depth, fields), SchemaViolation (with the path).
    """
    if len(path) > NESTING_DEPTH_MAX:
        raise LimitExceeded(limit="nesting_depth", value=len(path), maximum=NESTING_DEPTH_MAX)
    if isinstance(value, dict):
        if len(value) > OBJECT_FIELDS_MAX:
            raise LimitExceeded(limit="object_fields", value=len(value), maximum=OBJECT_FIELDS_MAX)
        for key, item in value.items():
            if type(key) is not str:
                raise SchemaViolation(
                    path=path_text(path), reason=f"the key {str(key)[:_KEY_CHARACTERS_SHOWN]} is no text"
                )
            _check_text(key, (*path, key))
            check_value(item, (*path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            check_value(item, (*path, index))
    elif value is None or type(value) in (bool, int, float, str):
        _check_values(value, path, {})
    else:
        raise SchemaViolation(path=path_text(path), reason=f"JSON has no {type(value).__name__}")


def path_text(path: tuple[str | int, ...]) -> str:
    """`("prompt", "token_ids", 3)` as `prompt.token_ids[3]`; the root is `request`. A long key is cut for display."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}"
        else:
            text += f"[{json.dumps(part[:_KEY_CHARACTERS_SHOWN])}]"
    return text.removeprefix(".") or "request"


def kind_of(value: object) -> str:
    """What a JSON value is, in words."""
    if value is None:
        return "null"
    return _KINDS.get(type(value), "a number with a point or exponent")


def _checked_text(raw: bytes) -> str:
    if len(raw) > REQUEST_BYTES_MAX:
        raise LimitExceeded(limit="request_bytes", value=len(raw), maximum=REQUEST_BYTES_MAX)
    if raw.startswith(_BYTE_ORDER_MARK):
        raise MalformedJson(offset=0, reason="it starts with a byte order mark")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise MalformedJson(offset=error.start, reason=f"it is not UTF-8 ({error.reason})") from error
    bare = _STRING.sub(b'"', raw)
    depth = _nesting_depth(bare)
    if depth > NESTING_DEPTH_MAX:
        raise LimitExceeded(limit="nesting_depth", value=depth, maximum=NESTING_DEPTH_MAX)
    if number := _NUMBER_TOO_LONG.search(bare):
        raise LimitExceeded(limit="number_bytes", value=len(number.group()), maximum=NUMBER_BYTES_MAX)
    return text


def _nesting_depth(bare: bytes) -> int:
    """The deepest nesting of a text whose strings were taken out; brackets need not match."""
    brackets = np.frombuffer(bare.translate(None, _NOT_BRACKETS), dtype=np.uint8)
    opens = (brackets == ord("[")) | (brackets == ord("{"))
    return int(np.cumsum(np.where(opens, 1, -1), dtype=np.int64).max(initial=0))


def _double(numeral: str) -> float:
    """The nearest double; NaN, for the check of values to find, where that would be a zero that was not written."""
    number = float(numeral)
    underflows = number == 0 and numeral.lower().partition("e")[0].strip("-0.")
    return math.nan if underflows else number


def _objects(duplicates: dict[int, tuple[str, Any]]) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """A hook that builds objects and keeps the first repeated key of each, with the object so that its id stays."""

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(pairs) > OBJECT_FIELDS_MAX:
            raise LimitExceeded(limit="object_fields", value=len(pairs), maximum=OBJECT_FIELDS_MAX)
        built = dict(pairs)
        if len(built) != len(pairs):
            seen: set[str] = set()
            repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            duplicates[id(built)] = repeated, built
        return built

    return build


def _check_values(value: Any, path: tuple[str | int, ...], duplicates: dict[int, tuple[str, Any]]) -> None:
    kind = type(value)
    if kind is dict:
        if id(value) in duplicates:
            raise SchemaViolation(path=path_text((*path, duplicates[id(value)][0])), reason="the key is written twice")
        for key, item in value.items():
            _check_text(key, (*path, key))
            _check_values(item, (*path, key), duplicates)
    elif kind is list:
        for index, item in enumerate(value):
            if type(item) is int and -SAFE_INTEGER_MAX <= item <= SAFE_INTEGER_MAX:
                continue  # nearly all of a large request: token ids
            _check_values(item, (*path, index), duplicates)
    elif kind is int and not -SAFE_INTEGER_MAX <= value <= SAFE_INTEGER_MAX:
        raise SchemaViolation(path=path_text(path), reason=f"{value} lies outside +-{SAFE_INTEGER_MAX}")
    elif kind is float and not math.isfinite(value):
        raise SchemaViolation(path=path_text(path), reason="the number is not finite, or beyond what a double holds")
    elif kind is str:
        _check_text(value, path)


def _check_text(text: str, path: tuple[str | int, ...]) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SchemaViolation(path=path_text(path), reason="the text holds half of a surrogate pair") from error
