"""The incremental JSON scanner: beside Python's own parser, at every split, and at every bound."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodelog.fsm.errors import Problem
from decodelog.fsm.limits import BLANKS_MAX, JSON_DEPTH_MAX, JSON_KEY_BYTES_MAX, JSON_KEYS_MAX, NUMERAL_BYTES_MAX
from decodelog.fsm.output.json_bytes import BROKEN, DONE
from decodelog.fsm.output.json_value import START, Scan, finish, scan
from decodelog.fsm.output.standing import Standing
from decodelog.fsm.request.strict_json import parse

INCOMPLETE, COMPLETE, INVALID = Standing.INCOMPLETE, Standing.COMPLETE, Standing.INVALID

scalars = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9) | st.text(max_size=6)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)
documents = st.builds(
    lambda value, ascii_only, indent: json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode(),
    values,
    st.booleans(),
    st.sampled_from([None, 1]),
)
FRAGMENTS = [b",", b"{", b"}", b"[", b"]", b'"', b"\\", b"\\u", b"\\ud83d", b"\\udc00", b"0", b"-", b"e", b".", b" "]
FRAGMENTS += [b"\xc0\x80", b"\xf0\x9f", b"\xed\xa0\x80", b"\xf5", b"\x01", b"\x7f", b"true", b'"a":1,', b'"a":1', b"\n"]


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    """A document with some bytes removed and some put in."""
    document = bytearray(draw(documents))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(document)))
        document[at : at + draw(st.integers(0, 2))] = draw(st.sampled_from(FRAGMENTS))
    return bytes(document)


def oracle(text: bytes) -> bool:
    """Whether the whole text is one value, by the project's strict parser (Python's grammar, checked)."""
    try:
        parse(text)
    except Problem as problem:
        # What only the parser bounds, or refuses as a value: a number that no double holds is still a numeral.
        return any(words in str(problem) for words in ("lies outside", "not finite"))
    return True


def alone(text: bytes) -> bool:
    """Whether the whole text is one value, by the scanner."""
    found = scan(START, text)
    if found.standing is COMPLETE:
        return not text[found.end :].strip(b" \t\n\r")
    return found.standing is INCOMPLETE and finish(found.scan) is COMPLETE


@pytest.mark.contract("OUT-5", "OUT-6")
@given(documents | mutants())
def test_it_accepts_what_the_strict_parser_accepts(text: bytes) -> None:
    assert alone(text) == oracle(text)


@pytest.mark.contract("OUT-5", "OUT-6")
@given(documents)
def test_every_proper_beginning_is_incomplete_and_the_whole_is_complete(text: bytes) -> None:
    found = scan(START, text + b" tail")
    assert (found.standing, found.end) == (COMPLETE, len(text))
    if text[:1] in b'{["':
        for cut in range(len(text)):
            assert finish(scan(START, text[:cut]).scan) is INCOMPLETE


@pytest.mark.contract("OUT-6", "RES-2")
@given(documents | mutants(), st.lists(st.integers(1, 5), max_size=60))
def test_every_split_gives_the_same_answer_at_the_same_byte(text: bytes, sizes: list[int]) -> None:
    whole = scan(START, text)
    state, taken, standing = START, 0, INCOMPLETE
    for size in [*sizes, len(text)]:
        piece = text[taken : taken + size]
        state, standing, end, _ = scan(state, piece)
        taken += end
        if standing is not INCOMPLETE:
            break
    assert (state, standing, taken) == (whole.scan, whole.standing, whole.end)


@pytest.mark.contract("OUT-5")
@pytest.mark.parametrize(
    ("text", "standing", "end"),
    [
        (b'{"a":"}"', INCOMPLETE, 8),  # a closing brace in a string completes nothing
        (b'{"a":"}"}x', COMPLETE, 9),
        (b'{"a":"\\"}"', INCOMPLETE, 10),
        (b"12", INCOMPLETE, 2),
        (b"12,", COMPLETE, 2),
        (b"true]", COMPLETE, 4),
        (b"truex", INVALID, 4),
        (b"[,1]", INVALID, 1),
        (b"[1,]", INVALID, 3),
        (b"01", INVALID, 1),
        (b"+1", INVALID, 0),
        (b".5", INVALID, 0),
        (b"NaN", INVALID, 0),
        (b'"a\x01b"', INVALID, 2),
        (b'"\x7f"', COMPLETE, 3),
        (b'"\\x"', INVALID, 2),
        (b'"\\u12g', INVALID, 5),
        (b'"\\ud83d"', INVALID, 7),
        (b'"\\ude00"', INVALID, 6),
        (b'"\\ud83d\\ud83d', INVALID, 12),
        (b'"\\ud83d\\ude00"', COMPLETE, 14),
        (b'"\xc0\x80"', INVALID, 1),
        (b'"\xc1', INVALID, 1),
        (b'"\xf5', INVALID, 1),
        (b'"\x80', INVALID, 1),
        (b'"\xed\xa0', INVALID, 2),
        (b'"\xe0\x80', INVALID, 2),
        (b'"\xf4\x90', INVALID, 2),
        (b'"\xf0\x9f\x98', INCOMPLETE, 4),  # a part of a character is a legal place to be
        (b"\xef\xbb\xbf1", INVALID, 0),
        (b'{"a":1,"a":2}', INVALID, 9),
        (b'{"a":1,"\\u0061":2}', INVALID, 14),
        (b'{"\xf0\x9f\x98\x80":1,"\\ud83d\\ude00":2}', INVALID, 23),
        (b'{"a":{"a":1},"b":{"a":1}}', COMPLETE, 25),
        (b'[{"a":1},{"a":1}]', COMPLETE, 17),
    ],
)
def test_what_stands_where(text: bytes, standing: Standing, end: int | None) -> None:
    found = scan(START, text)
    assert (found.standing, found.end) == (standing, end)
    assert bool(found.reason) == (standing is INVALID)


def at_most(text: bytes, longer: bytes) -> None:
    assert scan(START, text).standing is not INVALID
    assert scan(START, longer).standing is INVALID


@pytest.mark.contract("OUT-5")
def test_every_bound_holds_to_the_byte() -> None:
    at_most(b"[" + b" " * BLANKS_MAX + b"1", b"[" + b" " * (BLANKS_MAX + 1))
    at_most(b"[" + b"1" * NUMERAL_BYTES_MAX + b"]", b"[" + b"1" * (NUMERAL_BYTES_MAX + 1))
    at_most(b"[" * JSON_DEPTH_MAX + b"1", b"[" * (JSON_DEPTH_MAX + 1))
    at_most(b'{"' + b"k" * JSON_KEY_BYTES_MAX + b'":', b'{"' + b"k" * (JSON_KEY_BYTES_MAX + 1))
    keys = b",".join(b'"%d":0' % number for number in range(JSON_KEYS_MAX))
    at_most(b"{" + keys + b"}", b"{" + keys + b",")


@pytest.mark.contract("OUT-5")
@pytest.mark.parametrize("tail", [b".", b"e", b"e+"])
def test_a_numeral_is_refused_where_it_could_no_longer_become_a_number(tail: bytes) -> None:
    fits = b"1" * (NUMERAL_BYTES_MAX - len(tail) - 1) + tail
    assert finish(scan(START, fits + b"5").scan) is COMPLETE
    assert scan(START, b"1" + fits).standing is INVALID


@pytest.mark.contract("OUT-5")
@pytest.mark.parametrize("character", ["\u00e9", "\U0001f600", "\\u00e9", "\\n"])
def test_a_key_is_refused_where_a_character_could_no_longer_be_finished(character: str) -> None:
    encoded = character.encode()
    fits = b'{"' + b"k" * (JSON_KEY_BYTES_MAX - 4) + encoded + b'":'
    assert scan(START, fits).standing is INCOMPLETE
    assert scan(START, b'{"' + b"k" * (JSON_KEY_BYTES_MAX - 3) + encoded).standing is INVALID


@pytest.mark.contract("OUT-5")
@given(documents | mutants())
def test_an_end_is_absorbing(text: bytes) -> None:
    found = scan(START, text)
    if found.scan.mode in (DONE, BROKEN):
        again = scan(found.scan, b'{"more": 1}')
        assert (again.scan, again.standing, again.end) == (found.scan, found.standing, 0)
        assert finish(found.scan) is found.standing


@given(documents | mutants(), documents | mutants(), st.integers(0, 20))
def test_different_scans_have_different_bytes(one: bytes, other: bytes, cut: int) -> None:
    left, right = scan(START, one[:cut]).scan, scan(START, other[:cut]).scan
    assert (left == right) == (left.packed() == right.packed())


@pytest.mark.contract("RES-2")
def test_a_scan_holds_no_text_but_the_key_at_hand() -> None:
    text = b'{"first": "' + b"x" * 10_000
    state = scan(START, text).scan
    assert len(state.packed()) < 64
    assert re.fullmatch(rb"first", scan(START, b'{"first').scan.key or b"")
    assert state == Scan(state.mode, 0, b"", None, state.opened)
