"""Closed rosters: what a model call must complete before its state and its scores may be used.

Two are bound before launch: the compute stages (embedding, each block, final norm, head, output-owner row) and the
advancing lanes (each layer's keys and values, of each row). The call returns evidence of what completed; `verdict`
joins the two on stages, lanes, request, generation, coordinate and completion event.
A roster's members are bits of one integer, so a token costs no object per layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import Tensor

from ...fsm.errors import RosterIncomplete
from ..caches.arena import Lane
from .work import Work

TicketState = Literal["prepared", "selected", "discarded"]


@dataclass(frozen=True, slots=True)
class Roster:
    """A fixed, ordered set of names; `full` has one bit for each."""

    names: tuple[str, ...]
    full: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "full", (1 << len(self.names)) - 1)

    def missing(self, done: int) -> list[str]:
        return [name for bit, name in enumerate(self.names) if not done >> bit & 1]


class Passport(NamedTuple):
    """Who a row belongs to and where it goes: positions [start, stop) of the lane's generation in `slot`."""

    request: str
    generation: int
    slot: int
    start: int
    stop: int


class Owner(NamedTuple):
    """The physical row that a score row was computed from."""

    slot: int
    position: int


@dataclass(slots=True)
class Evidence:
    """What a forward pass completed.

    scores  [B, V] float32, B segments in order; None where the call had no head
    stages  bits of the stage roster
    landed  for each segment, bits of the lane roster: the layers whose key and value rows were written
    owners  for each segment, the row its scores come from
    event   the completion event: set once everything above is known to have happened on the device
    """

    scores: Tensor | None
    stages: int
    landed: list[int]
    owners: list[Owner]
    event: int | None = None


@dataclass(slots=True, eq=False)
class Bound:
    """One request's part of a prepared call, with the lane's revision at that moment."""

    lane: Lane
    passport: Passport
    staging: int
    work: Work


@dataclass(slots=True, eq=False)
class Ticket:
    """A prepared call: every row is computed, nothing is logical state yet.

    rows      in the order of the calls given
    epoch     the arena's, revisions the model's, both at prepare
    evidence  for each row, the evidence of the forward pass it was in and its place there
    """

    event: int
    rows: tuple[Bound, ...]
    epoch: int
    evidence: list[tuple[Evidence, int]]
    state: TicketState = "prepared"


def require_complete(ticket: Ticket, stages: Roster, lanes: Roster) -> None:
    """Both rosters of every row are complete, and of this very call. Errors: RosterIncomplete naming what lacks."""
    missing = list(_missing(ticket, stages, lanes))
    if missing:
        raise RosterIncomplete(missing)


def _missing(ticket: Ticket, stages: Roster, lanes: Roster) -> Iterator[str]:
    if len(ticket.evidence) != len(ticket.rows):
        yield f"evidence for {len(ticket.rows)} rows"
        return
    for bound, (evidence, place) in zip(ticket.rows, ticket.evidence, strict=True):
        who = bound.passport
        if evidence.stages != stages.full:
            yield from stages.missing(evidence.stages)
        if evidence.landed[place] != lanes.full:
            yield from (f"{who.request}:{name}" for name in lanes.missing(evidence.landed[place]))
        if evidence.event != ticket.event:
            yield f"completion event {ticket.event}"
        if evidence.owners[place] != (who.slot, who.stop - 1):
            yield f"{who.request}:score row of position {who.stop - 1}"
