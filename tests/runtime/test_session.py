"""A session binds one model to one cache: binding, typed errors, optimizers, reset, work counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NoReturn

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decodelog.fsm.errors import (
    CallFailed,
    DecodeNeedsPrefill,
    EmptyPrompt,
    ForeignLane,
    LaneFull,
    LaneTooLarge,
    NoFreeSlot,
    OptimizerStepRefused,
    PrefillNeedsEmptyLane,
    Problem,
    PromptTooLong,
    SessionClosed,
    SessionMismatch,
    TokenOutOfRange,
)
from decodelog.runtime.caches.arena import Arena
from decodelog.runtime.families.decoder.config import DecoderConfig, parse_config
from decodelog.runtime.families.decoder.model import Decoder, seeded_decoder
from decodelog.runtime.families.decoder.workspace import Workspace
from decodelog.runtime.families.session import Decode, Lane, Prefill, Session
from decodelog.runtime.families.work import Work, work_of_call

RAW = {
    "model_type": "llama",
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
}


def config(**changes: object) -> DecoderConfig:
    return parse_config(RAW | changes)


@pytest.fixture
def decoder() -> Decoder:
    return seeded_decoder(config(), 1)


@pytest.fixture
def session(decoder: Decoder) -> Iterator[Session]:
    with Session(decoder, decoder.new_arena(3, 8)) as session:
        yield session


def run(session: Session, *calls: Prefill | Decode) -> torch.Tensor:
    return session.select(session.prepare(calls))


def state(session: Session) -> tuple[object, ...]:
    """Everything logical: lane lengths, committed rows, counters."""
    lanes = sorted(session.arena.lanes.values(), key=lambda lane: lane.slot)
    rows = [session.arena.rows[:, lane.slot, :, :, : lane.length].tolist() for lane in lanes]
    return [(lane.request, lane.slot, lane.generation, lane.length) for lane in lanes], rows, session.work


# ---- typed errors keep the state (CALL-4) --------------------------------------------------------------------------

Misuse = Callable[[Session, Lane, Lane, Lane], object]
MISUSES: dict[str, tuple[type[Problem], Misuse]] = {
    "an empty prompt": (EmptyPrompt, lambda s, full, filled, empty: s.prepare([Prefill(empty, [])])),
    "a prompt longer than its lane": (
        PromptTooLong,
        lambda s, full, filled, empty: s.prepare([Prefill(empty, [1] * 9)]),
    ),
    "a prompt token above the vocabulary": (
        TokenOutOfRange,
        lambda s, full, filled, empty: s.prepare([Prefill(empty, [1, 11])]),
    ),
    "a negative prompt token": (TokenOutOfRange, lambda s, full, filled, empty: s.prepare([Prefill(empty, [-1])])),
    "a decode token out of range": (TokenOutOfRange, lambda s, full, filled, empty: s.prepare([Decode(filled, 11)])),
    "a prefill on a filled lane": (
        PrefillNeedsEmptyLane,
        lambda s, full, filled, empty: s.prepare([Prefill(filled, [1])]),
    ),
    "a decode before a prefill": (DecodeNeedsPrefill, lambda s, full, filled, empty: s.prepare([Decode(empty, 1)])),
    "a decode into a full lane": (LaneFull, lambda s, full, filled, empty: s.prepare([Decode(full, 1)])),
    "one lane twice in a call": (
        ForeignLane,
        lambda s, full, filled, empty: s.prepare([Decode(filled, 1), Decode(filled, 2)]),
    ),
    "a bad call beside good ones": (
        LaneFull,
        lambda s, full, filled, empty: s.prepare([Prefill(empty, [1]), Decode(filled, 1), Decode(full, 1)]),
    ),
    "a lane of another cache": (
        ForeignLane,
        lambda s, full, filled, empty: s.prepare([Decode(replace(filled), 1)]),
    ),
    "a lane beyond the context": (LaneTooLarge, lambda s, full, filled, empty: s.open("x", 33)),
    "a lane of no positions": (LaneTooLarge, lambda s, full, filled, empty: s.open("x", 0)),
    "one lane too many": (NoFreeSlot, lambda s, full, filled, empty: s.open("x", 1)),
}


@pytest.mark.contract("CALL-4", "FAM-6")
@pytest.mark.parametrize("name", MISUSES)
def test_a_misuse_is_typed_and_changes_nothing(session: Session, name: str) -> None:
    full, filled, empty = session.open("full", 3), session.open("filled", 8), session.open("empty", 8)
    run(session, Prefill(full, [1, 2, 3]), Prefill(filled, [4, 5]))
    before = state(session)
    kind, misuse = MISUSES[name]
    with pytest.raises(kind):
        misuse(session, full, filled, empty)
    assert state(session) == before
    run(session, Decode(filled, 6), Prefill(empty, [7]))  # and the session goes on


@pytest.mark.contract("CALL-4")
def test_an_error_names_the_request_the_place_and_the_bound(session: Session) -> None:
    lane = session.open("job-7", 8)
    with pytest.raises(TokenOutOfRange) as caught:
        session.prepare([Prefill(lane, [1, 2, 99])])
    facts = caught.value.facts()
    assert (facts["request"], facts["position"], facts["token"], facts["vocabulary_size"]) == ("job-7", 2, 99, 11)


def test_a_released_lane_is_dead_even_where_its_slot_lives_on(session: Session) -> None:
    old = session.open("old", 8)
    run(session, Prefill(old, [1, 2]))
    session.release(old)
    new = session.open("new", 8)
    assert new.slot == old.slot
    assert new.generation != old.generation
    assert new.length == 0
    for use in (lambda: session.prepare([Decode(old, 1)]), lambda: session.release(old), lambda: session.reset(old)):
        with pytest.raises(ForeignLane):
            use()


@pytest.mark.contract("FAM-6")
def test_what_an_earlier_tenant_left_is_invisible(decoder: Decoder) -> None:
    with Session(decoder, decoder.new_arena(1, 8)) as session:
        fresh = run(session, Prefill(session.open("a", 8), [3, 1]))
        session.arena.rows.fill_(float("nan"))
        session.release(session.arena.lanes[0])
        assert torch.equal(run(session, Prefill(session.open("b", 8), [3, 1])), fresh)


@pytest.mark.contract("FAM-6")
def test_growth_keeps_every_lanes_rows(decoder: Decoder) -> None:
    with Session(decoder, decoder.new_arena(2, 4)) as session:
        lane = session.open("short", 4)
        run(session, Prefill(lane, [1, 2, 3]))
        rows = session.arena.rows[:, lane.slot, :, :, :3].clone()
        session.open("long", 20)
        assert session.arena.positions >= 20
        assert torch.equal(session.arena.rows[:, lane.slot, :, :, :3], rows)
        grown = run(session, Decode(lane, 4))
    with Session(decoder, decoder.new_arena(1, 32)) as session:
        lane = session.open("alone", 4)
        run(session, Prefill(lane, [1, 2, 3]))
        assert torch.equal(run(session, Decode(lane, 4)), grown)


def fail() -> NoReturn:
    raise RuntimeError("injected")


@pytest.mark.contract("CALL-4", "CALL-9")
def test_a_failing_computation_is_typed_and_leaves_every_lane(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = session.open("request", 8)
    run(session, Prefill(lane, [1, 2]))
    expected, before = run(session, Decode(lane, 3)), state(session)
    session.reset(lane)
    run(session, Prefill(lane, [1, 2]))
    normalise = Workspace.normalise
    for at in range(5):  # each norm of the call, the final one included
        passes = iter([True] * at + [False])
        monkeypatch.setattr(Workspace, "normalise", lambda w, on=passes: normalise(w) if next(on) else fail())
        with pytest.raises(CallFailed, match="injected"):
            session.prepare([Decode(lane, 3)])
        assert lane.length == 2
    monkeypatch.undo()
    assert torch.equal(run(session, Decode(lane, 3)), expected)
    assert state(session)[0] == before[0]


# ---- binding (CALL-3) ----------------------------------------------------------------------------------------------


def other(**changes: object) -> Callable[[Decoder], Arena]:
    return lambda decoder: seeded_decoder(config(**changes), 1).new_arena(2, 8)


def storage(*shape: int) -> Callable[[Decoder], Arena]:
    def build(decoder: Decoder) -> Arena:
        arena = decoder.new_arena(2, 8)
        arena.rows = torch.empty(shape)
        return arena

    return build


def overfull(decoder: Decoder) -> Arena:
    arena = decoder.new_arena(2, 8)
    arena.reserve("request", 4).length = 5
    return arena


def updated(decoder: Decoder) -> Arena:
    arena = decoder.new_arena(2, 8)
    with torch.no_grad():
        decoder.weights.blocks[1].down.mul_(1)  # the same values: the revision counts, not the content
    return arena


MISMATCHES: dict[str, tuple[str, Callable[[Decoder], Arena]]] = {
    "another model": ("model", lambda decoder: seeded_decoder(config(), 1).new_arena(2, 8)),
    "another configuration": ("model", other(rms_norm_eps=1e-6)),
    "another layer count": ("layer count", other(num_hidden_layers=3)),
    "other heads": ("geometry", other(num_key_value_heads=1)),
    "another base": ("RoPE", other(rope_theta=5.0)),
    "another scaling": ("RoPE", other(rope_scaling={"type": "linear", "factor": 2.0})),
    "an updated parameter": ("revision", updated),
    "storage of other layers": ("layer count", storage(3, 2, 2, 2, 8, 4)),
    "storage of other slots": ("batch", storage(2, 3, 2, 2, 8, 4)),
    "storage of other heads": ("geometry", storage(2, 2, 2, 1, 8, 4)),
    "shorter storage": ("capacity", storage(2, 2, 2, 2, 7, 4)),
    "a capacity beyond the context": ("capacity", lambda decoder: replace(decoder.new_arena(2, 8), positions_max=99)),
    "a lane longer than it may be": ("lane length", overfull),
}


@pytest.mark.contract("CALL-3", "CALL-4", "FAM-6")
@pytest.mark.parametrize("name", MISMATCHES)
def test_a_cache_that_was_not_made_for_the_model_does_not_bind(decoder: Decoder, name: str) -> None:
    field, build = MISMATCHES[name]
    arena = build(decoder)
    with pytest.raises(SessionMismatch) as caught:
        Session(decoder, arena)
    assert caught.value.field == field


@pytest.mark.contract("CALL-3")
def test_a_session_binds_again_with_its_lanes(decoder: Decoder) -> None:
    arena = decoder.new_arena(1, 8)
    with Session(decoder, arena) as session:
        lane = session.open("request", 8)
        run(session, Prefill(lane, [1, 2]))
        expected = run(session, Decode(lane, 3))
    with pytest.raises(SessionClosed):
        session.prepare([Decode(lane, 3)])
    lane.length = 2
    with Session(decoder, arena) as session:
        assert torch.equal(run(session, Decode(lane, 3)), expected)


def optimizers(decoder: Decoder) -> list[torch.optim.Optimizer]:
    parameters = decoder.parameters()
    return [torch.optim.SGD(parameters, 0.1, momentum=0.9), torch.optim.AdamW(parameters, 0.1)]


@pytest.mark.contract("CALL-3")
@pytest.mark.parametrize("kind", [0, 1])
def test_an_optimizer_step_is_refused_while_the_session_lives(decoder: Decoder, kind: int) -> None:
    optimizer = optimizers(decoder)[kind]
    for parameter in decoder.parameters():
        parameter.grad = torch.ones_like(parameter)
    arena = decoder.new_arena(1, 8)
    with Session(decoder, arena) as session:
        lane = session.open("request", 8)
        run(session, Prefill(lane, [1, 2]))
        values = [parameter.clone() for parameter in decoder.parameters()]
        revisions, before = decoder.binding().revisions, state(session)
        with pytest.raises(OptimizerStepRefused):
            optimizer.step()
        assert all(torch.equal(old, new) for old, new in zip(values, decoder.parameters(), strict=True))
        assert decoder.binding().revisions == revisions
        assert not optimizer.state
        assert state(session) == before
        run(session, Decode(lane, 3))
    optimizer.step()  # legal now
    assert not torch.equal(values[0], decoder.parameters()[0])
    with pytest.raises(SessionMismatch, match="revision"):
        Session(decoder, arena)
    Session(decoder, decoder.new_arena(1, 8)).close()


@pytest.mark.contract("CALL-3")
def test_another_models_optimizer_steps_freely(session: Session) -> None:
    stranger = torch.nn.Parameter(torch.ones(2))
    stranger.grad = torch.ones(2)
    torch.optim.SGD([stranger], 1.0).step()
    assert stranger.tolist() == [0.0, 0.0]


@pytest.mark.contract("CALL-3")
def test_a_dropped_session_guards_nothing(decoder: Decoder) -> None:
    session = Session(decoder, decoder.new_arena(1, 8))
    del session
    optimizers(decoder)[0].step()


@pytest.mark.contract("CALL-3", "CALL-4")
def test_an_update_past_the_guard_is_found_before_the_next_call(session: Session) -> None:
    lane = session.open("request", 8)
    run(session, Prefill(lane, [1, 2]))
    with torch.no_grad():
        session.decoder.weights.norm.add_(1)
    with pytest.raises(SessionMismatch) as caught:
        session.prepare([Decode(lane, 3)])
    assert (caught.value.field, lane.length) == ("revision", 2)


@pytest.mark.contract("CALL-3")
def test_reset_clears_state_and_counters_and_keeps_storage_and_binding(session: Session) -> None:
    lanes = [session.open(name, 8) for name in "ab"]
    first = run(session, *(Prefill(lane, [1, 2, 3]) for lane in lanes))
    address = session.arena.rows.data_ptr()
    session.reset(lanes[0])
    assert [lane.length for lane in lanes] == [0, 3]
    assert session.work != Work()
    session.reset()
    assert [lane.length for lane in lanes] == [0, 0]
    assert session.work == Work()
    assert session.arena.rows.data_ptr() == address
    assert torch.equal(run(session, *(Prefill(lane, [1, 2, 3]) for lane in lanes)), first)


def test_sizes_below_one_are_refused(decoder: Decoder) -> None:
    for options in ({"width": 0}, {"prefill_chunk": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            Session(decoder, decoder.new_arena(1, 8), **options)


# ---- work counters (CALL-5) ----------------------------------------------------------------------------------------


@pytest.mark.contract("CALL-5")
def test_the_work_of_a_prompt_of_two_and_one_decode(session: Session) -> None:
    lane = session.open("request", 4)
    run(session, Prefill(lane, [0, 1]))
    run(session, Decode(lane, 2))
    assert session.work == Work(
        prefill_tokens=2,
        decode_tokens=1,
        cache_appends=6,
        qkv_rows=18,
        cached_cells=24,
        complete_prefix_cells=52,
    )


@pytest.mark.contract("CALL-5")
def test_the_work_of_two_outputs_in_a_context_of_two() -> None:
    decoder = seeded_decoder(config(num_hidden_layers=1, max_position_embeddings=2), 1)
    with Session(decoder, decoder.new_arena(1, 2)) as session:
        lane = session.open("request", 2)
        outputs = [int(run(session, Prefill(lane, [0])).argmax())]
        outputs.append(int(run(session, Decode(lane, outputs[0])).argmax()))
        with pytest.raises(LaneFull):  # the second output is returned, and there is no room to process it
            session.prepare([Decode(lane, outputs[1])])
        assert lane.length == 2
        assert (session.work.prefill_tokens, session.work.decode_tokens) == (1, 1)
        assert (session.work.cached_cells, session.work.complete_prefix_cells) == (6, 10)


@pytest.mark.contract("CALL-5")
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 30), st.integers(1, 30))
def test_cells_are_the_sums_they_stand_for(layers: int, heads: int, start: int, tokens: int) -> None:
    stop = start + tokens
    work = work_of_call(layers, heads, start, stop, prefill=False)
    assert work.cached_cells == layers * heads * sum(range(start + 1, stop + 1))
    assert work.complete_prefix_cells == layers * heads * stop**2
    assert work + Work() == work


@pytest.mark.contract("CALL-5")
def test_prepared_and_discarded_calls_count_nothing(session: Session) -> None:
    lane = session.open("request", 4)
    session.discard(session.prepare([Prefill(lane, [0, 1])]))
    assert session.work == Work()
