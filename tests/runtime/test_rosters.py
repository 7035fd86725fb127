"""ALL_NEW needs both rosters complete, and every fact of the call joined; anything else is ALL_OLD."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest
import torch
from counting import watched

from decodelog.fsm.errors import PreparedCacheChanged, Problem, RosterIncomplete, ScoreNotConsumable, SessionClosed
from decodelog.runtime.families.decoder.config import parse_config
from decodelog.runtime.families.decoder.model import seeded_decoder
from decodelog.runtime.families.rosters import Owner, Roster, Ticket
from decodelog.runtime.families.session import Decode, Lane, Prefill, Session

CONFIG = parse_config(
    {
        "model_type": "llama",
        "vocab_size": 11,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
    }
)


@pytest.fixture
def session() -> Iterator[Session]:
    decoder = seeded_decoder(CONFIG, 1)
    with Session(decoder, decoder.new_arena(3, 8), width=2) as session:
        yield session


@pytest.fixture
def lanes(session: Session) -> list[Lane]:
    lanes = [session.open(f"request-{index}", 8) for index in range(3)]
    session.select(session.prepare([Prefill(lane, [index, 1]) for index, lane in enumerate(lanes)]))
    return lanes


def decodes(lanes: list[Lane]) -> list[Prefill | Decode]:
    return [Decode(lane, 2 + index) for index, lane in enumerate(lanes)]


def test_a_roster_names_what_is_missing() -> None:
    roster = Roster(("a", "b", "c"))
    assert roster.full == 0b111
    assert roster.missing(0b101) == ["b"]
    assert roster.missing(roster.full) == []


@pytest.mark.contract("CALL-1")
def test_the_rosters_declare_every_stage_and_every_lane(session: Session) -> None:
    assert session.decoder.stages.names == ("embedding", "block.0", "block.1", "final_norm", "head", "output_row")
    assert session.decoder.lanes.names == ("block.0.key", "block.0.value", "block.1.key", "block.1.value")


@pytest.mark.contract("CALL-1", "CALL-2")
def test_a_complete_call_advances_all_lanes_and_gives_a_row_for_each(session: Session, lanes: list[Lane]) -> None:
    ticket = session.prepare(decodes(lanes))
    assert [lane.length for lane in lanes] == [2, 2, 2]
    scores = session.select(ticket)
    assert [lane.length for lane in lanes] == [3, 3, 3]
    assert scores.shape == (3, 11)
    assert scores.dtype is torch.float32


Damage = Callable[[Ticket], object]


def lack(stage: int) -> Damage:
    return lambda ticket: setattr(ticket.evidence[0][0], "stages", ticket.evidence[0][0].stages & ~(1 << stage))


def unlanded(row: int, bit: int) -> Damage:
    def damage(ticket: Ticket) -> None:
        evidence, place = ticket.evidence[row]
        evidence.landed[place] &= ~(1 << bit)

    return damage


def owner(row: int, slot: int, position: int) -> Damage:
    def damage(ticket: Ticket) -> None:
        evidence, place = ticket.evidence[row]
        evidence.owners[place] = Owner(slot, position)

    return damage


DAMAGES: dict[str, Damage] = {
    **{name: lack(bit) for bit, name in enumerate(("embedding", "block.0", "block.1", "final_norm", "head"))},
    "output_row": lack(5),
    "request-0:block.0.key": unlanded(0, 0),
    "request-1:block.1.value": unlanded(1, 3),
    "request-2:block.1.key": unlanded(2, 2),
    "completion event": lambda ticket: setattr(ticket.evidence[2][0], "event", ticket.event - 1),
    "completion event ": lambda ticket: setattr(ticket.evidence[0][0], "event", None),
    "request-0:score row of position 2": owner(0, 0, 1),
    "request-1:score row of position 2": owner(1, 0, 2),
    "evidence for 3 rows": lambda ticket: ticket.evidence.pop(),
}


@pytest.mark.contract("CALL-1", "CALL-2")
@pytest.mark.parametrize("missing", DAMAGES)
def test_anything_missing_leaves_every_lane_old_and_no_score(session: Session, lanes: list[Lane], missing: str) -> None:
    expected = session.select(session.prepare(decodes(lanes)))
    for lane in lanes:
        session.reset(lane)
    session.select(session.prepare([Prefill(lane, [index, 1]) for index, lane in enumerate(lanes)]))
    ticket, work = session.prepare(decodes(lanes)), session.work
    DAMAGES[missing](ticket)
    with pytest.raises(RosterIncomplete) as caught:
        session.select(ticket)
    assert missing.strip() in "\n".join(caught.value.missing)
    assert [lane.length for lane in lanes] == [2, 2, 2]
    assert session.work == work
    assert torch.equal(session.select(session.prepare(decodes(lanes))), expected)


HEADLESS = ("embedding", "block.0", "block.1")
WHOLE = (*HEADLESS, "final_norm", "head", "output_row")
LANES = ("block.0.key", "block.0.value", "block.1.key", "block.1.value")


@pytest.mark.contract("CALL-1")
@pytest.mark.parametrize(
    ("chunk", "stage", "lane"),
    [
        *((chunk, stage, None) for chunk in (0, 1) for stage in HEADLESS),
        *((2, stage, None) for stage in WHOLE),
        *((chunk, None, lane) for chunk in (0, 1, 2) for lane in LANES),
    ],
)
def test_what_one_chunk_lacks_the_whole_prefill_lacks(
    session: Session, monkeypatch: pytest.MonkeyPatch, chunk: int, stage: str | None, lane: str | None
) -> None:
    """Whichever chunk it is, and whichever stage or lane; only the last one has a head."""
    session.prefill_chunk = 2
    forward, seen = session.decoder.forward, list[Any]()

    def lossy(*arguments: Any) -> object:
        evidence = forward(*arguments)
        if len(seen) == chunk:
            if stage is not None:
                evidence.stages &= ~(1 << WHOLE.index(stage))
            if lane is not None:
                evidence.landed[0] &= ~(1 << LANES.index(lane))
        seen.append(arguments[5])
        return evidence

    monkeypatch.setattr(session.decoder, "forward", lossy)
    asked = session.open("request", 8)
    ticket = session.prepare([Prefill(asked, [1, 2, 3, 4, 5])])
    assert seen == [False, False, True]
    with pytest.raises(RosterIncomplete) as caught:
        session.select(ticket)
    assert caught.value.missing == [stage or f"request:{lane}"]
    assert asked.length == 0


Change = Callable[[Session, list[Lane]], object]


def update(session: Session, lanes: list[Lane]) -> None:
    with torch.no_grad():
        session.decoder.weights.embedding.mul_(1)


def refill(session: Session, lane: Lane) -> None:
    """As long as before, and with other rows."""
    session.reset(lane)
    session.select(session.prepare([Prefill(lane, [5, 6])]))


def opened_anew(session: Session, lane: Lane) -> None:
    session.release(lane)
    session.open(lane.request, 8)


def put_back(session: Session, lane: Lane) -> None:
    rows = session.rows(lane, 0, lane.length)
    session.reset(lane)
    session.restore(lane, [rows])


CHANGES: dict[str, tuple[str, Change]] = {
    "another call selected": ("length", lambda s, lanes: s.select(s.prepare([Decode(lanes[1], 9)]))),
    "another call prepared": ("storage", lambda s, lanes: s.prepare([Decode(lanes[2], 9)])),
    "the first lane reset": ("length", lambda s, lanes: s.reset(lanes[0])),
    "the last lane reset": ("length", lambda s, lanes: s.reset(lanes[2])),
    "every lane reset": ("length", lambda s, lanes: s.reset()),
    "a lane reset and filled again": ("storage", lambda s, lanes: refill(s, lanes[1])),
    "a lane reset and restored": ("storage", lambda s, lanes: put_back(s, lanes[2])),
    "a lane released": ("lane", lambda s, lanes: s.release(lanes[1])),
    "a lane released and its slot taken": (
        "lane",
        lambda s, lanes: opened_anew(s, lanes[1]),
    ),
    "the storage grown": ("storage", lambda s, lanes: s.arena.grow(16)),
    "a parameter updated": ("model", update),
}


@pytest.mark.contract("CALL-2")
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_since_prepare_refuses_the_whole_call(session: Session, lanes: list[Lane], name: str) -> None:
    ticket = session.prepare(decodes(lanes))
    what, change = CHANGES[name]
    change(session, lanes)
    before = [lane.length for lane in lanes], session.work
    with pytest.raises(PreparedCacheChanged) as caught:
        session.select(ticket)
    assert caught.value.what == what
    assert ([lane.length for lane in lanes], session.work) == before


@pytest.mark.contract("CALL-2", "CALL-3")
@pytest.mark.parametrize("whole", [False, True])
def test_a_reset_of_a_lane_that_is_empty_makes_its_prepared_prefill_stale(session: Session, whole: bool) -> None:
    """Its length is what it was, so only the storage's own revision tells."""
    lane = session.open("request", 8)
    ticket = session.prepare([Prefill(lane, [1, 2])])
    session.reset(None if whole else lane)
    with pytest.raises(PreparedCacheChanged) as caught:
        session.select(ticket)
    assert (caught.value.what, lane.length) == ("storage", 0)


