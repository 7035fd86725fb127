"""Ten thousand random ids of every kind of vocabulary: text that comes token by token is the text of all the bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from counting import lines

from decodelog.fsm.output.horizon import START, Horizon, advance, flush
from decodelog.fsm.output.stop_matcher import StopMatcher, compile_stops
from decodelog.runtime.text.tokenizer import TextInterface

pytestmark = pytest.mark.contract("OUT-1")

VOCABULARIES = ("real", "sentence_piece", "metaspace", "unigram", "split_bytes")
BYTE_LEVEL = ("real", "split_bytes")
TOKENS = 10_000
# Never completed by what is streamed below: they end in bytes that a random stream has next to never.
STOPS = (b"\n\nUser: \x00\x01\x02", " é\x00\x01\x02".encode(), "😀😀\x00\x01".encode(), b" the\x00\x01\x02")


@pytest.fixture(params=VOCABULARIES)
def text(request: pytest.FixtureRequest) -> TextInterface:
    made: TextInterface = request.getfixturevalue(request.param)
    return made


def random_ids(text: TextInterface, seed: int) -> list[int]:
    """Every id of the score row alike, and stretches in which all but single bytes are rare."""
    rng = random.Random(seed)
    fragments = [index for index, piece in enumerate(text.pieces) if len(piece) <= 1]
    ids: list[int] = []
    while len(ids) < TOKENS:
        among = rng.choice([range(len(text.pieces)), fragments])
        ids += rng.choices(among, k=rng.randint(1, 300))
    return ids[:TOKENS]


def stream(pieces: Sequence[bytes], matcher: StopMatcher) -> tuple[list[str], list[int]]:
    """The delta of each token and of the end, and how many bytes the state held after each token."""
    horizon, deltas, held = START, [], []
    for piece in pieces:
        horizon, delta, _ = advance(horizon, matcher, piece)
        deltas.append(delta)
        held.append(len(horizon.held) + len(horizon.undecoded))
    return [*deltas, flush(horizon)[1]], held


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("stops", [(), STOPS], ids=["no stops", "stops"])
def test_deltas_never_raise_never_retract_and_join_to_one_decode(
    text: TextInterface, seed: int, stops: tuple[bytes, ...]
) -> None:
    pieces = [text.pieces[index] for index in random_ids(text, seed)]
    deltas, held = stream(pieces, compile_stops(stops))
    assert "".join(deltas) == b"".join(pieces).decode("utf-8", "replace")
    # What was shown before a token is the beginning of what the bytes up to it decode to.
    for count in range(0, TOKENS, 997):
        assert b"".join(pieces[:count]).decode("utf-8", "replace").startswith("".join(deltas[:count]))
    assert max(held) <= 3 + max(map(len, stops), default=0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_a_byte_level_stream_is_the_librarys_own_decoding(request: pytest.FixtureRequest, name: str, seed: int) -> None:
    text: TextInterface = request.getfixturevalue(name)
    ids = [index for index in random_ids(text, seed) if text.pieces[index] != "é!".encode()]
    deltas, _ = stream([text.pieces[index] for index in ids], compile_stops(()))
    assert "".join(deltas) == text.decode(ids)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["sentence_piece", "metaspace", "unigram"])
def test_a_byte_fallback_stream_equals_the_librarys_decoding(
    request: pytest.FixtureRequest, name: str, seed: int
) -> None:
    """Where bytes are ill-formed the library replaces every byte of the run; see the test above for those."""
    text: TextInterface = request.getfixturevalue(name)
    byte = {text.pieces[index]: index for index in range(3, 259)}
    rng = random.Random(seed)
    ids: list[int] = []
    while len(ids) < TOKENS:
        character = chr(rng.choice([rng.randint(0x20, 0x7E), rng.randint(0xA0, 0xD7FF), rng.randint(0x1F300, 0x1FAFF)]))
        spelled = [byte[bytes([each])] for each in character.encode()]
        ids += rng.choice([spelled, [rng.choice([0, 1, 2, *range(259, len(text.pieces))])]])
    deltas, _ = stream([text.pieces[index] for index in ids], compile_stops(()))
    # A whole text's first space is the encoder's own; here a prompt stands before it.
    assert text.decode([260]) + "".join(deltas) == text.decode([260, *ids])
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(deltas)


def test_an_unused_id_and_an_id_beyond_the_vocabulary_have_no_bytes(split_bytes: TextInterface) -> None:
    size = len(split_bytes.pieces)
    assert split_bytes.pieces[300] == split_bytes.pieces[size - 1] == b""
    whole = split_bytes.encode("the 😀", add_special_tokens=False)
    assert split_bytes.decode([300, *whole, size - 1]) == "the 😀"


def test_an_added_token_is_its_own_text_whatever_its_letters_stand_for(split_bytes: TextInterface) -> None:
    """In a byte alphabet the letter é stands for one byte; in an added token it is the letter."""
    ids = split_bytes.encode("café!", add_special_tokens=False)
    assert split_bytes.pieces[ids[-1]] == "é!".encode()
    assert b"".join(split_bytes.pieces[index] for index in ids) == "café!".encode()


@pytest.mark.parametrize("content", ["a 😀é\n\n the 1234  x", "日本語 it's\r\n\t<|im_start|>", "\x00\x7f\u200b🏳️‍🌈"])
def test_a_text_behind_a_regular_expression_joins_to_its_bytes(split_bytes: TextInterface, content: str) -> None:
    ids = split_bytes.encode(content, add_special_tokens=True)
    assert b"".join(split_bytes.pieces[index] for index in ids) == content.encode()
    assert split_bytes.decode(ids) == content


# ---- cost ----------------------------------------------------------------------------------------------------------


def lines_of(pieces: Sequence[bytes], horizon: Horizon, matcher: StopMatcher) -> int:
    """Lines of Python that these tokens take from `horizon` on."""

    def take() -> None:
        here = horizon
        for piece in pieces:
            here, _, _ = advance(here, matcher, piece)

    return lines(take)


@pytest.mark.contract("OUT-2")
def test_a_token_costs_the_same_work_whatever_came_before_it(text: TextInterface) -> None:
    """The state is as small, and as many lines run, after ten thousand tokens as at the start."""
    matcher = compile_stops(STOPS)
    pieces = [text.pieces[index] for index in random_ids(text, 5)]
    horizon = START
    for piece in pieces:
        horizon, _, _ = advance(horizon, matcher, piece)
    horizon, _, _ = advance(horizon, matcher, b"#")  # an ordinary character: nothing is open behind it
    assert (horizon.node, horizon.held, horizon.undecoded) == (0, b"", b"")
    assert horizon.position == len(b"".join(pieces)) + 1
    assert lines_of(pieces[:500], horizon, matcher) == lines_of(pieces[:500], START, matcher)
