"""The script of a scripted model: a file, `scripted.json` in a directory of its own.

    {"architecture": "scripted",
     "script": {"text": "Hello"},
     "pieces": [" wor", {"hex": "f09f"}, {"text": "<think>", "special": true}],
     "faults": [{"step": 3, "kind": "raise", "times": 1}, {"step": 5, "kind": "nan"}]}

`script` is one of `text` (its bytes), `tokens` (ids), `rows` (score rows; columns that are left out score -10000) and
`seed` (random rows, repeated after `period`, that never choose a special token). What has an end is followed by EOS,
or with `"then": "repeat"` by its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator
from torch import Tensor

from ....fsm.errors import BrokenArtifact
from ....fsm.evidence.rng import PHILOX, unit_draws

SCRIPT_FILE = "scripted.json"
EOS, ANSWER = 256, 257

PEAK = 30.0  # what a written token scores, where the others score 0
FLOOR = -1e4  # finite, and without any probability beside an ordinary score

_Tokens = Annotated[tuple[int, ...], Field(min_length=1)]
_Rows = Annotated[tuple[tuple[FiniteFloat, ...], ...], Field(min_length=1)]


class _Closed(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Script(_Closed):
    """What the rows are: exactly one of the first four. Scores are in nats."""

    text: str | None = None
    tokens: _Tokens | None = None
    rows: _Rows | None = None
    seed: Annotated[int, Field(ge=0)] | None = None
    spread: Annotated[FiniteFloat, Field(gt=0)] = 4.0
    period: Annotated[int, Field(ge=1, le=1 << 16)] = 1024
    then: Literal["eos", "repeat"] = "eos"

    @model_validator(mode="after")
    def _one_source(self) -> Script:
        if sum(source is not None for source in (self.text, self.tokens, self.rows, self.seed)) != 1:
            raise ValueError("give exactly one of text, tokens, rows and seed")
        if self.text == "" and self.then == "repeat":
            raise ValueError("an empty text cannot repeat")
        return self


class Piece(_Closed):
    """A further token: its exact bytes as `text` or as `hex` digits."""

    text: str | None = None
    hex: Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$")] | None = None
    special: bool = False

    @property
    def content(self) -> bytes:
        return (self.text or "").encode() + bytes.fromhex(self.hex or "")


class Fault(_Closed):
    """What goes wrong at a step: the call raises, `times` times for each job or always; or the row is not finite."""

    step: Annotated[int, Field(ge=0)]
    kind: Literal["raise", "nan", "infinity"]
    times: Annotated[int, Field(ge=1)] | None = None


class ScriptedConfig(_Closed):
    """The whole script file. `prompt_tokens` is how long a prompt without `<|answer|>` is taken to be."""

    script: Script
    architecture: Literal["scripted"] = "scripted"
    pieces: tuple[str | Piece, ...] = ()
    faults: tuple[Fault, ...] = ()
    context: Annotated[int, Field(ge=1)] = 1 << 16
    prompt_tokens: Annotated[int, Field(ge=1)] = 1

    @property
    def further(self) -> tuple[Piece, ...]:
        return tuple(Piece(text=piece) if isinstance(piece, str) else piece for piece in self.pieces)


def table_of(script: Script, size: int, special: frozenset[int]) -> Tensor:
    """[steps, V] float32: the script's rows, and the row of EOS where one follows them.

    Errors: BrokenArtifact where the script names a token or a column that the vocabulary of `size` lacks.
    """
    if script.seed is not None:
        steps, columns = np.arange(script.period)[:, None], np.arange(size)[None]
        scores = (unit_draws(PHILOX, script.seed, 0, columns, steps) - 0.5) * (2 * script.spread)
        scores[:, list(special)] = FLOOR
        return torch.from_numpy(scores.astype(np.float32))
    if script.rows is not None:
        width = max(map(len, script.rows))
        if width > size:
            raise BrokenArtifact(SCRIPT_FILE, f"script.rows: {width} scores in a row, and {size} tokens")
        table = torch.full((len(script.rows), size), FLOOR)
        for row, numbers in enumerate(script.rows):
            table[row, : len(numbers)] = torch.tensor(numbers)
    else:
        tokens = (script.text or "").encode() if script.tokens is None else script.tokens
        if any(not 0 <= token < size for token in tokens):
            raise BrokenArtifact(SCRIPT_FILE, f"script.tokens: a token is outside 0..{size} (exclusive)")
        table = _peaks(tokens, size)
    return table if script.then == "repeat" else torch.cat((table, _peaks((EOS,), size)))


def _peaks(tokens: Sequence[int], size: int) -> Tensor:
    """[tokens, V]: rows in which one token each scores far above the others."""
    table = torch.zeros(len(tokens), size)
    table[range(len(tokens)), list(tokens)] = PEAK
    return table
