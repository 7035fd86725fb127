"""Transforms of envelopes, made of the rows of the table of numeric edges."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from decodelog.fsm.request.edges import Edge
from decodelog.fsm.request.transforms import OneTransform, Transform


def number_of(edge: Edge) -> Any:
    """The number as the field takes it."""
    question = edge.question
    if edge.kind == "logit_bias":
        return [{"token_id": 3, "bias": edge.value}]
    return int(edge.value) if question.transform.model_fields[question.field].annotation is int else edge.value


def transform_of(edge: Edge) -> OneTransform:
    """The transform of an envelope with the edge's number, and its other fields as drafts have them."""
    question = edge.question
    made: OneTransform = TypeAdapter(Transform).validate_python(
        question.transform.entry(**{question.field: number_of(edge)})
    )
    return made
