"""Grammars: what may follow, where a token leads, and what is guarded beyond the grammar."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import jsonschema
import numpy as np
import pytest

from decodelog.fsm.errors import BrokenInvariant, GrammarRefused
from decodelog.fsm.limits import BLANKS_MAX, JSON_DEPTH_MAX, JSON_KEY_BYTES_MAX, JSON_KEYS_MAX, NUMERAL_BYTES_MAX
from decodelog.fsm.output.json_value import START, scan
from decodelog.fsm.output.standing import Standing
from decodelog.fsm.request.canonical import ordered_json
from decodelog.fsm.request.transforms import Grammar
from decodelog.runtime.grammar.parser import Grammars, Parser

pytestmark = pytest.mark.contract("OUT-5")

EOS, SPECIAL, UNUSED = 256, 257, 258
MORE = [b'","', b'":', b'{"', b'"a":1', b'a"', b'":{"a":', b'"}', b'"]', b",", b"1" * 20, b"1" * 40, b"  ", b" " * 40]
MORE += [b"\xf0\x9f", b"\x98\x80", b"\xc0\x80", b'""', b'"","', b'":"",""', b"{{", b"[[[", b"1,1", b'",1,"', b"true,"]
PIECES = [*(bytes((byte,)) for byte in range(256)), b"<eos>", b"<|x|>", b"", *MORE]
GRAMMARS = Grammars(PIECES, lambda token: token in (EOS, SPECIAL))

INCOMPLETE, COMPLETE, TERMINATED, INVALID = Standing
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"value": {"type": "number"}, "items": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["value"],
            "additionalProperties": False,
        }
    },
}
OPEN: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {"type": ["integer", "string", "null", "array", "boolean"]},
}


def parser(source: Any, language: str = "json_schema", ending: tuple[int, ...] = (EOS,)) -> Parser:
    text = source if isinstance(source, str) else ordered_json(source)
    return GRAMMARS.parser(Grammar.model_validate({"kind": "grammar", "language": language, "source": text}), ending)


def follows(at: Parser, piece: bytes | int) -> bool:
    return bool(at.allowed()[piece if isinstance(piece, int) else PIECES.index(piece)])


def write(at: Parser, text: bytes) -> Standing:
    """Take a text byte by byte, each of which must be allowed."""
    standing = INCOMPLETE
    for byte in text:
        assert follows(at, byte), f"{bytes([byte])!r} of {text!r} is not allowed"
        standing = at.take(byte)
    return standing


# ---- incomplete, complete, terminated, invalid ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "source", "text", "standing"),
    [
        ("json_schema", PERSON, b'{"name": "}"', INCOMPLETE),  # a closing brace in a string completes nothing
        ("json_schema", PERSON, b'{"name": "}", "age": 3}', TERMINATED),
        ("json_schema", {"type": "integer"}, b"-", INCOMPLETE),
        ("json_schema", {"type": "integer"}, b"12", COMPLETE),
        ("regex", "ab?", b"a", COMPLETE),
        ("regex", "ab?", b"ab", TERMINATED),
        ("regex", "a{3}", b"aa", INCOMPLETE),
        ("lark", 'start: "a" start? "b"', b"aab", INCOMPLETE),
        ("lark", 'start: "a" start? "b"', b"aabb", TERMINATED),
    ],
)
def test_where_a_text_stands(language: str, source: Any, text: bytes, standing: Standing) -> None:
    at = parser(source, language)
    assert write(at, text) is standing
    assert follows(at, EOS) == standing.whole


@pytest.mark.contract("OUT-3")
def test_an_end_token_is_allowed_exactly_where_the_text_is_whole() -> None:
    """An end token is allowed exactly where the text is whole and ends it."""
    at = parser("ab?", "regex")
    assert not follows(at, EOS)
    at.take(ord("a"))
    assert follows(at, EOS)
    assert at.take(EOS) is COMPLETE
    ended = parser("ab?", "regex")
    write(ended, b"a")
    other = ended.fork()
    assert (ended.take(ord("b")), other.take(EOS)) == (TERMINATED, COMPLETE)


def test_a_forbidden_token_makes_the_text_invalid_and_never_raises() -> None:
    """A token that is not allowed makes the text invalid and never raises."""
    for token in (ord("b"), SPECIAL, UNUSED, EOS):
        at = parser("ab", "regex")
        assert not follows(at, token)
        assert at.take(token) is INVALID
        assert at.take(ord("b")) is INVALID  # it stays so


def test_unused_ids_and_special_tokens_are_in_no_text() -> None:
    for source, language in ((".*", "regex"), ({}, "json_schema"), ("start: /(.|\\n)*/", "lark")):
        assert not follows(parser(source, language), UNUSED)
        assert not follows(parser(source, language), SPECIAL)
    assert follows(parser("start: <|x|>", "lark"), SPECIAL)  # named by the grammar itself


def test_properties_come_in_the_order_of_the_schema() -> None:
    at = parser({**PERSON, "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}})
    write(at, b'{"')
    assert follows(at, b"n")
    assert not follows(at, ord("a"))
    turned = parser({**PERSON, "properties": {"age": {"type": "integer"}, "name": {"type": "string"}}})
    write(turned, b'{"')
    assert follows(turned, ord("a"))
    assert not follows(turned, ord("n"))


@pytest.mark.parametrize(
    ("language", "source", "word"),
    [
        ("json_schema", {"type": "foo"}, "foo"),
        ("json_schema", {"not": {}}, "not"),
        ("json_schema", {"x-guidance": {"lenient": True}}, "x-guidance"),
        ("json_schema", {"type": "object", "properties": {"a": False}, "required": ["a"]}, ""),
        ("regex", "(", "unclosed"),
        ("regex", r"[^\u0000-\U0010FFFF]", "no text"),  # an empty language
        ("lark", "start: nothing", "nothing"),
        ("lark", "x: /a/", "start"),
    ],
)
def test_a_useless_grammar_is_refused_with_the_compilers_words(language: str, source: Any, word: str) -> None:
    """What does not compile or has no text is refused with the compiler's words."""
    with pytest.raises(GrammarRefused) as caught:
        parser(source, language)
    assert caught.value.language == language
    assert word in caught.value.reason
    assert "llguidance" not in caught.value.reason


