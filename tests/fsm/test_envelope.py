"""The closed schema: what it refuses, what its canonical form is, and that every leaf is part of the identity."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from envelope_examples import EXAMPLES, changed, fields, full, leaves, plain, shaped, steps, without
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from decodelog.fsm import limits
from decodelog.fsm.canonical import ListOrder, TextForm
from decodelog.fsm.envelope import Envelope, admit, admitted, first_difference
from decodelog.fsm.errors import LimitExceeded, MalformedJson, Rejected, SchemaViolation, UnknownVersion
from decodelog.fsm.finish import FinishReason

GOLDEN = Path(__file__).parent.parent / "golden" / "envelope"

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


def words(*hints: Any) -> Iterator[str]:
    """Every word that some literal of the schema admits."""
    for hint in hints:
        if get_origin(hint) is Literal:
            yield from (word for word in get_args(hint) if isinstance(word, str))
        elif isinstance(hint, type) and issubclass(hint, BaseModel):
            yield from words(*get_type_hints(hint, include_extras=True).values())
        else:
            yield from words(*get_args(hint))


def marks(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A hint without its annotations, and they."""
    return (get_args(hint)[0], get_args(hint)[1:]) if get_origin(hint) is Annotated else (hint, ())


def undeclared(hint: Any, path: str) -> Iterator[str]:
    """Where a list lacks its order or a free text its form."""
    kind, annotations = marks(hint)
    if get_origin(kind) is tuple:
        if sum(isinstance(mark, ListOrder) for mark in annotations) != 1:
            yield path
        yield from undeclared(next(iter(get_args(kind)), None), f"{path}[]")
    elif kind is str:
        if sum(isinstance(mark, TextForm) for mark in annotations) != 1:
            yield path
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, inner in get_type_hints(kind, include_extras=True).items():
            if name in kind.model_fields:
                yield from undeclared(inner, f"{path}.{name}")
    else:
        assert kind not in (list, dict, set, bytes, Any), path
        for inner in () if get_origin(kind) is Literal else get_args(kind):
            yield from undeclared(inner, path)


def sets_of_the_schema() -> list[str]:
    return ["text_interface.eos_ids", "termination.eos_ids", "termination.stop_token_ids"]


def sets_of_the_transforms() -> list[str]:
    """The same of `shaped`."""
    lists = ((0, "biases"), (5, "token_ids"), (6, "token_ids"), (7, "tokens"))
    return [f"policy.transforms[{index}].{name}" for index, name in lists]


# ---- the closed schema ----------------------------------------------------------------------------------------


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


# path | what reaches its bound | what exceeds it | name of the limit
OF_TRANSFORMS: list[tuple[dict[str, Any], str, Any, Any, str]] = [
    ({"kind": "min_p"}, "p", 1, 1.0001, "p"),
    ({"kind": "typical_p"}, "p", 1, 2, "p"),
    ({"kind": "repetition_penalty", "scope": "both"}, "penalty", 1000, 1000.5, "penalty"),
    ({"kind": "frequency_penalty", "scope": "both"}, "penalty", 10_000, 10_001, "penalty"),
    ({"kind": "presence_penalty", "scope": "both"}, "penalty", 10_000, 10_001, "penalty"),
    ({"kind": "no_repeat_ngram", "scope": "both"}, "size", 32, 33, "size"),
    ({"kind": "banned_tokens"}, "token_ids", list(range(2**14)), list(range(2**14 + 1)), "token_ids (elements)"),
    *(
        (
            {"kind": kind},
            name,
            [entry(id) for id in range(1024)],
            [entry(id) for id in range(1025)],
            f"{name} (elements)",
        )
        for kind, name, entry in (
            ("logit_bias", "biases", lambda id: {"token_id": id, "bias": 1}),
            ("forced_tokens", "tokens", lambda id: {"token_id": 1, "step": id}),
        )
    ),
]
BOUNDS: list[tuple[str, Any, Any, str]] = [
    ("artifact.release_id", "x" * 200, "x" * 201, "artifact.release_id (characters)"),
    ("runtime.cache.abi", "x" * 4096, "x" * 4097, "runtime.cache.abi (characters)"),
    ("prompt.token_ids[0]", 2**21 - 1, 2**21, "prompt.token_ids[0]"),
    ("prompt.attention_mask[0]", 1, 2, "prompt.attention_mask[0]"),
    ("position_visibility.context_tokens_max", 2**20, 2**20 + 1, "position_visibility.context_tokens_max"),
    ("policy.transforms[0].value", 1000, 1000.5, "policy.transforms[0].value"),
    ("policy.transforms[2].p", 1, 1.0000001, "policy.transforms[2].p"),
    ("policy.logprobs_top", 20, 21, "policy.logprobs_top"),
    *(
        (
            "policy.transforms[1]",
            {**entry, name: inside},
            {**entry, name: outside},
            f"policy.transforms[1].{limit}",
        )
        for entry, name, inside, outside, limit in OF_TRANSFORMS
    ),
    ("rng.seed", 2**53 - 1, 2**53, "rng.seed"),
    ("rng.choice", 1023, 1024, "rng.choice"),
    ("runtime.batch_width", 1024, 1025, "runtime.batch_width"),
    ("runtime.retry_budget", 100, 101, "runtime.retry_budget"),
    ("termination.max_new_tokens", 2**20 + 1, 2**20 + 2, "termination.max_new_tokens"),
    ("termination.deadline_ms", 30 * 86400 * 1000, 30 * 86400 * 1000 + 1, "termination.deadline_ms"),
    ("termination.stop_strings", ["x"] * 64, ["x"] * 65, "termination.stop_strings (elements)"),
    ("termination.stop_strings[1]", "\u00e9" * 512, "\u00e9" * 513, "termination.stop_strings[1] (bytes)"),
    ("termination.stop_token_ids", list(range(1024)), list(range(1025)), "termination.stop_token_ids (elements)"),
    ("text_interface.eos_ids", list(range(64)), list(range(65)), "text_interface.eos_ids (elements)"),
]


