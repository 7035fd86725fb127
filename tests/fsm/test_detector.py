"""Detectors: an output that no grammar holds ends after its first JSON value or tool call, at that very byte."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jobs import Live, crank, decision

from decodelog.fsm.errors import SchemaViolation
from decodelog.fsm.machine.fold import fold_all
from decodelog.fsm.output.detector import SEEKING, JsonDetector, ToolCallDetector
from decodelog.fsm.output.standing import Standing
from decodelog.fsm.request.finish import FinishReason

pytestmark = pytest.mark.contract("OUT-6")

JSON = {"kind": "json_value"}
CALL = {"kind": "tool_call", "begin": "<call>", "end": "</call>"}
BARE = {"kind": "tool_call", "begin": "[CALL]", "end": ""}

# text | what of it is shown, and whether it is whole
VALUES = [
    ('{"a": 1}', '{"a": 1}', True),
    ('Sure: {"a": "}"} and more', 'Sure: {"a": "}"}', True),
    ("[1, [2], {}] x", "[1, [2], {}]", True),
    ('{"a": [1', '{"a": [1', False),
    ("no value at all", "no value at all", False),
    ("in {braces} then {}!", "in {braces} then {}", True),  # a beginning that is none is prose
    ("{{}", "{{}", True),
    ('{"a":1,"a":2} [0]', '{"a":1,"a":2} [0]', True),
    ("[,1] [1]", "[,1] [1]", True),
    ('"{" {}', '"{" {}', False),  # quotes around a brace mean nothing in prose, so this is `{` and a key
    ("12 true null", "12 true null", False),
]
CALLS = [
    ('<call>{"a": 1}</call> more', '<call>{"a": 1}</call>', True),
    ('{"a": 1} <call> \n[1] \n</call>x', '{"a": 1} <call> \n[1] \n</call>', True),
    ("<call>{} x</call><call>{}</call>", "<call>{} x</call><call>{}</call>", True),
    ("<call>12</call> <call>{}</call>", "<call>12</call> <call>{}</call>", True),
    ("<call>{}<call>[]</call>", "<call>{}<call>[]</call>", True),  # `<` may begin either marker
    ("<call><call>{}</call>x", "<call><call>{}</call>", True),
    ('<call>{"a": "</call>"}</call>x', '<call>{"a": "</call>"}</call>', True),
    ("<call>{}</cal", "<call>{}</cal", False),
    ("<call>{", "<call>{", False),
]


def run(text: bytes, sizes: list[int], *detectors: dict[str, str], **options: Any) -> Live:
    """One job whose tokens are the pieces of `text`."""
    pieces, at = [], 0
    for size in [*sizes, *[7] * len(text)]:
        pieces.append(text[at : at + size])
        at += size
        if at >= len(text):
            break
    options = {"max_new": len(pieces), "context": 64, **options}
    live = Live.admit(**{"termination.detectors": list(detectors), **options})
    crank(live, lambda step: decision(50 + step, pieces[step]))
    return live


@given(st.sampled_from(VALUES), st.lists(st.integers(1, 4), max_size=12))
def test_the_text_ends_with_the_first_whole_value_for_any_token_cuts(
    case: tuple[str, str, bool], sizes: list[int]
) -> None:
    """The text ends with the first whole value however it is cut into tokens."""
    text, shown, whole = case
    check(run(text.encode(), sizes, JSON), shown, whole)


@given(st.sampled_from(CALLS), st.lists(st.integers(1, 4), max_size=12))
@example(CALLS[4], [9])
def test_the_text_ends_with_the_first_whole_tool_call(case: tuple[str, str, bool], sizes: list[int]) -> None:
    text, shown, whole = case
    check(run(text.encode(), sizes, CALL), shown, whole)


def check(live: Live, shown: str, whole: bool) -> None:
    result = live.transcript.result()
    assert (result["text"], result["structure_complete"]) == (shown, whole)
    assert result["finish_reason"] == ("structured_complete" if whole else "length")
    assert "".join(emission.text for emission in live.transcript.emissions) == shown
    assert fold_all(live.events) == live.state


def test_a_tool_call_without_a_closing_marker_ends_with_its_value() -> None:
    assert run(b'[CALL] {"a": 1}, x', [], BARE).transcript.text == '[CALL] {"a": 1}'


def test_of_several_detectors_the_first_to_complete_counts() -> None:
    assert run(b"[1] <call>{}</call>", [19], CALL, JSON).transcript.text == "[1]"
    assert run(b"<call>{}</call>[1]", [18], BARE, CALL).transcript.text == "<call>{}</call>"


def test_hidden_markers_count_and_other_hidden_tokens_do_not() -> None:
    """Hidden markers count and other hidden tokens are no part of the text."""
    script = [(b"<call>", True), (b'{"a', False), (b"<x>", True), (b'": 1}', False), (b"</call>", True)]
    live = Live.admit(**{"termination.detectors": [CALL]}, max_new=5)
    crank(live, lambda step: decision(50 + step, *script[step]))
    result = live.transcript.result()
    assert (result["text"], result["finish_reason"]) == ('{"a": 1}', "structured_complete")
    assert len(result["token_ids"]) == 5


@pytest.mark.contract("OUT-2", "FSM-7")
@pytest.mark.parametrize(
    ("text", "stop", "shown", "triggers", "whole"),
    [
        ("{}ab", "ab", "{}", ["structured_complete", "length"], True),  # what follows the value is no text
        ("ab{}", "ab", "", ["stop_string", "length"], False),  # the text ends before the value
        ("x{}", "}", "x{", ["stop_string", "structured_complete", "length"], False),  # both at one byte
        ("a{}", "}b", "a{}", ["structured_complete", "length"], True),  # held back, and flushed
    ],
)
def test_a_stop_string_in_the_token_that_completes_the_value(
    text: str, stop: str, shown: str, triggers: list[str], whole: bool
) -> None:
    live = run(text.encode(), [len(text)], JSON, stop=[stop])
    result = live.transcript.result()
    assert (result["text"], result["structure_complete"]) == (shown, whole)
    assert [reason.value for reason in live.state.due] == triggers


def test_a_value_before_the_least_number_of_tokens_does_not_count() -> None:
    assert run(b"{}[1]{}[2]", [2, 3, 2, 3], JSON, min_new=3).transcript.text == "{}[1]{}"
    assert run(b"{}[1]{}[2]", [5, 5], JSON, min_new=2).transcript.text == "{}[1]{}"


@pytest.mark.contract("FSM-7")
def test_a_value_that_completes_on_the_last_allowed_token_is_a_stop() -> None:
    live = run(b"{}", [1, 1], JSON)
    assert live.state.ending is not None
    assert live.state.ending.finish is FinishReason.STRUCTURED_COMPLETE
    assert live.state.due == (FinishReason.STRUCTURED_COMPLETE, FinishReason.LENGTH)
    assert live.state.structure is not None
    assert live.state.structure.standing is Standing.TERMINATED


@given(st.lists(st.sampled_from([b"<call>", b"</call>", b"{", b"}", b"<", b" ", b'"', b"x"]), max_size=12))
def test_every_split_leads_to_the_same_place(parts: list[bytes]) -> None:
    text = b"".join(parts)
    for detector in (JsonDetector(), ToolCallDetector.of("<call>", "</call>"), ToolCallDetector.of("<call>", "")):
        whole, end = detector.feed(SEEKING, text)
        for cut in range(len(text) + 1):
            head, first = detector.feed(SEEKING, text[:cut])
            if first is not None:
                assert (head, first) == (whole, end)
                continue
            tail, second = detector.feed(head, text[cut:])
            assert (tail, None if second is None else cut + second) == (whole, end)


def test_a_closing_marker_that_begins_with_a_blank_is_refused() -> None:
    with pytest.raises(SchemaViolation, match="blank"):
        Live.admit(**{"termination.detectors": [{"kind": "tool_call", "begin": "a", "end": "\nb"}]})


def test_a_job_without_detectors_says_nothing_of_structure() -> None:
    live = Live.admit(max_new=1)
    live.turn(50, b"{}")
    assert "structure_complete" not in live.transcript.result()
    assert live.state.structure is None


@pytest.mark.parametrize("piece", [b"{}", b"[]", b"}", b'"', b"{", b"x", b"</call>", b""])
@pytest.mark.parametrize("begun", [b"", b"{", b'{"a": [', b'{"a', b"{}"])
def test_a_json_value_takes_no_byte_of_a_hidden_token(begun: bytes, piece: bytes) -> None:
    """Whatever a special token's text looks like: the text that is shown does not have it."""
    detector = JsonDetector()
    before, _ = detector.feed(SEEKING, begun)
    assert detector.feed(before, piece, hidden=True) == (before, None)
    rest = b'"}]}'
    assert detector.feed(detector.feed(before, piece, hidden=True)[0], rest) == detector.feed(before, rest)


