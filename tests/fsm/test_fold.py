"""Folding a log: how one begins and goes on, and no state at all from a log that was changed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest
from jobs import EOS, Live, call, drawn, prompt_tokens, request, selection

from decodelog.fsm.errors import BrokenInvariant, IllegalTransition, Problem
from decodelog.fsm.machine.commit import committed
from decodelog.fsm.machine.events import (
    STATE_BYTES,
    DecisionMade,
    Event,
    LanesRebuilt,
    OutputCommitted,
    RequestAdmitted,
    RequestClosed,
)
from decodelog.fsm.machine.fold import fold, fold_all
from decodelog.fsm.machine.state import Ending, State
from decodelog.fsm.machine.states import Status, Trigger
from decodelog.fsm.machine.transition import (
    CloseRequest,
    Command,
    CommitOutput,
    FailCall,
    FailRequest,
    IssueDecision,
    RebuildLanes,
    RecordPrompt,
    transition,
)
from decodelog.fsm.output.detector import SEEKING, Detection
from decodelog.fsm.output.json_value import Scan
from decodelog.fsm.output.standing import Standing
from decodelog.fsm.output.structure import BEGUN, Structure
from decodelog.fsm.request.finish import FinishReason

# ---- a changed log ---------------------------------------------------------------------------------------------------


def eventful(end: Command) -> list[Event]:
    """A log with every event and with something in every field, in which a commit follows everything but its end."""
    live = Live.admit(stop=["ab"], retry_budget=2, echo=True, extras=[{"kind": "prompt_logprobs", "top": 2}])
    live.attempt()
    live.do(FailCall("call_failed", "a fault"))
    record = RecordPrompt(prompt_tokens(live.state))
    live.do(call(live.state), record, IssueDecision(drawn(50), b"xa", False, 1), CommitOutput())
    live.attempt(5)
    live.rebuild()
    live.do(call(live.state))
    live.do(RebuildLanes("reexecute", 2, 2, b"r" * 32))
    live.do(IssueDecision(selection(51), b"a", True))
    live.attempt(9)
    live.do(CommitOutput())
    live.do(end)
    return live.events


LOST_ROW = LanesRebuilt("reexecute", 2, 2, b"r" * 32)
LOGS = {"closed": eventful(CloseRequest(FinishReason.TIMEOUT)), "failed": eventful(FailRequest("artifact_gone", "why"))}

# What no decision depends on: only the chain of the log, and the fence that its appends carry, can witness these.
REPORTED = {
    ("request.admitted", "parent"),
    ("attempt.started", "fence"),
    ("attempt.started", "worker"),
    ("attempt.started", "facts"),
    ("lanes.rebuilt", "form"),
    ("lanes.rebuilt", "tokens"),
    ("lanes.rebuilt", "prefilled"),
    ("call.failed", "cause"),
    ("call.failed", "detail"),
    ("request.failed", "cause"),
    ("request.failed", "detail"),
}


def others(value: Any) -> Iterator[Any]:
    """Values of the same type that differ from `value` in one place."""
    match value:
        case bool():
            yield not value
        case Enum():
            yield from (member for member in type(value) if member is not value)
        case int():
            yield from (value + 1, value - 1)
        case float():
            yield from (math.nextafter(value, math.inf), math.nextafter(value, -math.inf))
        case str():
            yield from (value + "x", value[1:])
        case bytes():
            for place in {0, len(value) // 2, len(value) - 1} if value else ():
                yield value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]
            yield from (value + b"\0", value[:-1]) if value else (b"\0",)
        case None:
            yield 0.5
        case tuple() if hasattr(value, "_fields"):
            named: Any = value
            for name in named._fields:
                yield from (named._replace(**{name: other}) for other in others(getattr(value, name)))
        case tuple():
            for place, item in enumerate(value):
                yield from ((*value[:place], other, *value[place + 1 :]) for other in others(item))
            yield from (value[:-1], (*value, *value[-1:])) if value else ()
        case _ if dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                changes = others(getattr(value, field.name))
                yield from (dataclasses.replace(value, **{field.name: other}) for other in changes)  # type: ignore[type-var]


def tampered(log: list[Event]) -> Iterator[tuple[int, str, list[Event]]]:
    """The log with one field of one event changed, once for each change: the event's index, the field, the log."""
    for index, event in enumerate(log):
        for field in dataclasses.fields(event):
            for other in others(getattr(event, field.name)):
                changed = dataclasses.replace(event, **{field.name: other})
                yield index, field.name, [*log[:index], changed, *log[index + 1 :]]