@pytest.mark.contract("ENV-1")
@pytest.mark.parametrize(("path", "inside", "outside", "limit"), BOUNDS)
def test_a_bound_of_a_field_admits_its_maximum_and_names_what_exceeds_it(
    path: str, inside: Any, outside: Any, limit: str
) -> None:
    assert admitted(changed(full(), {path: inside}))
    with pytest.raises(LimitExceeded) as caught:
        admitted(changed(full(), {path: outside}))
    assert caught.value.limit == limit
    assert caught.value.value > caught.value.maximum


@pytest.mark.contract("ENV-1")
def test_the_largest_prompt_is_admitted_whole_and_one_token_more_is_refused() -> None:
    def sized(count: int) -> dict[str, Any]:
        last = limits.VOCABULARY_SIZE_MAX - 1
        return changed(full(), {"prompt.token_ids": [last] * count, "prompt.attention_mask": [1] * count})

    envelope = admitted(sized(limits.PROMPT_TOKENS_MAX))
    assert len(envelope.prompt.token_ids) == limits.PROMPT_TOKENS_MAX
    assert len(envelope.canonical_bytes()) <= limits.REQUEST_BYTES_MAX
    with pytest.raises(LimitExceeded, match=r"prompt\.token_ids"):
        admitted(sized(limits.PROMPT_TOKENS_MAX + 1))


# ---- canonical bytes and identity -----------------------------------------------------------------------------


@pytest.mark.contract("ENV-4")
def test_every_list_declares_its_order_and_every_text_its_form() -> None:
    assert list(undeclared(Envelope, "envelope")) == []


@pytest.mark.contract("ENV-4")
@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_canonical_bytes_are_admitted_as_the_same_envelope(example: Callable[[], dict[str, Any]]) -> None:
    envelope = admitted(example())
    again = admit(envelope.canonical_bytes())
    assert again == envelope
    assert (again.identity, again.canonical_bytes()) == (envelope.identity, envelope.canonical_bytes())


@pytest.mark.contract("ENV-4")
@given(data=st.data(), indent=st.none() | st.integers(0, 3), ascii_only=st.booleans())
def test_white_space_key_order_and_escapes_of_the_text_are_not_in_the_identity(
    data: st.DataObject, indent: int | None, ascii_only: bool
) -> None:
    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shuffled(value[key]) for key in data.draw(st.permutations(list(value)))}
        return [shuffled(item) for item in value] if isinstance(value, list) else value

    raw = json.dumps(shuffled(full()), indent=indent, ensure_ascii=ascii_only).encode()
    assert admit(raw).identity == admitted(full()).identity


