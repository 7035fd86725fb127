"""Bounds are checked on the bytes, and no value arrives merged, cut or converted."""

from __future__ import annotations

import contextlib
import json
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodelog.fsm import limits
from decodelog.fsm.errors import LimitExceeded, MalformedJson, SchemaViolation
from decodelog.fsm.request.strict_json import parse, path_text

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-limits.SAFE_INTEGER_MAX, limits.SAFE_INTEGER_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.contract("ENV-1", "ENV-2")
@given(value=VALUES, indent=st.none() | st.integers(0, 2), ascii_only=st.booleans())
def test_what_json_writes_is_read_back_as_it_was(value: Any, indent: int | None, ascii_only: bool) -> None:
    raw = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    assert repr(parse(raw)) == repr(value)


@pytest.mark.contract("ENV-1")
@given(raw=st.binary(max_size=40) | st.text(alphabet='{}[]",:\\u0123eE.-ntrf d', max_size=40).map(str.encode))
def test_any_bytes_are_a_value_or_a_typed_rejection(raw: bytes) -> None:
    try:
        value = parse(raw)
    except (LimitExceeded, MalformedJson, SchemaViolation):
        return
    assert json.loads(raw) == value


@pytest.mark.contract("ENV-1")
@pytest.mark.parametrize(
    ("limit", "maximum", "inside", "outside", "value"),
    [
        (
            "request_bytes",
            limits.REQUEST_BYTES_MAX,
            b"[" + b" " * (limits.REQUEST_BYTES_MAX - 2) + b"]",
            b"[" + b" " * (limits.REQUEST_BYTES_MAX - 1) + b"]",
            limits.REQUEST_BYTES_MAX + 1,
        ),
        ("nesting_depth", limits.NESTING_DEPTH_MAX, nested(32), nested(33), 33),
        ("nesting_depth", limits.NESTING_DEPTH_MAX, b'["' + b"[" * 99 + b'"]', b'["\\""' + b"{" * 32, 33),
        ("number_bytes", limits.NUMBER_BYTES_MAX, b"0." + b"1" * 30, b"0." + b"1" * 31, 33),
        ("number_bytes", limits.NUMBER_BYTES_MAX, b'["' + b"1" * 99 + b'"]', b'{"a\\\\":' + b"9" * 4000 + b"}", 4000),
        (
            "object_fields",
            limits.OBJECT_FIELDS_MAX,
            json.dumps({str(key): 0 for key in range(256)}).encode(),
            json.dumps({str(key): 0 for key in range(257)}).encode(),
            257,
        ),
    ],
)
def test_a_bound_admits_its_maximum_and_names_what_exceeds_it(
    limit: str, maximum: int, inside: bytes, outside: bytes, value: int
) -> None:
    parse(inside)
    with pytest.raises(LimitExceeded) as caught:
        parse(outside)
    assert (caught.value.limit, caught.value.value, caught.value.maximum) == (limit, value, maximum)
    assert all(word in str(caught.value) for word in (limit, str(value), str(maximum)))


@pytest.mark.contract("ENV-1")
def test_bounds_are_checked_in_order_and_before_the_grammar() -> None:
    """Size goes before text depth before number length and bounds before grammar."""
    with pytest.raises(LimitExceeded, match="request_bytes"):
        parse(b"\xff" * (limits.REQUEST_BYTES_MAX + 1))
    with pytest.raises(MalformedJson, match="UTF-8"):
        parse(b"\xff" + b"[" * 99)
    with pytest.raises(LimitExceeded, match="nesting_depth"):
        parse(b"9" * 99 + b"[" * 99)
    with pytest.raises(LimitExceeded, match="number_bytes"):
        parse(b"}" + b"9" * 99)


# raw text (as a Python literal) -> the byte offset of the fault
MALFORMED = r"""
b''                            0
b'\xef\xbb\xbf{}'              0
b'{"a":"\xff"}'                6
b'{"a":"\xc3"}'                6
b'"\xed\xa0\x80"'              1
b'\xf4\x90\x80\x80'            0
b'\xc0\xaf'                    0
b'{}{}'                        2
b'{} x'                        3
b'"\xc3\xa9" x'                5
b'[1,]'                        3
b'{"a":1,}'                    7
b"{'a':1}"                     1
b'{a:1}'                       1
b'[01]'                        2
b'[1.]'                        2
b'[.5]'                        1
b'[+1]'                        1
b'[0x10]'                      2
b'[1e]'                        2
b'[True]'                      1
b'["\t"]'                      2
b'["\x00"]'                    2
b'["\\x41"]'                   2
b'["\\u12"]'                   3
b'"abc'                        0
b'[1'                          2
b'/* */ 1'                     0
b'\xc2\xa01'                   0
b'\x0b1'                       0
"""


