"""Canonical bytes follow RFC 8785, and the identity is a digest of exactly them."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from decodelog.fsm.request.canonical import canonical_bytes, request_identity
from decodelog.fsm.request.strict_json import parse

# The bits of a double, and its text: RFC 8785, appendix B.
NUMBERS = """
0000000000000000  0
8000000000000000  0
0000000000000001  5e-324
8000000000000001  -5e-324
7fefffffffffffff  1.7976931348623157e+308
ffefffffffffffff  -1.7976931348623157e+308
4340000000000000  9007199254740992
c340000000000000  -9007199254740992
4430000000000000  295147905179352830000
44b52d02c7e14af5  9.999999999999997e+22
44b52d02c7e14af6  1e+23
44b52d02c7e14af7  1.0000000000000001e+23
444b1ae4d6e2ef4e  999999999999999700000
444b1ae4d6e2ef4f  999999999999999900000
444b1ae4d6e2ef50  1e+21
3eb0c6f7a0b5ed8c  9.999999999999997e-7
3eb0c6f7a0b5ed8d  0.000001
41b3de4355555553  333333333.3333332
41b3de4355555554  333333333.33333325
41b3de4355555555  333333333.3333333
41b3de4355555556  333333333.3333334
41b3de4355555557  333333333.33333343
becbf647612f3696  -0.0000033333333333333333
43143ff3c1cb0959  1424953923781206.2
"""


@pytest.mark.contract("ENV-4")
@pytest.mark.parametrize("row", NUMBERS.strip().splitlines())
def test_numbers_are_written_as_the_rfc_lists_them(row: str) -> None:
    bits, text = row.split()
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_bytes(number) == text.encode()


@pytest.mark.contract("ENV-4")
@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_numbers_that_the_rfc_refuses_are_refused(bits: str) -> None:
    with pytest.raises(rfc8785.CanonicalizationError):
        canonical_bytes(struct.unpack(">d", bytes.fromhex(bits))[0])


@pytest.mark.contract("ENV-4")
def test_the_example_of_the_rfc_gives_its_bytes() -> None:
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": '\u20ac$\u000f\nA\'B"\\\\"/',
        "literals": [None, True, False],
    }
    assert (
        canonical_bytes(value)
        == (
            '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
            '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        ).encode()
    )


@pytest.mark.contract("ENV-4")
def test_keys_are_sorted_by_their_utf_16_units() -> None:
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    in_order = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    assert list(json.loads(canonical_bytes(dict.fromkeys(keys, 0)))) == in_order


@pytest.mark.contract("ENV-4")
@given(number=st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_survives_its_canonical_text(number: float) -> None:
    assert float(canonical_bytes(number)) == number


@pytest.mark.contract("ENV-4")
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers(1 - 2**53, 2**53 - 1) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_canonical_text_is_strict_json_of_the_same_value(value: Any) -> None:
    """Canonical text is strict JSON of the same value and its own canonical text."""
    text = canonical_bytes(value)
    assert parse(text) == value
    assert canonical_bytes(parse(text)) == text


@pytest.mark.contract("ENV-4")
def test_the_identity_is_the_domain_tagged_digest() -> None:
    assert request_identity(b"{}") == hashlib.sha256(b"numinens.request.v1{}").hexdigest()
