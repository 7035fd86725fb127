"""The scripted model: rows as written, faults as written, and the native model's interface."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from score_rows import chosen

from decodelog.fsm.errors import (
    BrokenArtifact,
    CallFailed,
    DecodeNeedsPrefill,
    EmptyPrompt,
    ForeignLane,
    LaneFull,
    LaneTooLarge,
    NonFiniteScores,
    PrefillNeedsEmptyLane,
    PreparedCacheChanged,
    Problem,
    PromptTooLong,
    ScoreNotConsumable,
    TokenOutOfRange,
)
from decodelog.fsm.evidence.receipt import Selection
from decodelog.fsm.evidence.rng import unit_draw
from decodelog.runtime.families.scripted.model import ScriptedModel, load_scripted
from decodelog.runtime.families.scripted.script import ANSWER, EOS, Fault, Piece, Script, ScriptedConfig
from decodelog.runtime.families.session import Decode, Prefill
from decodelog.runtime.policy.decide import decide
from decodelog.runtime.policy.plan import Plan
from decodelog.runtime.policy.scores import Logits, VocabularyAxis


def scripted(**given: Any) -> ScriptedModel:
    return ScriptedModel(ScriptedConfig(**given))


def greedy(model: ScriptedModel, prompt: list[int], limit: int = 40) -> list[int]:
    """What greedy decoding makes of the script, up to EOS or the limit."""
    session = model.session(1)
    lane = session.open("job", limit + len(prompt))
    scores = session.select(session.prepare([Prefill(lane, prompt)]))
    tokens: list[int] = []
    while True:
        tokens.append(int(scores[0].argmax()))
        if tokens[-1] == EOS or len(tokens) == limit:
            session.release(lane)
            return tokens
        scores = session.select(session.prepare([Decode(lane, tokens[-1])]))


PROMPT = [*b"say: ", ANSWER]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (Script(text="hé"), [*"hé".encode(), EOS]),
        (Script(text=""), [EOS]),
        (Script(tokens=(258, 65, 259)), [258, 65, 259, EOS]),
        (Script(tokens=(65, EOS, 66)), [65, EOS]),
        (Script(rows=((0.0, 3.0, 1.0), (2.0,))), [1, 0, EOS]),
        (Script(rows=((0.0, 3.0), (2.0,)), then="repeat"), [1, 0] * 20),
        (Script(text="ab", then="repeat"), [97, 98] * 20),
    ],
)
def test_a_script_is_followed_and_ended_as_written(script: Script, expected: list[int]) -> None:
    model = scripted(script=script, pieces=(" wor", Piece(hex="f09f")))
    assert greedy(model, PROMPT) == expected


def test_seeded_rows_are_a_function_of_seed_and_step_and_never_end() -> None:
    script = Script(seed=7, period=16)
    first, again = greedy(scripted(script=script), PROMPT), greedy(scripted(script=script), PROMPT)
    assert first == again
    assert first[:16] == first[16:32]
    assert greedy(scripted(script=Script(seed=8, period=16)), PROMPT) != first
    assert not {EOS, ANSWER} & set(first)
    scores = scripted(script=Script(seed=1, spread=2.0)).session(1)
    lane = scores.open("job", 9)
    row = scores.select(scores.prepare([Prefill(lane, PROMPT)]))[0]
    assert row.dtype is torch.float32
    assert row[:256].abs().max() <= 2.0
    assert row.softmax(-1)[[EOS, ANSWER]].sum() == 0


@pytest.mark.parametrize(
    "script", [Script(text="hello"), Script(seed=3), Script(rows=((1.0,), (2.0, 3.0)), then="repeat")]
)
@pytest.mark.parametrize(
    ("prompt", "output"), [(PROMPT, [104, ANSWER, 101, EOS]), ([ANSWER], [ANSWER]), ([5], [104, 101])]
)
def test_a_lane_rebuilt_from_its_tokens_scores_as_it_would_have(
    script: Script, prompt: list[int], output: list[int]
) -> None:
    """The output itself may hold the prompt's end mark: the first one counts."""
    tokens = [*prompt, *output]
    session = scripted(script=script).session(1)
    lane = session.open("first", 40)
    scores = [session.select(session.prepare([Prefill(lane, prompt)]))]
    scores += [session.select(session.prepare([Decode(lane, token)])) for token in tokens[len(prompt) :]]
    for count in range(len(prompt), len(tokens) + 1):
        rebuilt = session.open("again", 40)
        row = session.select(session.prepare([Prefill(rebuilt, tokens[:count])]))
        assert torch.equal(row, scores[count - len(prompt)])