@pytest.mark.contract("ENV-2")
@pytest.mark.parametrize("row", MALFORMED.strip().splitlines())
def test_what_is_no_json_is_refused_at_its_byte(row: str) -> None:
    literal, offset = row.rsplit(maxsplit=1)
    with pytest.raises(MalformedJson) as caught:
        parse(eval(literal))
    assert caught.value.offset == int(offset), caught.value


@pytest.mark.contract("ENV-1")
def test_a_byte_order_mark_is_named() -> None:
    with pytest.raises(MalformedJson, match="byte order mark"):
        parse(b"\xef\xbb\xbf{}")


# text -> the path of the fault and a word of the reason
VIOLATIONS = r"""
{"a":1,"a":1}                        a                      twice
{"a":1,"\u0061":2}                   a                      twice
[0,{"b":{"c":1,"d":2,"c":3}}]        [1].b.c                twice
{"a":{"x":1,"x":2},"a":3}            a                      twice
{"sp ace":1,"sp ace":2}              ["sp ace"]             twice
[NaN]                                [0]                    finite
{"a":[1,-Infinity]}                  a[1]                   finite
{"a":Infinity}                       a                      finite
[1e999]                              [0]                    finite
-1e400                               request                finite
[0.0,-0.0,0e9,1e-400]                [3]                    double
-0.00001e-330                        request                double
[9007199254740992]                   [0]                    outside
{"a":{"b":-9007199254740992}}        a.b                    outside
123456789012345678901234567890       request                outside
"\ud800"                             request                surrogate
["x","\udc00\ud800"]                 [1]                    surrogate
{"\ud83d":1}                         ["\ud83d"]             surrogate
{"a":1e999,"b":1,"b":2}              b                      twice
[{"a":1e999},{"b":1,"b":2}]          [0].a                  finite
"""


@pytest.mark.contract("ENV-2")
@pytest.mark.parametrize("row", VIOLATIONS.strip().splitlines())
def test_what_a_parser_would_hide_is_refused_at_its_path(row: str) -> None:
    raw, path, word = re.split(r"\s{2,}", row)
    with pytest.raises(SchemaViolation, match=word) as caught:
        parse(raw.encode())
    assert caught.value.path == path


@pytest.mark.contract("ENV-2")
@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"[9007199254740991,-9007199254740991]", [2**53 - 1, 1 - 2**53]),
        (b'"\\ud83d\\ude00\xf0\x9f\x98\x80"', "\U0001f600\U0001f600"),
        (b'"e\xcc\x81\\u00e9\xc3\xa9"', "e\u0301\u00e9\u00e9"),
        (b'[{"a":1},{"a":1}]', [{"a": 1}, {"a": 1}]),
        (b" \t\r\n1 ", 1),
        (b"[1.0,1,true]", [1.0, 1, True]),
        (b"5e-324", 5e-324),
        (b"[0.0,-0.0,0e5,-0,0.1000000000000000055]", [0.0, -0.0, 0.0, 0, 0.1]),
        (b'"\\\\"', "\\"),
    ],
)
def test_what_is_legal_is_read_unchanged(raw: bytes, value: Any) -> None:
    assert repr(parse(raw)) == repr(value)


HOSTILE = {
    "floats": b"[" + b"0.1250e1," * 466_000 + b"1]",
    "numbers": b"[" + b"262143," * 524_287 + b"1]",
    "text": b'"' + b"x" * (limits.REQUEST_BYTES_MAX - 2) + b'"',
    "escapes": b'"' + b"\\n" * (limits.REQUEST_BYTES_MAX // 2 - 1) + b'"',
    "quotes": b'"' * limits.REQUEST_BYTES_MAX,
    "open string": b'"' + b"\\'" * (limits.REQUEST_BYTES_MAX // 2 - 1),
    "brackets": b"[" * limits.REQUEST_BYTES_MAX,
    "digits": b"1" * limits.REQUEST_BYTES_MAX,
    "keys": b"{" + b",".join(b'"%d":0' % key for key in range(300_000)) + b"}",
}


@pytest.mark.contract("ENV-1")
@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
def test_no_text_of_the_largest_size_takes_time_that_grows_with_its_square(raw: bytes) -> None:
    """Far below the bound on any machine, and far beyond it where a pattern goes back over what it has read."""
    assert len(raw) <= limits.REQUEST_BYTES_MAX
    start = time.process_time()
    with contextlib.suppress(LimitExceeded, MalformedJson):
        parse(raw)
    assert time.process_time() - start < 100


@pytest.mark.contract("ENV-2")
def test_a_path_reads_as_it_would_be_written() -> None:
    assert path_text(("prompt", "token_ids", 3)) == "prompt.token_ids[3]"
    assert path_text((0, "a b", "c")) == '[0]["a b"].c'
    assert path_text(()) == "request"
    assert len(path_text(("k" * 10_000,))) < 100
