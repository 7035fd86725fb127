"""Steps as columns: what a caller can see of a run of ordinary steps, numbers of one kind beside each other."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..fsm.events import TokenStep
from ..fsm.receipt import Alternative, Selection
from ..fsm.thinned import ThinnedStep

Columns = tuple[Any, ...]
NAN = float("nan")


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


def read(columns: Sequence[Any]) -> list[ThinnedStep]:
    """The steps, thinned; floats bit for bit. Any error says that nothing here wrote these columns."""
    size, lanes, output, branches, kinds, places, supports, raws, crossed, beside = columns
    alternatives: Iterator[tuple[Alternative, ...]] = iter([()] * size) if beside is None else _alternatives(beside)
    return [
        ThinnedStep(
            1, lanes + index, branch, Selection(token, support, raw, logprob, NAN, alternatives=listed), piece, hidden,
            output + index,
        )
        for index, (branch, (token, piece, hidden), support, raw, logprob, listed) in enumerate(
            zip(
                _whole(branches, size), [kinds[place] for place in _whole(places, size)], _whole(supports, size),
                *_floats(raws, crossed, size), alternatives, strict=True,
            )
        )
    ]  # fmt: skip


def _alternatives(columns: Sequence[Any]) -> Iterator[tuple[Alternative, ...]]:
    sizes, kinds, places, raws, crossed = columns
    counts = _whole(sizes, len(sizes) // 8)
    total = sum(counts)
    made = [
        Alternative(kinds[place][0], raw, logprob, kinds[place][1])
        for place, raw, logprob in zip(_whole(places, total), *_floats(raws, crossed, total), strict=True)
    ]
    at = 0
    for count in counts:
        yield tuple(made[at : at + count])
        at += count


def _place(table: dict[Hashable, int], value: Hashable) -> int:
    return table.setdefault(value, len(table))


def _integers(values: Sequence[int]) -> bytes:
    return _planes(np.array(values, dtype="<u8"))


def _whole(planes: bytes, size: int) -> list[int]:
    whole: list[int] = _values(planes, size).tolist()
    return whole


def _pairs(raw: Sequence[float], processed: Sequence[float]) -> tuple[bytes, bytes]:
    """Two columns of doubles, the second as the bits in which it differs from the first: often none, or the last."""
    bits = np.array(raw, dtype="<f8").view("<u8")
    return _planes(bits), _planes(bits ^ np.array(processed, dtype="<f8").view("<u8"))


def _floats(raw: bytes, crossed: bytes, size: int) -> tuple[list[float], list[float]]:
    bits = _values(raw, size)
    return bits.view("<f8").tolist(), (bits ^ _values(crossed, size)).view("<f8").tolist()


def _planes(words: NDArray[np.uint64]) -> bytes:
    """Words of 8 bytes, byte plane by byte plane, the lowest first."""
    return words.view(np.uint8).reshape(-1, 8).T.tobytes()


def _values(planes: bytes, size: int) -> NDArray[np.uint64]:
    return np.frombuffer(planes, np.uint8).reshape(8, size).T.copy().view("<u8").reshape(size)