# ---- what grammars are known to let through, or not to ----------------------------------------------------------


@pytest.mark.parametrize("text", [b"\xf0\x9f\x98\x80", b"\xf0\x9f\x99\x8f"])
def test_characters_of_several_byte_tokens_can_be_written_under_a_class(text: bytes) -> None:
    at = parser("[\U0001f600-\U0001f64f]+", "regex")
    assert [write(at, text[index : index + 1]) for index in range(4)] == [INCOMPLETE] * 3 + [COMPLETE]
    assert not follows(at, ord("a"))
    pieces = parser("[\U0001f600-\U0001f64f]+", "regex")
    assert follows(pieces, b"\xf0\x9f")
    pieces.take(PIECES.index(b"\xf0\x9f"))
    assert follows(pieces, b"\x98\x80")
    assert pieces.take(PIECES.index(b"\x98\x80")) is COMPLETE


def test_a_negated_class_takes_whole_characters_and_no_ill_formed_byte() -> None:
    at = parser("[^a]+", "regex")
    assert not follows(at, ord("a"))
    assert follows(at, 0xE2)
    for byte in (0xC0, 0xC1, 0xF5, 0xF6, 0xF7, 0xFF, 0x80):
        assert not follows(at, byte)
    assert not follows(at, b"\xc0\x80")
    at.take(0xF0)
    assert not follows(at, 0x80)  # overlong


def test_a_raw_control_character_in_a_string_is_masked() -> None:
    at = parser({"type": "string"})
    write(at, b'"a')
    assert not any(follows(at, byte) for byte in range(0x20))
    assert follows(at, b"\\")


def test_a_leading_or_a_trailing_comma_is_masked() -> None:
    at = parser({"type": "array", "items": {"type": "integer"}})
    write(at, b"[")
    assert not follows(at, ord(","))
    write(at, b"1,")
    assert not follows(at, ord("]"))


def test_digits_without_end_are_masked_at_the_bound() -> None:
    at = parser({})
    write(at, b"[" + b"1" * NUMERAL_BYTES_MAX)
    assert not any(follows(at, byte) for byte in b"0123456789.eE")
    assert follows(at, ord("]"))
    assert follows(at, ord(","))
    near = parser({})
    write(near, b"1" * 13)
    assert not follows(near, b"1" * 20)
    write(near, b"1" * (NUMERAL_BYTES_MAX - 14))
    assert follows(near, ord("1"))
    assert not follows(near, ord("."))
    assert not follows(near, ord("e"))


def test_blanks_without_end_are_masked_at_the_bound() -> None:
    at = parser({})
    write(at, b"[" + b" " * (BLANKS_MAX - 1))
    assert follows(at, ord("\n"))
    assert not follows(at, b"  ")
    write(at, b" ")
    assert not any(follows(at, byte) for byte in b" \t\n\r")
    assert follows(at, ord("1"))


def test_a_repeated_key_is_masked_where_it_would_close() -> None:
    at = parser(OPEN)
    write(at, b'{"a":1,"a')
    assert not follows(at, ord('"'))
    assert not follows(at, b'":')
    assert not follows(at, b'"}')
    assert follows(at, b'a"')
    write(at, b'b":1}')
    escaped = parser(OPEN)
    write(escaped, b'{"\\n":1,"\\n')
    assert not follows(escaped, ord('"'))
    inner = parser({})
    write(inner, b'{"a":{"a":1},"b":{"a')
    assert follows(inner, ord('"'))  # keys of other objects do not count


def test_a_whole_repeated_key_within_one_token_is_masked() -> None:
    at = parser({})
    write(at, b'{"a":1,')
    assert not follows(at, b'"a":1')
    fresh = parser({})
    write(fresh, b'{"b":1,')
    assert follows(fresh, b'"a":1')


