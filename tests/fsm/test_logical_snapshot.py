"""Snapshots of where a job stands: nothing is left out, and whoever goes on from one sees the same rest."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import EOS, Live, call, decision
from msgpack import packb, unpackb
from test_load import histories

from decodelog.fsm.machine.events import Parent
from decodelog.fsm.machine.state import Ending, State, Tenure
from decodelog.fsm.machine.states import Status
from decodelog.fsm.output.detector import Detection
from decodelog.fsm.output.horizon import Horizon
from decodelog.fsm.output.json_value import Scan
from decodelog.fsm.output.standing import Standing
from decodelog.fsm.output.structure import Structure
from decodelog.fsm.ports import Head
from decodelog.fsm.reading.snapshot import Snapshot, facts_of, plain, quiet, snapshot_of
from decodelog.fsm.reading.transcript import Transcript
from decodelog.fsm.request.finish import FinishReason

pytestmark = pytest.mark.contract("RES-2", "RES-3")


def snapshots(live: Live) -> list[tuple[int, Snapshot]]:
    """Each snapshot that the job's log allows, with the number of events before it."""
    transcript, found = Transcript(), []
    for count, event in enumerate(live.events, 1):
        transcript.take(event)
        snapshot = Snapshot.of(transcript, Head(count, bytes(32)))
        assert (snapshot is not None) is (transcript.state is not None and quiet(transcript.state))
        if snapshot is not None:
            found.append((count, snapshot))
    return found


def read_back(snapshot: Snapshot) -> Snapshot:
    fields = unpackb(packb(plain(snapshot)), use_list=False)
    return snapshot_of(snapshot.state.spec, snapshot.head, snapshot.token_ids, fields)


@given(histories())
def test_a_job_resumes_from_a_snapshot_as_from_its_log(live: Live) -> None:
    """A snapshot is read back equal and the job goes on from it as from its log."""
    whole = Transcript()
    for event in live.events:
        whole.take(event)
    for count, snapshot in snapshots(live):
        again = read_back(snapshot)
        assert again == snapshot
        assert again.state == live.states[count - 1]
        rest = again.transcript()
        for event in live.events[count:]:
            rest.take(event)
        assert rest.state == whole.state
        assert rest.token_ids == whole.token_ids
        assert rest.rebuilt == whole.rebuilt
        assert rest.sequence == whole.sequence
        assert rest.parent == whole.parent
        assert rest.echoed == whole.echoed
        assert list(rest.hand_over()) == list(whole.emissions_after(count))


def long_job() -> Snapshot:
    live = Live.admit(max_new=40)
    for token in (50, 51, 52):
        live.turn(token)
    snapshot = snapshots(live)[-1][1]
    opened = Scan(3, 2, b"u", b"key", (None, (b"d" * 32,)))
    structure = Structure(Standing.INCOMPLETE, (Detection(4, opened, 1), Detection()))
    state = snapshot.state._replace(
        structure=structure,
        tenure=Tenure(3, 7, 1, 90),
        horizon=Horizon(2, b"", b"", 31, 30, False, ()),
        delta="text",
    )
    return snapshot._replace(state=state, rebuilt=5, echoed=(9, 8), parent=Parent("job-0", 4))


