"""Incremental text equals one decode of all bytes, for every byte sequence and every split of it."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from decodelog.fsm.output.detokenize import decode

pytestmark = pytest.mark.contract("OUT-1")

# Bytes that matter to UTF-8: ASCII, continuations, every kind of lead byte with its odd neighbours, and the illegal.
EDGES = [0x00, 0x20, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE2, 0xED, 0xEF]
EDGES += [0xF0, 0xF1, 0xF4, 0xF5, 0xFF]
pieces = st.lists(
    st.one_of(st.binary(max_size=5), st.lists(st.sampled_from(EDGES), max_size=4).map(bytes)), max_size=30
)


def stream(tokens: list[bytes]) -> list[str]:
    """The delta of each token, and last of all what the end adds."""
    deltas, pending = [], b""
    for token in tokens:
        text, pending = decode(pending, token)
        deltas.append(text)
    return [*deltas, decode(pending, b"", final=True)[0]]


@given(pieces)
def test_joined_deltas_equal_one_decode_of_all_bytes(tokens: list[bytes]) -> None:
    assert "".join(stream(tokens)) == b"".join(tokens).decode("utf-8", "replace")


@given(pieces)
def test_no_delta_is_ever_taken_back(tokens: list[bytes]) -> None:
    for count in range(len(tokens) + 1):
        shown = "".join(stream(tokens)[:count])
        assert b"".join(tokens).decode("utf-8", "replace").startswith(shown)


@given(pieces)
@example([b"\xed\xa0"])
def test_at_most_three_bytes_wait_and_only_for_a_possible_character(tokens: list[bytes]) -> None:
    """At most three bytes wait and only while they can still become a character."""
    pending = b""
    for token in tokens:
        _, pending = decode(pending, token)
        assert not pending or any(is_character(pending + bytes(tail)) for tail in TAILS)


TAILS = [tail for count in (1, 2, 3) for tail in product([0x80, 0x90, 0xA0, 0xBF], repeat=count)]


def is_character(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


@given(st.text(max_size=20))
def test_each_well_formed_character_comes_with_its_last_byte(text: str) -> None:
    """Well formed text is never replaced and each character comes with its last byte."""
    deltas = stream([bytes([byte]) for byte in text.encode()])
    assert deltas[-1] == ""
    ends = [len(text[:count].encode()) for count in range(1, len(text) + 1)]
    for end, character in zip(ends, text, strict=True):
        assert deltas[end - 1] == character
    assert sum(map(len, deltas)) == len(text)


TABLE = """
    bytes            text
    41               A
    80               �
    c2 41            �A
    e2 82            �
    e2 28 a1         �(�
    f0 9f 98         �
    f0 80 80 41      ���A
    ed a0 80         ���
    c0 af            ��
    f4 90 80 80      ����
    e1 80 e2 f0 91   ���
"""


@pytest.mark.parametrize("row", TABLE.strip().splitlines()[1:])
def test_each_maximal_ill_formed_subpart_becomes_one_replacement(row: str) -> None:
    *numbers, text = row.split()
    data = bytes.fromhex("".join(numbers))
    assert "".join(stream([data])) == text
    assert "".join(stream([bytes([byte]) for byte in data])) == text


def test_half_an_emoji_is_never_shown() -> None:
    """The delta stays empty until the character is complete."""
    face = "\N{GRINNING FACE}".encode()
    assert stream([face[:1], face[1:2], face[2:]]) == ["", "", "\N{GRINNING FACE}", ""]


def test_a_long_stream_of_fragments_stays_bounded_and_correct() -> None:
    """Many tokens in a row that yield no text, then text, for as long as one likes."""
    tokens = [bytes([byte]) for byte in "\N{GRINNING FACE}\N{EURO SIGN}a".encode()] * 3000
    deltas = stream(tokens)
    assert "".join(deltas) == "\N{GRINNING FACE}\N{EURO SIGN}a" * 3000


def test_an_ill_formed_byte_is_replaced_once_and_for_good() -> None:
    """A lone continuation byte or an unfinished lead byte, then a space, then a multi-byte token."""
    assert stream([b"\x9f", b" ", "\N{EURO SIGN}".encode()]) == ["�", " ", "\N{EURO SIGN}", ""]
    assert stream([b"\xf0\x9f", b" ", "\N{EURO SIGN}".encode()]) == ["", "� ", "\N{EURO SIGN}", ""]


def test_characters_of_byte_tokens_each_come_once_with_their_last_byte() -> None:
    """Three byte tokens, an ordinary character, then three and three."""
    tokens = [bytes([byte]) for byte in "你".encode()] + ["好".encode()] + [bytes([byte]) for byte in "世界".encode()]
    assert stream(tokens) == ["", "", "你", "好", "", "", "世", "", "", "界", ""]


def test_a_leading_space_survives_at_every_window() -> None:
    """No window start strips a space, since no window exists."""
    words = [b"LL", b"Ms", b".", b" It", b" is"]
    for split in range(len(words)):
        assert "".join(stream(words[split:])) == b"".join(words[split:]).decode()
    assert "".join(stream(words)) == "LLMs. It is"


@pytest.mark.parametrize("seed", range(5))
def test_ten_thousand_random_tokens(seed: int) -> None:
    """A random vocabulary with halves of characters, and every id sequence over it."""
    rng = np.random.default_rng(seed)
    text = ("aé€😀 " * 200).encode()
    cuts = sorted({0, len(text), *rng.integers(1, len(text), 400).tolist()})
    vocabulary = [text[start:end] for start, end in pairwise(cuts)] + [bytes([byte]) for byte in range(256)]
    tokens = [vocabulary[index] for index in rng.integers(0, len(vocabulary), 10_000)]
    assert "".join(stream(tokens)) == b"".join(tokens).decode("utf-8", "replace")
