"""Loading a log: exactly what folding it event by event gives, and what only the audit finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import EOS, Live, call, drawn, scores_of, selection
from strategies import pieces, requests

from decodelog.fsm.errors import Problem
from decodelog.fsm.evidence.receipt import Receipt, issue
from decodelog.fsm.machine import fold
from decodelog.fsm.machine.events import CallFailed, DecisionMade, Event, TokenStep
from decodelog.fsm.machine.next_step import Step, next_step
from decodelog.fsm.machine.states import Status
from decodelog.fsm.machine.transition import CloseRequest, Command, CommitOutput, FailCall, FailRequest, IssueDecision
from decodelog.fsm.ports import EMPTY_HEAD, Head, Record
from decodelog.fsm.reading.audit import replay
from decodelog.fsm.reading.load import jump, load
from decodelog.fsm.reading.transcript import Transcript
from decodelog.fsm.request.finish import FinishReason
from decodelog.store.log.codec import encode, entries

pytestmark = pytest.mark.contract("FSM-3", "FSM-4", "OUT-7")


def read(record: Record) -> Record:
    """The append as it is read once it was written: what can be one step is one."""
    return record._replace(entries=entries(encode(record.events, record.key), record.key, "job-1", record.first))


def append(events: Sequence[Event], first: int) -> Record:
    """The events as one append."""
    key = next((event.receipt.receipt_id for event in events if isinstance(event, DecisionMade)), bytes(32))
    return Record(first, first + len(events) - 1, 1, key, bytes(32), tuple(events))


def loaded(records: Iterable[Record]) -> Transcript:
    transcript = Transcript()
    load(transcript, records)
    return transcript


def folded(events: Iterable[Event]) -> Transcript:
    transcript = Transcript()
    for event in events:
        transcript.take(event)
    return transcript


# ---- every log -------------------------------------------------------------------------------------------------

choices = st.builds(
    lambda token, shape, piece, hidden: IssueDecision(
        (selection(token), drawn(token)._replace(alternatives=()), drawn(token, 0.0))[shape], piece, hidden
    ),
    st.integers(EOS, 30) | st.just(50),
    st.sampled_from([0, 0, 0, 1, 1, 2]),
    pieces,
    st.sampled_from([False, False, True]),
)
ends = st.sampled_from([CloseRequest(FinishReason.CANCELLED), FailRequest("artifact_gone")])


def takeover(live: Live, choice: IssueDecision) -> None:
    live.attempt(live.state.tenure.fence + 1)
    if next_step(live.state) is not Step.CLOSE and live.state.status in (Status.PREFILLED, Status.PENDING):
        scores = scores_of(live.state) if live.state.status is Status.PREFILLED else b""
        live.rebuild(scores)


def failed_call(live: Live, choice: IssueDecision) -> None:
    if next_step(live.state) is Step.CALL:
        live.do(FailCall("call_failed", "a fault"))


def one_command(live: Live, choice: IssueDecision) -> None:
    owed = next_step(live.state)
    if owed is Step.CLOSE:
        live.do(CloseRequest(live.state.due[0]))  # after a repair
    else:
        commands: dict[Step, Command] = {Step.CALL: call(live.state), Step.DECIDE: choice, Step.COMMIT: CommitOutput()}
        live.do(commands[owed])


def turn(live: Live, choice: IssueDecision) -> None:
    if next_step(live.state) is Step.CALL:
        repair = (CloseRequest(live.state.due[0]),) if live.state.due else (choice, CommitOutput())
        live.do(call(live.state), *repair)


ACTS = st.sampled_from([*[turn] * 8, one_command, takeover, failed_call])


@st.composite
def histories(draw: Any) -> Live:
    """A job of up to 30 acts: long runs of whole turns, and everything that can come between."""
    options = draw(requests) | {"max_new": draw(st.integers(8, 24)), "min_new": draw(st.integers(0, 8)), "context": 90}
    live = Live.admit(**options)
    for act, choice in draw(st.lists(st.tuples(ACTS, choices), max_size=30)):
        if live.state.status.terminal:
            return live
        act(live, choice)
    if not live.state.status.terminal and draw(st.booleans()):
        live.do(draw(ends))
    return live


@given(histories())
def test_every_prefix_of_a_log_loads_as_it_folds(live: Live) -> None:
    """Prefixes by appends, as a crash leaves them. Every step of a run is its last in one of them."""
    records, whole = [], Transcript()
    for record in live.records:
        records.append(read(record))
        for event in record.events:
            whole.take(event)
        assert loaded(records) == whole
    assert whole.state == live.state


@given(histories(), st.data())
def test_a_log_that_is_cut_into_other_appends_anywhere_loads_as_it_folds(live: Live, data: st.DataObject) -> None:
    events = live.events
    cuts = data.draw(st.sets(st.integers(1, len(events)), max_size=len(events)))
    records = [
        read(append(events[start:end], start + 1))
        for start, end in pairwise([0, *sorted(cuts - {len(events)}), len(events)])
    ]
    assert loaded(records) == folded(events)


@given(histories(), st.data())
def test_a_log_that_is_followed_loads_as_it_folds(live: Live, data: st.DataObject) -> None:
    """As a reader polls: each load goes on from where the one before ended, and says where the log ends now."""
    records = [read(record) for record in live.records]
    cut = data.draw(st.integers(0, len(records)))
    transcript = Transcript()
    head = load(transcript, records[:cut])
    assert head == (Head(records[cut - 1].last, records[cut - 1].chain) if cut else EMPTY_HEAD)
    load(transcript, records[cut:])
    assert transcript == folded(live.events)


# ---- what a jump leaves out, and what it does not ----------------------------------------------------------------

STEPS = 7
FIRST = 2  # the append of the first step, after the admission and the attempt


def run() -> Live:
    """A run of steps; the stop `Z!` does not come, and `|` is a hidden special token."""
    live = Live.admit(max_new=20, context=60, stop=["Z!"])
    live.attempt()
    for step in range(STEPS):
        live.turn(50 + step, b"|" if step == 3 else b"<%d>" % step, hidden=step == 3)
    return live


LIVE = run()
RECORDS = [read(record) for record in LIVE.records]


def test_an_ordinary_step_is_read_as_one_and_is_its_three_events() -> None:
    assert all(isinstance(entry, TokenStep) for record in RECORDS[FIRST:] for entry in record.entries)
    assert [event for record in RECORDS for event in record.events] == LIVE.events
    assert loaded(RECORDS) == LIVE.transcript
    assert replay("job-1", RECORDS).faults == []


def test_a_load_issues_the_receipts_at_a_runs_ends_and_an_audit_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A load issues the receipts of the first and the last step of a run and an audit all."""
    issued: list[int] = []

    def counting(binding: bytes, step: int, *rest: Any) -> Receipt:
        issued.append(step)
        return issue(binding, step, *rest)

    monkeypatch.setattr(fold, "issue", counting)
    loaded(RECORDS)
    assert issued == [0, STEPS - 1]
    issued.clear()
    replay("job-1", RECORDS)
    assert issued == list(range(STEPS))


