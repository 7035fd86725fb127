"""The table of numeric edges: what is refused is refused, and a draft's number becomes what the table says."""

from __future__ import annotations

from typing import Any

import pytest
from envelope_examples import FACTS, RUNTIME
from policy_edges import number_of, transform_of
from pydantic import ValidationError

from decodelog.fsm.errors import LimitExceeded, SchemaViolation
from decodelog.fsm.request.draft import draft_from
from decodelog.fsm.request.edges import EDGES, Edge
from decodelog.fsm.request.seal import seal
from decodelog.fsm.request.transforms import SEALED_ORDER, Own
from decodelog.fsm.request.transforms.definition import Effect

each_edge = pytest.mark.parametrize("edge", EDGES, ids=lambda edge: f"{edge.kind} {edge.words}")


class Bytes:
    """One id a byte: what the breakers of a draft are encoded by."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [*text.encode()]


def policy_of(edge: Edge) -> Any:
    """The policy that a draft with the edge's number is sealed to."""
    draft = draft_from({"token_ids": [1], edge.question.asked.keyword: number_of(edge)})
    return seal(draft, FACTS, RUNTIME, Bytes(), 0).policy  # type: ignore[arg-type]


def test_every_transform_with_a_number_has_its_edges_and_its_bounds() -> None:
    numbers = {
        (kind.tag(), name)
        for kind in SEALED_ORDER
        for name, field in kind.model_fields.items()
        if field.annotation in (int, float) and kind is not Own
    }
    assert {(edge.kind, edge.question.field) for edge in EDGES} == numbers | {("logit_bias", "biases")}
    for kind, name in numbers:
        of_number = [edge.sealed for edge in EDGES if (edge.kind, edge.question.field) == (kind, name)]
        assert Effect.REFUSED in of_number, (kind, name)
    for kind in {kind for kind, _ in numbers}:
        assert Effect.OFF in [edge.sealed for edge in EDGES if edge.kind == kind], kind


@pytest.mark.contract("POL-3")
@each_edge
def test_an_envelope_refuses_what_the_table_refuses(edge: Edge) -> None:
    if edge.sealed is Effect.REFUSED:
        with pytest.raises(ValidationError):
            transform_of(edge)
    else:
        assert transform_of(edge).kind == edge.kind


@pytest.mark.contract("POL-3", "ENV-7")
@each_edge
def test_a_drafts_number_is_sealed_as_the_table_says(edge: Edge) -> None:
    if edge.drafted is Effect.REFUSED:
        with pytest.raises((SchemaViolation, LimitExceeded)):
            policy_of(edge)
        return
    policy = policy_of(edge)
    assert (policy.family == "greedy") is not any(each.kind == "temperature" for each in policy.transforms)
    written = [each for each in policy.transforms if each.kind == edge.kind]
    if edge.drafted is Effect.GREEDY:
        assert (policy.family, policy.transforms) == ("greedy", ())
    elif edge.drafted is Effect.LEFT_OUT:
        assert policy.transforms == ()
    else:
        (only,) = written
        others = {"scope", "breaker_ids"}
        assert only.model_dump(exclude=others) == transform_of(edge).model_dump(exclude=others)


@pytest.mark.contract("POL-3", "POL-7")
@each_edge
def test_what_leaves_one_token_is_what_the_table_says(edge: Edge) -> None:
    if edge.sealed is not Effect.REFUSED:
        alone = edge.sealed is Effect.BEST or (edge.kind == "typical_p" and edge.value == 0)
        expected = alone and not (edge.kind == "top_p" and edge.value > 0)
        assert transform_of(edge).leaves_one_token() is expected