def changed(value: Any) -> list[Any]:
    """Values like this one with just one thing changed in each, wherever a number, text or bytes stands in it."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, Enum):
        return [member for member in type(value) if member is not value][:1]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, bytes):
        return [value + b"x"]
    if isinstance(value, str):
        return [value + "x"]
    if isinstance(value, tuple | list):
        make = getattr(value, "_make", type(value))
        return [
            make([*value[:place], other, *value[place + 1 :]])
            for place, each in enumerate(value)
            for other in changed(each)
        ]
    return []


def test_every_mutable_field_is_in_it() -> None:
    """Each field of the state but those that a quiet state has at one value, and each thing within it."""
    snapshot = long_job()
    assert read_back(snapshot) == snapshot
    state, seen = snapshot.state, {packb(plain(snapshot))}
    settled = {"spec", "status", "receipt", "scores", "due", "ending"}
    others = 0
    for name in State._fields:
        if name in settled:
            continue
        for other in changed(getattr(state, name)):
            others += 1
            seen.add(packb(plain(snapshot._replace(state=state._replace(**{name: other})))))
    for name in ("rebuilt", "echoed", "parent"):
        for other in changed(getattr(snapshot, name)):
            others += 1
            seen.add(packb(plain(snapshot._replace(**{name: other}))))
    assert others > 25
    assert len(seen) == others + 1


@given(st.data())
def test_fields_that_no_snapshot_has_are_refused(data: st.DataObject) -> None:
    """Whatever is wrong is an error of a kind that the reader turns into "not of use"."""
    from decodelog.fsm.errors import Problem

    snapshot = long_job()
    fields = data.draw(st.sampled_from(changed(unpackb(packb(plain(snapshot)), use_list=False))))
    try:
        read = snapshot_of(snapshot.state.spec, snapshot.head, snapshot.token_ids, fields)
    except (ValueError, TypeError, LookupError, AttributeError, Problem):
        return
    assert read != snapshot


@pytest.mark.parametrize("count", [2, 4])
def test_token_ids_of_another_number_are_refused(count: int) -> None:
    snapshot = long_job()
    with pytest.raises(ValueError, match="tokens are given"):
        snapshot_of(snapshot.state.spec, snapshot.head, [50] * count, plain(snapshot))


def test_there_is_none_where_text_is_held_or_an_end_is_due() -> None:
    live = Live.admit(stop_ids=[9])
    live.turn(9)
    assert live.states[-2].due
    assert not quiet(live.states[-2])
    assert not quiet(live.state)
    live = Live.admit()
    live.turn(EOS)
    pending = next(state for state in live.states if state.status is Status.PENDING)
    assert not quiet(pending._replace(horizon=pending.horizon._replace(held=b"x")))
    assert not quiet(pending._replace(horizon=pending.horizon._replace(undecoded=b"\xc3")))


def test_there_is_none_of_a_job_without_events_or_but_right_after_a_commit() -> None:
    assert Snapshot.of(Transcript(), Head(0, bytes(32))) is None
    live = Live.admit()
    live.turn(50)
    assert Snapshot.of(live.transcript, live.row.head) is not None
    for command in (call(live.state), decision(51)):
        live.do(command)
        assert Snapshot.of(live.transcript, live.row.head) is None


@pytest.mark.parametrize("wrong", [{"held": b"x"}, {"undecoded": b"\xc3"}, {"closed": True}], ids=str)
def test_what_is_read_back_must_be_quiet_too(wrong: dict[str, Any]) -> None:
    snapshot = long_job()
    restless = snapshot._replace(state=snapshot.state._replace(horizon=snapshot.state.horizon._replace(**wrong)))
    assert not quiet(restless.state)
    with pytest.raises(ValueError, match="the state has"):
        read_back(restless)


def test_the_facts_of_a_state_are_plain_and_differ_wherever_states_differ() -> None:
    """A receipt that is issued, an end, a structure: whatever two states differ in but their spec and what follows."""

    def is_plain(value: Any) -> bool:
        if isinstance(value, tuple):
            return type(value) is tuple and all(map(is_plain, value))
        return value is None or type(value) in (int, float, bool, str, bytes)

    live = Live.admit()
    live.turn(50)
    live.do(call(live.state))
    live.do(decision(51))
    decided = live.state
    assert decided.receipt is not None
    assert is_plain(facts_of(decided))
    others = [
        decided._replace(receipt=replace(decided.receipt, piece=b"another")),
        decided._replace(receipt=None),
        decided._replace(status=Status.PENDING),
        decided._replace(ending=Ending(FinishReason.CANCELLED)),
        decided._replace(due=(FinishReason.LENGTH,)),
        decided._replace(structure=Structure(Standing.COMPLETE, (Detection(),))),
    ]
    assert all(map(is_plain, map(facts_of, others)))
    assert len({packb(facts_of(state)) for state in (decided, *others)}) == 1 + len(others)