@pytest.mark.contract("ENV-4")
def test_a_float_field_takes_an_integer_numeral_as_the_same_value() -> None:
    one = admitted(changed(full(), {"policy.transforms[0].value": 1}))
    assert one == admitted(changed(full(), {"policy.transforms[0].value": 1.0}))
    assert b'"value":1}' in one.canonical_bytes()


@pytest.mark.contract("ENV-4")
@pytest.mark.parametrize("path", sets_of_the_schema())
def test_a_set_has_no_order(path: str) -> None:
    one, other = (admitted(changed(full(), {path: ids})) for ids in ([9, 4, 6], [6, 9, 4]))
    assert one.identity == other.identity
    assert b"[4,6,9]" in one.canonical_bytes()


@pytest.mark.contract("ENV-4")
@pytest.mark.parametrize("path", sets_of_the_transforms())
def test_a_set_of_a_transform_has_no_order_and_no_repetition(path: str) -> None:
    place: Any = shaped()
    for step in steps(path):
        place = place[step]
    one, other = (admitted(changed(shaped(), {path: entries})) for entries in (place, place[::-1]))
    assert (one.identity, one.canonical_bytes()) == (other.identity, other.canonical_bytes())
    with pytest.raises(SchemaViolation, match=r"twice|same") as caught:
        admitted(changed(shaped(), {path: [*place, place[0]]}))
    assert caught.value.path == path
    with pytest.raises(SchemaViolation, match="empty"):
        admitted(changed(shaped(), {path: []}))


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


@pytest.mark.contract("ENV-4", "ENV-5")
@pytest.mark.parametrize(
    ("path", "other"),
    [
        ("prompt.token_ids", [299, 41, 40, 1]),
        ("policy.transforms", full()["policy"]["transforms"][::-1]),
        ("termination.stop_strings", full()["termination"]["stop_strings"][::-1]),
        ("termination.finish_order", [reason.value for reason in FinishReason][::-1]),
    ],
)
def test_an_ordered_list_has_its_order_in_the_identity(path: str, other: list[Any]) -> None:
    assert admitted(changed(full(), {path: other})).identity != admitted(full()).identity


@pytest.mark.contract("ENV-4")
def test_texts_are_compared_by_their_bytes_without_normalisation() -> None:
    composed, decomposed = (
        admitted(changed(full(), {"termination.stop_strings": [text]})) for text in ("\u00e9", "e\u0301")
    )
    assert composed.identity != decomposed.identity
    assert decomposed.termination.stop_strings[0].encode() == b"e\xcc\x81"


# Leaves with one legal value in this version, and the lists that are empty in it.
FIXED = {
    "schema",
    "artifact.adapters",
    "prompt.start_state",
    "position_visibility.mode",
    "position_visibility.position_rule",
    "policy.tie_rule",
    "policy.score_kind",
    "rng.stream_rule",
    "runtime.cache.kind",
    "runtime.modes",
    "termination.detectors",
    "output.extras[0].kind",
}
# Leaves that can only change together with others; such changes are in TOGETHER.
FINISH_ORDER = {f"termination.finish_order[{index}]" for index in range(len(FinishReason))}
COUPLED = {
    "shaped": {
        *FINISH_ORDER,
        # min_p and typical_p have the same fields, and so have the two penalties of scores.
        *(f"policy.transforms[{index}].kind" for index in (0, 4, 7, 8)),
        "runtime.compatibility",
        "termination.zero_token_choice",
    },
    "full": {
        *FINISH_ORDER,
        *(f"policy.transforms[{index}].kind" for index in range(2)),
        "runtime.compatibility",
        "termination.zero_token_choice",
    },
    "plain": {
        *FINISH_ORDER,
        "runtime.compatibility",
        "runtime.device_class",
        "runtime.framework_revision",
        "termination.max_new_tokens",
        "termination.min_new_tokens",
    },
}
TOGETHER: list[dict[str, Any]] = [
    {"policy.transforms[0]": {"kind": "top_p", "p": 0.8}},
    {"policy.transforms[1]": {"kind": "temperature", "value": 50}},
    {"termination.finish_order": [reason.value for reason in reversed(FinishReason)]},
    {"runtime.compatibility": "any_revision", "runtime.framework_revision": None},
    {"runtime.compatibility": "any_device", "runtime.framework_revision": None, "runtime.device_class": None},
    {
        "termination.max_new_tokens": 0,
        "termination.min_new_tokens": 0,
        "termination.zero_token_choice": "no_call",
    },
    {
        "termination.max_new_tokens": 0,
        "termination.min_new_tokens": 0,
        "termination.zero_token_choice": "prefill_only",
    },
]

