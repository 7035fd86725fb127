"""What people may write, what it means when they leave something out, and what is refused with advice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from decodelog.fsm.errors import LimitExceeded, MalformedJson, SchemaViolation
from decodelog.fsm.request.draft import Draft, draft_from, parse_draft
from decodelog.fsm.request.transforms import QUESTIONS

# draft | path of the violation | a word of its reason
REFUSED = """
{}                                                        | prompt              | one of
{"prompt": ""}                                            | prompt              | empty
{"messages": []}                                          | messages            | empty
{"token_ids": []}                                         | token_ids           | empty
{"prompt": "a", "messages": [{"role":"user","content":"b"}]} | messages         | give one of
{"prompt": "a", "token_ids": [1]}                         | token_ids           | give one of
{"messages": [{"role":"wizard","content":"b"}]}           | messages[0].role    | assistant
{"messages": [{"role":"user"}]}                           | messages[0].content | missing
{"messages": [{"role":"user","content":null}]}            | messages[0].content | null
{"messages": [{"role":"user","content":"b","name":"x"}]}  | messages[0].name    | no such field
{"messages": {"role":"user","content":"b"}}               | messages            | list
{"prompt": ["a"]}                                         | prompt              | list
{"prompt": "\\ud800"}                                     | prompt              | surrogate
{"token_ids": [true]}                                     | token_ids[0]        | boolean
{"token_ids": [1.0]}                                      | token_ids[0]        | point
{"token_ids": [-1]}                                       | token_ids[0]        | at least 0
{"prompt": "a", "max_new_tokens": -1}                     | max_new_tokens      | until_context
{"prompt": "a", "max_new_tokens": null}                   | max_new_tokens      | null
{"prompt": "a", "max_new_tokens": true}                   | max_new_tokens      | boolean
{"prompt": "a", "max_new_tokens": 8.0}                    | max_new_tokens      | point
{"prompt": "a", "max_new_tokens": "8"}                    | max_new_tokens      | string
{"prompt": "a", "max_new_tokens": 2, "min_new_tokens": 3} | min_new_tokens      | exceed
{"prompt": "a", "zero_token_choice": "no_call"}           | zero_token_choice   | max_new_tokens is 0
{"prompt": "a", "regex": "a", "json_schema": {}}          | regex               | json_schema is given too
{"prompt": "a", "grammar": "start: /a/", "stop_on_json": true} | stop_on_json   | grammar is given too
{"prompt": "a", "regex": ""}                              | regex               | empty
{"prompt": "a", "json_schema": [1]}                       | json_schema         | dictionary
{"prompt": "a", "stop_on_tool_calls": [{"end": "x"}]}     | stop_on_tool_calls[0].begin | missing
{"prompt": "a", "n": 0}                                   | n                   | at least 1
{"prompt": "a", "n": 2.0}                                 | n                   | point
{"prompt": "a", "n": 2, "choice": 1}                      | choice              | one choice
{"prompt": "a", "temperature": -0.1}                      | temperature         | at least 0
{"prompt": "a", "temperature": true}                      | temperature         | boolean
{"prompt": "a", "temperature": "hot"}                     | temperature         | string
{"prompt": "a", "temperature": NaN}                       | temperature         | finite
{"prompt": "a", "top_k": -1}                              | top_k               | at least 0
{"prompt": "a", "top_k": 5.0}                             | top_k               | point
{"prompt": "a", "top_p": -0.5}                            | top_p               | at least 0
{"prompt": "a", "min_p": -0.1}                            | min_p               | at least 0
{"prompt": "a", "typical_p": "x"}                         | typical_p           | string
{"prompt": "a", "repetition_penalty": 0}                  | repetition_penalty  | greater than 0
{"prompt": "a", "frequency_penalty": true}                | frequency_penalty   | boolean
{"prompt": "a", "presence_penalty": NaN}                  | presence_penalty    | finite
{"prompt": "a", "no_repeat_ngram_size": -1}               | no_repeat_ngram_size | at least 0
{"prompt": "a", "logit_bias": {"5": 1}}                   | logit_bias          | list
{"prompt": "a", "logit_bias": []}                         | logit_bias          | empty
{"prompt": "a", "logit_bias": [{"token_id": 5}]}          | logit_bias[0].bias  | missing
{"prompt": "a", "logit_bias": [{"token_id": 5, "bias": 1}, {"token_id": 5, "bias": 2}]} | logit_bias | same token_id
{"prompt": "a", "allowed_token_ids": []}                  | allowed_token_ids   | empty
{"prompt": "a", "banned_token_ids": [3, 3]}               | banned_token_ids    | twice
{"prompt": "a", "allowed_token_ids": [3, 4], "banned_token_ids": [4, 3]} | banned_token_ids | nothing
{"prompt": "a", "forced_tokens": [{"step": 0, "token_id": 1}, {"step": 0, "token_id": 2}]} | forced_tokens | same step
{"prompt": "a", "xtc_probability": -0.1}                  | xtc_probability     | at least 0
{"prompt": "a", "xtc_threshold": "x"}                     | xtc_threshold       | string
{"prompt": "a", "dry_multiplier": -1}                     | dry_multiplier      | at least 0
{"prompt": "a", "dry_base": 0.5}                          | dry_base            | at least 1
{"prompt": "a", "dry_allowed_length": 0}                  | dry_allowed_length  | at least 1
{"prompt": "a", "dry_range": 1.5}                         | dry_range           | integer
{"prompt": "a", "dry_sequence_breakers": [""]}            | dry_sequence_breakers[0] | empty
{"prompt": "a", "own_transforms": ["x"]}                  | own_transforms[0]   | object
{"prompt": "a", "seed": -1}                               | seed                | at least 0
{"prompt": "a", "seed": 9007199254740992}                 | seed                | outside
{"prompt": "a", "stop": "x"}                              | stop                | string
{"prompt": "a", "stop": [""]}                             | stop[0]             | empty
{"prompt": "a", "stop_token_ids": [3, 3]}                 | stop_token_ids      | twice
{"prompt": "a", "eos_token_ids": []}                      | eos_token_ids       | empty
{"prompt": "a", "eos_token_ids": [3, 3]}                  | eos_token_ids       | twice
{"prompt": "a", "eos_token_ids": [3], "ignore_eos": true} | ignore_eos          | eos_token_ids is given too
{"prompt": "a", "trust_messages": true}                   | trust_messages      | none are given
{"messages": [{"role":"user","content":[{"type":"image"}]}]} | messages[0].content | only text
{"prompt": "a", "ignore_eos": 1}                          | ignore_eos          | true or false
{"prompt": "a", "stream": true}                           | stream              | no such field
{"prompt": "a", "deadline_ms": 0}                         | deadline_ms         | at least 1
{"prompt": "a", "seed": 1, "seed": 2}                     | seed                | twice
[]                                                        | request             | object
"""


@pytest.mark.contract("ENV-2", "ENV-7")
@pytest.mark.parametrize("row", REFUSED.strip().splitlines())
def test_a_draft_is_refused_at_its_path_with_the_reason(row: str) -> None:
    raw, path, word = (part.strip() for part in row.split("|"))
    with pytest.raises(SchemaViolation) as caught:
        parse_draft(raw.encode())
    assert caught.value.path == path
    assert word in caught.value.reason


@pytest.mark.contract("ENV-1", "ENV-7")
@pytest.mark.parametrize(
    ("draft", "limit", "maximum"),
    [
        ({"top_p": 1.5}, "top_p", 1),
        ({"temperature": 1001}, "temperature", 1000),
        ({"min_p": 1.5}, "min_p", 1),
        ({"typical_p": 1.5}, "typical_p", 1),
        ({"repetition_penalty": 1e300}, "repetition_penalty", 1000),
        ({"frequency_penalty": 10_001}, "frequency_penalty", 10_000),
        ({"presence_penalty": 1e300}, "presence_penalty", 10_000),
        ({"no_repeat_ngram_size": 33}, "no_repeat_ngram_size", 32),
        ({"logit_bias": [{"token_id": 1, "bias": 1e5}]}, "logit_bias[0].bias", 10_000),
        ({"xtc_probability": 1.5}, "xtc_probability", 1),
        ({"dry_base": 101}, "dry_base", 100),
        ({"dry_range": 8193}, "dry_range", 8192),
        ({"max_new_tokens": 2**20 + 2}, "max_new_tokens", 2**20 + 1),
        ({"logprobs": 21}, "logprobs", 20),
        ({"stop": ["x"] * 65}, "stop (elements)", 64),
        ({"stop": ["\u00e9" * 600]}, "stop[0] (bytes)", 1024),
        ({"choice": 1024}, "choice", 1023),
        ({"n": 129}, "n", 128),
    ],
)
def test_a_bound_exceeded_names_limit_and_maximum(draft: dict[str, Any], limit: str, maximum: int) -> None:
    with pytest.raises(LimitExceeded) as caught:
        draft_from({"prompt": "a", **draft})
    assert (caught.value.limit, caught.value.maximum) == (limit, maximum)


@pytest.mark.contract("ENV-7")
def test_what_is_not_given_has_its_declared_default() -> None:
    draft = parse_draft(b'{"prompt":"a"}')
    assert draft == Draft(prompt="a")
    assert draft.max_new_tokens == 256
    assert draft.skip_special_tokens
    assert (draft.seed, draft.stop) == (None, ())
    assert draft.asked == dict.fromkeys(QUESTIONS)


@pytest.mark.contract("ENV-7")
def test_null_means_not_given_exactly_where_the_default_is_null() -> None:
    for name, field in Draft.model_fields.items():
        raw = json.dumps({"prompt": "a"} | {name: None} | ({"token_ids": [1]} if name == "prompt" else {})).encode()
        if field.default is None:
            assert getattr(parse_draft(raw), name) is None
        else:
            with pytest.raises(SchemaViolation) as caught:
                parse_draft(raw)
            assert caught.value.path == name


@pytest.mark.contract("ENV-1", "ENV-7")
def test_a_draft_is_strict_json_too() -> None:
    with pytest.raises(MalformedJson):
        parse_draft(b"{'prompt': 'a'}")
    with pytest.raises(LimitExceeded, match="nesting_depth"):
        parse_draft(b'{"prompt":' + b"[" * 40)


@pytest.mark.contract("ENV-7")
def test_a_draft_cannot_be_changed() -> None:
    draft = Draft(prompt="a")
    with pytest.raises(ValueError, match="frozen"):
        draft.prompt = "b"


# What a program's objects may hold and no JSON text: where it stands, and a word of the reason.
FOREIGN: list[tuple[Any, str, str]] = [
    ({"maximum": 2**53}, "json_schema.maximum", "outside"),
    ({"minimum": -(2**53)}, "json_schema.minimum", "outside"),
    ({"enum": [1, {"x": [2**64]}]}, "json_schema.enum[1].x[0]", "outside"),
    ({"const": float("nan")}, "json_schema.const", "finite"),
    ({"const": float("inf")}, "json_schema.const", "finite"),
    ({"const": {1: 2}}, "json_schema.const", "key"),
    ({"const": {1, 2}}, "json_schema.const", "set"),
    ({"const": b"x"}, "json_schema.const", "bytes"),
    ({"const": "\ud800"}, "json_schema.const", "surrogate"),
    ({"\ud800": 1}, 'json_schema["\\ud800"]', "surrogate"),
]


@pytest.mark.contract("ENV-2", "ENV-7")
@pytest.mark.parametrize(("schema", "path", "word"), FOREIGN)
def test_a_schema_of_a_program_holds_what_json_holds(schema: Any, path: str, word: str) -> None:
    with pytest.raises(SchemaViolation) as caught:
        draft_from({"prompt": "a", "json_schema": schema})
    assert caught.value.path == path
    assert word in caught.value.reason


@pytest.mark.contract("ENV-1", "ENV-7")
def test_a_schema_of_a_program_is_no_deeper_than_json_may_be() -> None:
    endless: dict[str, Any] = {}
    endless["const"] = endless
    with pytest.raises(LimitExceeded, match="nesting_depth"):
        draft_from({"prompt": "a", "json_schema": endless})
    widest = {str(key): 2**53 - 1 for key in range(256)}
    assert draft_from({"prompt": "a", "json_schema": widest}).json_schema == widest
    with pytest.raises(LimitExceeded, match="object_fields"):
        draft_from({"prompt": "a", "json_schema": widest | {"x": 1}})


@pytest.mark.contract("ENV-2", "ENV-7")
@pytest.mark.parametrize("name", [name for name in Draft.model_fields if name not in ("prompt", "messages")])
def test_an_integer_that_no_json_holds_is_typed_in_every_field(name: str) -> None:
    for value in (2**53, -(2**53), 10**400, [2**64], [[2**64]], {"x": 2**64}):
        given = {name: value} | ({} if name == "token_ids" else {"prompt": "a"})
        with pytest.raises((SchemaViolation, LimitExceeded)):
            draft_from(given)


@pytest.mark.contract("ENV-7")
def test_text_parts_are_joined_with_nothing_between_them() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": "b"}]
    draft = draft_from({"messages": [{"role": "user", "content": parts}]})
    assert draft.messages is not None
    assert draft.messages[0].content == "ab"
