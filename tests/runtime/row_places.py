"""Requests in every place of a decode call: the same bits wherever they stand, and whatever stands beside them.

python row_places.py WIDTHS SHAPE ...    checks these shapes at `every` width or at `some`, with one thread and two, on
                                         whatever kernels the environment leaves to this process, and prints what it
                                         found, as JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from decodelog.runtime.families.decoder.config import DecoderConfig, parse_config
from decodelog.runtime.families.decoder.model import Decoder, seeded_decoder
from decodelog.runtime.families.session import Decode, Session

WIDTHS = {"every": range(1, 65), "some": [*range(1, 17), 23, 31, 32, 33, 48, 63, 64]}
TINY = {
    "model_type": "llama",
    "vocab_size": 11,
    "hidden_size": 6,
    "intermediate_size": 10,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 2,
    "max_position_embeddings": 33,
    "rms_norm_eps": 1e-5,
}
SHAPES: dict[str, dict[str, object]] = {
    "tiny": TINY,
    "odd, with biases": TINY
    | {"vocab_size": 259, "hidden_size": 33, "intermediate_size": 50, "head_dim": 10, "attention_bias": True},
    # SmolLM2-135M's layer, over fewer tokens.
    "real": TINY
    | {
        "vocab_size": 2047,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 1,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
    },
}


class Finding(NamedTuple):
    """At a width: the rows that calls really have, and whether any request's bits depended on its place."""

    shape: str
    threads: int
    width: int
    call_rows: int
    alike: bool


def shape(name: str) -> DecoderConfig:
    return parse_config(SHAPES[name])


def history(decoder: Decoder, request: int) -> Tensor:
    """The rows that the request's lane holds before the decode: some, drawn for it."""
    abi, count = decoder.abi, 1 + request * 5 % 23
    generator = torch.Generator().manual_seed(request)
    return torch.randn(abi.layers, 2, abi.kv_heads, count, abi.head_dim, generator=generator)


def decoded(session: Session, order: Iterable[int], first_slot: int = 0) -> dict[int, Tensor]:
    """One decode of each request, in this order and in slots from `first_slot` on: its scores and its new rows."""
    for lane in list(session.arena.lanes.values()):
        session.release(lane)
    blockers = [session.open("blocker", 1) for _ in range(first_slot)]
    lanes = {request: session.open(str(request), 30) for request in order}
    for request, lane in lanes.items():
        session.restore(lane, [history(session.decoder, request)])
    scores = session.select(session.prepare([Decode(lane, request % 11) for request, lane in lanes.items()]))
    assert len(blockers) == first_slot
    return {
        request: torch.cat((row, session.rows(lane, lane.length - 1, lane.length).flatten()))
        for (request, lane), row in zip(lanes.items(), scores, strict=True)
    }


def alike(decoder: Decoder, width: int) -> tuple[int, bool]:
    """The rows of the calls at `width`; whether requests alone, in a full call and in a turned one are the same."""
    with Session(decoder, decoder.new_arena(width + 1, 33), width=width) as session:
        crowd = decoded(session, range(width))
        turned = decoded(session, reversed(range(width)), first_slot=1)
        alone = {request: decoded(session, [request], request)[request] for request in {0, width // 2, width - 1}}
        found = [torch.equal(turned[request], crowd[request]) for request in range(width)]
        found += [torch.equal(row, crowd[request]) for request, row in alone.items()]
        return session.call_rows, all(found)


def main(widths: str, *shapes: str) -> Iterator[Finding]:
    for name in shapes:
        decoder = seeded_decoder(shape(name), 3)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for width in WIDTHS[widths]:
                yield Finding(name, threads, width, *alike(decoder, width))


if __name__ == "__main__":
    print(json.dumps(list(main(*sys.argv[1:]))))
