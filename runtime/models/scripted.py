"""A model whose score rows are written down: an instrument that drives every case of output, fault and load.

The vocabulary is the 256 bytes, `<|eos|>`, `<|answer|>`, and then the script's own pieces. `<|answer|>` ends a prompt,
so that after a crash the step of a lane is known from its tokens alone: step n is the call after n tokens of output.
The script is a file, `scripted.json` in a directory of its own:

    {"architecture": "scripted",
     "script": {"text": "Hello"},
     "pieces": [" wor", {"hex": "f09f"}, {"text": "<think>", "special": true}],
     "faults": [{"step": 3, "kind": "raise", "times": 1}, {"step": 5, "kind": "nan"}]}

`script` is one of `text` (its bytes), `tokens` (ids), `rows` (score rows; columns that are left out score -10000) and
`seed` (random rows, repeated after `period`, that never choose a special token). What has an end is followed by EOS,
or with `"then": "repeat"` by its beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator
from torch import Tensor

from ...fsm.admission import RuntimeFacts
from ...fsm.artifact import ArtifactFacts
from ...fsm.errors import (
    BrokenArtifact,
    CallFailed,
    DecodeNeedsPrefill,
    EmptyPrompt,
    ForeignLane,
    LaneFull,
    LaneTooLarge,
    PrefillNeedsEmptyLane,
    PreparedCacheChanged,
    PromptTooLong,
    ScoreNotConsumable,
    TokenOutOfRange,
)
from ...fsm.rng import PHILOX, unit_draws
from ..caches.arena import Lane
from ..rosters import Ticket
from ..session import Decode, Prefill

SCRIPT_FILE = "scripted.json"
EOS, ANSWER = 256, 257
SPECIALS = (b"<|eos|>", b"<|answer|>")

PEAK = 30.0  # what a written token scores, where the others score 0
FLOOR = -1e4  # finite, and without any probability beside an ordinary score
TURN = "{role}: {content}\n"
OPENING = "assistant: <|answer|>"

_Tokens = Annotated[tuple[int, ...], Field(min_length=1)]
_Rows = Annotated[tuple[tuple[FiniteFloat, ...], ...], Field(min_length=1)]
_NOT_FINITE = {"nan": torch.nan, "infinity": torch.inf}


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
    """What goes wrong at a step: the call raises (`times` times for each job, None: always), or its row is not finite."""

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


class ScriptedText:
    """Bytes as tokens. `pieces` holds the exact bytes of every id."""

    leading_space_dropped = False

    def __init__(self, further: Sequence[Piece]) -> None:
        self.pieces = (*(bytes([byte]) for byte in range(256)), *SPECIALS, *(piece.content for piece in further))
        special = (index for index, piece in enumerate(further, 256 + len(SPECIALS)) if piece.special)
        self.special = frozenset((EOS, ANSWER, *special))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The UTF-8 bytes; with special tokens `<|answer|>` after them, else it is read at the end of the text only."""
        body = text if add_special_tokens else text.removesuffix(SPECIALS[1].decode())
        return [*body.encode(), *([ANSWER] if add_special_tokens or body != text else [])]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.pieces[token] for token in ids).decode("utf-8", "replace")

    def is_special(self, token: int) -> bool:
        return token in self.special

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        turns = [TURN.format(role=message["role"], content=message["content"]) for message in messages]
        return "".join([*turns, OPENING if add_generation_prompt else ""])


class ScriptedModel:
    """The script as a loaded model, with the interface of the native one."""

    def __init__(self, config: ScriptedConfig, digest: str | None = None) -> None:
        """digest  SHA-256 of the script file; None: of the configuration itself. Errors: BrokenArtifact."""
        digest = digest or sha256(config.model_dump_json().encode()).hexdigest()
        self.text = ScriptedText(config.further)
        self.facts = ArtifactFacts(
            release_id=f"scripted-{digest[:16]}",
            architecture="scripted",
            checkpoint_sha256=digest,
            config_sha256=digest,
            tokenizer_sha256=sha256(repr(self.text.pieces).encode()).hexdigest(),
            template_sha256=sha256((TURN + OPENING).encode()).hexdigest(),
            vocabulary_size=len(self.text.pieces),
            context_tokens_max=config.context,
            bos_id=None,
            eos_ids=(EOS,),
            pad_id=None,
            cache_abi="scripted",
            weight_dtype="float32",
        )
        self.runtime = RuntimeFacts("float32", "float32", "slot_arena", "cpu", "scripted")
        self.recorded = (("device", "cpu"), ("model", "scripted"))
        self._session = ScriptedSession(config, len(self.text.pieces), self.text.special)

    def session(self, width: int) -> ScriptedSession:
        """The one session: its rows are the same at any width."""
        return self._session


@dataclass(slots=True, eq=False)
class ScriptedTicket(Ticket):
    """A prepared call with its rows; `stops` are the lanes' lengths after it."""

    lanes: list[Lane] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    scores: Tensor | None = None


