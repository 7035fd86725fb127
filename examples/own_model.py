"""A model of one's own: a table of which byte follows which, checked, then run and audited like any other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise

import torch

import decodelog
from decodelog import Decode, Lane, Prefill, errors

BOOK = b"the cat sat on the mat. the dog sat on the log. the end."
BYTES, END = 256, ord(".")


class Bytes:
    """Text as its bytes: token 104 is h."""

    pieces = tuple(bytes([value]) for value in range(BYTES))

    def is_special(self, token: int) -> bool:
        return False

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(text.encode())

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], *, now_ms: int | None = None, literal: bool = True
    ) -> list[int]:
        raise errors.TemplateFailed("this model has no chat")


@dataclass
class Ticket:
    """A prepared call: where each lane is and goes, and the score rows."""

    moves: list[tuple[Lane, int, int]]
    scores: torch.Tensor
    selected: bool = False


class Follows:
    """Lanes of one caller. What comes next depends on the newest token alone, so a lane is its length and no cache."""

    recorded = ()
    cache = None

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table
        self.open_lanes: set[Lane] = set()

    def open(self, request: str, positions: int) -> Lane:
        lane = Lane(request, slot=0, generation=0, capacity=positions)
        self.open_lanes.add(lane)
        return lane

    def release(self, lane: Lane) -> None:
        self.open_lanes.discard(lane)

    def prepare(self, calls: Sequence[Prefill | Decode]) -> Ticket:
        moves, newest = [], []
        for call in calls:
            tokens = call.tokens if isinstance(call, Prefill) else [call.token]
            self.check(call, tokens)
            if isinstance(call, Prefill) and call.watch is not None:
                call.watch(self.table[list(tokens)])
            moves.append((call.lane, call.lane.length, call.lane.length + len(tokens)))
            newest.append(tokens[-1])
        return Ticket(moves, self.table[newest])

    def select(self, ticket: Ticket) -> torch.Tensor:
        if ticket.selected:
            raise errors.ScoreNotConsumable("selected")
        for lane, start, _ in ticket.moves:
            if lane.length != start or lane not in self.open_lanes:
                raise errors.PreparedCacheChanged(lane.request, "length")
        ticket.selected = True
        for lane, _, stop in ticket.moves:
            lane.length = stop
        return ticket.scores

    def check(self, call: Prefill | Decode, tokens: Sequence[int]) -> None:
        lane, name = call.lane, call.lane.request
        if lane not in self.open_lanes:
            raise errors.ForeignLane(name, "was released")
        if not tokens:
            raise errors.EmptyPrompt(name)
        if isinstance(call, Prefill) and lane.length:
            raise errors.PrefillNeedsEmptyLane(name, lane.length)
        if isinstance(call, Decode) and not lane.length:
            raise errors.DecodeNeedsPrefill(name)
        if lane.length + len(tokens) > lane.capacity:
            raise errors.LaneFull(name, lane.capacity)
        for place, token in enumerate(tokens, lane.length):
            if not 0 <= token < BYTES:
                raise errors.TokenOutOfRange(name, place, token, BYTES)


class Bigrams:
    """The model: facts that say what it is, the same in every process, and a session for each caller."""

    lanes = None
    recorded = (("model", "bigrams"),)

    def __init__(self, book: bytes) -> None:
        counts = torch.zeros(BYTES, BYTES)
        for before, after in pairwise(book):
            counts[before, after] += 1
        self.table = (counts + 1e-3).log()
        self.text = Bytes()
        digest = sha256(book).hexdigest()
        self.facts = decodelog.ArtifactFacts(
            release_id="bigrams",
            architecture="bigrams",
            checkpoint_sha256=digest,
            config_sha256=digest,
            tokenizer_sha256=sha256(b"bytes").hexdigest(),
            template_sha256=None,
            vocabulary_size=BYTES,
            context_tokens_max=1024,
            bos_id=None,
            eos_ids=(END,),
            pad_id=None,
            cache_abi="none",
            weight_dtype="float32",
        )
        self.runtime = decodelog.RuntimeFacts("float32", "float32", "none", "cpu", f"torch {torch.__version__}")

    def session(self, width: int) -> Follows:
        return Follows(self.table)


model: decodelog.Model = Bigrams(BOOK)
decodelog.check_model(model)
with decodelog.open("sqlite:///own.db", models={"bigrams": model}) as log:
    job = log.submit("bigrams", prompt="the ", temperature=0.7, seed=3, max_new_tokens=80, key="a")
    print("".join(piece.text for piece in job.run()) or job.result().text)
    print("audited by running it again:", "the same" if log.audit(reexecute=True).ok else "not the same")
