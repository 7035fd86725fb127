"""Audit finds nothing in an intact log, and names the first event that cannot be in a changed one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from envelope_examples import full
from hypothesis import given
from hypothesis import strategies as st
from jobs import EOS, Live, call, drawn, selection
from test_load import read

from decodelog.fsm.errors import CorruptRecord
from decodelog.fsm.evidence.receipt import Selection
from decodelog.fsm.evidence.rng import unit_draw
from decodelog.fsm.machine.events import CallCompleted, DecisionMade, OutputCommitted, RequestAdmitted
from decodelog.fsm.machine.fold import fold
from decodelog.fsm.machine.states import Status
from decodelog.fsm.machine.thinned import ThinnedStep
from decodelog.fsm.machine.transition import CloseRequest, CommitOutput, FailCall, IssueDecision, RebuildLanes
from decodelog.fsm.ports import EMPTY_HEAD, Head, JobRow, Record
from decodelog.fsm.reading.audit import Audited, compare, replay
from decodelog.fsm.reading.snapshot import Snapshot
from decodelog.fsm.reading.transcript import Transcript
from decodelog.fsm.request.finish import FinishReason

pytestmark = pytest.mark.contract("LOG-3")


def example() -> Live:
    """A job of two tenures: a whole turn in one append, then one in three, then a recorded end.

    Appends: 1 admitted | 2 attempt | 3..5 call, decision, commit | 6 attempt | 7 rebuilt | 8 call | 9 decision
    | 10..11 commit, closed
    """
    live = Live.admit()
    live.attempt()
    live.turn(50)
    live.attempt(2)
    live.do(RebuildLanes("prefill", 3, 3))
    live.do(call(live.state))
    live.do(IssueDecision(selection(EOS), b""))
    live.do(CommitOutput())
    return live


LIVE = example()
RECORDS = LIVE.records


def kinds(records: list[Record], job: str = "job-1") -> list[tuple[int, str]]:
    return [(fault.sequence, fault.kind) for fault in replay(job, records).faults]


def test_an_intact_log_has_no_fault_and_leads_to_the_live_state() -> None:
    audited = replay("job-1", RECORDS)
    assert audited == Audited(11, LIVE.state, [], RECORDS[-1].chain)
    assert compare(LIVE.row, audited) == []


@pytest.mark.parametrize("length", range(1, len(RECORDS)))
def test_the_log_of_a_running_job_has_no_fault(length: int) -> None:
    audited = replay("job-1", RECORDS[:length])
    assert (audited.faults, audited.events) == ([], RECORDS[length - 1].last)


@pytest.mark.parametrize("index", range(len(RECORDS)))
def test_a_dropped_append_is_named_where_it_is_missing(index: int) -> None:
    records = [*RECORDS[:index], *RECORDS[index + 1 :]]
    if index < len(RECORDS) - 1:
        assert kinds(records) == [(RECORDS[index].first, "gap")]
    else:  # only the listing knows that the log went on
        assert kinds(records) == []
        assert [fault.kind for fault in compare(LIVE.row, replay("job-1", records))] == ["listing"] * 5


@pytest.mark.parametrize("index", range(len(RECORDS)))
def test_a_doubled_append_is_named_where_it_comes_again(index: int) -> None:
    records = [*RECORDS[: index + 1], *RECORDS[index:]]
    assert kinds(records) == [(RECORDS[index].last + 1, "gap")]


@pytest.mark.parametrize("index", range(len(RECORDS) - 1))
def test_swapped_appends_are_named_where_the_first_should_be(index: int) -> None:
    one, other = RECORDS[index : index + 2]
    assert kinds([*RECORDS[:index], other, one, *RECORDS[index + 2 :]]) == [(one.first, "gap")]


def renumbered(records: list[Record]) -> list[Record]:
    """The appends as if each followed the one before."""
    numbered, last = [], 0
    for record in records:
        numbered.append(record._replace(first=last + 1, last=last + len(record.events)))
        last += len(record.events)
    return numbered


@given(st.data())
def test_appends_moved_and_numbered_anew_are_still_found(data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(RECORDS))))
    records = renumbered([RECORDS[index] for index in order])
    if order == list(range(len(RECORDS))):
        assert kinds(records) == []
    else:
        [(sequence, _)] = kinds(records)
        first = next(place for place, index in enumerate(order) if place != index)
        # A tenure, a failed call or a rebuild can be anywhere by itself; the fences and the chain keep their order.
        assert sequence >= records[first].first


@pytest.mark.parametrize("index", [0, 2, 5, 6])
def test_a_dropped_fact_whose_gap_was_closed_is_named_too(index: int) -> None:
    [(sequence, _)] = kinds(renumbered([*RECORDS[:index], *RECORDS[index + 1 :]]))
    assert sequence >= RECORDS[index].first


CHANGES: dict[str, tuple[Callable[[list[Record]], Record], int, int, str]] = {
    # what, the append, the event that is named, the kind
    "begins too early": (lambda records: records[2]._replace(first=2), 2, 3, "gap"),
    "begins too late": (lambda records: records[2]._replace(first=4), 2, 3, "gap"),
    "ends too early": (lambda records: records[2]._replace(last=4), 2, 3, "gap"),
    "ends too late": (lambda records: records[2]._replace(last=6), 2, 3, "gap"),
    "lost an event": (lambda records: records[2]._replace(entries=records[2].events[:2]), 2, 3, "gap"),
    "is empty": (lambda records: records[2]._replace(entries=(), last=2), 2, 3, "gap"),
    "has another key with its receipt": (lambda records: records[2]._replace(key=b"k" * 32), 2, 4, "key"),
    "has another key with the decision alone": (lambda records: records[6]._replace(key=b"k" * 32), 6, 9, "key"),
    "has another key with the commit alone": (lambda records: records[7]._replace(key=b"k" * 32), 7, 10, "key"),
    "has a fence that fell": (lambda records: records[4]._replace(fence=1), 4, 7, "fence"),
    "has a fence that its tenure does not": (lambda records: records[3]._replace(fence=3), 3, 6, "fence"),
    "has a fence that no tenure has": (lambda records: records[2]._replace(fence=2), 2, 3, "fence"),
    "begins with the events of another job": (
        lambda records: records[0]._replace(entries=Live.admit("job-2").records[0].events),
        0,
        1,
        "job",
    ),
    "has another score row": (
        lambda records: records[2]._replace(entries=(CallCompleted(3, 3, b"z" * 32), *records[2].events[1:])),
        2,
        4,
        "broken_invariant",
    ),
    "has its events swapped": (
        lambda records: records[2]._replace(entries=records[2].events[::-1]),
        2,
        3,
        "illegal_transition",
    ),
}


@pytest.mark.parametrize(("change", "index", "sequence", "kind"), CHANGES.values(), ids=CHANGES)
def test_a_changed_append_is_named_at_the_event_that_cannot_be(
    change: Callable[[list[Record]], Record], index: int, sequence: int, kind: str
) -> None:
    records = [*RECORDS[:index], change(RECORDS), *RECORDS[index + 1 :]]
    audited = replay("job-1", records)
    [fault] = audited.faults
    assert (fault.job, fault.sequence, fault.kind) == ("job-1", sequence, kind)
    assert fault.detail
    assert audited.events == sequence - 1


@pytest.mark.contract("LOG-7")
@pytest.mark.parametrize("tenures", [0, 2])
def test_a_cancel_alone_is_in_its_tenure_or_above_it(tenures: int) -> None:
    """By the owner, or by whoever fenced an owner that was gone; nobody else ends a job without a tenure."""
    for reason in (FinishReason.CANCELLED, FinishReason.TIMEOUT):
        live = Live.admit()
        for fence in range(1, tenures + 1):
            live.attempt(fence)
        live.do(CloseRequest(reason))
        *before, last = live.records
        for fence in range(4):
            legal = fence == tenures or (fence > tenures and reason is FinishReason.CANCELLED)
            assert kinds([*before, last._replace(fence=fence)]) == ([] if legal else [(last.first, "fence")])


def test_what_the_reader_finds_broken_is_named_where_reading_stopped() -> None:
    def damaged() -> Iterator[Record]:
        yield from RECORDS[:3]
        raise CorruptRecord("job-1", 6, "a flipped byte")

    [fault] = replay("job-1", damaged()).faults
    assert (fault.sequence, fault.kind) == (6, "corrupt_record")
    assert "a flipped byte" in fault.detail


def test_the_log_of_another_job_and_a_log_without_events_are_faults() -> None:
    assert kinds(RECORDS, "job-2") == [(1, "job")]
    assert kinds([]) == [(1, "gap")]
    assert compare(LIVE.row, replay("job-1", [])) == []


def thinned(record: Record, **wrong: Any) -> Record:
    """An append of an ordinary step as a sealed log keeps it, with something in it changed."""
    call_, decision, output = record.events
    assert isinstance(call_, CallCompleted)
    assert isinstance(decision, DecisionMade)
    assert isinstance(output, OutputCommitted)
    receipt = decision.receipt
    kept = receipt.selection._replace(margin=math.nan)
    step = ThinnedStep(call_.tokens, call_.lanes, receipt.branch, kept, receipt.piece, receipt.hidden, output.output)
    return record._replace(entries=(step._replace(**wrong),))


def long_run() -> Live:
    """Appends: 1 admitted | 2 attempt | 3..5, 6..8, ... 18..20: six steps, the first with the prompt's call."""
    live = Live.admit()
    live.attempt()
    for token in range(50, 56):
        live.turn(token)
    return live


