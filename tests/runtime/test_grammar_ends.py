"""One list of what ends an output under a grammar: masked until the text is whole, and allowed from there."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from cranks import admit, assert_audited, engine, finish, result, run, turn
from databases import AnyStore

from decodelog.fsm.errors import GrammarRefused
from decodelog.fsm.output.standing import Standing
from decodelog.fsm.request.transforms import Grammar
from decodelog.runtime.families.scripted.model import ScriptedModel
from decodelog.runtime.families.scripted.script import Piece, Script, ScriptedConfig
from decodelog.runtime.grammar.parser import Grammars, Parser
from decodelog.store.memory.log import MemoryStore

pytestmark = pytest.mark.contract("OUT-3", "OUT-5")

EOS = 256
END, TURN, BLANK = 258, 259, 260
PIECES = (Piece(text="END"), Piece(text="<turn>", special=True), Piece(hex=""))
TEXTS = [*(bytes((byte,)) for byte in range(256)), b"<eos>", b"<answer>", b"END", b"<turn>", b""]
GRAMMARS = Grammars(TEXTS, lambda token: token in (EOS, 257, TURN))

INCOMPLETE, COMPLETE, TERMINATED, INVALID = Standing


def parser(ending: list[int], source: str = "[0-9A-Z]+", language: str = "regex") -> Parser:
    return GRAMMARS.parser(Grammar.model_validate({"kind": "grammar", "language": language, "source": source}), ending)


def preferring(*tokens: int | str) -> ScriptedModel:
    """A model that at every step prefers these tokens in this order, and all others less and alike."""
    row = [0.0] * (258 + len(PIECES))
    for rank, token in enumerate(tokens):
        row[ord(token) if isinstance(token, str) else token] = 50.0 - rank
    return ScriptedModel(ScriptedConfig(script=Script(rows=(tuple(row),), then="repeat"), pieces=PIECES))


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


# ---- the parser -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [[EOS], [END], [TURN], [BLANK], [ord("7")], [EOS, END, TURN, BLANK], []])
def test_each_end_token_is_masked_until_the_text_is_whole(ending: list[int]) -> None:
    """Each of the list is masked until the text is whole and allowed from there."""
    at = parser(ending, '"[0-9A-Z]+"')
    every = {EOS, END, TURN, BLANK, ord("7")}
    for byte in b'"12':
        allowed = at.allowed()
        assert not allowed[ending].any()
        assert allowed[byte]
        assert not allowed[list(every - set(ending) - {END, ord("7")})].any()
        at.take(byte)
    assert at.allowed()[END] == (END not in ending)  # within the text it is three letters, if it is not to end it
    at = parser(ending)
    at.take(ord("1"))
    assert at.allowed()[ending].all()
    assert not at.allowed()[list({EOS, TURN, BLANK} - set(ending))].any()


@pytest.mark.parametrize("ending", [EOS, END, TURN, BLANK, ord("7")])
def test_what_ends_a_text_is_no_part_of_it_and_nothing_follows(ending: int) -> None:
    at = parser([ending])
    assert at.take(ord("1")) is COMPLETE
    other = at.fork()
    assert at.take(ending) is COMPLETE
    assert not at.allowed().any()
    assert at.take(ord("1")) is INVALID
    assert not at.fork().allowed().any()
    assert other.take(ord("2")) is COMPLETE
    early = parser([ending], "12")
    assert early.take(ord("1")) is INCOMPLETE
    assert early.take(ending) is INVALID
    assert not early.allowed().any()


def test_a_second_end_is_of_no_text() -> None:
    at = parser([EOS, END])
    at.take(ord("1"))
    assert at.take(END) is COMPLETE
    assert at.take(EOS) is INVALID


@pytest.mark.contract("RES-4")
@pytest.mark.parametrize("ending", [EOS, END, ord("7")])
def test_a_parser_is_brought_back_to_before_and_behind_the_end(ending: int) -> None:
    going, lost = parser([ending]), parser([ending])
    going.take(ord("1"))
    lost.stand_after([ord("1")])
    assert np.array_equal(going.allowed(), lost.allowed())
    lost.stand_after([ord("1"), ending])
    assert not lost.allowed().any()


def test_a_text_that_only_an_end_could_go_on_with_is_invalid() -> None:
    at = parser([ord("b")], "abc")
    assert at.take(ord("a")) is INVALID
    with pytest.raises(GrammarRefused, match="no text"):
        parser([ord("a")], "abc")


def test_a_special_token_in_a_grammar_is_content_unless_an_end() -> None:
    """A special token that a grammar names is content unless it ends the output."""
    source = 'start: "a" <[259]> "b"'
    at = parser([EOS], source, "lark")
    assert [at.take(token) for token in (ord("a"), TURN, ord("b"))] == [INCOMPLETE, INCOMPLETE, TERMINATED]
    assert parser([EOS, TURN], source, "lark").take(ord("a")) is INVALID


# ---- jobs -------------------------------------------------------------------------------------------------------


def outcome(done: dict[str, Any]) -> tuple[str, str, bool]:
    return done["text"], done["finish_reason"], done["structure_complete"]


@pytest.mark.contract("FSM-7")
@pytest.mark.parametrize("stop", [END, TURN])
def test_a_stop_id_ends_no_structure_half_way_and_ends_a_whole_one_at_once(store: AnyStore, stop: int) -> None:
    """The model wants nothing more than to stop; and where it must write a number, any end is as good as another."""
    of = preferring(stop, "{", '"', "a", ":", "1", "2", "}")
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}, "required": ["a"]}
    done = run(store, of, json_schema=schema | {"additionalProperties": False}, stop_token_ids=[stop])
    assert done["structure_complete"] is True
    assert set(json.loads(done["text"])) == {"a"}
    assert outcome(run(store, preferring(stop, "1"), json_schema={"type": "integer"}, stop_token_ids=[stop])) == (
        ("1", "stop_token", True)
    )
    assert_audited(store)


def test_a_stop_id_that_the_structure_needs_leaves_no_way_on(memory: AnyStore) -> None:
    """A stop id whose text the structure needs leaves it without a way on."""
    done = run(memory, preferring("a", "b"), regex="abc", stop_token_ids=[ord("b")])
    assert outcome(done) == ("a", "structured_error", False)


def test_text_of_a_dispensable_stop_id_is_written_another_way(memory: AnyStore) -> None:
    """A stop id whose text the structure can do without is written another way."""
    done = run(memory, preferring(END, "E", "N", "D"), regex="END", stop_token_ids=[END])
    assert outcome(done) == ("END", "structured_complete", True)
    assert done["token_ids"] == [ord("E"), ord("N"), ord("D")]


@pytest.mark.contract("RES-4", "FSM-6")
@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_lost_job_ends_with_its_stop_id_where_it_would_have(store: AnyStore, turns: int) -> None:
    of = ScriptedModel(ScriptedConfig(script=Script(tokens=(ord("1"), END, ord("2"), END)), pieces=PIECES))
    draft = {"regex": "[0-9]{2,}", "stop_token_ids": [END]}
    expected = run(store, of, **draft)
    assert outcome(expected)[1:] == ("stop_token", True)
    job = admit(store, of, **draft)
    turn(engine(store, of, job), turns)
    finish(engine(store, of, job, worker="second"))
    done = result(store, job)
    same = ("text", "token_ids", "finish_reason", "structure_complete")
    assert {name: done[name] for name in same} == {name: expected[name] for name in same}
    assert_audited(store)
