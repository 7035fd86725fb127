"""Read one key of a checkpoint's configuration as the type it must have.

Where a key is absent, its default holds. Each function raises UnsupportedModel naming the key, the value found and
what is taken.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ....fsm.errors import UnsupportedModel
from ....fsm.limits import MODEL_COUNT_MAX

_CHARACTERS_SHOWN = 100


def count(raw: Mapping[str, Any], key: str, default: int | None = None, maximum: int = MODEL_COUNT_MAX) -> int:
    """A positive integer, `maximum` at most; null counts as absent."""
    value = raw.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= maximum:
        raise UnsupportedModel(key, shown(value), f"a positive integer of at most {maximum}")
    return value


def positive(raw: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A positive number within the range of a double."""
    value = raw.get(key, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
        raise UnsupportedModel(key, shown(value), "a positive number")
    return float(value)


def flag(raw: Mapping[str, Any], key: str) -> bool:
    """True or false; null and absence are false."""
    value = raw.get(key)
    if value is not None and not isinstance(value, bool):
        raise UnsupportedModel(key, shown(value), "true or false")
    return bool(value)


def table(raw: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An object; null and absence are the empty one."""
    value = raw.get(key)
    if value is not None and not isinstance(value, dict):
        raise UnsupportedModel(key, shown(value), "an object or null")
    return value or {}


def shown(value: Any) -> str:
    """A value as a message shows it: a long one is cut."""
    text = repr(value)
    return text if len(text) <= _CHARACTERS_SHOWN else f"{text[:_CHARACTERS_SHOWN]}..."