Change = Callable[[TokenStep], TokenStep]


def chosen(**facts: Any) -> Change:
    return lambda step: step._replace(selection=step.selection._replace(**facts))


MISCOUNTED: dict[str, Change] = {
    "another output number": lambda step: step._replace(output=step.output + 1),
    "too many tokens": lambda step: step._replace(tokens=step.tokens + 1),
    "no tokens": lambda step: step._replace(tokens=0),
    "lanes ahead": lambda step: step._replace(lanes=step.lanes + 1),
    "lanes behind": lambda step: step._replace(lanes=step.lanes - 1),
    "tokens and lanes that balance each other": lambda step: step._replace(
        tokens=step.tokens + 1, lanes=step.lanes + 1
    ),
    "no score row": lambda step: step._replace(scores=b""),
    "half a score row's digest": lambda step: step._replace(scores=step.scores[:16]),
}
"""Changes of one step that a jump sees at once."""

REFUSED = MISCOUNTED | {
    "a token that ends the job": chosen(token=EOS),
    "a longer piece": lambda step: step._replace(piece=step.piece + b"x", hidden=False),
    "a shorter piece": lambda step: step._replace(piece=b"x" if step.hidden else b"", hidden=False),
    "a piece that completes a stop": lambda step: step._replace(piece=b"Z!>", hidden=False),
    "a piece of fewer characters": lambda step: step._replace(piece="é>".encode(), hidden=False),
    "another visibility": lambda step: step._replace(hidden=not step.hidden),
}
"""Changes of one step that a load refuses, whichever step of a run it is."""

UNSEEN: dict[str, tuple[Change, int]] = {
    "another log-probability": (chosen(logprob=-0.125), 1),
    "another raw log-probability": (chosen(logprob_raw=-0.75), 1),
    "a draw": (chosen(unit_draw=0.25, start=0.125, end=0.5), 1),
    "another token that ends nothing": (chosen(token=99), 1),
    "another branch": (lambda step: step._replace(branch=1), 1),
    "another score row": (lambda step: step._replace(scores=b"z" * 32), 1),
    "another piece as long": (lambda step: step._replace(piece=b"y" * len(step.piece)), 1),
    "another digest of the state": (lambda step: step._replace(state=b"d" * 32), 1),
    "another receipt id": (lambda step: step._replace(receipt_id=b"r" * 32), 2),
}
"""Changes that only the audit finds between the first step of a run and its last, or the last two."""


def changed(index: int, change: Change) -> list[Record]:
    """The log as if one step had been written and chained so: no stored byte is wrong."""
    at = FIRST + index
    (step,) = RECORDS[at].entries
    assert isinstance(step, TokenStep)
    return [*RECORDS[:at], RECORDS[at]._replace(entries=(change(step),)), *RECORDS[at + 1 :]]


