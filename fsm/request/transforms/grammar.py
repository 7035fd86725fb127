"""The grammar of a structured output."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ... import limits
from ...errors import Rejected
from ..canonical import TextForm, ordered_json
from ..schema import text_within_bytes, violation
from ..strict_json import kind_of, parse
from .definition import OneTransform, Place

_LANGUAGES = {"json_schema": "a JSON schema", "regex": "a regular expression", "lark": "a Lark grammar"}


class Grammar(OneTransform):
    """Keeps the tokens that lead on in a language; end tokens and stop ids where the output is whole, and nowhere else.

    language  json_schema: `source` is a schema, an object, without blanks, its numbers and strings as RFC 8785 writes
              them, its keys in their own order, which is the order in which properties are written
              regex: `source` is a regular expression (Rust's syntax) that the whole output matches
              lark: `source` is a context-free grammar with a rule named `start`
    """

    kind: Literal["grammar"]
    language: Literal["json_schema", "regex", "lark"]
    source: Annotated[str, TextForm.VERBATIM, Field(min_length=1), text_within_bytes(limits.GRAMMAR_BYTES_MAX)]

    @model_validator(mode="after")
    def _schema_has_its_one_form(self) -> Self:
        if self.language != "json_schema":
            return self
        try:
            schema = parse(self.source.encode())
        except Rejected as problem:
            raise violation("source", f"it is no JSON schema: {problem}") from problem
        if not isinstance(schema, dict):
            raise violation("source", f"a schema must be an object, and is {kind_of(schema)}")
        if ordered_json(schema) != self.source:
            raise violation("source", "it is not in its one form: no blanks, numbers and strings as RFC 8785 says")
        return self

    def does(self, place: Place) -> str:
        return f"keeps what leads on in {_LANGUAGES[self.language]} of {len(self.source.encode())} bytes"