NEIGHBOURS: list[Any] = [
    *sorted({*words(Envelope), *(reason.value for reason in FinishReason)}),
    *(None, True, False, 0, 1, 2, 3, 77, 0.5, 1.5, "x", "0" * 64, [1], ["x"]),
    [{"kind": "temperature", "value": 0.5}],
    [{"kind": "prompt_logprobs", "top": 1}],
]


@pytest.mark.contract("ENV-5")
@pytest.mark.parametrize("name", EXAMPLES)
def test_any_change_of_any_leaf_changes_the_identity_and_is_named(name: str) -> None:
    value = EXAMPLES[name]()
    original = admitted(value)
    unchanged, paths = set(), set()
    for path, leaf in leaves(json.loads(original.canonical_bytes())):
        accepted = 0
        paths.add(path)
        for neighbour in NEIGHBOURS:
            try:
                other = admitted(changed(value, {path: neighbour}))
            except Rejected:
                continue
            if type(neighbour) is type(leaf) and neighbour == leaf:
                assert other == original
                continue
            accepted += 1
            assert other.identity != original.identity, (path, neighbour)
            assert other != original
            difference = first_difference(original, other) or ""
            sets = (*sets_of_the_schema(), *sets_of_the_transforms())
            assert path.startswith(difference) or path.rsplit("[", 1)[0] in sets, (path, difference)
        if not accepted:
            unchanged.add(path)
    assert unchanged == (FIXED & paths) | COUPLED[name]


@pytest.mark.contract("ENV-5")
def test_changes_that_need_each_other_change_the_identity() -> None:
    identities = [admitted(changed(full(), changes)).identity for changes in [{}, *TOGETHER]]
    assert len(set(identities)) == len(identities)


@pytest.mark.contract("ENV-5")
@pytest.mark.parametrize("path", sorted({path.rsplit("[", 1)[0] for path, _ in leaves(full()) if path.endswith("]")}))
def test_shortening_a_list_changes_the_identity_or_is_refused(path: str) -> None:
    value: Any = full()
    for step in path.split("."):
        value = value[step]
    shorter = changed(full(), {path: value[:-1]})
    if path == "termination.finish_order":
        with pytest.raises(SchemaViolation, match="once"):
            admitted(shorter)
    else:
        assert admitted(shorter).identity != admitted(full()).identity
        assert first_difference(admitted(full()), admitted(shorter)) == path


@pytest.mark.contract("ENV-5")
def test_nothing_about_clocks_addresses_jobs_or_workers_is_part_of_the_request() -> None:
    named = {path.rsplit(".", 1)[-1] for path in fields(full())}
    outside = ("time", "clock", "date", "created", "host", "address", "url", "job", "worker", "owner", "lease", "fence")
    assert [name for name in named if set(name.split("_")) & set(outside)] == []


@pytest.mark.contract("ENV-5")
def test_an_envelope_cannot_be_changed_once_it_is_sealed() -> None:
    envelope = admitted(full())
    before = envelope.identity
    with pytest.raises(ValueError, match="frozen"):
        envelope.rng.seed = 7
    with pytest.raises(ValueError, match="frozen"):
        envelope.rng = admitted(plain()).rng
    assert copy.deepcopy(envelope).identity == before == admitted(full()).identity


@pytest.mark.contract("ENV-8")
@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({}, None),
        ({"rng.seed": 7, "output.include_stop": False}, "rng.seed"),
        ({"prompt.token_ids[2]": 7}, "prompt.token_ids[2]"),
        ({"prompt.token_ids": [1]}, "prompt.token_ids"),
        ({"policy.transforms[0]": {"kind": "top_k", "k": 5}}, "policy.transforms[0].kind"),
        ({"policy.transforms[2].p": 0.5}, "policy.transforms[2].p"),
        ({"termination.deadline_ms": None}, "termination.deadline_ms"),
        ({"termination.stop_token_ids": [9, 5]}, None),
        ({"artifact.release_id": "z", "rng.seed": 1}, "artifact.release_id"),
    ],
)
def test_the_first_differing_field_is_named(changes: dict[str, Any], path: str | None) -> None:
    held, offered = admitted(full()), admitted(changed(full(), changes))
    assert first_difference(held, offered) == first_difference(offered, held) == path
    assert (path is None) == (held.identity == offered.identity)


