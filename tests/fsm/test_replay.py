"""A job that loses everything but its log, anywhere, any number of times, ends as if nothing had happened."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import EOS, Live, call, crank, decision, drawn, scores_of

from decodelog.fsm.machine.events import Event, OutputCommitted
from decodelog.fsm.machine.fold import fold, fold_all
from decodelog.fsm.machine.next_step import Step, next_step
from decodelog.fsm.machine.states import Status
from decodelog.fsm.machine.transition import CommitOutput, IssueDecision
from decodelog.fsm.reading.transcript import Transcript

pytestmark = pytest.mark.contract("FSM-4", "FSM-6", "RES-4")

PIECES = [b"a", b"ab", b"b\n", b"\xe2\x82", b"\xac", b"x"]
scripts = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6)
OPTIONS: dict[str, Any] = {"stop": ["ab\n"], "context": 60}


def decided(pieces: list[bytes], step: int) -> IssueDecision:
    """What the policy decides at a step: a function of the step alone, as the noise is."""
    return IssueDecision(drawn(50 + step, 0.1 * step), pieces[step])


def uninterrupted(pieces: list[bytes]) -> Live:
    live = Live.admit(max_new=len(pieces), **OPTIONS)
    crank(live, lambda step: decided(pieces, step))
    return live


def resumed(events: list[Event]) -> Live:
    """What a new worker has: the log, folded."""
    live = Live(list(events))
    for event in events:
        live.states.append(fold(live.states[-1] if live.states else None, event))
    return live


def facts(live: Live) -> tuple[Any, ...]:
    """What must not depend on crashes: each commit with its state digest, and what the caller gets."""
    result = live.transcript.result()
    usage = result.pop("usage")
    commits = [event for event in live.events if isinstance(event, OutputCommitted)]
    return commits, result, usage["completion_tokens"], live.state.frontier, live.state.due


@given(scripts, st.lists(st.integers(1, 30), max_size=4))
def test_crashes_after_any_events_change_no_token_receipt_or_end(pieces: list[bytes], cuts: list[int]) -> None:
    """Crashes after any events change no token no text no receipt and no end."""
    whole = uninterrupted(pieces)
    live = resumed(whole.events[:1])
    for cut in cuts:
        live = resumed(live.events[:cut])
        if live.state.status.terminal:
            continue
        live.attempt(live.state.tenure.fence + 1)
        if next_step(live.state) is not Step.CLOSE and live.state.status in (Status.PREFILLED, Status.PENDING):
            row = scores_of(live.state) if live.state.status is Status.PREFILLED else b""
            live.rebuild(row, "reexecute")
        crank(live, lambda step: decided(pieces, step))
    crank(live, lambda step: decided(pieces, step))
    assert facts(live) == facts(whole)


@pytest.mark.contract("OUT-7")
@given(scripts, st.integers(1, 20))
def test_a_stream_that_is_read_across_a_crash_is_the_uninterrupted_one(pieces: list[bytes], cut: int) -> None:
    whole = uninterrupted(pieces)
    before = resumed(whole.events[:cut])
    after = resumed(before.events)
    crank(after, lambda step: decided(pieces, step))
    read = before.transcript.emissions
    rest = [emission for emission in after.transcript.emissions if emission.sequence > len(before.events)]
    assert [*read, *rest] == whole.transcript.emissions


def test_a_recorded_decision_is_committed_before_any_call() -> None:
    """A recorded decision is committed before any call and nothing is drawn again."""
    live = Live.admit()
    live.do(call(live.state), IssueDecision(drawn(50, 0.25), b"x"))
    again = resumed(live.events)
    again.attempt()
    drawings = []

    def script(step: int) -> IssueDecision:
        drawings.append(step)
        return decision(EOS)

    assert next_step(again.state) is Step.COMMIT
    crank(again, script)
    assert [event.tag for event in again.events][3:5] == ["attempt.started", "output.committed"]
    assert drawings == [1]
    assert again.transcript.token_ids == [50, EOS]


def test_folding_a_tail_onto_a_state_is_folding_the_whole() -> None:
    live = uninterrupted([b"a", b"b", b"\xe2\x82"])
    for cut in range(1, len(live.events)):
        assert fold_all(live.events[cut:], fold_all(live.events[:cut])) == live.state


def test_a_log_is_the_same_state_in_every_fold_of_it() -> None:
    live = uninterrupted([b"a", b"ab", b"\n"])
    folds = [fold_all(live.events) for _ in range(3)]
    assert folds[0] == folds[1] == folds[2] == live.state
    assert len({state.digest() for state in folds}) == 1


def test_states_do_not_grow_with_the_tokens_before_them() -> None:
    live = Live.admit(max_new=400, context=500, stop=["ab"])
    sizes = set()
    for step in range(300):
        live.turn(50, b"xa")
        if step > 1:
            state = live.state
            sizes.add((len(state.delta), len(state.horizon.digest_bytes()), len(state.last_receipt), len(state.due)))
    assert len(sizes) == 1


@pytest.mark.contract("FSM-2")
def test_one_append_or_four_hold_the_same_events_and_states() -> None:
    pieces = [b"a", b"ab", b"x"]
    apart, together = uninterrupted(pieces), Live.admit(max_new=len(pieces), **OPTIONS)
    for step in range(len(pieces)):
        together.do(call(together.state), decided(pieces, step), CommitOutput())
    assert together.events == apart.events
    assert together.states == apart.states
    assert (len(together.records), len(apart.records)) == (4, 10)


def test_a_commit_that_is_repeated_by_a_resumed_worker_changes_nothing() -> None:
    live = Live.admit()
    live.do(call(live.state), IssueDecision(drawn(50), b"x"), CommitOutput())
    receipt = live.states[-2].receipt
    assert receipt is not None
    again = resumed(live.events)
    assert again.do(CommitOutput(receipt.receipt_id)).events == ()
    transcript = Transcript()
    for event in again.events:
        transcript.take(event)
    assert transcript.token_ids == [50]
