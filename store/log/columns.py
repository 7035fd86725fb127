"""Steps as columns: what a caller can see of a run of ordinary steps, with numbers of one kind side by side."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...fsm.evidence.receipt import Alternative, Selection
from ...fsm.limits import LOGPROBS_TOP_MAX
from ...fsm.machine.events import TokenStep
from ...fsm.machine.thinned import ThinnedStep

Columns = tuple[Any, ...]
NAN = float("nan")
BLOCK: Final = 4096
"""Steps that are made at a time: a log may have a million, and whoever reads it may keep none."""


def written(steps: Sequence[TokenStep]) -> Columns:
    """The columns of at least one step; each follows on the one before, by one token."""
    first, chosen = steps[0], [step.selection for step in steps]
    kinds: dict[Hashable, int] = {}
    places = [_place(kinds, (step.selection.token, step.piece, step.hidden)) for step in steps]
    beside = [each for selection in chosen for each in selection.alternatives]
    others: dict[Hashable, int] = {}
    other_places = [_place(others, (each.token, each.piece)) for each in beside]
    alternatives = (
        _integers([len(selection.alternatives) for selection in chosen]),
        list(others),
        _integers(other_places),
        *_pairs([each.logprob_raw for each in beside], [each.logprob for each in beside]),
    )
    return (
        len(steps),
        first.lanes,
        first.output,
        _integers([step.branch for step in steps]),
        list(kinds),
        _integers(places),
        _integers([selection.support for selection in chosen]),
        *_pairs([selection.logprob_raw for selection in chosen], [selection.logprob for selection in chosen]),
        alternatives if beside else None,
    )


def read(columns: Sequence[Any]) -> Iterator[ThinnedStep]:
    """The steps, thinned, some at a time; floats bit for bit. Any error means that these columns are damaged."""
    size, lanes, output, branches, kinds, places, supports, raws, crossed, beside = columns
    alternatives = repeat(()) if beside is None else _alternatives(beside, size)
    for start in range(0, size, BLOCK):
        block = range(start, min(start + BLOCK, size))
        rows = zip(
            _whole(branches, block, size), _whole(places, block, size), _whole(supports, block, size),
            *_floats(raws, crossed, block, size), strict=True,
        )  # fmt: skip
        for index, (branch, place, support, raw, logprob) in zip(block, rows, strict=True):
            token, piece, hidden = kinds[place]
            selection = Selection(token, support, raw, logprob, NAN, alternatives=next(alternatives))
            yield ThinnedStep(1, lanes + index, branch, selection, piece, hidden, output + index)


def _alternatives(columns: Sequence[Any], size: int) -> Iterator[tuple[Alternative, ...]]:
    """What stands beside each step."""
    sizes, kinds, places, raws, crossed = columns
    counts = _words(sizes, size)
    # A sum of forged numbers may be anything, so each number is checked against the bound first.
    if int(counts.max(initial=0)) > LOGPROBS_TOP_MAX:
        raise ValueError(f"a step has {counts.max()} alternatives, and the maximum is {LOGPROBS_TOP_MAX}")
    total, at = int(counts.sum()), 0
    for start in range(0, size, BLOCK):
        here = counts[start : start + BLOCK]
        block = range(at, at + int(here.sum()))
        made = [
            Alternative(kinds[place][0], raw, logprob, kinds[place][1])
            for place, raw, logprob in zip(
                _whole(places, block, total), *_floats(raws, crossed, block, total), strict=True
            )
        ]
        ends = here.cumsum().tolist()
        yield from (tuple(made[end - count : end]) for end, count in zip(ends, here.tolist(), strict=True))
        at = block.stop


def _place(table: dict[Hashable, int], value: Hashable) -> int:
    return table.setdefault(value, len(table))


def _integers(values: Sequence[int]) -> bytes:
    return _planes(np.array(values, dtype="<u8"))


def _whole(planes: bytes, block: range, size: int) -> list[int]:
    """Some of the numbers of a column of `size`."""
    whole: list[int] = _words(planes, size, block).tolist()
    return whole


def _pairs(raw: Sequence[float], processed: Sequence[float]) -> tuple[bytes, bytes]:
    """Two columns of doubles, the second as the bits in which it differs from the first: often none, or the last."""
    bits = np.array(raw, dtype="<f8").view("<u8")
    return _planes(bits), _planes(bits ^ np.array(processed, dtype="<f8").view("<u8"))


def _floats(raw: bytes, crossed: bytes, block: range, size: int) -> tuple[list[float], list[float]]:
    bits = _words(raw, size, block)
    return bits.view("<f8").tolist(), (bits ^ _words(crossed, size, block)).view("<f8").tolist()


def _planes(words: NDArray[np.uint64]) -> bytes:
    """Words of 8 bytes, byte plane by byte plane, the lowest first."""
    return words.view(np.uint8).reshape(-1, 8).T.tobytes()


def _words(planes: bytes, size: int, block: range | None = None) -> NDArray[np.uint64]:
    """The words of `size` that lie in planes, or those of a block of them."""
    chosen = slice(None) if block is None else slice(block.start, block.stop)
    return np.frombuffer(planes, np.uint8).reshape(8, size)[:, chosen].T.copy().view("<u8").reshape(-1)
