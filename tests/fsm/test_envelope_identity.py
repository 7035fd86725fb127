"""The canonical form and the identity: what they cover, and that they stay what they were."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from envelope_examples import EXAMPLES, changed, fields, full, leaves, plain, shaped, steps
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from decodelog.fsm.errors import Rejected, SchemaViolation
from decodelog.fsm.request.canonical import ListOrder, TextForm
from decodelog.fsm.request.envelope import Envelope, admit, admitted, first_difference
from decodelog.fsm.request.finish import FinishReason

GOLDEN = Path(__file__).parent.parent / "golden" / "envelope"


def sets_of_the_schema() -> list[str]:
    return ["text_interface.eos_ids", "termination.eos_ids", "termination.stop_token_ids"]


def sets_of_the_transforms() -> list[str]:
    """The same of `shaped`."""
    lists = ((0, "biases"), (5, "token_ids"), (6, "token_ids"), (7, "tokens"))
    return [f"policy.transforms[{index}].{name}" for index, name in lists]


# ---- canonical bytes -------------------------------------------------------------------------------------------------


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
def test_white_space_key_order_and_escapes_are_not_in_the_identity(
    data: st.DataObject, indent: int | None, ascii_only: bool
) -> None:
    """White space key order and escapes of the text are not in the identity."""

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


# ---- identity --------------------------------------------------------------------------------------------------------


def words(*hints: Any) -> Iterator[str]:
    """Every word that some literal of the schema admits."""
    for hint in hints:
        if get_origin(hint) is Literal:
            yield from (word for word in get_args(hint) if isinstance(word, str))
        elif isinstance(hint, type) and issubclass(hint, BaseModel):
            yield from words(*get_type_hints(hint, include_extras=True).values())
        else:
            yield from words(*get_args(hint))


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
    "bent": {
        *FINISH_ORDER,
        *(f"policy.transforms[{index}].kind" for index in range(4)),
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
            sets = (*sets_of_the_schema(), *sets_of_the_transforms(), "policy.transforms[0].breaker_ids")
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
def test_no_clock_address_job_or_worker_is_part_of_the_request() -> None:
    """Nothing about clocks addresses jobs or workers is part of the request."""
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


# ---- golden bytes ----------------------------------------------------------------------------------------------------


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
