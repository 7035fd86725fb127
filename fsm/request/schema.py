"""Closed, strict schemas: the base of every plane, the kinds of fields, and one typed error for what pydantic finds.

No coercion: a bool or 1.0 is no integer, null is not absence, an unknown field is refused. The one widening is that a
float field takes `1`, because RFC 8785 writes 1.0 so.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from operator import attrgetter
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from ..errors import LimitExceeded, Rejected, SchemaViolation
from ..limits import ABI_CHARACTERS_MAX, NAME_CHARACTERS_MAX, VOCABULARY_SIZE_MAX
from .canonical import ListOrder, TextForm
from .strict_json import kind_of, path_text


class Plane(BaseModel):
    """A closed object: every field named, none unknown, no value converted; frozen once made."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


def violation(field: str, reason: str) -> PydanticCustomError:
    """A rule between fields that does not hold, reported at `field` of the object that states the rule."""
    return PydanticCustomError("rule", "{reason}", {"reason": reason, "field": field})


def _json_list(value: Any) -> Any:
    return tuple(value) if type(value) is list else value


def _ascending(values: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(values)) != len(values):
        raise PydanticCustomError("rule", "{reason}", {"reason": "it is a set, and holds an element twice"})
    return tuple(sorted(values))


def set_by(field: str) -> AfterValidator:
    """A set of objects that one integer field tells apart: ascending by it, and no two with the same."""
    key = attrgetter(field)

    def check(values: tuple[Any, ...]) -> tuple[Any, ...]:
        if len({key(value) for value in values}) != len(values):
            reason = f"it is a set, and two of its elements have the same {field}"
            raise PydanticCustomError("rule", "{reason}", {"reason": reason})
        return tuple(sorted(values, key=key))

    return AfterValidator(check)


def text_within_bytes(bytes_max: int) -> AfterValidator:
    """A check of a text's UTF-8 size, which pydantic's max_length (characters) does not bound."""

    def check(text: str) -> str:
        if (size := len(text.encode())) > bytes_max:
            raise PydanticCustomError("bytes", "{value}", {"value": size, "maximum": bytes_max})
        return text

    return AfterValidator(check)


JSON_LIST = BeforeValidator(_json_list)
"""Makes a JSON array the tuple that a frozen value needs; anything else is left for the strict check to refuse."""

SET_OF_INTS = AfterValidator(_ascending)

_PRINTABLE = r"^[!-~]([ -~]*[!-~])?$"
Name = Annotated[str, TextForm.NAME, Field(max_length=NAME_CHARACTERS_MAX, pattern=_PRINTABLE)]
CacheAbi = Annotated[str, TextForm.NAME, Field(max_length=ABI_CHARACTERS_MAX, pattern=_PRINTABLE)]
Sha256 = Annotated[str, TextForm.HEX_DIGEST, Field(pattern=r"^[0-9a-f]{64}$")]
TokenId = Annotated[int, Field(ge=0, lt=VOCABULARY_SIZE_MAX)]
Reserved = Annotated[tuple[()], JSON_LIST, ListOrder.ORDERED]
"""A list whose elements later versions of the program will define; empty until then, so its bytes stay."""


def typed(error: ValidationError, value: Any, fields: Iterable[str] = ()) -> Rejected:
    """The first violation in the order of the document `value`, as one error of ours.

    fields   what the document may have: a name that is none of them is told the nearest

    A bound exceeded becomes LimitExceeded, everything else SchemaViolation. What is missing comes after what is there.
    """
    ranks: dict[int, dict[Any, int]] = {}
    details = error.errors(include_url=False, include_input=False)
    first = min(details, key=lambda detail: _place(value, detail["loc"], ranks))
    kind, context = first["type"], first.get("ctx", {})
    # A rule between fields is reported at its object; it names the field.
    path, found = _followed(value, (*first["loc"], context["field"]) if "field" in context else first["loc"])
    if kind in _MAXIMA and context.get("max_length") != 0:
        unit, key = _MAXIMA[kind]
        amount = found if unit is None else context.get("value", len(found))
        maximum = context[key] - 1 if kind == "less_than" else context[key]
        return LimitExceeded(limit=path_text(path) + (f" ({unit})" if unit else ""), value=amount, maximum=maximum)
    if kind.startswith("union_tag"):
        path = (*path, context["discriminator"].strip("'"))
    near = get_close_matches(str(path[0]), fields, 1) if kind == "extra_forbidden" and len(path) == 1 else []
    hint = f"; the nearest is {near[0]}" if near else ""
    return SchemaViolation(path=path_text(path), reason=_reason(first, found) + hint)


def _followed(value: Any, location: tuple[str | int, ...]) -> tuple[tuple[str | int, ...], Any]:
    """The JSON path of a pydantic location, which also names union tags, and the value there (None where missing)."""
    path: list[str | int] = []
    for depth, step in enumerate(location, start=1):
        if isinstance(value, dict) and (step in value or depth == len(location)):
            value = value.get(step)
        elif isinstance(value, (list, tuple)) and isinstance(step, int):
            value = value[step]
        else:
            continue  # the tag of a union is no step in the document
        path.append(step)
    return tuple(path), value


def _place(value: Any, location: tuple[str | int, ...], ranks: dict[int, dict[Any, int]]) -> tuple[int, ...]:
    """Where a location stands in the document: one index a level. `ranks` keeps each object's key order."""
    place: list[int] = []
    for step in _followed(value, location)[0]:
        if isinstance(value, dict):
            if id(value) not in ranks:
                ranks[id(value)] = {key: rank for rank, key in enumerate(value)}
            place.append(ranks[id(value)].get(step, len(value)))
            value = value.get(step)
        else:
            place.append(int(step))
            value = value[int(step)]
    return tuple(place)


_MAXIMA = {
    "too_long": ("elements", "max_length"),
    "string_too_long": ("characters", "max_length"),
    "bytes": ("bytes", "maximum"),
    "less_than_equal": (None, "le"),
    "less_than": (None, "lt"),
}

_WANTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "none_required": "null",
}


def _reason(detail: ErrorDetails, found: Any) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind in _WANTED:
        return f"it must be {_WANTED[kind]}, and is {kind_of(found)}"
    match kind:
        case "missing":
            return "the field is missing"
        case "extra_forbidden":
            return "the schema has no such field"
        case "literal_error" | "enum":
            return f"it must be {context['expected']}"
        case "union_tag_invalid":
            return f"it must be one of {context['expected_tags']}"
        case "union_tag_not_found":
            return "the field is missing"
        case "greater_than_equal":
            return f"it must be at least {context['ge']}"
        case "greater_than":
            return f"it must be greater than {context['gt']}"
        case "too_long":
            return "this version defines no element of it"
        case "too_short" | "string_too_short":
            return "it must not be empty"
        case "string_pattern_mismatch":
            return f"it must match {context['pattern']}"
        case "string_unicode":
            return "the text holds half of a surrogate pair"
        case "finite_number":
            return "it must be a finite number"
    return detail["msg"]