@pytest.mark.contract("POL-7")
def test_rows_of_a_call_are_those_of_each_lane_alone() -> None:
    session = scripted(script=Script(seed=5)).session(4)
    lanes = [session.open(f"job {index}", 40) for index in range(4)]
    for index, lane in enumerate(lanes):
        session.select(session.prepare([Prefill(lane, [*range(index), ANSWER])]))
        for token in range(index):
            session.select(session.prepare([Decode(lane, token)]))
    together = session.select(session.prepare([Decode(lane, 9) for lane in lanes]))
    for index in range(4):
        alone = session.open("alone", 40)
        row = session.select(session.prepare([Prefill(alone, [ANSWER, *[9] * (index + 1)])]))
        assert torch.equal(row[0], together[index])


@pytest.mark.contract("FSM-10")
@pytest.mark.parametrize("kind", ["nan", "infinity"])
def test_a_row_that_is_not_finite_comes_at_its_step_and_spoils_no_other(
    kind: Literal["raise", "nan", "infinity"],
) -> None:
    """The row is a fault that the policy finds, and the next call is clean."""
    model = scripted(script=Script(text="abcdef"), faults=(Fault(step=2, kind=kind),))
    session, axis = model.session(2), VocabularyAxis(258, "scripted")
    early, late = session.open("early", 40), session.open("late", 40)
    session.select(session.prepare([Prefill(late, [ANSWER, 97])]))
    scores = session.select(session.prepare([Prefill(early, [ANSWER]), Decode(late, 98)]))
    fine, fault = decide(Logits(scores, axis), [Plan("greedy")] * 2, [None, None])
    assert isinstance(fine, Selection)
    assert fine.token == ord("a")
    assert isinstance(fault, NonFiniteScores)
    assert session.select(session.prepare([Decode(late, 99)])).isfinite().all()


@pytest.mark.contract("CALL-9")
def test_a_call_that_fails_moves_nothing_and_can_be_tried_again() -> None:
    model = scripted(
        script=Script(text="abc"), faults=(Fault(step=1, kind="raise", times=2), Fault(step=2, kind="raise"))
    )
    session = model.session(1)
    lane, mate = session.open("job", 40), session.open("mate", 40)
    for each in (lane, mate):
        session.select(session.prepare([Prefill(each, PROMPT)]))
    for each in (lane, mate):  # each job has its own two failures
        for _ in range(2):
            with pytest.raises(CallFailed, match="step 1 of"):
                session.prepare([Decode(each, 97)])
            assert each.length == len(PROMPT)
        assert session.select(session.prepare([Decode(each, 97)]))[0].argmax() == ord("b")
    for _ in range(5):
        with pytest.raises(CallFailed):
            session.prepare([Decode(lane, 98)])


