"""A fixed width makes a row's bits independent of its mates, of their number, and of its slot."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decodelog.runtime.families.decoder.config import parse_config
from decodelog.runtime.families.decoder.model import Decoder, seeded_decoder
from decodelog.runtime.families.session import Decode, Prefill, Session

WIDTHS = (1, 4, 16)
# Between widths only the order of float32 sums differs: relative to the row's largest logit.
WIDTH_TOLERANCE = 1e-5
CONFIG = parse_config(
    {
        "model_type": "llama",
        "vocab_size": 512,
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
    }
)
STEPS = 4


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return seeded_decoder(CONFIG, 5)


def prompt(request: int, length: int) -> list[int]:
    return torch.randint(0, 512, (length,), generator=torch.Generator().manual_seed(request)).tolist()


def stream(decoder: Decoder, width: int, mates: Sequence[tuple[int, int]], watched: int, slot: int = 0) -> Tensor:
    """The score rows [STEPS, V] of request `watched`, decoded at `width` beside `mates`, given as (request, length)."""
    session = Session(decoder, decoder.new_arena(len(mates) + slot, 128), width=width)
    with session:
        blockers = [session.open("blocker", 1) for _ in range(slot)]
        lanes = {request: session.open(str(request), 100) for request, _ in mates}
        assert len(blockers) == slot
        for request, length in mates:
            session.select(session.prepare([Prefill(lanes[request], prompt(request, length))]))
        place = [request for request, _ in mates].index(watched)
        rows = []
        for step in range(STEPS):
            calls = [Decode(lanes[request], (request * 31 + step * 7) % 512) for request, _ in mates]
            rows.append(session.select(session.prepare(calls))[place].clone())
        return torch.stack(rows)


@pytest.mark.contract("CALL-6", "POL-7")
@pytest.mark.parametrize("width", WIDTHS)
def test_a_row_alone_equals_the_row_among_mates_bit_for_bit(decoder: Decoder, width: int) -> None:
    alone = stream(decoder, width, [(1, 37)], 1)
    for mates in range(1, width + 2):  # one more than the width: the batch then takes two calls
        crowd = [(1, 37), *((2 + mate, 1 + 11 * mate % 90) for mate in range(mates))]
        assert torch.equal(stream(decoder, width, crowd, 1), alone)


@pytest.mark.contract("CALL-6", "POL-7")
@pytest.mark.parametrize("width", WIDTHS)
def test_a_row_is_the_same_in_every_place_and_slot(decoder: Decoder, width: int) -> None:
    alone = stream(decoder, width, [(1, 20)], 1)
    for place in range(width):
        crowd = [(2 + mate, 3 + 5 * mate) for mate in range(width - 1)]
        crowd.insert(place, (1, 20))
        assert torch.equal(stream(decoder, width, crowd, 1), alone)
    assert torch.equal(stream(decoder, width, [(1, 20)], 1, slot=3), alone)


@pytest.mark.contract("CALL-6", "POL-7")
@settings(max_examples=15, deadline=None)
@given(st.sampled_from(WIDTHS), st.lists(st.integers(1, 90), min_size=1, max_size=16), st.data())
def test_any_batch_gives_each_row_what_it_gets_alone(width: int, lengths: list[int], data: st.DataObject) -> None:
    decoder = seeded_decoder(CONFIG, 5)
    mates = list(enumerate(lengths))
    watched = data.draw(st.integers(0, len(lengths) - 1))
    assert torch.equal(
        stream(decoder, width, mates, watched), stream(decoder, width, [(watched, lengths[watched])], watched)
    )


@pytest.mark.contract("CALL-6")
def test_widths_differ_by_rounding_only(decoder: Decoder) -> None:
    narrow, *wide = (stream(decoder, width, [(1, 37), (2, 5)], 1) for width in WIDTHS)
    assert narrow.abs().max() > 1
    for other in wide:
        assert (other - narrow).abs().max() <= WIDTH_TOLERANCE * narrow.abs().max()


@pytest.mark.contract("CALL-6", "FSM-10")
def test_a_mate_that_overflows_spoils_no_other_row(decoder: Decoder) -> None:
    with Session(decoder, decoder.new_arena(2, 64), width=4) as session:
        sound, broken = session.open("sound", 64), session.open("broken", 64)
        for lane in (sound, broken):
            session.select(session.prepare([Prefill(lane, prompt(1, 37))]))
        alone = session.prepare([Decode(sound, 3)])
        expected = alone.evidence[0][0].scores
        assert expected is not None
        session.discard(alone)
        session.arena.rows[1, broken.slot, 1, 0, 5] = float("nan")
        scores = session.select(session.prepare([Decode(broken, 3), Decode(sound, 3)]))
        assert not scores[0].isfinite().any()
        assert torch.equal(scores[1], expected[0])