class Interrupted(BaseException):
    """What a signal's handler raises."""


def interrupted_at(boundary: int, work: Callable[[], object]) -> bool:
    """Run `work` with an exception at the so-maniest bytecode boundary; False where it has fewer."""
    left = boundary

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal left
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left < 0:
                raise Interrupted
        return trace

    try:
        watched(work, trace)
    except Interrupted:
        return True
    return False


@pytest.mark.contract("CALL-2")
def test_an_interrupted_selection_leaves_all_lanes_old_or_all_new(session: Session, lanes: list[Lane]) -> None:
    """At every boundary of bytecode, which is where a signal's handler runs."""
    seen, boundary = set(), 0
    while True:
        for lane in lanes:
            lane.length = 2
        ticket = session.prepare(decodes(lanes))
        begun = interrupted_at(boundary, partial(session.select, ticket))
        lengths = tuple(lane.length for lane in lanes)
        assert lengths in ((2, 2, 2), (3, 3, 3)), f"parted at boundary {boundary}"
        seen.add(lengths)
        if not begun:
            break
        if lengths == (3, 3, 3) or ticket.state == "selected":
            with pytest.raises(ScoreNotConsumable):
                session.select(ticket)
        else:
            session.select(ticket)  # nothing has happened, and the call still counts
            assert [lane.length for lane in lanes] == [3, 3, 3]
        boundary += 1
    assert boundary > 50
    assert seen == {(2, 2, 2), (3, 3, 3)}


