"""Grammars and detectors in an envelope: parts of its identity, and refused at their path where they are bad."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from envelope_examples import changed, plain

from decodelog.fsm import limits
from decodelog.fsm.errors import LimitExceeded, SchemaViolation
from decodelog.fsm.request.envelope import admit, admitted

STRUCTURED = {
    "policy.transforms": [{"kind": "grammar", "language": "json_schema", "source": '{"type":"object","a":1}'}],
    "termination.detectors": [{"kind": "json_value"}, {"kind": "tool_call", "begin": "<t>", "end": ""}],
}


@pytest.mark.contract("ENV-4", "ENV-5", "OUT-5", "OUT-6")
def test_every_leaf_of_a_grammar_and_a_detector_is_part_of_the_identity() -> None:
    base = changed(plain(), copy.deepcopy(STRUCTURED))
    envelope = admitted(base)
    assert admit(envelope.canonical_bytes()) == envelope
    others: list[dict[str, Any]] = [
        {"policy.transforms[0].source": '{"a":1,"type":"object"}'},
        {"policy.transforms[0].language": "regex"},
        {"termination.detectors[1].begin": "<u>"},
        {"termination.detectors[1].end": "</t>"},
        {"termination.detectors": list(reversed(STRUCTURED["termination.detectors"]))},
        {"termination.detectors": []},
    ]
    identities = {admitted(changed(base, change)).identity for change in others}
    assert len(identities | {envelope.identity, admitted(plain()).identity}) == len(others) + 2


@pytest.mark.contract("ENV-1", "ENV-2", "OUT-5", "OUT-6")
@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        ("policy.transforms[0].source", '{"type": "object"}', "one form"),
        ("policy.transforms[0].source", '{"maximum":1.0}', "one form"),
        ("policy.transforms[0].source", '{"a":1,"a":2}', "written twice"),
        ("policy.transforms[0].source", "[1]", "an object"),
        ("policy.transforms[0].source", "{", "no JSON schema"),
        ("policy.transforms[0].source", "x" * (limits.GRAMMAR_BYTES_MAX + 1), str(limits.GRAMMAR_BYTES_MAX)),
        ("policy.transforms[0].source", "", "empty"),
        ("policy.transforms[0].language", "ebnf", "lark"),
        ("termination.detectors[1].begin", "", "empty"),
        ("termination.detectors[1].end", "\nx", "blank"),
        ("termination.detectors[0].kind", "xml", "tool_call"),
        ("termination.detectors", [{"kind": "json_value"}] * 9, "8"),
    ],
)
def test_a_bad_grammar_or_detector_is_refused_at_its_path(path: str, value: Any, word: str) -> None:
    with pytest.raises((SchemaViolation, LimitExceeded), match=word) as caught:
        admitted(changed(changed(plain(), copy.deepcopy(STRUCTURED)), {path: value}))
    assert str(caught.value).startswith(path)