# ---- grammars and detectors -----------------------------------------------------------------------------------

STRUCTURED = {
    "policy.transforms": [{"kind": "grammar", "language": "json_schema", "source": '{"type":"object","a":1}'}],
    "termination.detectors": [{"kind": "json_value"}, {"kind": "tool_call", "begin": "<t>", "end": ""}],
}


@pytest.mark.contract("ENV-4", "ENV-5", "OUT-5", "OUT-6")
def test_every_leaf_of_a_grammar_and_a_detector_is_part_of_the_identity() -> None:
    base = changed(plain(), copy.deepcopy(STRUCTURED))
    envelope = admitted(base)
    assert admit(envelope.canonical_bytes()) == envelope
    others = [
        {"policy.transforms[0].source": '{"a":1,"type":"object"}'},
        {"policy.transforms[0].language": "regex"},
        {"termination.detectors[1].begin": "<u>"},
        {"termination.detectors[1].end": "</t>"},
        {"termination.detectors": list(reversed(STRUCTURED["termination.detectors"]))},
        {"termination.detectors": []},
    ]
    identities = {admitted(changed(base, change)).identity for change in others}
    assert len(identities | {envelope.identity, admitted(plain()).identity}) == len(others) + 2


@pytest.mark.contract("ENV-1", "ENV-2", "OUT-5", "OUT-6")
@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        ("policy.transforms[0].source", '{"type": "object"}', "one form"),
        ("policy.transforms[0].source", '{"maximum":1.0}', "one form"),
        ("policy.transforms[0].source", '{"a":1,"a":2}', "written twice"),
        ("policy.transforms[0].source", "[1]", "an object"),
        ("policy.transforms[0].source", "{", "no JSON schema"),
        ("policy.transforms[0].source", "x" * (limits.GRAMMAR_BYTES_MAX + 1), str(limits.GRAMMAR_BYTES_MAX)),
        ("policy.transforms[0].source", "", "empty"),
        ("policy.transforms[0].language", "ebnf", "lark"),
        ("termination.detectors[1].begin", "", "empty"),
        ("termination.detectors[1].end", "\nx", "blank"),
        ("termination.detectors[0].kind", "xml", "tool_call"),
        ("termination.detectors", [{"kind": "json_value"}] * 9, "8"),
    ],
)
def test_a_bad_grammar_or_detector_is_refused_at_its_path(path: str, value: Any, word: str) -> None:
    with pytest.raises((SchemaViolation, LimitExceeded), match=word) as caught:
        admitted(changed(changed(plain(), copy.deepcopy(STRUCTURED)), {path: value}))
    assert str(caught.value).startswith(path)


# ---- golden bytes ---------------------------------------------------------------------------------------------


@pytest.mark.contract("ENV-3", "ENV-4")
@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_every_golden_envelope_still_has_its_bytes_and_identity(path: Path) -> None:
    raw = path.read_bytes()
    envelope = admit(raw)
    assert envelope.canonical_bytes() == raw
    assert envelope.identity == path.with_suffix(".identity").read_text("ascii").strip()


@pytest.mark.contract("ENV-3")
def test_the_golden_envelopes_cover_every_example() -> None:
    assert {admitted(example()).identity for example in EXAMPLES.values()} <= {
        path.read_text("ascii").strip() for path in GOLDEN.glob("*.identity")
    }


@pytest.mark.contract("ENV-2")
@given(raw=st.binary(max_size=60))
def test_any_bytes_are_refused_with_a_typed_error(raw: bytes) -> None:
    with pytest.raises((LimitExceeded, MalformedJson, SchemaViolation, UnknownVersion)):
        admit(raw)


def test_a_large_envelope_is_admitted_and_identified_in_milliseconds() -> None:
    value = changed(full(), {"prompt.token_ids": list(range(4096)), "prompt.attention_mask": [1] * 4096})
    raw = json.dumps(value).encode()
    spent = []
    for _ in range(5):
        start = time.process_time()
        assert admit(raw).identity
        spent.append(time.process_time() - start)
    assert min(spent) < 0.010
