"""What becomes visible: whole-text truth, for every split into tokens, and the faults that such code is known for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodelog.fsm.output.horizon import START, Horizon, advance, flush
from decodelog.fsm.output.stop_matcher import Match, compile_stops

pytestmark = pytest.mark.contract("OUT-1", "OUT-2")


@dataclass
class Run:
    deltas: list[str]
    horizon: Horizon
    match: Match | None

    @property
    def text(self) -> str:
        return "".join(self.deltas)


def run(
    tokens: list[bytes],
    stops: tuple[bytes, ...] = (),
    hidden: tuple[bytes, ...] = (),
    include_stop: bool = False,
    armed_from: int = 0,
) -> Run:
    """Feed tokens as a job does, go on after a match as a multi-token step would, and flush at the end."""
    matcher = compile_stops(stops)
    horizon, deltas, matched = START, [], None
    for index, token in enumerate(tokens):
        horizon, delta, match = advance(horizon, matcher, token, token in hidden, include_stop, index >= armed_from)
        deltas.append(delta)
        matched = matched or match
    horizon, delta = flush(horizon)
    return Run([*deltas, delta], horizon, matched)


def whole_text(data: bytes, stops: tuple[bytes, ...], include_stop: bool) -> tuple[str, bool]:
    """The same by plain search over the whole: the earliest end, then the earliest start."""
    ends = [
        (end, end - len(stop))
        for stop in stops
        for end in range(len(stop), len(data) + 1)
        if data[end - len(stop) : end] == stop
    ]
    if ends:
        end, start = min(ends)
        data = data[: end if include_stop else start]
    return data.decode("utf-8", "replace"), bool(ends)


letters = st.text("ab\N{EURO SIGN}\N{GRINNING FACE}", min_size=1, max_size=5)
stop_lists = st.lists(st.one_of(letters.map(str.encode), st.binary(min_size=1, max_size=3)), max_size=4).map(tuple)
streams = st.lists(st.one_of(letters.map(str.encode), st.binary(max_size=4)), max_size=12).map(b"".join)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


@given(streams, stop_lists, st.lists(st.integers(0, 60), max_size=12), st.booleans())
def test_streamed_text_equals_the_whole_text_cut_at_its_first_stop(
    data: bytes, stops: tuple[bytes, ...], cuts: list[int], include_stop: bool
) -> None:
    ran = run(split(data, cuts), stops, include_stop=include_stop)
    text, stopped = whole_text(data, stops, include_stop)
    assert (ran.text, ran.match is not None) == (text, stopped)
    assert ran.horizon.closed
    assert ran.horizon.characters_released == len(ran.text)


@given(streams, stop_lists, st.booleans())
def test_every_split_of_the_same_bytes_shows_the_same_text(
    data: bytes, stops: tuple[bytes, ...], include_stop: bool
) -> None:
    """Every split of the same bytes shows the same text and ends in the same state."""
    single = run([bytes([byte]) for byte in data], stops, include_stop=include_stop)
    whole = run([data], stops, include_stop=include_stop)
    assert (single.text, single.match) == (whole.text, whole.match)
    assert single.horizon == whole.horizon


@given(streams, stop_lists, st.lists(st.integers(0, 60), max_size=12))
def test_nothing_is_held_that_is_not_an_open_stop_or_an_open_character(
    data: bytes, stops: tuple[bytes, ...], cuts: list[int]
) -> None:
    matcher = compile_stops(stops)
    horizon, seen = START, b""
    for token in split(data, cuts):
        seen += token
        horizon, _, match = advance(horizon, matcher, token)
        if match is not None:
            assert (horizon.held, horizon.undecoded) == (b"", b"")
            return
        assert seen[horizon.bytes_released :] == horizon.undecoded + horizon.held
        assert horizon.position == len(seen)
        longest = max(
            (size for stop in stops for size in range(1, len(stop)) if seen.endswith(stop[:size])),
            default=0,
        )
        assert len(horizon.held) == longest
        assert len(horizon.undecoded) <= 3


@given(streams, stop_lists, st.lists(st.integers(0, 60), max_size=12), st.lists(st.integers(0, 12), max_size=4))
def test_hidden_tokens_anywhere_change_no_visible_byte(
    data: bytes, stops: tuple[bytes, ...], cuts: list[int], places: list[int]
) -> None:
    tokens = split(data, cuts)
    plain = run(tokens, stops)
    for place in places:
        tokens.insert(place, b"<|hidden|>")
    assert run(tokens, stops, hidden=(b"<|hidden|>",)).text == plain.text


@given(streams, stop_lists, st.lists(st.integers(0, 60), max_size=12), st.integers(0, 12))
def test_a_stop_counts_only_when_it_completes_in_an_armed_token(
    data: bytes, stops: tuple[bytes, ...], cuts: list[int], armed_from: int
) -> None:
    tokens = split(data, cuts)
    quiet = len(b"".join(tokens[:armed_from]))
    ends = [
        (end, end - len(stop))
        for stop in stops
        for end in range(len(stop), len(data) + 1)
        if end > quiet and data[end - len(stop) : end] == stop
    ]
    shown = data[: min(ends)[1]] if ends else data
    ran = run(tokens, stops, armed_from=armed_from)
    assert (ran.text, ran.match is not None) == (shown.decode("utf-8", "replace"), bool(ends))


@given(streams, stop_lists, st.integers(0, 60))
def test_a_horizon_rebuilt_from_its_plain_values_goes_on_the_same(
    data: bytes, stops: tuple[bytes, ...], cut: int
) -> None:
    matcher = compile_stops(stops)
    horizon, _, _ = advance(START, matcher, data[:cut])
    rebuilt = Horizon(**horizon._asdict())
    assert rebuilt == horizon
    assert rebuilt.digest_bytes() == horizon.digest_bytes()
    assert advance(rebuilt, matcher, data[cut:]) == advance(horizon, matcher, data[cut:])


@given(st.data())
def test_the_digest_tells_any_two_horizons_apart(data: st.DataObject) -> None:
    horizons = st.builds(
        Horizon,
        st.integers(0, 3),
        st.binary(max_size=2),
        st.binary(max_size=2),
        st.integers(0, 3),
        st.integers(0, 3),
        st.booleans(),
        st.lists(st.integers(0, 3), max_size=2).map(tuple),
    )
    one, other = data.draw(horizons), data.draw(horizons)
    assert (one == other) == (one.digest_bytes() == other.digest_bytes())
    assert one._replace(closed=not one.closed).digest_bytes() != one.digest_bytes()


@pytest.mark.parametrize("seed", range(3))
def test_ten_thousand_random_tokens_keep_to_their_stops(seed: int) -> None:
    """Ten thousand random tokens with stops that never complete and one that does."""
    rng = np.random.default_rng(seed)
    vocabulary = [bytes(rng.integers(0, 256, rng.integers(1, 6)).tolist()) for _ in range(400)]
    vocabulary += [bytes([byte]) for byte in range(256)]
    tokens = [vocabulary[index] for index in rng.integers(0, len(vocabulary), 10_000)]
    data = b"".join(tokens)
    near = tuple(data[start : start + 8] + b"\x00\x01\x02\x03\x04" for start in range(0, 4000, 100))
    assert run(tokens, near).text == data.decode("utf-8", "replace")
    stop = data[len(data) // 2 : len(data) // 2 + 9]
    assert run(tokens, (*near, stop)).text == whole_text(data, (stop,), False)[0]


# ---- faults that stop strings are known for --------------------------------------------------------------------


def test_a_stop_that_shares_no_prefix_withholds_nothing() -> None:
    """No window of the longest stop's length; each token is shown at once."""
    assert run([b"I ", b"am ", b"fine"], (b"@@@@@@@@@@",)).deltas == ["I ", "am ", "fine", ""]