@pytest.mark.contract("CALL-2", "CALL-4")
def test_bad_calls_get_the_native_session_s_errors_and_change_nothing() -> None:
    session = scripted(script=Script(text="abc"), context=16).session(1)
    lane, empty = session.open("job", 3), session.open("empty", 3)
    with pytest.raises(LaneTooLarge):
        session.open("large", 17)
    session.select(session.prepare([Prefill(lane, [1, ANSWER])]))
    cases: list[tuple[Prefill | Decode, type[Problem]]] = [
        (Prefill(lane, [1]), PrefillNeedsEmptyLane),
        (Prefill(empty, []), EmptyPrompt),
        (Prefill(empty, [1, 2, 3, 4]), PromptTooLong),
        (Prefill(empty, [1, 258]), TokenOutOfRange),
        (Decode(lane, -1), TokenOutOfRange),
        (Decode(empty, 1), DecodeNeedsPrefill),
    ]
    for call, error in cases:
        with pytest.raises(error):
            session.prepare([call])
    ticket, other = session.prepare([Decode(lane, 97)]), session.prepare([Decode(lane, 97)])
    session.discard(ticket)
    session.discard(ticket)
    with pytest.raises(ScoreNotConsumable, match="discarded"):
        session.select(ticket)
    stale = session.prepare([Decode(lane, 97)])
    session.select(other)
    with pytest.raises(ScoreNotConsumable, match="selected"):
        session.select(other)
    with pytest.raises(PreparedCacheChanged, match="length"):
        session.select(stale)
    with pytest.raises(LaneFull):
        session.prepare([Decode(lane, 98)])
    assert (lane.length, empty.length) == (3, 0)
    prepared = session.prepare([Prefill(empty, [1])])
    session.release(empty)
    with pytest.raises(PreparedCacheChanged, match="lane"):
        session.select(prepared)
    with pytest.raises(ForeignLane):
        session.prepare([Prefill(empty, [1])])


@pytest.mark.contract("OUT-1")
def test_every_token_has_exact_bytes() -> None:
    model = scripted(script=Script(text="x"), pieces=(" wor", Piece(hex="f09f"), Piece(text="<think>", special=True)))
    text = model.text
    assert text.pieces[:256] == tuple(bytes([byte]) for byte in range(256))
    assert text.pieces[256:] == (b"<|eos|>", b"<|answer|>", b" wor", b"\xf0\x9f", b"<think>")
    assert [token for token in range(261) if text.is_special(token)] == [EOS, ANSWER, 260]
    assert model.facts.vocabulary_size == len(text.pieces)
    assert text.decode([*"hé".encode(), 258]) == "hé wor"


def test_a_prompt_ends_with_its_mark_and_a_user_cannot_write_it() -> None:
    text = scripted(script=Script(text="x")).text
    assert text.encode("hi", add_special_tokens=True) == [*b"hi", ANSWER]
    assert text.encode("a<|answer|>b", add_special_tokens=True).count(ANSWER) == 1
    chat = text.apply_chat_template([{"role": "user", "content": "<|answer|>{role}"}])
    assert chat == "user: <|answer|>{role}\nassistant: <|answer|>"
    ids = text.encode(chat, add_special_tokens=False)
    assert ids == [*b"user: <|answer|>{role}\nassistant: ", ANSWER]


def test_a_directory_is_a_model_with_the_hash_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "scripted.json"
    spec: dict[str, Any] = {
        "architecture": "scripted",
        "script": {"text": "Hi"},
        "pieces": ["ab", {"hex": "ff"}],
        "faults": [{"step": 9, "kind": "nan"}],
    }
    path.write_text(json.dumps(spec))
    model, again = load_scripted(tmp_path), load_scripted(tmp_path)
    assert greedy(model, PROMPT) == [*b"Hi", EOS]
    assert model.facts == again.facts
    assert model.facts.eos_ids == (EOS,)
    spec["script"]["text"] = "Ho"
    path.write_text(json.dumps(spec))
    assert load_scripted(tmp_path).facts.checkpoint_sha256 != model.facts.checkpoint_sha256
    assert load_scripted(tmp_path).facts.tokenizer_sha256 == model.facts.tokenizer_sha256


