"""Read one key of a checkpoint's configuration as the type it must have.

Where a key is absent, its default holds. Each function raises UnsupportedModel naming the key, the value found and
what is taken.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ...fsm.errors import UnsupportedModel


def count(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A positive integer; null counts as absent."""
    value = raw.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UnsupportedModel(key, repr(value), "a positive integer")
    return value


def positive(raw: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A positive number within the range of a double."""
    value = raw.get(key, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
        raise UnsupportedModel(key, repr(value), "a positive number")
    return float(value)


def flag(raw: Mapping[str, Any], key: str) -> bool:
    """True or false; null and absence are false."""
    value = raw.get(key)
    if value is not None and not isinstance(value, bool):
        raise UnsupportedModel(key, repr(value), "true or false")
    return bool(value)


def table(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An object; null and absence are the empty one."""
    value = raw.get(key)
    if value is not None and not isinstance(value, dict):
        raise UnsupportedModel(key, repr(value), "an object or null")
    return value or {}
