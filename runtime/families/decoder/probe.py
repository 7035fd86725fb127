"""Whether calls of so many rows treat all their rows alike, found out on the running stack (POL-7, CALL-6).

Which kernel computes a row of a matrix product is the business of a library, a processor and a number of threads. On
some machines the last rows of a product, or those of certain counts, take another path, and round otherwise. So a
session does not trust a width: it calls the model's own first layer and head with it, with the same requests in
different places, and compares bits. A width that fails is computed in calls of more rows, or of fewer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from ....fsm.errors import UnequalRows
from ...caches.arena import Arena
from .model import Decoder, Span
from .workspace import Workspace

WIDER_MAX: Final = 12
"""How many more rows a call may have than were asked for; kernels work on up to so many rows at a time."""

POSITIONS: Final = 48
COMPARED_MIN: Final = 512
"""Outputs of a product: few may all round alike by chance, so a tiny model is probed more than once."""
ROUNDS_MAX: Final = 24


def call_rows(decoder: Decoder, width: int) -> int:
    """The rows that decode calls of `width` requests have here: `width`, or else the nearest number above that treats
    its rows alike, or else one below.

    Errors: UnequalRows, where not even single rows are the same in every slot. Deterministic for one stack.
    """
    for rows in _candidates(width):
        if treats_rows_alike(decoder, rows):
            return rows
    raise UnequalRows(width)


def _candidates(width: int) -> Iterator[int]:
    yield from range(width, width + 1 + WIDER_MAX * (width > 1))
    rows = 1 << width.bit_length()
    while rows > 1:
        rows //= 2
        if rows < width:
            yield rows


def treats_rows_alike(decoder: Decoder, rows: int) -> bool:
    """Whether a request's scores, keys and values are the same bits in every row and slot of a call of `rows` rows,
    beside any mates and beside none. Answered once for each number of threads."""
    key = rows, torch.get_num_threads()
    if key not in decoder.probed:
        decoder.probed[key] = _probe(decoder.shallow(), rows)
    return decoder.probed[key]


def _probe(decoder: Decoder, rows: int) -> bool:
    generator = torch.Generator().manual_seed(rows)
    config = decoder.config
    smallest = min(config.width, config.kv_heads * config.head_dim, config.vocabulary_size)
    rounds = max(1, min(ROUNDS_MAX, COMPARED_MIN // (rows * smallest)))
    return all(_same_everywhere(decoder, rows, generator) for _ in range(rounds))


def _same_everywhere(decoder: Decoder, rows: int, generator: torch.Generator) -> bool:
    """Call `decoder` with the same requests in different places, and compare each one's bits with its first ones."""
    config, slots = decoder.config, max(rows, 2)
    arena = decoder.new_arena(slots, min(POSITIONS, config.context))
    work = decoder.workspace(rows)
    tokens = torch.randint(0, config.vocabulary_size, (slots,), generator=generator).tolist()
    starts = torch.randint(0, arena.positions, (slots,), generator=generator).tolist()
    held = torch.randn(arena.rows.shape, generator=generator).to(arena.rows)

    seen: dict[int, tuple[Tensor, Tensor]] = {}
    for order, slot in _placements(rows, slots):
        for place, request in enumerate(order):
            arena.rows[:, slot + place] = held[:, request]
        scores, written = _call(decoder, arena, work, tokens, starts, order, slot)
        for place, request in enumerate(order):
            first = seen.setdefault(request, (scores[place], written[place]))
            if not (torch.equal(first[0], scores[place]) and torch.equal(first[1], written[place])):
                return False
    return True


def _placements(rows: int, slots: int) -> Iterator[tuple[Sequence[int], int]]:
    """Which request is in which row, and the slot of the first: each in several places, beside others or none."""
    order = range(rows)
    if rows == 1:  # has no other place in its product: it differs by the slot that it reads, or not at all
        yield from ((order, slot) for slot in range(slots))
        return
    yield order, 0
    yield [*order[1:], 0], 0
    yield order[::-1], 0
    yield [0] * rows, 0
    yield [rows - 1], 0
    yield [rows - 1], rows - 1


def _call(
    decoder: Decoder,
    arena: Arena,
    work: Workspace,
    tokens: list[int],
    starts: list[int],
    order: Sequence[int],
    slot: int,
) -> tuple[Tensor, Tensor]:
    """Scores [n, V], and the keys and values that were written [n, ...], of `order`'s requests."""
    segments = [Span(slot + place, starts[request], 1) for place, request in enumerate(order)]
    evidence = decoder.forward(arena, work, [tokens[request] for request in order], segments, 0)
    if evidence.scores is None:
        raise RuntimeError("a call with a head has scores")
    written = [arena.rows[:, segment.slot, :, :, segment.start].clone() for segment in segments]
    return evidence.scores.clone(), torch.stack(written)