@pytest.mark.contract("LOG-3", "LOG-9")
def test_a_thinned_step_is_one_append_that_follows_on_the_step_before() -> None:
    live = long_run()
    sealed = [*live.records[:3], *map(thinned, live.records[3:6]), *map(read, live.records[6:])]
    audited = replay("job-1", sealed)
    assert (audited.faults, audited.events, audited.chain) == ([], 20, live.records[-1].chain)
    assert audited.state == live.state
    for wrong in ({"lanes": 9}, {"tokens": 2}, {"output": 9}, {"output": 2}):
        sealed[4] = thinned(live.records[4], **wrong)
        audited = replay("job-1", sealed)
        assert [(fault.sequence, fault.kind) for fault in audited.faults] == [(9, "broken_invariant")], wrong
        assert audited.events == 8
    # Two steps in one append: nothing would say which of the two its key and its chain are of.
    both = thinned(live.records[3])
    both = both._replace(last=both.last + 3, entries=(*both.entries, *thinned(live.records[4]).entries))
    audited = replay("job-1", [*live.records[:3], both])
    assert [(fault.sequence, fault.kind) for fault in audited.faults] == [(6, "broken_invariant")]


@pytest.mark.contract("RES-2", "LOG-3")
def test_a_snapshot_must_equal_the_state_of_the_log_at_its_place() -> None:
    """A snapshot must be what the log leads to at its place and its place must be there."""
    live = long_run()
    for count in range(3, len(live.records) + 1):
        transcript, head = Transcript(), Head(live.records[count - 1].last, live.records[count - 1].chain)
        for event in live.events[: head.sequence]:
            transcript.take(event)
        snapshot = Snapshot.of(transcript, head)
        assert snapshot is not None
        assert replay("job-1", live.records, snapshot) == replay("job-1", live.records)
        others = {
            "token ids": snapshot._replace(token_ids=(49, *snapshot.token_ids[1:])),
            "a chain": snapshot._replace(head=head._replace(chain=b"c" * 32)),
            "a place within an append": snapshot._replace(head=head._replace(sequence=head.sequence - 1)),
        }
        for what, other in others.items():
            assert [fault.kind for fault in replay("job-1", live.records, other).faults] == ["snapshot"], what
        (beyond,) = replay("job-1", live.records[: count - 1], snapshot).faults
        assert beyond.kind == "snapshot"
        assert "beyond the log" in beyond.detail