def test_nesting_and_keys_without_end_are_masked_at_the_bound() -> None:
    deep = parser({})
    write(deep, b"[" * JSON_DEPTH_MAX)
    assert not follows(deep, ord("["))
    assert not follows(deep, ord("{"))
    assert follows(deep, ord("]"))
    wide = parser({})
    text = b"{" + b",".join(b'"%d":0' % number for number in range(JSON_KEYS_MAX))
    wide.stand_after(list(text))
    assert not follows(wide, ord(","))
    assert follows(wide, ord("}"))
    long = parser({})
    long.stand_after(list(b'{"' + b"k" * JSON_KEY_BYTES_MAX))
    assert not follows(long, ord("k"))
    assert follows(long, ord('"'))


# ---- the guard's mask is exact, and every walk parses -----------------------------------------------------------


def walk(schema: Any, seed: int, steps: int = 90) -> tuple[bytes, int]:
    """A random walk over allowed tokens; at each step the mask is that of scanning every token.

    Its text, empty where it did not end; how many tokens the guard has removed on the way.
    """
    at, bare, choice = parser(schema), parser(schema), Random(seed)
    bare._guard = None
    text, standing, state, removed = b"", INCOMPLETE, START, 0
    for step in range(400):
        allowed = at.allowed()
        expected = bare.allowed().copy()
        for token in np.flatnonzero(expected).tolist():
            if token != EOS and scan(state, PIECES[token]).standing is INVALID:
                expected[token] = False
                removed += 1
        assert np.array_equal(allowed, expected), text
        tokens = np.flatnonzero(allowed).tolist()
        closing = [token for token in tokens if PIECES[token][:1] in (b'"', b"]", b"}", b"1")]
        token = choice.choice(closing if closing and (step > steps or choice.random() < 0.4) else tokens)
        standing = at.take(token)
        bare.take(token)
        if token == EOS:
            return text, removed
        text += PIECES[token]
        state = scan(state, PIECES[token]).scan
        bare._allowed = None
        if standing is TERMINATED:
            return text, removed
    return b"", removed


@pytest.mark.parametrize("schema", [TREE, OPEN, {}, {"type": "array"}], ids=["tree", "open", "any", "array"])
def test_every_walk_over_allowed_tokens_parses(schema: Any) -> None:
    """Every walk over allowed tokens parses and the guard's mask is exact."""
    ended, guarded = 0, 0
    for seed in range(12):
        text, removed = walk(schema, seed)
        guarded += removed
        if text:
            ended += 1
            value = json.loads(text, object_pairs_hook=unique)
            jsonschema.validate(value, schema)
    assert ended >= 3
    assert guarded or schema is TREE


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({key for key, _ in pairs}) == len(pairs)
    return dict(pairs)


# ---- coming back, and forking -----------------------------------------------------------------------------------


@pytest.mark.contract("RES-4", "FSM-6")
def test_a_parser_is_rebuilt_from_any_number_of_committed_tokens() -> None:
    """A parser is rebuilt from the committed tokens however many it had taken."""
    text = list(b'{"name": "Ada", "age": 36}')
    for cut in range(len(text)):
        lost, going = parser(PERSON), parser(PERSON)
        lost.stand_after(text[:cut])
        for token in text[:cut]:
            going.take(token)
        assert np.array_equal(lost.allowed(), going.allowed())
        going.stand_after(text)
        lost.stand_after(text)
        assert np.array_equal(lost.allowed(), going.allowed())
        assert going.taken == len(text)


def test_tokens_that_are_not_of_the_grammar_are_a_broken_invariant() -> None:
    with pytest.raises(BrokenInvariant, match="OUT-5"):
        parser(PERSON).stand_after(list(b"[1"))
    with pytest.raises(BrokenInvariant, match="OUT-5"):
        parser(OPEN).stand_after(list(b'{"a":1,"a":'))


def test_a_fork_goes_its_own_way() -> None:
    """So does its guard: the key that one of them has closed is not taken from the other."""
    begun = b'{"a":1,"'
    at = parser({})
    write(at, begun)
    other = at.fork()
    assert other.taken == at.taken == len(begun)
    assert np.array_equal(other.allowed(), at.allowed())
    write(at, b"b")
    assert (at.taken, other.taken) == (len(begun) + 1, len(begun))
    write(other, b"a")
    assert follows(at, ord('"'))
    assert not follows(other, ord('"'))  # the key `a` is there already
    write(at, b'":[')
    write(other, b'b":')
    assert follows(at, ord("]"))
    assert not follows(other, ord("]"))
    write(other, b'{"b":1}')
    assert follows(other, ord("}"))
    assert not follows(at, ord("}"))
    third = other.fork()
    write(at, b"]")
    for each in (at, other, third):
        assert follows(each, ord("}"))
    assert other.take(ord("}")) is TERMINATED
    assert third.take(ord(",")) is INCOMPLETE  # the text that has ended is not this one's
