"""Structured output from the crank's side: models that prefer what is wrong, crashes, and what is bound in the log."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cranks import WORKER, admit, assert_audited, claim, engine, finish, model, result, run, state_of, transcript, turn
from databases import AnyStore

from decodelog.fsm.errors import BrokenInvariant, GrammarRefused, NotAdmissible
from decodelog.fsm.evidence.receipt import Selection
from decodelog.fsm.limits import BLANKS_MAX, NUMERAL_BYTES_MAX
from decodelog.fsm.machine.events import AttemptStarted, DecisionMade
from decodelog.fsm.machine.states import Status
from decodelog.fsm.machine.transition import CompleteCall, IssueDecision, StartAttempt
from decodelog.fsm.output.standing import Standing
from decodelog.runtime.families.scripted.model import ScriptedModel
from decodelog.runtime.families.scripted.script import Piece, Script, ScriptedConfig
from decodelog.store.memory.log import MemoryStore

pytestmark = pytest.mark.contract("OUT-5")

EOS = 256
INTEGERS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2}
OPEN: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}
DOCUMENT = '{"name": "Ada }\\" \U0001f600", "tags": ["a", "b,c", "\u00e9"]}'


def preferring(*tokens: int | str, pieces: tuple[Piece, ...] = ()) -> ScriptedModel:
    """A model that at every step prefers these tokens in this order, and all others less and alike."""
    ids = [ord(token) if isinstance(token, str) else token for token in tokens]
    row = [0.0] * (258 + len(pieces))
    for rank, token in enumerate(ids):
        row[token] = 50.0 - rank
    return ScriptedModel(ScriptedConfig(script=Script(rows=(tuple(row),), then="repeat"), pieces=pieces))


def outcome(store: AnyStore, of: ScriptedModel, **draft: Any) -> tuple[str, str, bool]:
    done = run(store, of, **draft)
    assert_audited(store)
    return done["text"], done["finish_reason"], done["structure_complete"]


@pytest.fixture
def memory() -> MemoryStore:
    """For what does not depend on the kind of the log."""
    return MemoryStore()


# ---- what a model that goes wrong is kept to --------------------------------------------------------------------


def test_digits_for_ever_end_at_the_bound(memory: AnyStore) -> None:
    assert outcome(memory, preferring("1"), json_schema={}, max_new_tokens=99) == ("1" * NUMERAL_BYTES_MAX, "eos", True)
    text, reason, whole = outcome(memory, preferring("1", "[", "]"), json_schema=INTEGERS, max_new_tokens=99)
    assert (text, reason, whole) == (f"[{'1' * NUMERAL_BYTES_MAX}]", "structured_complete", True)


def test_blanks_for_ever_end_at_the_bound(memory: AnyStore) -> None:
    text, reason, whole = outcome(memory, preferring(" ", "[", "1", "]"), json_schema=INTEGERS, max_new_tokens=400)
    blanks = " " * BLANKS_MAX
    assert (text, reason, whole) == (f"[{blanks}1{blanks}]", "structured_complete", True)


def test_the_same_key_for_ever_becomes_other_keys(memory: AnyStore) -> None:
    text, reason, whole = outcome(memory, preferring('"', "a", ":", ",", "}"), json_schema=OPEN, max_new_tokens=60)
    assert (reason, whole) == ("length", False)
    whole_pairs = text[: text.rindex(',"')] + "}"
    pairs = json.loads(whole_pairs, object_pairs_hook=list)
    assert [key for key, _ in pairs] == ["a" * count for count in range(len(pairs))]
    assert len(pairs) > 3


def test_a_second_end_token_is_never_committed(memory: AnyStore) -> None:
    of = preferring(EOS, "1")
    job = admit(memory, of, json_schema={"type": "integer"})
    finish(engine(memory, of, job))
    done = result(memory, job)
    assert (done["token_ids"], done["finish_reason"], done["structure_complete"]) == ([ord("1"), EOS], "eos", True)
    assert_audited(memory)


def test_a_comma_for_ever_is_put_where_it_may_be(memory: AnyStore) -> None:
    text, reason, whole = outcome(memory, preferring(",", "[", "1", "]"), json_schema=INTEGERS)
    assert (text, reason, whole) == (f"[1,{'1' * NUMERAL_BYTES_MAX}]", "structured_complete", True)


def test_a_raw_control_character_is_never_written_into_a_string(memory: AnyStore) -> None:
    for control in (0x00, 0x01, 0x0A, 0x1F):
        of = preferring(control, "a", '"')
        text, reason, whole = outcome(memory, of, json_schema={"type": "string", "maxLength": 3})
        assert (text, reason, whole) == ('"aaa"', "structured_complete", True)


@pytest.mark.contract("OUT-1")
def test_byte_tokens_make_the_characters_of_a_class(memory: AnyStore) -> None:
    emoji = "\U0001f628\U0001f600"
    assert outcome(memory, model(emoji), regex="[\U0001f600-\U0001f64f]{2}") == (emoji, "structured_complete", True)


def test_a_negated_class_takes_no_ill_formed_byte(memory: AnyStore) -> None:
    of = preferring(0xC0, 0xC1, 0xF5, 0xF6, 0xF7, 0xFF, 0xC3, 0xA9)
    assert outcome(memory, of, regex="[^a]{2}") == ("\u00e9\u00e9", "structured_complete", True)


def test_an_unused_id_and_a_special_token_are_not_chosen(memory: AnyStore) -> None:
    of = preferring(258, 259, "a", pieces=(Piece(hex=""), Piece(text="<x>", special=True)))
    assert outcome(memory, of, regex="[a<x>]{3}") == ("aaa", "structured_complete", True)


@pytest.mark.contract("FSM-7")
def test_a_budget_that_cuts_the_structure_says_so(memory: AnyStore) -> None:
    assert outcome(memory, model(DOCUMENT), json_schema=PERSON, max_new_tokens=5) == (DOCUMENT[:5], "length", False)
    assert outcome(memory, model("1234"), json_schema={}, max_new_tokens=2) == ("12", "length", True)


def test_a_grammar_that_a_guard_leaves_no_way_on_ends_with_an_error(memory: AnyStore) -> None:
    # Two keys exist, both are written, and the model asks for a third: no text of this schema goes on from there.
    schema = {"type": "object", "patternProperties": {"^[ab]$": {"type": "null"}}, "additionalProperties": False}
    text, reason, whole = outcome(memory, model('{"a":null,"b":null,"a'), json_schema=schema)
    assert (text, reason, whole) == ('{"a":null,"b":null,"a', "structured_error", False)


@pytest.mark.contract("OUT-3")
def test_what_a_grammar_does_not_go_with_is_refused_at_submission(memory: AnyStore) -> None:
    with pytest.raises(NotAdmissible, match="ignore_eos"):
        admit(memory, model(), json_schema={}, ignore_eos=True)
    with pytest.raises(GrammarRefused, match="unclosed"):
        admit(memory, model(), regex="(")
    assert memory.rows() == []


# ---- the policy under a mask ------------------------------------------------------------------------------------


@pytest.mark.contract("POL-7")
def test_a_structured_job_beside_others_decides_as_it_does_alone(store: AnyStore) -> None:
    of = model(seed=3, period=64, spread=2.0)
    given: list[dict[str, Any]] = [{"json_schema": {}}, {}, {"regex": "[a-z ]{30}"}, {"json_schema": OPEN, "top_k": 5}]
    drafts = [{"max_new_tokens": 25, "temperature": 1.0, "seed": index, **each} for index, each in enumerate(given)]
    together = [admit(store, of, **draft) for draft in drafts]
    finish(engine(store, of, *together))
    for job, draft in zip(together, drafts, strict=True):
        alone = run(store, of, **draft)
        assert result(store, job)["token_ids"] == alone["token_ids"]
    assert_audited(store)


# ---- crashes ----------------------------------------------------------------------------------------------------


@pytest.mark.contract("RES-4", "FSM-4", "FSM-6")
@pytest.mark.parametrize("turns", [1, 12, 17, 33])
def test_a_job_lost_inside_its_structure_resumes_there(store: AnyStore, turns: int) -> None:
    """A job lost in the middle of its structure goes on where the grammar was."""
    of = model(seed=7, period=64, spread=2.0)
    draft = {"json_schema": PERSON, "temperature": 1.0, "seed": 2, "max_new_tokens": 50, "logprobs": 2}
    expected = run(store, of, **draft)
    job = admit(store, of, **draft)
    lost = engine(store, of, job)
    for _ in range(turns):
        lost.turn()
    finish(engine(store, of, job, worker="second"))
    done = result(store, job)
    same = ("text", "token_ids", "finish_reason", "structure_complete")
    assert {name: done[name] for name in same} == {name: expected[name] for name in same}
    assert done["usage"]["attempts"] == 2
    assert_audited(store)


@pytest.mark.contract("FSM-5", "FSM-6")
def test_a_recorded_receipt_is_committed_with_what_the_parser_had_said(store: AnyStore) -> None:
    of = model(DOCUMENT)
    job = admit(store, of, json_schema={"type": "integer"})
    first = claim(store, job)
    first.record(store, StartAttempt(first.durable.claim.fence, WORKER))
    prompt = len(first.state.spec.prompt)
    chosen = Selection(ord("7"), 10, -1.0, -1.0, 0.5)
    decision = IssueDecision(chosen, b"7", structure=Standing.COMPLETE)
    first.record(store, CompleteCall(prompt, prompt, bytes(32)), decision)
    assert store.row(job).status is Status.DECIDED
    finish(engine(store, of, job, worker="second"))
    done = result(store, job)
    assert (done["token_ids"][0], done["text"][:1], done["structure_complete"]) == (ord("7"), "7", True)
    assert_audited(store)


@pytest.mark.contract("FSM-5", "LOG-3")
def test_the_log_records_the_parsers_standing_and_its_library(store: AnyStore) -> None:
    """The log says where each token left the parser and by which library."""
    job = admit(store, model("ab"), regex="ab?c?")
    finish(engine(store, model("ab"), job))
    events = [event for record in store.read(job) for event in record.events]
    decisions = [event.receipt for event in events if isinstance(event, DecisionMade)]
    assert [receipt.structure for receipt in decisions] == [Standing.COMPLETE] * 3  # a, b, and the end token
    (attempt,) = [event for event in events if isinstance(event, AttemptStarted)]
    assert dict(attempt.facts)["grammar_library"].startswith("llguidance 1.")
    plain = admit(store, model("ab"))
    finish(engine(store, model("ab"), plain))
    events = [event for record in store.read(plain) for event in record.events]
    assert {event.receipt.structure for event in events if isinstance(event, DecisionMade)} == {None}
    assert "structure_complete" not in transcript(store, plain).result()


def forged(store: AnyStore, of: ScriptedModel) -> str:
    """A job whose log holds a receipt for a token that its grammar does not allow."""
    job = admit(store, of, regex="ab")
    first = claim(store, job)
    first.record(store, StartAttempt(first.durable.claim.fence, WORKER))
    prompt = len(first.state.spec.prompt)
    decision = IssueDecision(Selection(ord("x"), 1, -1.0, -1.0, 0.5), b"x", structure=Standing.INCOMPLETE)
    first.record(store, CompleteCall(prompt, prompt, bytes(32)), decision)
    return job


def test_a_log_whose_tokens_are_not_of_its_grammar_is_not_taken_in_hand(store: AnyStore) -> None:
    of = model("ab")
    job = forged(store, of)
    turn(engine(store, of, job, worker="second"))  # the recorded receipt is committed, whatever it holds
    with pytest.raises(BrokenInvariant, match="grammar"):
        engine(store, of, job, worker="third")


@pytest.mark.contract("POL-7")
def test_a_job_in_hand_whose_tokens_are_not_of_its_grammar_fails_alone(store: AnyStore) -> None:
    of = model("ab")
    job, mate = forged(store, of), admit(store, of)
    finish(engine(store, of, job, mate, worker="second"))
    ending = state_of(store, job).ending
    assert ending is not None
    assert ending.cause == "broken_invariant"
    assert result(store, mate)["text"] == "ab"
    assert_audited(store)


# ---- detectors, on a real log -----------------------------------------------------------------------------------


@pytest.mark.contract("OUT-6", "OUT-7")
def test_a_detector_ends_a_job_after_its_first_value_across_a_crash(store: AnyStore) -> None:
    """A job without a grammar ends after its first value also across a crash."""
    of = model('Here it is: {"a": ["}", 1]} and {"more": 2}')
    for turns in (0, 5, 14, 20):
        job = admit(store, of, stop_on_json=True)
        lost = engine(store, of, job)
        for _ in range(turns):
            lost.turn()
        finish(engine(store, of, job, worker=f"after {turns}"))
        done = result(store, job)
        assert (done["text"], done["finish_reason"]) == ('Here it is: {"a": ["}", 1]}', "structured_complete")
        assert done["structure_complete"] is True
    assert_audited(store)


@pytest.mark.contract("OUT-6")
def test_a_job_ends_after_its_first_tool_call(store: AnyStore) -> None:
    of = model('I call <tool>{"name": "f"}</tool> and more')
    calls = [{"begin": "<tool>", "end": "</tool>"}]
    assert run(store, of, stop_on_tool_calls=calls)["text"] == 'I call <tool>{"name": "f"}</tool>'