# ---- noise -----------------------------------------------------------------------------------------------------


def sampling(algorithm: str, policy: str, decide: Callable[[int], Selection]) -> list[Record]:
    """A job whose request names a generator; every step is decided as `decide` says."""
    live = Live.admit(
        **{
            "policy.family": policy,
            "policy.transforms": full()["policy"]["transforms"] if policy == "sample" else [],
            "rng.algorithm": algorithm,
            "rng.seed": 2**40 + 7,
            "rng.choice": 3,
        }
    )
    for step in range(3):
        live.do(call(live.state), IssueDecision(decide(step), b"x"), CommitOutput())
    return live.records


@pytest.mark.contract("POL-5")
@pytest.mark.parametrize("algorithm", ["philox4x32-10", "splitmix64"])
def test_noise_of_another_step_seed_or_generator_is_found(algorithm: str) -> None:
    def noise(step: int, seed: int = 2**40 + 7, choice: int = 3, by: str = algorithm) -> Selection:
        return drawn(50, unit_draw(by, seed, choice, 0, step))

    other = {"philox4x32-10": "splitmix64", "splitmix64": "philox4x32-10"}[algorithm]
    assert kinds(sampling(algorithm, "sample", noise)) == []
    assert kinds(sampling(algorithm, "sample", lambda step: noise(min(step, 1)))) == [(9, "draw")]
    assert kinds(sampling(algorithm, "sample", lambda step: noise(step, seed=7))) == [(3, "draw")]
    assert kinds(sampling(algorithm, "sample", lambda step: noise(step, choice=0))) == [(3, "draw")]
    assert kinds(sampling(algorithm, "sample", lambda step: noise(step, by=other))) == [(3, "draw")]


