"""Kinds of fault that decoding engines are known for, on the real crank; docs/faults.md lists them with their tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from cranks import WORKER, admit, assert_audited, claim, engine, finish, result, run, state_of, turn
from databases import AnyStore

from decodelog.fsm.evidence.receipt import Selection
from decodelog.fsm.machine.events import DecisionMade, OutputCommitted
from decodelog.fsm.reading.emission import Emission
from decodelog.fsm.request.finish import FinishReason
from decodelog.runtime.families.decoder.config import parse_config
from decodelog.runtime.families.decoder.model import seeded_decoder
from decodelog.runtime.families.scripted.model import ScriptedModel
from decodelog.runtime.families.scripted.script import Piece, Script, ScriptedConfig
from decodelog.runtime.families.session import Decode, Prefill, Session
from decodelog.store.memory.log import MemoryStore

CANCELLED = FinishReason.CANCELLED
CONFIG = parse_config(
    {
        "model_type": "llama",
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
    }
)
ENDLESS: dict[str, Any] = {"ignore_eos": True, "max_new_tokens": 12}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def decoding(lanes: int) -> ScriptedModel:
    """A real decoder with random weights behind the scripted model's bytes; no lane beyond these can be opened."""
    further = tuple(Piece(text=f"<{token}>") for token in range(258, 320))
    of = ScriptedModel(ScriptedConfig(script=Script(text="x"), pieces=further, context=128))
    decoder, sessions = seeded_decoder(CONFIG, 5), dict[int, Session]()

    def session(width: int) -> Session:
        if width not in sessions:
            arena = decoder.new_arena(lanes, 128, positions_max=128)
            sessions[width] = Session(decoder, arena, width=width)
        return sessions[width]

    of.session = session  # type: ignore[assignment,method-assign]
    return of


def ending_at(tokens: Sequence[int], eos: tuple[int, ...]) -> ScriptedModel:
    """A model that wants these tokens, of which several may be end tokens."""
    of = ScriptedModel(ScriptedConfig(script=Script(tokens=tuple(tokens), then="repeat")))
    of.facts = replace(of.facts, eos_ids=eos)
    return of


def selections(store: AnyStore, job: str) -> list[Selection]:
    events = (event for record in store.read(job) for event in record.events)
    return [event.receipt.selection for event in events if isinstance(event, DecisionMade)]