def test_a_marker_token_is_not_split_where_no_stop_has_begun() -> None:
    """An unrelated stop of three characters leaves the marker whole."""
    assert run([b"thin", b"</think>", b"so"], (b"xyz",)).deltas == ["thin", "</think>", "so", ""]


@pytest.mark.contract("OUT-3")
@pytest.mark.parametrize("stops", [(b"</s>",), ()])
def test_a_hidden_stop_token_removes_no_visible_text(stops: tuple[bytes, ...]) -> None:
    """The text keeps its last word whether the stop is the token's id or its text."""
    ran = run([b"an", b" inj", b"ury.", b"</s>"], stops, hidden=(b"</s>",))
    assert ran.text == "an injury."
    assert ran.match == (Match(0, 10, 10) if stops else None)


@pytest.mark.contract("OUT-3")
@pytest.mark.parametrize("include_stop", [False, True])
def test_a_hidden_special_token_that_is_a_stop_flushes_what_was_held(include_stop: bool) -> None:
    """It has no visible byte to keep or to cut, so include_stop makes no difference."""
    ran = run([b"a b", b"<|end|>", b"c"], (b"bcd", b"<|end|>"), (b"<|end|>",), include_stop)
    assert ran.deltas == ["a ", "b", "", ""]
    assert ran.match == Match(1, 3, 3)