def test_a_job_that_seeks_a_json_value_is_not_ended_by_a_hidden_token() -> None:
    live = Live.admit(max_new=4, **{"termination.detectors": [JSON]})
    pieces = [(b"{}", True), (b"{", False), (b"}", True), (b"}", False)]
    crank(live, lambda step: decision(50 + step, *pieces[step]))
    assert (live.transcript.text, live.state.frontier.output) == ("{}", 4)
    ending = live.state.ending
    assert ending is not None
    assert ending.finish is FinishReason.STRUCTURED_COMPLETE


@pytest.mark.contract("RES-2", "FSM-5")
@pytest.mark.parametrize(("begin", "end"), [("<call>", "</call>"), ("[CALL]", ""), ("aab", "aac")])
def test_every_place_of_a_tool_call_has_bytes_of_its_own(begin: str, end: str) -> None:
    """They are what a state's digest has of it: two places with the same bytes would be one to a resume."""
    detector = ToolCallDetector.of(begin, end)
    text = f'x{begin[:2]}{begin} {{"a": [1, "}}"]}} {end}'.encode()
    places, at = {SEEKING}, SEEKING
    for place in range(len(text)):
        at, found = detector.feed(at, text[place : place + 1])
        places.add(at)
        if found is not None:
            break
    else:
        pytest.fail("the call was not found")
    assert len(places) > len(begin) + len(end)
    assert len({place.packed() for place in places}) == len(places)
    assert all(place.packed() == place._replace().packed() for place in places)
    others = [at._replace(closing=closing) for closing in (None, 0, 1, 2)] + [
        at._replace(node=1),
        at._replace(scan=None),
    ]
    assert len({other.packed() for other in others}) == len(set(others))
