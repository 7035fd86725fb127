"""What is recorded of a prompt: log-probabilities that are those of the rows before, and an echo, each once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cranks import admit, assert_audited, engine, finish, model, result, run, transcript, turn
from databases import AnyStore
from hypothesis import given
from hypothesis import strategies as st

from decodelog.fsm.errors import NonFiniteScores, NotAdmissible, Problem
from decodelog.fsm.evidence.prompt_record import PromptToken
from decodelog.fsm.machine.events import Event, PromptRecorded
from decodelog.fsm.reading.emission import Emission
from decodelog.fsm.request import admission
from decodelog.fsm.request.finish import FinishReason
from decodelog.runtime.families.decoder.config import parse_config
from decodelog.runtime.families.decoder.model import WATCHED_ROWS, Decoder, seeded_decoder
from decodelog.runtime.families.scripted.script import ANSWER, Fault
from decodelog.runtime.families.session import Decode, Prefill, Session
from decodelog.runtime.loop.prompt_record import PromptScores
from decodelog.runtime.policy.scores import VocabularyAxis
from decodelog.service.jobs.models import Models
from decodelog.store.memory.log import MemoryStore

pytestmark = pytest.mark.contract("POL-6")

SIZE = 97
AXIS = VocabularyAxis(SIZE, "letters")
TOLERANCE = 1e-5  # between products of other shapes over 32 float32 terms
RAW = {
    "model_type": "llama",
    "vocab_size": SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
LONG = [(7 * place * place + 3 * place) % SIZE for place in range(3 * WATCHED_ROWS + 5)]


class Letters:
    """A vocabulary whose tokens are named by their ids."""

    pieces: Sequence[bytes] = [b"<%d>" % token for token in range(SIZE)]

    def is_special(self, token: int) -> bool:
        return token == 0


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return seeded_decoder(parse_config(RAW), 3)


def scored(decoder: Decoder, prompt: list[int], top: int = 2, chunk: int | None = None) -> tuple[PromptToken, ...]:
    scores = PromptScores(prompt, top, AXIS)
    with Session(decoder, decoder.new_arena(1, 256), prefill_chunk=chunk) as session:
        session.select(session.prepare([Prefill(session.open("request", 256), prompt, scores.take)]))
    tokens = scores.tokens(Letters())  # type: ignore[arg-type]
    assert not isinstance(tokens, NonFiniteScores)
    return tokens


def complete_prefix(decoder: Decoder, prompt: list[int]) -> torch.Tensor:
    """Log-probabilities [prompt, V] after each prefix, each by a call of its own."""
    rows = []
    for length in range(1, len(prompt) + 1):
        with Session(decoder, decoder.new_arena(1, 256)) as session:
            lane = session.open("request", 256)
            rows.append(session.select(session.prepare([Prefill(lane, prompt[:length])]))[0])
    return torch.stack(rows).double().log_softmax(-1)


# ---- the rows ----------------------------------------------------------------------------------------------------


@pytest.mark.contract("CALL-6")
@pytest.mark.parametrize("chunk", [None, 1, 7, WATCHED_ROWS, 40])
def test_row_i_scores_token_i_plus_1_however_the_prompt_is_cut_into_chunks(decoder: Decoder, chunk: int | None) -> None:
    """One entry for each token, the first without a value, equal to the run that is not cut; and again the same."""
    rows = complete_prefix(decoder, LONG)
    tokens = scored(decoder, LONG, 3, chunk)
    assert len(tokens) == len(LONG)
    assert (tokens[0].logprob_raw, tokens[0].alternatives) == (None, ())
    for place in range(1, len(LONG)):
        token, row = tokens[place], rows[place - 1]
        assert token.logprob_raw == pytest.approx(float(row[LONG[place]]), abs=TOLERANCE)
        best = row.topk(3)
        assert [each.logprob_raw for each in token.alternatives] == pytest.approx(best.values.tolist(), abs=TOLERANCE)
        assert [each.piece for each in token.alternatives] == [b"<%d>" % each.token for each in token.alternatives]
    assert scored(decoder, LONG, 3, chunk) == tokens


def test_looking_at_the_prompt_changes_no_score_and_no_count(decoder: Decoder) -> None:
    """To look at the prompt changes no score of the call and no count of its work."""
    seen: list[torch.Tensor] = []
    found = []
    for watch in (None, lambda rows: seen.append(rows.clone())):
        with Session(decoder, decoder.new_arena(1, 256), prefill_chunk=50) as session:
            lane = session.open("request", 256)
            scores = session.select(session.prepare([Prefill(lane, LONG, watch)]))
            more = session.select(session.prepare([Decode(lane, 5)]))
            found.append((scores.clone(), more.clone(), session.work))
    (plain, plain_more, work), (watched, watched_more, same_work) = found
    assert torch.equal(plain, watched)
    assert torch.equal(plain_more, watched_more)
    assert work == same_work
    assert torch.cat(seen).shape == (len(LONG), SIZE)
    assert max(map(len, seen)) <= WATCHED_ROWS
    assert torch.allclose(torch.cat(seen)[-1], watched[0], atol=TOLERANCE)


@given(st.data())
def test_equal_scores_are_listed_by_id_for_parts_of_any_length(data: st.DataObject) -> None:
    """Equal scores are listed by their ids and parts of any length give the same."""
    prompt = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=9))
    rows = torch.tensor([data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=5, max_size=5)) for _ in prompt])
    axis = VocabularyAxis(5, "five")
    whole = PromptScores(prompt, 5, axis)
    whole.take(rows)
    parts = PromptScores(prompt, 5, axis)
    at = 0
    while at < len(rows):
        size = data.draw(st.integers(1, 4))
        parts.take(rows[at : at + size])
        at += size
    tokens = whole.tokens(Letters())  # type: ignore[arg-type]
    assert parts.tokens(Letters()) == tokens  # type: ignore[arg-type]
    assert not isinstance(tokens, NonFiniteScores)
    for token, row in zip(tokens[1:], rows.tolist(), strict=False):
        assert [each.token for each in token.alternatives] == sorted(range(5), key=lambda one: (-row[one], one))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_row_that_is_not_finite_spoils_a_record_that_needs_it(bad: float, place: int) -> None:
    """A row that is not finite spoils the record unless no token needs it."""
    rows = torch.zeros(3, SIZE)
    rows[place, 11] = bad
    scores = PromptScores([1, 2, 3], 1, AXIS)
    scores.take(rows)
    assert isinstance(scores.tokens(Letters()), NonFiniteScores) is (place < 2)  # type: ignore[arg-type]


# ---- on the engine, in the log -----------------------------------------------------------------------------------


def events(store: AnyStore, job: str) -> list[Event]:
    return [event for record in store.read(job) for event in record.events]


WISHES: list[dict[str, Any]] = [
    {"echo_prompt": True},
    {"prompt_logprobs": 0},
    {"prompt_logprobs": 2},
    {"echo_prompt": True, "logprobs": 1},
    {"echo_prompt": True, "prompt_logprobs": 3, "logprobs": 1},
]


@pytest.mark.contract("OUT-4", "OUT-7", "FSM-2")
@pytest.mark.parametrize("wish", WISHES, ids=str)
@pytest.mark.parametrize("zero", [None, "prefill_only"])
def test_a_prompt_is_recorded_once_and_shown_alike_in_stream_and_result(
    store: AnyStore, wish: dict[str, Any], zero: str | None
) -> None:
    of = model("Hello")
    draft = {"prompt": "go: ", **wish, **({"max_new_tokens": 0, "zero_token_choice": zero} if zero else {})}
    job = admit(store, of, **draft)
    seen: list[Emission] = []
    finish(engine(store, of, job, sink=lambda name, emissions, state: seen.extend(emissions)))
    done, output = result(store, job), "" if zero else "Hello"
    echo = "go: " if wish.get("echo_prompt") else ""
    assert done["text"] == echo + output == "".join(item.text for item in seen)
    assert seen == transcript(store, job).emissions
    assert [len(item.prompt) for item in seen if item.prompt] == [5]
    assert sum(isinstance(event, PromptRecorded) for event in events(store, job)) == 1
    top = wish.get("prompt_logprobs", wish.get("logprobs"))
    first, *others = done["prompt"]
    assert [token["token"] for token in done["prompt"]] == [*b"go: ", ANSWER]
    assert (first["logprob_raw"], first["alternatives"]) == (None, [])
    assert {token["logprob_raw"] is None for token in others} == {top is None}
    assert {len(token["alternatives"]) for token in others} == {top or 0}
    assert [token["byte_offset"] for token in done["prompt"]] == [0, 1, 2, 3, 4]
    assert [token["byte_offset"] for token in done["tokens"][:2]] == ([] if zero else [len(echo), len(echo) + 1])
    assert done["usage"]["prompt_tokens"] == 5
    assert_audited(store)


def test_an_echo_without_output_scores_the_prompt_on_request(
    store: AnyStore,
) -> None:
    """Five tokens, one alternative each, none generated: the first has no value, and all others have one."""
    done = run(store, model("never"), prompt="four", echo_prompt=True, logprobs=1, max_new_tokens=0)
    assert (done["text"], done["finish_reason"], done["token_ids"]) == ("four", "length", [])
    assert [token["logprob_raw"] is None for token in done["prompt"]] == [True, False, False, False, False]
    assert done["usage"]["completion_tokens"] == 0
    plain = run(store, model("never"), prompt="four", echo_prompt=True, max_new_tokens=0)
    assert (plain["text"], plain["finish_reason"]) == ("four", "length")
    calls = [event.tag for event in events(store, plain["job"]) if event.tag == "call.completed"]
    assert calls == []  # nothing of it needs a model


def test_log_probabilities_of_a_prompt_without_a_call_are_refused(store: AnyStore) -> None:
    with pytest.raises(NotAdmissible, match="prefill_only"):
        admit(store, model(), prompt_logprobs=1, max_new_tokens=0, zero_token_choice="no_call")


@pytest.mark.contract("RES-4", "LOG-10", "OUT-7")
@pytest.mark.parametrize("wish", WISHES, ids=str)
@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_a_worker_that_dies_at_any_turn_leaves_one_record_and_the_same_end(
    store: AnyStore, wish: dict[str, Any], turns: int
) -> None:
    of = model("Hello")
    expected = run(store, of, prompt="go: ", **wish)
    job = admit(store, of, prompt="go: ", **wish)
    turn(engine(store, of, job), turns)
    seen: list[Emission] = []
    finish(engine(store, of, job, worker="second", sink=lambda name, emissions, state: seen.extend(emissions)))
    done = result(store, job)
    for name in ("text", "tokens", "prompt", "finish_reason"):
        assert done[name] == expected[name]
    assert sum(isinstance(event, PromptRecorded) for event in events(store, job)) == 1
    assert transcript(store, job).emissions[-len(seen) :] == seen
    assert_audited(store)


@pytest.mark.contract("FSM-10")
def test_a_prompt_row_that_is_not_finite_fails_its_own_job_alone(store: AnyStore) -> None:
    of = model("Hello", faults=(Fault(step=0, kind="nan"),))
    fine = model("Hello")
    job, mate = admit(store, of, prompt_logprobs=1), admit(store, fine, prompt_logprobs=1)
    finish(engine(store, of, job))
    finish(engine(store, fine, mate))
    done = result(store, job)
    assert (done["state"], done["error"]["code"], done["token_ids"]) == ("FAILED", "non_finite_scores", [])
    assert "prompt" not in done
    assert result(store, mate)["text"] == "Hello"
    assert_audited(store)


def cancelled(job: str) -> dict[str, list[FinishReason]]:
    return {job: [FinishReason.CANCELLED]}


@pytest.mark.contract("FSM-9")
def test_a_prompt_is_recorded_only_after_the_first_call(store: AnyStore) -> None:
    """A job that is cancelled before its first call has no record and one after it does."""
    of = model("Hello")
    for turns, recorded in ((0, False), (1, True)):
        job = admit(store, of, prompt="go: ", echo_prompt=True, prompt_logprobs=1)
        made = engine(store, of, job)
        turn(made, turns)
        made.turn(partial(cancelled, job))
        made.close()
        done = result(store, job)
        assert (done["finish_reason"], "prompt" in done) == ("cancelled", recorded)
        assert done["text"] == ("go: H" if recorded else "")
    assert_audited(store)


def test_a_hidden_token_within_a_character_stands_at_that_character(store: AnyStore) -> None:
    done = run(store, model("x"), token_ids=[0xE2, ANSWER, 0x82, 0xAC, ord("a")], max_new_tokens=1, echo_prompt=True)
    assert [token["character_offset"] for token in done["prompt"]] == [0, 0, 0, 0, 1]
    assert [token["byte_offset"] for token in done["prompt"]] == [0, 1, 1, 2, 3]
    assert done["text"].startswith("€a")


def test_a_record_of_too_many_entries_is_refused(store: AnyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "PROMPT_ENTRIES_MAX", 20)
    assert admit(store, model(), token_ids=[65] * 10, prompt_logprobs=1)
    with pytest.raises(NotAdmissible, match="fewer"):
        admit(store, model(), token_ids=[65] * 10, prompt_logprobs=2)


# ---- the real model ----------------------------------------------------------------------------------------------


@pytest.mark.contract("OUT-1", "CALL-6")
def test_a_prompt_scores_what_the_model_wrote_as_the_model_did() -> None:
    """A text that the model wrote, given back as a prompt, has the log-probabilities that it was written with."""
    try:
        smol = Models(Path.home() / ".cache" / "decodelog", lanes=2).load("smollm2-135m-instruct")
    except Problem as error:
        pytest.fail(f"{error}: this test runs on the real model")
    store = MemoryStore()
    wrote = run(store, smol, prompt="The river — “so", max_new_tokens=24, echo_prompt=True, logprobs=3, ignore_eos=True)
    ids = [token["token"] for token in (*wrote["prompt"], *wrote["tokens"])]
    read = run(store, smol, token_ids=ids, max_new_tokens=0, prompt_logprobs=3, echo_prompt=True)
    assert read["text"] == wrote["text"]
    assert read["text"].startswith("The river — “so")
    for token, again in zip([*wrote["prompt"][1:], *wrote["tokens"]], read["prompt"][1:], strict=True):
        assert again["logprob_raw"] == pytest.approx(token["logprob_raw"], abs=2e-3)
        assert (again["bytes"], again["character_offset"]) == (token["bytes"], token["character_offset"])
        assert [each["token"] for each in again["alternatives"]][:1] == [
            each["token"] for each in token["alternatives"]
        ][:1]
    assert "".join(token["bytes"] for token in read["prompt"]) == read["text"].encode().hex()
    assert_audited(store)