@pytest.mark.contract("POL-5")
def test_a_sampled_step_without_and_a_greedy_one_with_a_draw_are_found() -> None:
    """A sampled step without a draw and a greedy one with a draw are found."""
    assert kinds(sampling("philox4x32-10", "sample", lambda step: selection(50))) == [(3, "draw")]
    assert kinds(sampling("philox4x32-10", "greedy", lambda step: drawn(50))) == [(3, "draw")]
    assert kinds(sampling("philox4x32-10", "greedy", lambda step: selection(50))) == []


# ---- the listing -----------------------------------------------------------------------------------------------

LISTED: dict[str, Callable[[JobRow], JobRow]] = {
    "status": lambda row: replace(row, status=Status.PENDING),
    "finish": lambda row: replace(row, finish="length"),
    "output": lambda row: replace(row, output=row.output + 1),
    "prompt": lambda row: replace(row, prompt=row.prompt - 1),
    "identity": lambda row: replace(row, identity="0" * 64),
    "head": lambda row: replace(row, head=Head(row.head.sequence + 1, row.head.chain)),
    "chain": lambda row: replace(row, head=Head(row.head.sequence, EMPTY_HEAD.chain)),
}


@pytest.mark.parametrize(("name", "change"), LISTED.items(), ids=LISTED)
def test_a_listing_that_differs_from_the_log_is_named(name: str, change: Callable[[JobRow], JobRow]) -> None:
    [fault] = compare(change(LIVE.row), replay("job-1", RECORDS))
    assert (fault.job, fault.sequence, fault.kind) == ("job-1", 11, "listing")
    assert f"says {name} " in fault.detail


def test_the_listing_of_a_failed_job_names_its_cause() -> None:
    live = Live.admit(retry_budget=0)
    live.do(FailCall("call_failed", "detail"))
    audited = replay("job-1", live.records)
    assert compare(live.row, audited) == []
    assert len(compare(replace(live.row, finish=None), audited)) == 1


def test_an_admission_alone_is_an_intact_log() -> None:
    live = Live.admit()
    assert isinstance(live.events[0], RequestAdmitted)
    audited = replay("job-1", live.records)
    assert (audited.events, audited.state, audited.faults) == (1, fold(None, live.events[0]), [])
    assert compare(live.row, audited) == []