def found(records: list[Record]) -> int:
    """The sequence of the event that the audit names."""
    (fault,) = replay("job-1", records).faults
    return fault.sequence


def steps_of(records: list[Record]) -> list[TokenStep]:
    return [entry for record in records for entry in record.entries if isinstance(entry, TokenStep)]


def jumped(records: list[Record]) -> tuple[Transcript, int]:
    """The transcript after a jump over the run that the log is, and how many steps of the run it then has."""
    transcript = folded(event for record in records[: FIRST + 1] for event in record.events)
    return transcript, jump(transcript, steps_of(records), 1)


def test_a_jump_leads_to_what_the_fold_leads_to() -> None:
    transcript, steps = jumped(RECORDS)
    assert steps == STEPS - 1
    assert transcript == folded(event for record in RECORDS[:-1] for event in record.events)


@pytest.mark.parametrize("change", MISCOUNTED.values(), ids=MISCOUNTED)
@pytest.mark.parametrize("index", range(1, STEPS - 1))
def test_a_jump_ends_before_the_step_whose_counts_are_wrong(index: int, change: Change) -> None:
    transcript, steps = jumped(changed(index, change))
    assert steps == index
    assert transcript == folded(event for record in RECORDS[: FIRST + index] for event in record.events)


@pytest.mark.parametrize("change", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("index", range(STEPS))
def test_an_impossible_step_is_refused_where_the_jump_lands_or_before(index: int, change: Change) -> None:
    """A step that cannot be is refused at the latest where the jump lands."""
    records = changed(index, change)
    with pytest.raises(Problem):
        loaded(records)
    assert RECORDS[FIRST + index].first <= found(records) <= RECORDS[FIRST + index].last


@pytest.mark.contract("LOG-3")
@pytest.mark.parametrize(("change", "last"), UNSEEN.values(), ids=UNSEEN)
@pytest.mark.parametrize("index", range(STEPS))
def test_the_audit_finds_what_a_load_may_overlook(index: int, change: Change, last: int) -> None:
    """What moves no frontier and no text is found by the audit and leads a load to the same state."""
    records = changed(index, change)
    assert RECORDS[FIRST + index].first <= found(records) <= RECORDS[FIRST + index].last
    if 0 < index < STEPS - last:
        assert loaded(records).state == LIVE.state
    else:
        with pytest.raises(Problem):
            loaded(records)


@pytest.mark.parametrize("index", range(STEPS - 1))
def test_steps_that_are_out_of_order_are_refused(index: int) -> None:
    at = FIRST + index
    one, other = RECORDS[at : at + 2]
    swapped = [*RECORDS[:at], one._replace(entries=other.entries), other._replace(entries=one.entries)]
    dropped, doubled = [*RECORDS[:at], *RECORDS[at + 1 :]], [*RECORDS[: at + 1], *RECORDS[at:]]
    for records in ([*swapped, *RECORDS[at + 2 :]], dropped, doubled):
        with pytest.raises(Problem):
            loaded(records)


def test_a_step_after_the_end_or_before_the_admission_is_refused() -> None:
    live = Live.admit(max_new=3)
    for step in range(3):
        live.turn(50 + step)
    records = [read(record) for record in live.records]
    assert live.state.status is Status.CLOSED
    for damaged in ([*records, records[-1]], records[1:], [*records[:-1], *records[-1:] * 2]):
        with pytest.raises(Problem):
            loaded(damaged)


@pytest.mark.contract("FSM-7", "FSM-8")
@pytest.mark.parametrize("end", range(2, STEPS))
def test_a_run_that_goes_on_where_an_end_was_due_is_refused(end: int) -> None:
    """By one step, whose receipt is that of a state in which no end is due."""
    live = Live.admit(max_new=end)
    for step in range(end):
        live.turn(50 + step)
    events, due = live.events[:-1], live.states[-2]
    assert due.due == (FinishReason.LENGTH,)
    beyond = Live(events, [due._replace(due=())])
    beyond.turn(50 + end)
    log = beyond.events[:-1]
    steps = [read(append(log[at : at + 3], at + 1)) for at in range(1, len(log), 3)]
    assert len(steps_of(steps)) == end + 1
    with pytest.raises(Problem, match="is due"):
        loaded([append(log[:1], 1), *steps])


@pytest.mark.contract("FSM-10")
def test_steps_after_a_spent_retry_budget_are_refused() -> None:
    live = Live.admit(retry_budget=1)
    live.attempt()
    for _ in range(2):
        live.turn(50)
    records = [read(record) for record in live.records]
    failure = append([CallFailed("call_failed", "a fault")], 6)
    assert loaded([*records[:-1], failure, records[-1]]).state == live.state
    with pytest.raises(Problem, match="retry budget"):
        loaded([*records[:-1], failure, failure, records[-1]])