@pytest.mark.contract("FSM-5", "FSM-6", "LOG-3")
@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_a_log_with_any_field_of_any_event_changed_does_not_fold(log: list[Event]) -> None:
    whole = fold_all(log)
    unnoticed = set()
    for index, field, changed in tampered(log):
        if (state := folded(changed)) is None:
            continue
        assert state.digest() == whole.digest()
        # A score row that was lost before it was decided on is as if it had never been.
        if (field, log[index + 1 : index + 2]) != ("scores", [LOST_ROW]):
            unnoticed.add((log[index].tag, field))
    assert unnoticed == {(tag, field) for tag, field in REPORTED if tag in {event.tag for event in log}}


@pytest.mark.contract("FSM-5", "LOG-3")
def test_the_changed_logs_have_every_kind_of_event_and_every_field() -> None:
    seen = {event.tag for log in LOGS.values() for event in log}
    assert seen == {RequestAdmitted.tag, *(trigger.value for trigger in Trigger)}
    fields = {(log[index].tag, field) for log in LOGS.values() for index, field, _ in tampered(log)}
    assert fields == {(e.tag, f.name) for log in LOGS.values() for e in log for f in dataclasses.fields(e)}


@pytest.mark.contract("FSM-4", "LOG-3")
@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_a_log_with_a_fact_dropped_doubled_or_swapped_does_not_fold(log: list[Event]) -> None:
    reports = {tag for tag, _ in REPORTED if not tag.startswith("request")}  # their places are the sequence's to keep
    for index, event in enumerate(log):
        before, after = log[:index], log[index + 1 :]
        if event.tag in reports:
            continue
        assert folded([*before, event, event, *after]) is None
        if len(after) > 1:
            assert folded([*before, *after]) is None
        if after and after[0].tag not in reports:
            assert folded([*before, after[0], event, *after[1:]]) is None
    assert not fold_all(log[:-1]).status.terminal


def folded(log: list[Event]) -> State | None:
    try:
        return fold_all(log)
    except Problem:
        return None


# ---- the digest that a commit carries --------------------------------------------------------------------------------


def decided_state() -> State:
    live = Live.admit(stop=["ab"])
    live.turn(50, b"x\xe2\x82")
    live.turn(51, b"\xaca")
    live.do(call(live.state), IssueDecision(drawn(52), b"y"))
    return live.state


BEFORE = decided_state()
assert BEFORE.receipt is not None
D = b"d" * 16
SCANS = [Scan(), Scan(1), Scan(run=1), Scan(partial=b"a"), Scan(key=b""), Scan(key=b"k"), Scan(opened=(None,))]
SCANS += [Scan(opened=opened) for opened in [((),), ((D,),), ((D, D),), ((D,), ()), ((D,), (D,)), ((D,), None)]]
DETECTIONS = [Detection(node=1), Detection(scan=Scan(), closing=0), *(Detection(scan=scan) for scan in SCANS)]
OTHER_FIELDS: dict[str, list[Any]] = {
    "spec": [Live.admit("job-2").state.spec, Live.admit(max_new=9).state.spec],
    "status": [status for status in Status if status is not Status.DECIDED],
    "frontier": [frontier for frontier in others(BEFORE.frontier) if min(frontier[:4]) >= 0],
    "horizon": [horizon for horizon in others(BEFORE.horizon) if horizon.node >= 0],
    "receipt": [None, dataclasses.replace(BEFORE.receipt, receipt_id=b"r" * 32)],
    "last_receipt": list(others(BEFORE.last_receipt)),
    "scores": [b"", *others(BEFORE.scores)],
    "structure": [
        BEGUN,
        Structure(Standing.COMPLETE),
        Structure(Standing.INCOMPLETE, (SEEKING,)),
        Structure(Standing.INCOMPLETE, (SEEKING, SEEKING)),
        *(Structure(Standing.INCOMPLETE, (detection,)) for detection in DETECTIONS),
    ],
    "due": [(FinishReason.EOS,), (FinishReason.LENGTH,), (FinishReason.EOS, FinishReason.LENGTH)],
}
UNBOUND: dict[str, Any] = {
    "tenure": BEFORE.tenure._replace(attempt=7, fence=9, failures=1, recomputed=5),
    "delta": "another",
    "ending": Ending(FinishReason.EOS),
    "matched_stop": "another",
}


