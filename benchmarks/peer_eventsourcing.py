"""eventsourcing: aggregates in its SQLite recorder, set up as its documentation does."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event

DIGEST = "5f" * 32


class Counter(Aggregate):
    """The least an event can say: one integer."""

    def __init__(self) -> None:
        self.last = 0

    @event("Counted")
    def count(self, number: int) -> None:
        self.last = number


class Generation(Aggregate):
    """What our three events of a token say, under the same names; digests are hexadecimal, since events are JSON."""

    def __init__(self, envelope: str) -> None:
        self.envelope = envelope
        self.processed = 0
        self.scores = ""
        self.decided: tuple[int, str] | None = None
        self.token_ids: list[int] = []
        self.text: list[str] = []

    @event("CallCompleted")
    def complete_call(self, tokens: int, lanes: int, scores: str) -> None:
        self.processed, self.scores = lanes, scores

    @event("DecisionMade")
    def decide(
        self,
        step: int,
        branch: int,
        token: int,
        support: int,
        logprob_raw: float,
        logprob: float,
        margin: float,
        unit_draw: float,
        start: float,
        end: float,
        piece: str,
        hidden: bool,
        receipt_id: str,
    ) -> None:
        self.decided = token, piece

    @event("OutputCommitted")
    def commit(self, output: int, state: str) -> None:
        if self.decided is None:
            raise ValueError("nothing is decided")
        token, piece = self.decided
        self.token_ids.append(token)
        self.text.append(piece)
        self.decided = None


def application(directory: Path, name: str) -> Application[UUID]:
    """An application over a new SQLite file."""
    path = directory / f"{name}.sqlite"
    return Application(env={"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(path)})


def save_each(app: Application[UUID], counter: Counter, events: int) -> None:
    """One event a save, each durable before the next."""
    for number in range(events):
        counter.count(number)
        app.save(counter)


def new_counter(app: Application[UUID], events: int) -> UUID:
    """A stored counter with `events` events after its first."""
    counter = Counter()
    for number in range(events):
        counter.count(number)
    app.save(counter)
    return counter.id


def new_generation(app: Application[UUID], tokens: int) -> UUID:
    """A stored generation of `tokens` tokens, three events each."""
    generation = Generation("e" * 1500)
    for step in range(tokens):
        scores = 1 / (step + 3)
        generation.complete_call(1, step + 64, DIGEST)
        generation.decide(step, 0, 65, 258, -scores, -scores / 2, scores, scores, scores / 2, 0.9, "A", False, DIGEST)
        generation.commit(step + 1, DIGEST)
    app.save(generation)
    return generation.id