@pytest.mark.contract("CALL-2")
def test_a_stale_ticket_never_publishes_a_later_calls_rows(session: Session, lanes: list[Lane]) -> None:
    stale = session.prepare([Decode(lanes[0], 3)])
    fresh = session.prepare([Decode(lanes[0], 4)])
    with pytest.raises(PreparedCacheChanged):
        session.select(stale)
    session.select(fresh)
    assert lanes[0].length == 3


@pytest.mark.contract("CALL-1", "CALL-9")
@pytest.mark.parametrize("end", ["select", "discard"])
def test_a_ticket_is_consumed_once(session: Session, lanes: list[Lane], end: str) -> None:
    ticket = session.prepare(decodes(lanes))
    getattr(session, end)(ticket)
    lengths = [lane.length for lane in lanes]
    with pytest.raises(ScoreNotConsumable):
        session.select(ticket)
    session.discard(ticket)  # harmless at any time
    assert [lane.length for lane in lanes] == lengths == [2 + (end == "select")] * 3


@pytest.mark.contract("CALL-9")
def test_a_call_in_flight_when_the_session_closes_is_all_old(session: Session, lanes: list[Lane]) -> None:
    ticket = session.prepare(decodes(lanes))
    session.close()
    with pytest.raises(SessionClosed):
        session.select(ticket)
    assert [lane.length for lane in lanes] == [2, 2, 2]


@pytest.mark.contract("CALL-2")
def test_every_refusal_says_that_nothing_advanced() -> None:
    for error in (PreparedCacheChanged("r", "length"), RosterIncomplete(["head"])):
        assert isinstance(error, Problem)
        assert "nothing advanced" in str(error)