@pytest.mark.contract("FSM-5", "FSM-6")
def test_a_state_digest_covers_what_decisions_depend_on_and_no_tenure() -> None:
    """The digest of a state covers every field that a decision can depend on and no tenure."""
    assert {*OTHER_FIELDS, *UNBOUND} == set(State._fields)
    digests = [BEFORE.digest()]
    for name, values in OTHER_FIELDS.items():
        digests += [BEFORE._replace(**{name: value}).digest() for value in values]
    assert len(digests) > 40
    assert len(set(digests)) == len(digests)
    assert {BEFORE._replace(**{name: value}).digest() for name, value in UNBOUND.items()} == {BEFORE.digest()}


# ---- how a log begins, and what may not follow -----------------------------------------------------------------------


@pytest.mark.contract("FSM-4")
def test_a_log_begins_with_its_admission_and_has_only_one() -> None:
    log = LOGS["closed"]
    with pytest.raises(BrokenInvariant, match=r"begins with attempt\.started"):
        fold(None, log[1])
    with pytest.raises(BrokenInvariant, match=r"request\.admitted cannot follow"):
        fold_all([log[0], log[0]])
    with pytest.raises(BrokenInvariant, match="without events"):
        fold_all([])


@pytest.mark.contract("ENV-4")
def test_an_admission_that_is_not_in_canonical_form_is_refused() -> None:
    with pytest.raises(BrokenInvariant, match="ENV-4"):
        fold(None, RequestAdmitted("job-1", request() + b"\n"))


@pytest.mark.contract("FSM-1", "FSM-9")
@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_no_event_follows_the_end(log: list[Event]) -> None:
    ended = fold_all(log)
    for event in log[1:]:
        with pytest.raises(IllegalTransition):
            fold(ended, event)


@pytest.mark.contract("FSM-1")
def test_an_event_that_the_state_does_not_take_is_refused_and_names_both() -> None:
    live = Live.admit()
    live.do(call(live.state), IssueDecision(drawn(50), b"x"))
    with pytest.raises(IllegalTransition, match=r"DECIDED does not take decision\.made"):
        fold(live.state, live.events[-1])
    with pytest.raises(IllegalTransition, match=r"PREFILLED does not take output\.committed"):
        fold(live.states[-2], OutputCommitted(1, committed(live.state).digest()))


@pytest.mark.contract("FSM-4", "FSM-6", "LOG-5")
def test_a_commit_is_proven_by_the_beginning_of_its_state() -> None:
    live = Live.admit()
    live.turn(50)
    decided, event = live.states[-2], live.events[-1]
    assert isinstance(event, OutputCommitted)
    whole = live.state.digest()
    assert event.state == whole[:STATE_BYTES]
    assert fold(decided, event) == live.state
    wrong = bytes([whole[0] ^ 1]) + whole[1:]
    for proof in (b"", whole[: STATE_BYTES - 1], whole[: STATE_BYTES + 1], whole, wrong[:STATE_BYTES]):
        with pytest.raises(BrokenInvariant, match="FSM-6"):
            fold(decided, OutputCommitted(1, proof))