@pytest.mark.contract("OUT-3")
def test_a_shown_special_token_that_is_a_stop_is_cut_like_any_text() -> None:
    assert run([b"a b", b"<|end|>"], (b"<|end|>",)).deltas == ["a b", "", ""]
    assert run([b"a b", b"<|end|>"], (b"<|end|>",), include_stop=True).deltas == ["a b", "<|end|>", ""]


def test_a_stop_of_several_tokens_keeps_the_space_before_it() -> None:
    """The stop begins in the middle of a token, with one character."""
    tokens = [b" L", b" M", b" N", b" O", b" P", b" Q", b" R"]
    ran = run(tokens, (b"O P Q",))
    assert ran.deltas == [" L", " M", " N", " ", "", "", "", ""]
    assert ran.match == Match(0, 7, 12)


@pytest.mark.parametrize(("include_stop", "text"), [(False, "one "), (True, "one STOP")])
def test_tokens_of_one_step_after_the_stop_are_never_shown(include_stop: bool, text: str) -> None:
    """Four tokens accepted at once, and the stop ends in the second."""
    ran = run([b"one ", b"STOP!", b" two", b" three"], (b"STOP",), include_stop=include_stop)
    assert ran.text == text
    assert ran.deltas[2:] == ["", "", ""]


@pytest.mark.parametrize("armed_from", [3, 4])
def test_the_cut_is_where_the_stop_counted_and_not_where_it_first_stood(armed_from: int) -> None:
    """The stop's text stands earlier, where it must not trigger."""
    tokens = [b"why: ", b"END", b" is a word. ", b"answer ", b"END", b" more"]
    ran = run(tokens, (b"END",), armed_from=armed_from)
    assert ran.text == "why: END is a word. answer "
    assert ran.match == Match(0, 27, 30)


def test_a_partial_stop_is_flushed_when_the_model_ends() -> None:
    """Streamed and whole text agree on the held word."""
    ran = run([b" UNO", b" DUE", b" TRE"], (b"TRE\nAAAAAAAA",))
    assert ran.deltas == [" UNO", " DUE", " ", "TRE"]


def test_text_before_the_stop_in_its_own_token_is_shown() -> None:
    """One token carries a wanted character and the stop."""
    assert run([b"Mars", b"?\n"], (b"\n",)).deltas == ["Mars", "?", ""]
    assert run([b"Mars?\n"], (b"\n",)).text == "Mars?"


def test_a_held_part_that_fails_to_complete_is_released_once() -> None:
    """The deltas join to exactly the text, with nothing doubled."""
    assert run([b" Alice", b"!"], (b"\n", b"Alice:")).deltas == [" ", "Alice!", ""]


@pytest.mark.parametrize("stops", [(b"ab", b"abc"), (b"abc", b"ab")])
@pytest.mark.parametrize("tokens", [[b"x", b"a", b"b", b"c"], [b"xa", b"bc"], [b"xabc"]])
def test_stops_with_a_shared_prefix_leak_nothing(stops: tuple[bytes, ...], tokens: list[bytes]) -> None:
    """The one that completes first wins, and none of it is shown."""
    assert run(tokens, stops).text == "x"


def test_a_token_without_text_changes_nothing() -> None:
    """An unused vocabulary slot has no bytes."""
    matcher = compile_stops((b"ab",))
    horizon, _, _ = advance(START, matcher, b"xa")
    assert advance(horizon, matcher, b"") == (horizon, "", None)
