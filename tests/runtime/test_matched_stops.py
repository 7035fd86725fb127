"""What stopped an output: named in the commit, the result and the stream, and by one rule in the text or not."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from cranks import admit, assert_audited, engine, finish, result, run, turn
from databases import AnyStore

from decodelog.fsm.errors import BrokenInvariant
from decodelog.fsm.machine.events import OutputCommitted
from decodelog.fsm.machine.fold import fold_all
from decodelog.fsm.reading.emission import plain
from decodelog.fsm.reading.load import load
from decodelog.fsm.reading.transcript import Transcript
from decodelog.fsm.request.finish import DEFAULT_ORDER, FinishReason
from decodelog.runtime.families.scripted.model import ScriptedModel
from decodelog.runtime.families.scripted.script import Piece, Script, ScriptedConfig
from decodelog.service.inspect.explain import decision_of, explained
from decodelog.service.inspect.explain_text import told
from decodelog.service.streams.reading import emissions_of
from decodelog.store.memory.log import MemoryStore

pytestmark = pytest.mark.contract("OUT-3", "OUT-4")

EOS = 256
END, TURN, EMOJI = 258, 259, 260
PIECES = (Piece(text="END"), Piece(text="<turn>", special=True), Piece(hex="f09f9880"))
ALIGNMENTS = ("text", "token", "span")


def writing(*tokens: int | str) -> ScriptedModel:
    ids = [token for each in tokens for token in (each.encode() if isinstance(each, str) else [each])]
    return ScriptedModel(ScriptedConfig(script=Script(tokens=tuple(ids)), pieces=PIECES))


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


def committed(store: Any, job: str) -> list[Any]:
    events = [event for record in store.read(job) for event in record.events]
    return [event.matched_stop for event in events if isinstance(event, OutputCommitted)]


# ---- which stop it was ------------------------------------------------------------------------------------------


@pytest.mark.contract("OUT-2", "FSM-7", "OUT-7")
@pytest.mark.parametrize(
    ("draft", "reason", "stop"),
    [
        ({"stop": ["zz", "END"]}, "stop_string", "END"),
        ({"stop": ["b\u00e9E", "\u00e9END"]}, "stop_string", "b\u00e9E"),
        ({"stop": ["D", "END", "ND"]}, "stop_string", "END"),  # of several at one byte the longest
        ({"stop_token_ids": [TURN, END]}, "stop_token", END),
        ({"stop_token_ids": [END], "stop": ["END"]}, "stop_string", "END"),
        ({}, "eos", EOS),
        ({"stop_token_ids": [EOS]}, "stop_token", EOS),
        ({"stop_token_ids": [EOS], "ignore_eos": True}, "stop_token", EOS),
        ({"stop_token_ids": [END], "max_new_tokens": 4}, "stop_token", END),
        ({"max_new_tokens": 2}, "length", None),
        ({"max_new_tokens": 0}, "length", None),
        ({"stop_on_json": True, "stop": ["]"]}, "stop_string", "]"),
        ({"stop_on_json": True}, "structured_complete", None),
    ],
)
def test_the_stop_is_named_wherever_the_end_is(
    store: AnyStore, draft: dict[str, Any], reason: str, stop: str | None
) -> None:
    of = writing("[]" if "stop_on_json" in draft else "b\u00e9", END, "x")
    job = admit(store, of, **draft)
    finish(engine(store, of, job))
    done = result(store, job)
    assert (done["finish_reason"], done["matched_stop"]) == (reason, stop)
    *before, last = [plain(each) for each in emissions_of(store, job)]
    assert (last["finish"], last["matched_stop"]) == (reason, stop)
    assert not any("matched_stop" in each for each in before)
    named = committed(store, job)
    assert named[-1:] == ([stop] if named else [])
    assert set(named[:-1]) <= {None}
    if named:
        facts = explained(decision_of(store, job))
        assert facts["matched_stop"] == stop
        (line,) = [text for about, text in told(facts) if about == "end"]
        assert ("stopped by" in line) == (stop is not None)
        assert stop is None or (repr(stop) if isinstance(stop, str) else f"token {stop}") in line
    assert_audited(store)


def test_nothing_is_named_before_the_end_and_a_cancel_has_no_stop(store: AnyStore) -> None:
    of = writing("abcdef")
    job = admit(store, of)
    made = engine(store, of, job)
    turn(made, 2)
    assert result(store, job)["matched_stop"] is None
    made.turn(lambda: {job: [FinishReason.CANCELLED]})
    made.flush()
    assert (result(store, job)["finish_reason"], result(store, job)["matched_stop"]) == ("cancelled", None)


def test_a_stop_is_named_where_a_cancel_came_at_the_same_time(store: AnyStore) -> None:
    """The text ends at the stop all the same."""
    of = writing("ab", END)
    job = admit(store, of, stop=["END"], final_cache="repaired")
    made = engine(store, of, job)
    turn(made, 3)
    made.turn(lambda: {job: [FinishReason.CANCELLED]})
    made.flush()
    done = result(store, job)
    assert (done["finish_reason"], done["matched_stop"], done["text"]) == ("cancelled", "END", "ab")
    assert_audited(store)


@pytest.mark.contract("FSM-7")
def test_of_several_stops_the_declared_order_says_which_is_named(
    monkeypatch: pytest.MonkeyPatch, memory: AnyStore
) -> None:
    of = writing("ab", END)
    order = list(DEFAULT_ORDER)
    order.remove(FinishReason.STOP_TOKEN)
    monkeypatch.setattr("decodelog.fsm.request.seal.DEFAULT_ORDER", (FinishReason.STOP_TOKEN, *order))
    done = run(memory, of, stop=["END"], stop_token_ids=[END])
    assert (done["finish_reason"], done["matched_stop"]) == ("stop_token", END)
    assert_audited(memory)


@pytest.mark.contract("LOG-3")
@pytest.mark.parametrize("claimed", ["EN", END, EOS])
def test_a_commit_that_names_another_stop_is_found(memory: AnyStore, claimed: str | int) -> None:
    of = writing("ab", END)
    job = admit(memory, of, stop=["END"])
    finish(engine(memory, of, job))
    log = [event for record in memory.read(job) for event in record.events]
    at = max(index for index, event in enumerate(log) if isinstance(event, OutputCommitted))
    last = log[at]
    assert isinstance(last, OutputCommitted)
    log[at] = OutputCommitted(last.output, last.state, claimed)
    with pytest.raises(BrokenInvariant, match="not stopped by"):
        fold_all(log)


# ---- one rule for its text --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alignment", "include"), list(product(ALIGNMENTS, (False, True))))
def test_a_stop_string_and_a_stop_id_of_the_same_text_leave_the_same(
    store: AnyStore, alignment: str, include: bool
) -> None:
    of = writing("a\u00e9", END, "x")
    told: list[Any] = []
    for draft in ({"stop": ["END"]}, {"stop_token_ids": [END]}):
        job = admit(store, of, alignment=alignment, include_stop=include, logprobs=2, **draft)
        finish(engine(store, of, job))
        done = result(store, job)
        streamed = list(emissions_of(store, job))
        assert "".join(each.text for each in streamed) == done["text"] == ("a\u00e9END" if include else "a\u00e9")
        ids = [token.token for each in streamed for token in each.tokens]
        assert ids == done["token_ids"]
        shown = sum(token["visible_bytes"] for token in done["tokens"])
        assert shown == len(done["text"].encode())
        assert all(len(token["alternatives"]) == 2 for token in done["tokens"])
        assert (END in ids) == (include or alignment == "span")
        told.append({name: done.get(name) for name in ("text", "token_ids", "tokens", "usage", "visible", "trimmed")})
    assert told[0] == told[1]
    assert_audited(store)


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize(
    ("tokens", "draft", "text"),
    [
        (("ab", END), {"stop": ["bE"]}, "a"),  # the earlier of the two begins before the token
        (("ab", END), {"stop": ["ND"]}, "ab"),  # the id's text begins before the string's
        (("aEN", END), {"stop": ["ENX"]}, "aEN"),  # held for a string that does not come
    ],
)
def test_the_text_ends_before_the_first_byte_of_whatever_stopped_it(
    memory: AnyStore, alignment: str, tokens: tuple[str | int, ...], draft: dict[str, Any], text: str
) -> None:
    done = run(memory, writing(*tokens), alignment=alignment, stop_token_ids=[END], **draft)
    assert done["text"] == text
    assert_audited(memory)


def test_an_unfinished_character_before_a_stop_id_is_replaced(memory: AnyStore) -> None:
    """An unfinished character before a stop id is replaced as at any end."""
    of = ScriptedModel(ScriptedConfig(script=Script(tokens=(ord("a"), 0xF0, 0x9F, END)), pieces=PIECES))
    assert run(memory, of, stop_token_ids=[END])["text"] == "a\ufffd"


@pytest.mark.parametrize("include", [False, True])
def test_a_hidden_stop_has_no_text_to_remove(memory: AnyStore, include: bool) -> None:
    of = writing("ab", TURN)
    done = run(memory, of, stop_token_ids=[TURN], include_stop=include)
    assert (done["text"], done["token_ids"]) == ("ab", [97, 98, TURN])
    done = run(memory, writing("ab"), include_stop=include)
    assert (done["text"], done["token_ids"]) == ("ab", [97, 98, EOS])


def test_a_special_stop_that_is_shown_goes_as_its_string_would(memory: AnyStore) -> None:
    of = writing("ab", TURN)
    for draft in ({"stop_token_ids": [TURN]}, {"stop": ["<turn>"]}):
        for include, text in ((False, "ab"), (True, "ab<turn>")):
            done = run(memory, of, skip_special_tokens=False, include_stop=include, **draft)
            assert done["text"] == text


@pytest.mark.parametrize("include", [False, True])
def test_an_end_token_is_the_models_own_and_shown_as_the_token_that_it_is(memory: AnyStore, include: bool) -> None:
    for shown, text in ((True, "ab"), (False, "ab<|eos|>")):
        done = run(memory, writing("ab"), skip_special_tokens=shown, include_stop=include)
        assert (done["text"] == text, done["matched_stop"]) == (True, EOS), done["text"]


def test_under_a_grammar_the_text_is_the_structure(memory: AnyStore) -> None:
    """Under a grammar the text is the structure also where special tokens are shown."""
    done = run(memory, writing("12"), regex="[0-9]+", skip_special_tokens=False)
    assert (done["text"], done["structure_complete"]) == ("12", True)
    done = run(memory, writing("12"), regex="[0-9]+", skip_special_tokens=False, include_stop=True)
    assert (done["text"] != "12", done["structure_complete"]) == (True, False)


def test_a_stop_id_is_held_back_until_the_minimum(memory: AnyStore) -> None:
    """Before the least number of tokens a stop id is held back and counts from there on."""
    row = [0.0] * END + [9.0]
    row[ord("a")] = 5.0
    of = ScriptedModel(ScriptedConfig(script=Script(rows=(tuple(row),), then="repeat"), pieces=PIECES))
    done = run(memory, of, stop_token_ids=[END], min_new_tokens=3)
    assert (done["text"], done["matched_stop"], done["usage"]["completion_tokens"]) == ("aaa", END, 4)


@pytest.mark.contract("OUT-6")
def test_a_structure_that_a_stop_id_cuts_is_not_complete(memory: AnyStore) -> None:
    of = writing("[1", ord("]"))
    for draft in ({"stop": ["]"]}, {"stop_token_ids": [ord("]")]}):
        cut = run(memory, of, stop_on_json=True, **draft)
        assert (cut["text"], cut["structure_complete"]) == ("[1", False)
        whole = run(memory, of, stop_on_json=True, include_stop=True, **draft)
        assert (whole["text"], whole["structure_complete"]) == ("[1]", True)


@pytest.mark.contract("OUT-5")
@pytest.mark.parametrize(("include", "text", "whole"), [(False, "12", True), (True, "12END", False)])
def test_a_structure_ends_before_the_stop_id_that_ends_it(
    memory: AnyStore, include: bool, text: str, whole: bool
) -> None:
    for draft in ({}, {"stop": ["END"]}, {"stop": ["EN"]}):
        if include and draft.get("stop") == ["EN"]:
            continue
        done = run(memory, writing("12", END), regex="[0-9]+", stop_token_ids=[END], include_stop=include, **draft)
        assert (done["text"], done["structure_complete"]) == (text, whole), draft
    assert_audited(memory)


# ---- every other way to read a log -----------------------------------------------------------------------------


@pytest.mark.contract("RES-2", "RES-4")
@pytest.mark.parametrize("draft", [{"stop": ["END"]}, {"stop_token_ids": [END]}, {}])
def test_a_job_that_was_lost_or_forked_names_its_stop(store: AnyStore, draft: dict[str, Any]) -> None:
    of = writing("ab", END)
    expected = run(store, of, **draft)
    for turns in (1, 2):
        job = admit(store, of, **draft)
        turn(engine(store, of, job), turns)
        finish(engine(store, of, job, worker="second"))
        done = result(store, job)
        assert (done["text"], done["matched_stop"]) == (expected["text"], expected["matched_stop"])
        partly = Transcript()
        for after in (0, 4, 9):
            load(partly, store.read(job, after=max(after, partly.sequence)))
        assert partly.result() == done


@pytest.mark.parametrize("draft", [{"stop": ["END"]}, {"stop_token_ids": [END]}])
def test_a_repair_keeps_the_stop_that_was_named_before_it(store: AnyStore, draft: dict[str, Any]) -> None:
    of = writing("ab", END)
    done = run(store, of, final_cache="repaired", **draft)
    assert (done["text"], done["matched_stop"]) == ("ab", "END" if "stop" in draft else END)
    assert_audited(store)