# ---- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("OUT-3", "POL-2", "FSM-7")
@pytest.mark.parametrize("sampled", [{}, {"temperature": 0.01, "seed": 3}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("wanted", [1, 50, 106])
@pytest.mark.parametrize("stop_ids", [(), (0, 7)])
def test_every_end_token_and_stop_id_waits_for_the_minimum(
    store: AnyStore, wanted: int, stop_ids: tuple[int, ...], sampled: dict[str, Any]
) -> None:
    """The model wants a secondary end token at the second step, and at every one after the minimum."""
    ends = (1, 50, 106)
    of = ending_at([97, wanted, 98, 99, wanted], ends)
    done = run(store, of, min_new_tokens=4, stop_token_ids=list(stop_ids), **sampled)
    assert not {*ends, *stop_ids} & set(done["token_ids"][:4])
    assert [done["token_ids"][step] for step in (0, 2, 3)] == [97, 98, 99]
    assert (done["finish_reason"], done["token_ids"][4:]) == ("eos", [wanted])
    masked = len({*ends, *stop_ids})
    support = [each.support for each in selections(store, done["job"])]
    assert support == [of.facts.vocabulary_size - masked] * 4 + [of.facts.vocabulary_size]
    assert_audited(store)


@pytest.mark.contract("OUT-3", "FSM-7")
@pytest.mark.parametrize("wanted", [1, 50, 106])
def test_each_end_token_of_several_ends_the_output(store: AnyStore, wanted: int) -> None:
    done = run(store, ending_at([97, wanted], (1, 50, 106)))
    assert (done["finish_reason"], done["token_ids"]) == ("eos", [97, wanted])


# ---- cancelling ------------------------------------------------------------------------------------------------------


@pytest.mark.contract("CALL-9", "FSM-9")
def test_a_cancel_during_prefill_commits_nothing_and_frees_the_lane(
    store: AnyStore,
) -> None:
    """There is one lane: whoever comes next has it, and no second one comes into being."""
    of, shown = decoding(lanes=1), list[Emission]()
    session, calls = of.session(1), list[Any]()
    prepare = session.prepare

    def noted(asked: Sequence[Prefill | Decode]) -> Any:
        calls.extend(asked)
        return prepare(asked)

    vars(session)["prepare"] = noted
    job = admit(store, of, **ENDLESS)
    made = engine(store, of, job, sink=lambda _, emissions, __: shown.extend(emissions))
    turn_cancelling(made, job)
    assert len(calls) == 1
    done = result(store, job)
    assert (done["finish_reason"], done["token_ids"], done["text"]) == ("cancelled", [], "")
    assert [(item.tokens, item.text, item.finish) for item in shown] == [((), "", "cancelled")]
    assert not [event for record in store.read(job) for event in record.events if isinstance(event, OutputCommitted)]
    assert not made.jobs
    following = [admit(store, of, **ENDLESS) for _ in range(2)]
    for each in following:
        made.adopt(claim(store, each), WORKER)
        finish(made)
        assert result(store, each)["finish_reason"] == "length"
    assert_audited(store)


def turn_cancelling(made: Any, *jobs: str) -> None:
    """One turn in which a cancel of these jobs comes after their calls and before their decisions."""
    made.turn(lambda: {job: [CANCELLED] for job in jobs})
    made.flush()


@pytest.mark.contract("POL-7", "OUT-8", "FSM-9")
def test_choices_whose_reader_leaves_all_end_and_give_their_lanes_back(store: AnyStore) -> None:
    """Two answers to one request, read as a stream that breaks after its first item, on as many lanes as answers."""

    def broken(job: str, emissions: Sequence[Emission], _: object) -> None:
        raise BrokenPipeError

    of = decoding(lanes=2)
    draft = {**ENDLESS, "temperature": 1.0, "seed": 7, "max_new_tokens": 100, "consumer_policy": "cancel"}
    choices = [admit(store, of, **draft, choice=choice) for choice in range(2)]
    made = engine(store, of, *choices, sink=broken)
    finish(made, turns=10)
    for job in choices:
        assert result(store, job)["finish_reason"] == "cancelled"
        assert result(store, job)["usage"]["completion_tokens"] < 10
    assert not made.jobs
    others = [admit(store, of, **ENDLESS) for _ in range(2)]
    finish(engine(store, of, *others))
    assert {result(store, job)["finish_reason"] for job in others} == {"length"}
    assert_audited(store)


@pytest.mark.contract("POL-7", "FSM-9")
def test_a_choice_that_is_cancelled_leaves_the_others_as_they_are_alone(store: AnyStore) -> None:
    of = decoding(lanes=4)
    draft = {**ENDLESS, "temperature": 1.0, "seed": 7, "batch_width": 4}
    alone = [run(store, of, **draft, choice=choice)["token_ids"] for choice in range(3)]
    together = [admit(store, of, **draft, choice=choice) for choice in range(3)]
    made = engine(store, of, *together)
    turn(made, 4)
    turn_cancelling(made, together[1])
    finish(made)
    tokens = [result(store, job)["token_ids"] for job in together]
    assert (tokens[0], tokens[2]) == (alone[0], alone[2])
    assert tokens[1] == alone[1][:4]


# ---- the same request again ------------------------------------------------------------------------------------------


@pytest.mark.contract("POL-7", "CALL-6", "FSM-8")
@pytest.mark.parametrize("sampled", [{}, {"temperature": 1.0, "seed": 42}], ids=["greedy", "seeded"])
def test_a_request_after_others_gives_the_answer_that_it_gives_first(store: AnyStore, sampled: dict[str, Any]) -> None:
    """Twice, after a prompt that is computed and not continued, and after another request, all in one lane."""
    of = decoding(lanes=1)
    between: list[dict[str, Any]] = [
        {},
        {"prompt": "Another prompt", "max_new_tokens": 0, "zero_token_choice": "prefill_only"},
        {"prompt": "say not", "max_new_tokens": 5},
    ]
    answers = [run(store, of, **ENDLESS, **sampled, logprobs=3)]
    for other in between:
        if other:
            run(store, of, **other)
        answers.append(run(store, of, **ENDLESS, **sampled, logprobs=3))
    told = [selections(store, answer["job"]) for answer in answers]
    assert len(told[0]) == 12
    assert all(each == told[0] for each in told)  # to the last bit: no lane begins with what another one left


@pytest.mark.contract("POL-7", "POL-4", "CALL-6")
def test_eight_slots_with_one_prompt_give_one_answer(store: AnyStore) -> None:
    """Together, alone, and beside other prompts: the width of a call is part of the request, who shares it is not."""
    of = decoding(lanes=8)
    draft = {**ENDLESS, "batch_width": 8}
    alone = admit(store, of, **draft)
    finish(engine(store, of, alone))
    slots = [admit(store, of, **draft) for _ in range(8)]
    finish(engine(store, of, *slots))
    prompts = ["other", "say ", "another", "a third", "say "]
    mixed = [admit(store, of, **draft, prompt=prompt) for prompt in prompts]
    finish(engine(store, of, *mixed))
    expected = selections(store, alone)
    assert all(selections(store, job) == expected for job in (*slots, mixed[1], mixed[4]))
    assert selections(store, mixed[0]) != expected


# ---- one place for every answer --------------------------------------------------------------------------------------


@pytest.mark.contract("FSM-7", "OUT-7")
def test_a_budget_of_one_token_is_a_length_wherever_one_looks(store: AnyStore) -> None:
    of, shown = decoding(lanes=1), list[Emission]()
    job = admit(store, of, ignore_eos=True, max_new_tokens=1)
    finish(engine(store, of, job, sink=lambda _, emissions, __: shown.extend(emissions)))
    done, row = result(store, job), store.row(job)
    assert (done["finish_reason"], done["state"], done["usage"]["completion_tokens"]) == ("length", "CLOSED", 1)
    assert (shown[-1].finish, row.finish, row.output) == ("length", "length", 1)
    state = state_of(store, job)
    assert state is not None
    assert state.due == (FinishReason.LENGTH,)
