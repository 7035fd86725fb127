"""The table of numeric edges: what is refused is refused, and a draft's number becomes what the table says."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from envelope_examples import FACTS, RUNTIME
from pydantic import TypeAdapter, ValidationError

from decodelog.fsm.errors import LimitExceeded, SchemaViolation
from decodelog.fsm.request.draft import draft_from
from decodelog.fsm.request.edges import EDGES, Edge, Effect, leaves_one_token
from decodelog.fsm.request.seal import seal
from decodelog.fsm.request.transforms import SEALED_ORDER, OneTransform, Transform

NUMBERS = {
    get_args(kind.model_fields["kind"].annotation)[0]: name
    for kind in SEALED_ORDER
    for name, field in kind.model_fields.items()
    if field.annotation in (int, float)
}
each_edge = pytest.mark.parametrize("edge", EDGES, ids=lambda edge: f"{edge.kind} {edge.words}")


def transform_of(edge: Edge) -> OneTransform:
    """The transform of an envelope with the edge's number; those that look back look at everything."""
    value = int(edge.value) if edge.kind in ("top_k", "no_repeat_ngram") else edge.value
    fields: dict[str, Any] = {"kind": edge.kind}
    if edge.kind == "logit_bias":
        fields["biases"] = [{"token_id": 3, "bias": value}]
    else:
        fields[NUMBERS[edge.kind]] = value
    if edge.kind.endswith(("_penalty", "_ngram")):
        fields["scope"] = "both"
    return TypeAdapter(Transform).validate_python(fields)


def policy_of(edge: Edge) -> Any:
    """The policy that a draft with the edge's number is sealed to."""
    value: Any = int(edge.value) if edge.kind in ("top_k", "no_repeat_ngram") else edge.value
    if edge.kind == "logit_bias":
        value = [{"token_id": 3, "bias": value}]
    name = {"no_repeat_ngram": "no_repeat_ngram_size"}.get(edge.kind, edge.kind)
    return seal(draft_from({"token_ids": [1], name: value}), FACTS, RUNTIME, None, 0).policy  # type: ignore[arg-type]


def test_every_transform_with_a_number_has_its_edges_and_its_bounds() -> None:
    assert {edge.kind for edge in EDGES} == NUMBERS.keys() | {"logit_bias"}
    for kind in NUMBERS:
        of_kind = [edge.sealed for edge in EDGES if edge.kind == kind]
        assert {Effect.REFUSED, Effect.OFF} <= set(of_kind), kind


@pytest.mark.contract("POL-3")
@each_edge
def test_an_envelope_refuses_what_the_table_refuses(edge: Edge) -> None:
    if edge.sealed is Effect.REFUSED:
        with pytest.raises(ValidationError):
            transform_of(edge)
    else:
        assert transform_of(edge).kind == edge.kind  # type: ignore[attr-defined]


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
        assert only.model_dump(exclude={"scope"}) == transform_of(edge).model_dump(exclude={"scope"})


@pytest.mark.contract("POL-3", "POL-7")
@each_edge
def test_what_leaves_one_token_is_what_the_table_says(edge: Edge) -> None:
    if edge.sealed is Effect.REFUSED or edge.kind not in ("temperature", "top_k", "top_p", "min_p", "typical_p"):
        return
    name = {"temperature": "value", "top_k": "k"}.get(edge.kind, "p")
    (transform,) = TypeAdapter(tuple[Transform, ...]).validate_python([{"kind": edge.kind, name: edge.value}])
    alone = edge.sealed is Effect.BEST or (edge.kind == "typical_p" and edge.value == 0)
    assert leaves_one_token(transform) is (alone and not (edge.kind == "top_p" and edge.value > 0))
