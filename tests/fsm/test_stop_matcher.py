"""The automaton finds what a plain search finds, and holds back exactly what may still become a stop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodelog.fsm.errors import SchemaViolation
from decodelog.fsm.output.stop_matcher import Match, compile_stops

pytestmark = pytest.mark.contract("OUT-2")

# Two or three letters make overlaps, shared prefixes and stops inside stops common.
stop_lists = st.lists(st.text("abc", min_size=1, max_size=6).map(str.encode), max_size=5).map(tuple)
streams = st.text("abcd", max_size=40).map(str.encode)


def first_match(stops: tuple[bytes, ...], data: bytes) -> Match | None:
    """The rule itself, by plain search: the earliest end, then the earliest start, then the earliest in the list."""
    found = [
        (end, end - len(stop), index)
        for index, stop in enumerate(stops)
        for end in range(len(stop), len(data) + 1)
        if data[end - len(stop) : end] == stop
    ]
    if not found:
        return None
    end, start, index = min(found)
    return Match(index, start, end)


def longest_open_suffix(stops: tuple[bytes, ...], data: bytes) -> int:
    return next(
        length
        for length in range(len(data), -1, -1)
        if length == 0 or any(len(stop) > length and stop.startswith(data[-length:]) for stop in stops)
    )


@given(stop_lists, streams, st.data())
def test_the_first_match_is_found_however_the_stream_is_split(
    stops: tuple[bytes, ...], stream: bytes, data: st.DataObject
) -> None:
    matcher = compile_stops(stops)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    node, match, at = 0, None, 0
    for cut in [*cuts, len(stream)]:
        node, match = matcher.feed(node, stream[at:cut], at)
        at = cut
        if match is not None:
            break
    assert match == first_match(stops, stream)


@given(stop_lists, streams)
def test_holdback_is_the_longest_suffix_that_begins_a_stop(stops: tuple[bytes, ...], stream: bytes) -> None:
    """Holdback is exactly the longest suffix that is a proper prefix of a stop."""
    matcher = compile_stops(stops)
    node = 0
    for end in range(1, len(stream) + 1):
        node = matcher.skip(node, stream[end - 1 : end])
        assert matcher.holdback(node) == longest_open_suffix(stops, stream[:end])


@given(stop_lists, streams)
def test_a_stop_that_did_not_count_still_serves_a_later_one(stops: tuple[bytes, ...], stream: bytes) -> None:
    """Skipping and feeding agree on the node, so a match may begin in bytes at which no stop counted yet."""
    matcher = compile_stops(stops)
    for cut in range(len(stream) + 1):
        node = matcher.skip(0, stream[:cut])
        _, match = matcher.feed(node, stream[cut:], cut)
        found = [
            (end, end - len(stop), index)
            for index, stop in enumerate(stops)
            for end in range(max(len(stop), cut + 1), len(stream) + 1)
            if stream[end - len(stop) : end] == stop
        ]
        assert (match is None) == (not found)
        if match is not None:
            assert (match.end, match.start, match.stop) == min(found)


TABLE = """
    stops         stream      stop  start  end
    ab,abc        xabc        0     1      3
    abc,ab        xabc        1     1      3
    abc,b         xabc        1     2      3
    xabc,bc,c     xabc        0     0      4
    bc,xabc       xabc        1     0      4
    aa,aa         aaa         0     0      2
    aab           aaab        0     1      4
    abab,b        abab        1     1      2
    abcd,bd       abcabcd     0     3      7
    abcde,cdx     abcdx       1     2      5
"""


@pytest.mark.parametrize("row", TABLE.strip().splitlines()[1:])
def test_the_match_that_completes_first_wins_and_then_the_longest(row: str) -> None:
    stops, stream, *numbers = row.split()
    _, match = compile_stops(tuple(stops.encode().split(b","))).feed(0, stream.encode())
    assert match == Match(*map(int, numbers))


def test_nodes_are_numbered_in_the_order_in_which_the_stops_need_them() -> None:
    """A node is stored in snapshots, so a change of this numbering breaks jobs in flight."""
    matcher = compile_stops((b"abd", b"b", b"abc"))
    assert [dict(edges) for edges in matcher.edges] == [{97: 1, 98: 4}, {98: 2}, {100: 3, 99: 5}, {}, {}, {}]
    assert matcher.fallbacks == (0, 0, 4, 0, 0, 0)
    assert matcher.completed == (None, None, 1, 0, 1, 2)
    assert matcher.holdbacks == (0, 1, 2, 0, 0, 0)


def test_one_immutable_automaton_serves_jobs_with_the_same_stops() -> None:
    """One automaton serves every job with the same stops and cannot be changed."""
    matcher = compile_stops((b"one",))
    assert compile_stops((b"one",)) is matcher
    with pytest.raises(AttributeError):
        matcher.stops = ()  # type: ignore[misc]


def test_memory_is_linear_in_the_stops() -> None:
    stops = tuple(bytes([97 + index % 3]) * 200 + bytes([index]) for index in range(30))
    matcher = compile_stops(stops)
    assert len(matcher.edges) <= 1 + sum(map(len, stops))
    assert sum(map(len, matcher.edges)) == len(matcher.edges) - 1


def test_an_empty_stop_is_refused_by_its_place() -> None:
    with pytest.raises(SchemaViolation, match=r"stop\[1\]"):
        compile_stops((b"a", b""))


def test_without_stops_nothing_matches_and_nothing_is_held() -> None:
    matcher = compile_stops(())
    assert matcher.feed(0, bytes(range(256))) == (0, None)
    assert matcher.holdback(0) == 0
    assert matcher.whole(b"") is None