@pytest.mark.contract("FSM-7")
def test_nothing_is_computed_after_a_finish_reason_has_fallen_due() -> None:
    live = Live.admit(stop_ids=[9])
    due = live.turn(9).states[-2]
    assert due.due == (FinishReason.STOP_TOKEN,)
    for command in (call(due), FailCall("call_failed"), RebuildLanes("prefill", 3, 3)):
        with pytest.raises(BrokenInvariant, match="stop_token is due"):
            transition(due, command)


@pytest.mark.contract("FSM-10")
def test_nothing_but_the_failure_follows_a_spent_retry_budget() -> None:
    live = Live.admit(retry_budget=0)
    spent = live.do(FailCall("call_failed")).states[0]
    for command in (call(spent), FailCall("call_failed")):
        with pytest.raises(BrokenInvariant, match="retry budget is spent"):
            transition(spent, command)


@pytest.mark.contract("FSM-7")
@pytest.mark.parametrize(
    ("reason", "triggers"),
    [
        ("length", ["length"]),
        ("stop_token", ["stop_token"]),
        ("eos", ["stop_token", "eos"]),
        ("stop_token", ["eos", "stop_token"]),
        ("stop_token", ["stop_token", "eos", "length"]),
        ("stop_token", []),
        ("eos", ["eos"]),
        ("timeout", ["cancelled", "timeout", "stop_token", "eos"]),
    ],
)
def test_an_end_for_other_reasons_than_the_ones_that_hold_is_refused(reason: str, triggers: list[str]) -> None:
    live = Live.admit(stop_ids=[EOS])
    due = live.turn(EOS).states[-2]
    assert due.due == (FinishReason.STOP_TOKEN, FinishReason.EOS)
    fold(due, RequestClosed(due.due[0], due.due))
    with pytest.raises(BrokenInvariant, match="FSM-7"):
        fold(due, RequestClosed(FinishReason(reason), tuple(map(FinishReason, triggers))))


@pytest.mark.contract("FSM-3")
@pytest.mark.parametrize("tokens", [-1, 4])
def test_a_rebuild_of_more_than_was_processed_is_refused(tokens: int) -> None:
    live = Live.admit()
    live.turn(50)
    assert live.state.frontier.processed == 3
    with pytest.raises(BrokenInvariant, match="cannot rebuild"):
        transition(live.state, RebuildLanes("prefill", tokens, tokens))
    for prefilled in (tokens, 0):
        with pytest.raises(BrokenInvariant, match=f"a call of {prefilled} tokens is not in"):
            transition(live.state, RebuildLanes("tensors", 0, prefilled))


@pytest.mark.contract("FSM-3", "FSM-5")
def test_a_rebuild_brings_a_score_row_exactly_where_one_was_lost() -> None:
    live = Live.admit()
    live.turn(50)
    with pytest.raises(BrokenInvariant, match="score row"):
        transition(live.state, RebuildLanes("prefill", 3, 3, b"s" * 32))
    live.do(call(live.state))
    with pytest.raises(BrokenInvariant, match="score row"):
        transition(live.state, RebuildLanes("prefill", 4, 4))
    before = live.state
    live.do(RebuildLanes("prefill", 4, 4, b"s" * 32))
    assert live.state.scores == b"s" * 32
    assert live.state.digest() != before.digest()
    assert live.state.tenure.recomputed == 4


@pytest.mark.contract("FSM-5")
def test_a_receipt_is_adopted_only_by_the_state_that_issued_it() -> None:
    live = Live.admit()
    live.do(call(live.state))
    elsewhere = Live.admit("job-2")
    elsewhere.do(call(elsewhere.state), IssueDecision(drawn(50), b"x"))
    receipt = elsewhere.state.receipt
    assert receipt is not None
    with pytest.raises(BrokenInvariant, match="not this state's"):
        fold(live.state, DecisionMade(receipt))
