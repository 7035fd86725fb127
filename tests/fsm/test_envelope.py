"""The closed schema: what it refuses, and at which path."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from counting import calls
from envelope_examples import changed, fields, full, shaped, without
from hypothesis import given
from hypothesis import strategies as st

from decodelog.fsm.errors import LimitExceeded, MalformedJson, SchemaViolation, UnknownVersion
from decodelog.fsm.request.envelope import Envelope, admit, admitted

PLANES = [
    "artifact",
    "text_interface",
    "prompt",
    "position_visibility",
    "policy",
    "rng",
    "runtime",
    "termination",
    "output",
]

# path | new value as JSON | path of the violation ("same" or another) | a word of its reason
MUTATIONS = """
rng.seed                            | true                      | same | boolean
rng.seed                            | 1.0                       | same | point
rng.seed                            | "1"                       | same | string
rng.seed                            | null                      | same | null
rng.seed                            | [1]                       | same | list
rng.seed                            | -1                        | same | at least 0
rng.seed                            | 9007199254740992          | same | outside
rng.seed                            | 1e3                       | same | point
rng.seed                            | NaN                       | same | finite
rng                                 | null                      | same | object
rng                                 | []                        | same | object
rng.algorithm                       | "philox"                  | same | splitmix64
rng.algorithm                       | 1                         | same | must be
prompt.token_ids[1]                 | true                      | same | boolean
prompt.token_ids[1]                 | 40.0                      | same | point
prompt.token_ids[1]                 | -1                        | same | at least 0
prompt.token_ids                    | {}                        | same | object
prompt.token_ids                    | "abc"                     | same | string
prompt.attention_mask[0]            | true                      | same | boolean
prompt.attention_mask[0]            | -1                        | same | at least 0
prompt.start_state                  | {}                        | same | null
prompt.source.kind                  | "image"                   | same | chat
policy.transforms[0].value          | true                      | same | boolean
policy.transforms[0].value          | "0.8"                     | same | string
policy.transforms[0].value          | null                      | same | null
policy.transforms[0].value          | 0                         | same | greater than 0
policy.transforms[0].value          | -0.5                      | same | greater than 0
policy.transforms[0].value          | Infinity                  | same | finite
policy.transforms[0].value          | 1e999                     | same | finite
policy.transforms[1].k              | 0                         | same | at least 1
policy.transforms[1].k              | 50.0                      | same | point
policy.transforms[2].p              | -0.1                      | same | at least 0
policy.transforms[0].kind           | "min_q"                   | same | top_k
policy.transforms[0].kind           | "top_k"                   | policy.transforms[0].value | no such field
policy.transforms[0]                | {}                        | policy.transforms[0].kind | missing
policy.transforms[0]                | 3                         | same | object
policy.transforms                   | {"0": 1}                  | same | object
policy.logprobs_top                 | null                      | same | null
artifact.checkpoint_sha256          | "abc"                     | same | match
artifact.checkpoint_sha256          | "%(upper)s"               | same | match
artifact.checkpoint_sha256          | "%(line)s"                | same | match
artifact.checkpoint_sha256          | null                      | same | null
artifact.release_id                 | ""                        | same | match
artifact.release_id                 | "caf\\u00e9"              | same | match
artifact.release_id                 | " x"                      | same | match
artifact.release_id                 | "x\\n"                    | same | match
artifact.release_id                 | "\\ud800"                 | same | surrogate
artifact.adapters                   | [1]                       | same | no element
artifact.adapters                   | null                      | same | null
text_interface.eos_ids              | [2,2]                     | same | twice
text_interface.vocabulary_size      | 0                         | same | at least 1
position_visibility.mode            | "prefix"                  | same | causal
runtime.batch_width                 | 0                         | same | at least 1
runtime.compute_dtype               | "int8"                    | same | float32
runtime.device_class                | null                      | same | any_device
runtime.framework_revision          | null                      | same | exact
runtime.compatibility               | "any_device"              | runtime.device_class | any_device
runtime.compatibility               | "any_revision"            | runtime.framework_revision | exact
runtime.cache                       | "slot_arena"              | same | object
termination.max_new_tokens          | -1                        | same | at least 0
termination.max_new_tokens          | 0                         | termination.zero_token_choice | max_new_tokens is 0
termination.max_new_tokens          | 1                         | termination.min_new_tokens | exceed
termination.zero_token_choice       | "no_call"                 | same | max_new_tokens is 0
termination.stop_strings[0]         | ""                        | same | empty
termination.stop_strings[0]         | 5                         | same | integer
termination.stop_token_ids          | [5,9,5]                   | same | twice
termination.ignore_eos              | 0                         | same | true or false
termination.ignore_eos              | "false"                   | same | true or false
termination.deadline_ms             | 0                         | same | at least 1
termination.finish_order[0]         | "eos"                     | termination.finish_order | once
termination.finish_order[0]         | "boredom"                 | same | cancelled
termination.finish_order            | []                        | same | once
output.alignment                    | "line"                    | same | span
output.final_cache                  | false                     | same | pending
output.extras[0].top                | true                      | same | boolean
output.extras[0].kind               | "hidden_states"           | same | prompt_logprobs
schema                              | null                      | same | string
schema                              | 1                         | same | string
"""


def mutated(row: str) -> tuple[str, bytes, str, str]:
    path, literal, place, word = (part.strip() for part in row.split("|"))
    literal = literal % {"upper": "A" * 64, "line": "a" * 64 + "\\n"}
    text = json.dumps(changed(full(), {path: "@@"})).replace('"@@"', literal)
    return path, text.encode(), path if place == "same" else place, word


@pytest.mark.contract("ENV-3")
def test_the_nine_planes_are_the_schema() -> None:
    assert list(Envelope.model_fields) == ["schema_name", *PLANES]


@pytest.mark.contract("ENV-2")
@pytest.mark.parametrize("row", MUTATIONS.strip().splitlines())
def test_a_wrong_value_is_refused_at_its_path_and_never_converted(row: str) -> None:
    _, raw, place, word = mutated(row)
    with pytest.raises(SchemaViolation) as caught:
        admit(raw)
    assert caught.value.path == place
    assert word in caught.value.reason


@pytest.mark.contract("ENV-2", "ENV-3")
@pytest.mark.parametrize("path", list(fields(full())))
def test_every_field_is_required(path: str) -> None:
    with pytest.raises(SchemaViolation, match="missing") as caught:
        admitted(without(full(), path))
    assert caught.value.path == path


@pytest.mark.contract("ENV-2", "ENV-3")
@pytest.mark.parametrize("path", ["extra", *(f"{plane}.extra" for plane in PLANES), "policy.transforms[1].value"])
def test_an_unknown_field_is_refused_wherever_it_stands(path: str) -> None:
    with pytest.raises(SchemaViolation, match="no such field") as caught:
        admitted(changed(full(), {path: 1}))
    assert caught.value.path == path


@pytest.mark.contract("ENV-2")
@pytest.mark.parametrize("path", list(fields(full())))
def test_null_is_absence_nowhere_but_where_it_is_declared(path: str) -> None:
    nullable = {
        "text_interface.template_sha256",
        "text_interface.bos_id",
        "text_interface.pad_id",
        "prompt.start_state",
        "termination.zero_token_choice",
        "termination.deadline_ms",
    }
    value = changed(full(), {path: None})
    if path in nullable:
        assert admitted(value)
    else:
        with pytest.raises(SchemaViolation):
            admitted(value)


@pytest.mark.contract("ENV-3")
def test_an_unknown_version_names_the_known_ones_before_any_other_fault() -> None:
    with pytest.raises(UnknownVersion, match=r"numinens\.request\.v1") as caught:
        admitted({"bogus": 1, "schema": "numinens.request.v2"})
    assert (caught.value.found, caught.value.known) == ("numinens.request.v2", ["numinens.request.v1"])


@pytest.mark.contract("ENV-2")
@pytest.mark.parametrize("raw", [b"null", b"[]", b'"x"', b"1", b"true"])
def test_a_request_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(SchemaViolation, match="object"):
        admit(raw)


@pytest.mark.contract("ENV-2")
def test_duplicate_keys_are_refused_before_an_object_could_hide_them() -> None:
    raw = json.dumps(full()).replace('"seed": 42', '"seed": 7, "seed": 42').encode()
    with pytest.raises(SchemaViolation, match="twice") as caught:
        admit(raw)
    assert caught.value.path == "rng.seed"


@pytest.mark.contract("ENV-2")
def test_the_first_fault_in_the_order_of_the_document_is_reported() -> None:
    value = changed(full(), {"output.alignment": 1, "policy.transforms[1].k": -1, "rng.seed": None})
    reordered = {key: value[key] for key in ("schema", "output", "rng", "policy")} | value
    with pytest.raises(SchemaViolation) as caught:
        admitted(value)
    assert caught.value.path == "policy.transforms[1].k"
    with pytest.raises(SchemaViolation) as caught:
        admitted(reordered)
    assert caught.value.path == "output.alignment"


@pytest.mark.contract("ENV-2", "POL-2")
@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("[0].biases[0].bias", math.inf),
        ("[0].biases[0].bias", True),
        ("[0].biases[0].token_id", -1),
        ("[1].penalty", 0),
        ("[1].penalty", None),
        ("[1].scope", "text"),
        ("[2].penalty", "1"),
        ("[3].scope", None),
        ("[4].size", 0),
        ("[4].size", 2.0),
        ("[5].token_ids[0]", 1.0),
        ("[7].tokens[0].step", -1),
        ("[9].p", -0.1),
        ("[10].p", math.nan),
    ],
)
def test_a_wrong_number_of_a_transform_is_refused_at_its_path(path: str, wrong: Any) -> None:
    with pytest.raises(SchemaViolation) as caught:
        admitted(changed(shaped(), {f"policy.transforms{path}": wrong}))
    assert caught.value.path == f"policy.transforms{path}"


@pytest.mark.contract("ENV-2")
@given(raw=st.binary(max_size=60))
def test_any_bytes_are_refused_with_a_typed_error(raw: bytes) -> None:
    with pytest.raises((LimitExceeded, MalformedJson, SchemaViolation, UnknownVersion)):
        admit(raw)


def test_admitting_and_identifying_takes_few_calls_a_prompt_token() -> None:
    """Each token of a prompt costs the same few calls to admit and identify."""

    def work(tokens: int) -> int:
        value = changed(full(), {"prompt.token_ids": list(range(tokens)), "prompt.attention_mask": [1] * tokens})
        raw = json.dumps(value).encode()
        return calls(lambda: admit(raw).identity)

    work(1)  # what is done once is done
    small, medium, large = work(1024), work(2048), work(4096)
    assert large - medium <= 2 * (medium - small) + 100
    assert large <= 16 * 4096
