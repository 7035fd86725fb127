"""Structured output of a real model: what it says validates, live and after a crash."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from cranks import admit, assert_audited, engine, finish, result

from decodelog.fsm.errors import Problem
from decodelog.fsm.output.json_value import START, scan
from decodelog.fsm.output.standing import Standing
from decodelog.fsm.request.canonical import ordered_json
from decodelog.fsm.request.transforms import Grammar
from decodelog.runtime.grammar.parser import grammars_of
from decodelog.runtime.model.port import Model
from decodelog.service.jobs.models import Models
from decodelog.store.memory.log import MemoryStore

pytestmark = pytest.mark.contract("OUT-5")

BOOK: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 30},
        "year": {"type": "integer", "minimum": 1000, "maximum": 2100},
        "tags": {"type": "array", "items": {"enum": ["novel", "poem", "play"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["title", "year", "tags"],
    "additionalProperties": False,
}
CITIES: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"city": {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"}, "big": {"type": "boolean"}},
        "required": ["city", "big"],
        "additionalProperties": False,
    },
    "minItems": 2,
    "maxItems": 2,
}
REQUESTS: list[tuple[dict[str, Any], str]] = [
    ({"json_schema": BOOK}, "Describe a famous book as JSON."),
    ({"json_schema": CITIES, "temperature": 0.8, "seed": 4}, "Two cities, and whether they are big, as JSON."),
    ({"regex": r"[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]"}, "When did the first person walk on the moon? Only the date."),
]


@pytest.fixture(scope="module")
def smol() -> Model:
    try:
        return Models(Path.home() / ".cache" / "decodelog", lanes=4).load("smollm2-135m-instruct")
    except Problem as error:
        pytest.fail(f"{error}: this test runs on the real model")


def valid(asked: dict[str, Any], text: str) -> None:
    if "regex" in asked:
        assert re.fullmatch(asked["regex"], text)
    else:
        jsonschema.validate(json.loads(text), asked["json_schema"])


@pytest.mark.contract("FAM-7", "RES-4")
def test_what_the_model_says_validates_and_is_the_same_after_a_crash(smol: Model) -> None:
    store = MemoryStore()
    drafts = [
        {**asked, "messages": [{"role": "user", "content": question}], "max_new_tokens": 90}
        for asked, question in REQUESTS
    ]
    whole = [admit(store, smol, **draft) for draft in drafts]
    finish(engine(store, smol, *whole))
    for job, (asked, _) in zip(whole, REQUESTS, strict=True):
        done = result(store, job)
        assert (done["finish_reason"], done["structure_complete"]) == ("structured_complete", True), done["text"]
        valid(asked, done["text"])
    again = admit(store, smol, **drafts[2])
    lost = engine(store, smol, again)
    for _ in range(5):
        lost.turn()
    finish(engine(store, smol, again, worker="second", form="reexecute"))
    assert result(store, again)["token_ids"] == result(store, whole[2])["token_ids"]
    assert_audited(store)


PLACES = ['{"', '{"name":1,"', '{"name":1,"na', '{"a":"x', '{"a":' + "1" * 30, '{"":1,', "[" * 63, '[{"a":{"b":', '"\\']


def test_the_guards_mask_is_exact_over_a_real_vocabulary(smol: Model) -> None:
    """At places of every kind: the mask is that of scanning each of the 49,152 tokens."""
    grammars = grammars_of(smol)
    grammar = Grammar(kind="grammar", language="json_schema", source=ordered_json({}))
    pieces, ends = grammars.pieces, smol.facts.eos_ids
    ones = "1" * 30
    for text in (
        '{"',
        '{"name":1,"',
        '{"name":1,"na',
        '{"a":"x',
        f'{{"a":{ones}',
        '{"":1,',
        "[" * 63,
        '[{"a":{"b":',
        '"\\',
    ):
        guarded, bare = (grammars.parser(grammar, ends) for _ in range(2))
        bare._guard = None
        tokens = [pieces.index(bytes([byte])) for byte in text.encode()]
        guarded.stand_after(tokens)
        bare.stand_after(tokens)
        state, expected = scan(START, text.encode()).scan, bare.allowed().copy()
        for token in np.flatnonzero(expected).tolist():
            if token not in ends and scan(state, pieces[token]).standing is Standing.INVALID:
                expected[token] = False
        assert np.array_equal(guarded.allowed(), expected), text
