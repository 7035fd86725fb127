"""A model whose score rows are written down: an instrument that drives every case of output, fault and load.

The vocabulary is the 256 bytes, `<|eos|>`, `<|answer|>`, and then the script's own pieces. Row n is what the call
after n tokens of output returns; a prefill's row stands for each row of its prompt. `<|answer|>` ends a prompt, so that
a lane's step is known from its tokens alone, in another process too; a prompt without it is taken to be `prompt_tokens`
long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from ....fsm.errors import (
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
from ....fsm.request.admission import RuntimeFacts
from ....fsm.request.artifact import ArtifactFacts
from ...caches.arena import Lane
from ..rosters import Ticket
from ..session import Decode, Prefill
from .script import ANSWER, EOS, SCRIPT_FILE, Piece, ScriptedConfig, table_of

SPECIALS = (b"<|eos|>", b"<|answer|>")
TURN = "{role}: {content}\n"
OPENING = "assistant: <|answer|>"

_NOT_FINITE = {"nan": torch.nan, "infinity": torch.inf}


class ScriptedText:
    """Bytes as tokens. `pieces` holds the exact bytes of every id."""

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

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], *, now_ms: int | None = None, literal: bool = True
    ) -> list[int]:
        """See `TextPort`. `<|answer|>` comes last and nowhere else, so that a message can spell it as text."""
        goes_on = bool(messages) and messages[-1]["role"] == "assistant"
        text = self.apply_chat_template(messages, not goes_on)
        return self.encode(
            text.removesuffix("\n") + SPECIALS[1].decode() if goes_on else text, add_special_tokens=False
        )


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
        self.runtime = RuntimeFacts("float32", "float32", "none", "cpu", "scripted")
        self.recorded = (("device", "cpu"), ("model", "scripted"))
        self.lanes: int | None = None
        self._session = ScriptedSession(config, len(self.text.pieces), self.text.special)

    def session(self, width: int) -> ScriptedSession:
        """The one session: its rows are the same at any width, and no two callers meet in it."""
        return self._session


@dataclass(slots=True, eq=False)
class ScriptedTicket(Ticket):
    """A prepared call with its rows; `stops` are the lanes' lengths after it."""

    lanes: list[Lane] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    scores: Tensor | None = None


class ScriptedSession:
    """Lanes that hold a length and no cache. A row depends on its step alone; a call costs one gather."""

    recorded: tuple[tuple[str, str], ...] = ()
    cache: None = None

    def __init__(self, config: ScriptedConfig, size: int, special: frozenset[int]) -> None:
        """Errors: BrokenArtifact where the script names a token or a column that the vocabulary lacks."""
        self._table = table_of(config.script, size, special).numpy()  # which gathers a few rows in a fifth of the time
        self._rows = torch.split(torch.from_numpy(self._table), 1)
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
        if self._faults:
            scores = torch.from_numpy(self._table[places])
            self._spoil(lanes, steps, scores)
        elif len(places) == 1:  # shown as it lies in the table: nobody writes to scores
            scores = self._rows[places[0]]
        else:
            scores = torch.from_numpy(self._table[places])
        for row, call in enumerate(calls):
            if isinstance(call, Prefill) and call.watch is not None:
                call.watch(scores[row].expand(len(call.tokens), -1))
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
