"""Tables that the code holds already: lists in docstrings, ranges of fields, bounds with their reasons.

Where a docstring lists names and what they mean, a name and its words stand two blanks apart, and the words may go on
below, further in.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from decodelog.fsm.request.canonical import ListOrder
from decodelog.fsm.request.schema import Plane

_LISTED = re.compile(r"^( *)(\S(?:.*?\S)??) {2,}(\S.*)$")
_BOUND = re.compile(r"^([A-Z]\w*_MAX): Final")


def described(documented: Any) -> dict[str, str]:
    """Name -> words, for each row of the lists in a docstring; a name may be several, with commas between."""
    rows: dict[str, str] = {}
    name, depth = "", 0
    for line in (inspect.getdoc(documented) or "").splitlines():
        indent = len(line) - len(line.lstrip())
        if name and line.strip() and indent > depth:
            rows[name] += f" {line.strip()}"
        elif match := _LISTED.match(line):
            name, depth = match[2], len(match[1])
            rows[name] = match[3]
        else:
            name = ""
    return rows


def said(documented: Any) -> str:
    """The first paragraph of a docstring."""
    return (inspect.getdoc(documented) or "").partition("\n\n")[0].replace("\n", " ")


def fields_of(kind: type[Plane]) -> str:
    """Each field of a schema's object with the values that it takes, but for its tag."""
    own = [(name, field) for name, field in kind.model_fields.items() if name != "kind"]
    return "; ".join(f"`{name}` {_values(field.annotation, field.metadata)}" for name, field in own)


def _values(annotation: Any, metadata: list[Any]) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    bounds = {
        name: getattr(each, name)
        for each in metadata
        for name in ("ge", "gt", "le", "lt", "min_length", "max_length")
        if getattr(each, name, None) is not None
    }
    if annotation is str:
        return "a text"
    if get_origin(annotation) is tuple:
        element = get_args(annotation)[0]
        order = "a set" if ListOrder.SET in metadata else "a list"
        count = f"{order} of {bounds.get('min_length', 0)} to {bounds['max_length']}"
        is_object = isinstance(element, type) and issubclass(element, Plane)
        return f"{count}: {fields_of(element)}" if is_object else f"{count} ids"
    low = f"above {bounds['gt']:g}" if "gt" in bounds else f"from {bounds['ge']:g}"
    high = f"below {bounds['lt']:.15g}" if "lt" in bounds else f"to {bounds['le']:.15g}"
    return f"{low} {high}"


def reasons(source: str) -> Iterator[tuple[str, str]]:
    """Each bound of the limits' source, with the comment above it."""
    comment: list[str] = []
    for line in source.splitlines():
        if match := _BOUND.match(line):
            yield match[1], " ".join(comment)
        comment = [*comment, line[2:]] if line.startswith("# ") else []