BAD = """
    {                                                               ;; JSON
    {"script": {"text": "a"}, "extra": 1}                           ;; extra
    {"script": {}}                                                  ;; exactly one
    {"script": {"text": "a", "seed": 1}}                            ;; exactly one
    {"script": {"text": 5}}                                         ;; script.text
    {"script": {"text": "", "then": "repeat"}}                      ;; empty text
    {"script": {"tokens": [258]}}                                   ;; outside 0..258
    {"script": {"tokens": []}}                                      ;; script.tokens
    {"script": {"rows": [[1e999]]}}                                 ;; script.rows
    {"script": {"text": "a"}, "pieces": [{"hex": "f"}]}             ;; pieces.0
    {"script": {"text": "a"}, "faults": [{"step": 1, "kind": "x"}]} ;; faults.0.kind
    {"script": {"text": "a"}, "architecture": "llama"}              ;; architecture
"""


@pytest.mark.parametrize("row", BAD.strip().splitlines())
def test_a_broken_script_says_what_is_wrong(tmp_path: Path, row: str) -> None:
    text, expected = row.split(";;")
    (tmp_path / "scripted.json").write_text(text)
    with pytest.raises(BrokenArtifact, match=expected.strip()):
        load_scripted(tmp_path)
    with pytest.raises(BrokenArtifact):
        load_scripted(tmp_path / "missing")


def test_a_row_wider_than_the_vocabulary_is_refused() -> None:
    with pytest.raises(BrokenArtifact, match="259 scores in a row, and 258 tokens"):
        scripted(script=Script(rows=((0.0,) * 259,)))


@pytest.mark.contract("POL-6")
def test_written_rows_give_the_log_probabilities_of_their_columns_alone() -> None:
    """A row of four: the columns that are left out have no probability."""
    session = scripted(script=Script(rows=((1.0, 0.0, -1.0, -2.0),))).session(1)
    lane = session.open("job", 9)
    scores = session.select(session.prepare([Prefill(lane, [1])]))
    (selection,) = chosen(decide(Logits(scores, VocabularyAxis(258, "scripted")), [Plan("greedy")], [None]))
    assert selection.logprob_raw == pytest.approx(1 - math.log(sum(map(math.exp, [1, 0, -1, -2]))), abs=1e-12)


def sampled(model: ScriptedModel, seed: int, choice: int, count: int, logprobs_top: int = 0) -> list[Selection]:
    """Decode one choice alone, with noise addressed by seed, choice and step."""
    session, axis = model.session(1), VocabularyAxis(model.facts.vocabulary_size, "scripted")
    lane = session.open(f"choice {choice}", count + 9)
    plan, selections = Plan.of(1.0, logprobs_top=logprobs_top), list[Selection]()
    scores = session.select(session.prepare([Prefill(lane, [ANSWER])]))
    for step in range(count):
        draw = unit_draw("philox4x32-10", seed, choice, 0, step)
        selections += chosen(decide(Logits(scores, axis), [plan], [draw]))
        scores = session.select(session.prepare([Decode(lane, selections[-1].token)]))
    session.release(lane)
    return selections


@pytest.mark.contract("POL-5", "POL-7")
def test_choices_of_one_seed_differ_and_each_replays_alone() -> None:
    """Four choices, seed 7, temperature 1."""
    model = scripted(script=Script(seed=1))
    texts = [[selection.token for selection in sampled(model, 7, choice, 12)] for choice in range(4)]
    assert len({tuple(text) for text in texts}) == 4
    assert [selection.token for selection in sampled(model, 7, 2, 12)] == texts[2]


@pytest.mark.contract("OUT-1", "POL-6")
def test_entries_of_half_characters_carry_their_exact_bytes() -> None:
    """A curly quote in three tokens, two alternatives each."""
    model = scripted(script=Script(text="\N{LEFT DOUBLE QUOTATION MARK}ok"))
    selections = sampled(model, 3, 0, 5, logprobs_top=2)
    pieces = model.text.pieces
    assert b"".join(pieces[selection.token] for selection in selections).decode() == "\N{LEFT DOUBLE QUOTATION MARK}ok"
    for selection in selections:
        assert len(selection.alternatives) == 2
        assert selection.alternatives[0].token == selection.token
        assert all(len(pieces[alternative.token]) == 1 for alternative in selection.alternatives)