class ScriptedSession:
    """Lanes that hold a length and no cache. A row depends on its step alone; a call costs one gather."""

    def __init__(self, config: ScriptedConfig, size: int, special: frozenset[int]) -> None:
        """Errors: BrokenArtifact where the script names a token or a column that the vocabulary lacks."""
        self._table = _table(config.script, size, special)
        self._repeats = config.script.then == "repeat" or config.script.seed is not None
        self._faults = {fault.step: fault for fault in config.faults}
        self._raised: Counter[tuple[str, int]] = Counter()
        self._context, self._prompt_tokens, self._size = config.context, config.prompt_tokens, size
        self._origins: dict[Lane, int] = {}  # each live lane's length at step 0
        self._opened = 0
        self._event = 0

    def open(self, request: str, positions: int) -> Lane:
        """An empty lane. Errors: LaneTooLarge."""
        if not 1 <= positions <= self._context:
            raise LaneTooLarge(request, positions, self._context)
        self._opened += 1
        lane = Lane(request, self._opened, self._opened, positions)
        self._origins[lane] = 0
        return lane

    def release(self, lane: Lane) -> None:
        """Forget the lane; it is dead afterwards."""
        self._origins.pop(lane, None)

    def prepare(self, calls: Sequence[Prefill | Decode]) -> Ticket:
        """Look the rows up; no lane changes. Errors: the native session's for bad calls; CallFailed by the script."""
        lanes = [call.lane for call in calls]
        stops = [
            self._decode(call.lane, call.token) if isinstance(call, Decode) else self._prefill(call.lane, call.tokens)
            for call in calls
        ]
        steps = [max(stop - self._origins[lane], 0) for lane, stop in zip(lanes, stops, strict=True)]
        count = len(self._table)
        places = [step % count for step in steps] if self._repeats else [min(step, count - 1) for step in steps]
        scores = self._table[places]
        if self._faults:
            self._spoil(lanes, steps, scores)
        self._event += 1
        return ScriptedTicket(self._event, (), 0, [], "prepared", lanes, stops, scores)

    def select(self, ticket: Ticket) -> Tensor:
        """Advance every lane; the score rows [calls, V] float32. Errors: ScoreNotConsumable, PreparedCacheChanged."""
        if not isinstance(ticket, ScriptedTicket) or ticket.scores is None or ticket.state != "prepared":
            raise ScoreNotConsumable(ticket.state)
        for lane, stop in zip(ticket.lanes, ticket.stops, strict=True):
            if lane not in self._origins:
                raise PreparedCacheChanged(lane.request, "lane")
            if lane.length >= stop:
                raise PreparedCacheChanged(lane.request, "length")
        ticket.state = "selected"
        for lane, stop in zip(ticket.lanes, ticket.stops, strict=True):
            lane.length = stop
        return ticket.scores

    def discard(self, ticket: Ticket) -> None:
        """ALL_OLD by decision. Idempotent."""
        if ticket.state == "prepared":
            ticket.state = "discarded"

    def _decode(self, lane: Lane, token: int) -> int:
        """The lane's length after appending `token`."""
        if lane not in self._origins:
            raise ForeignLane(lane.request, "was released, or belongs to another cache")
        if not lane.length:
            raise DecodeNeedsPrefill(lane.request)
        if lane.length >= lane.capacity:
            raise LaneFull(lane.request, lane.capacity)
        if not 0 <= token < self._size:
            raise TokenOutOfRange(lane.request, lane.length, token, self._size)
        return lane.length + 1

    def _prefill(self, lane: Lane, tokens: Sequence[int]) -> int:
        """The lane's length after the prompt; finds out where its step 0 is."""
        if lane not in self._origins:
            raise ForeignLane(lane.request, "was released, or belongs to another cache")
        if not len(tokens):
            raise EmptyPrompt(lane.request)
        if lane.length:
            raise PrefillNeedsEmptyLane(lane.request, lane.length)
        if len(tokens) > lane.capacity:
            raise PromptTooLong(lane.request, len(tokens), lane.capacity)
        for position, token in enumerate(tokens):
            if not 0 <= token < self._size:
                raise TokenOutOfRange(lane.request, position, token, self._size)
        # The first one: what the model writes itself, a reader of its tokens must not take for the prompt's end.
        self._origins[lane] = tokens.index(ANSWER) + 1 if ANSWER in tokens else self._prompt_tokens
        return len(tokens)

    def _spoil(self, lanes: list[Lane], steps: list[int], scores: Tensor) -> None:
        """Do to this call what the script says goes wrong in it."""
        for row, (lane, step) in enumerate(zip(lanes, steps, strict=True)):
            fault = self._faults.get(step)
            if fault is None:
                continue
            if fault.kind != "raise":
                scores[row] = _NOT_FINITE[fault.kind]
            elif fault.times is None or self._raised[lane.request, step] < fault.times:
                self._raised[lane.request, step] += 1
                raise CallFailed(f"the script lets step {step} of {lane.request} fail")


def load_scripted(directory: Path) -> ScriptedModel:
    """Read the script in `directory`. Errors: BrokenArtifact with what is wrong in it."""
    path = directory / SCRIPT_FILE
    try:
        raw = path.read_bytes()
        return ScriptedModel(ScriptedConfig.model_validate_json(raw), sha256(raw).hexdigest())
    except OSError as error:
        raise BrokenArtifact(str(path), str(error)) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BrokenArtifact(str(path), f"{place}: {first['msg']}" if place else first["msg"]) from error


def _table(script: Script, size: int, special: frozenset[int]) -> Tensor:
    """[steps, V] float32: the script's rows, and the row of EOS where one follows them."""
    if script.seed is not None:
        steps, columns = np.arange(script.period)[:, None], np.arange(size)[None]
        table = (unit_draws(PHILOX, script.seed, 0, columns, steps) - 0.5) * (2 * script.spread)
        table[:, list(special)] = FLOOR
        return torch.from_numpy(table.astype(np.float32))
    if script.rows is not None:
        width = max(map(len, script.rows))
        if width > size:
            raise BrokenArtifact(
                SCRIPT_FILE, f"script.rows: a row has {width} scores, and the vocabulary {size} tokens"
            )
        table = torch.full((len(script.rows), size), FLOOR)
        for row, scores in enumerate(script.rows):
            table[row, : len(scores)] = torch.tensor(scores)
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
