"""Folding a log: the same state as the live one, and no state at all from a log that was changed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from jobs import EOS, Live, call, crank, drawn, prompt_tokens, request, scores_of, selection

from decodelog.fsm.errors import BrokenInvariant, IllegalTransition, Problem, ReceiptConflict, Terminal
from decodelog.fsm.events import (
    STATE_BYTES,
    DecisionMade,
    Event,
    LanesRebuilt,
    OutputCommitted,
    RequestAdmitted,
    RequestClosed,
)
from decodelog.fsm.finish import FROM_OUTSIDE, FinishReason, rank
from decodelog.fsm.fold import committed, fold, fold_all
from decodelog.fsm.machine import TABLE
from decodelog.fsm.next_step import Step, due_reasons, next_step
from decodelog.fsm.output.detector import SEEKING, Detection
from decodelog.fsm.output.json_value import Scan
from decodelog.fsm.output.standing import Standing
from decodelog.fsm.output.structure import BEGUN, Structure
from decodelog.fsm.spec import Spec
from decodelog.fsm.state import Ending, State
from decodelog.fsm.states import Status, Suffix, Trigger
from decodelog.fsm.transition import (
    CloseRequest,
    Command,
    CommitOutput,
    CompleteCall,
    FailCall,
    FailRequest,
    IssueDecision,
    RebuildLanes,
    RecordPrompt,
    StartAttempt,
    transition,
)

# ---- every history: replay equals live -------------------------------------------------------------------------

PIECES = ["a", "b", "ab", "ba", "aab", "€", "\N{GRINNING FACE}", "\n", ""]
pieces = st.one_of(st.sampled_from(PIECES).map(str.encode), st.sampled_from([b"\xe2\x82", b"\xac", b"\xff"]))
STOPS = [["ab"], ["bab", "ba"], ["aa\n", "€a", "b\N{GRINNING FACE}"], []]
ENDS = (EOS, 3, 4)
choices = st.builds(
    lambda token, shape, piece, hidden: IssueDecision(
        (selection(token), drawn(token), drawn(token, 0.0))[shape], piece, hidden
    ),
    st.integers(EOS, 30),
    st.integers(0, 2),
    pieces,
    st.sampled_from([False, False, True]),
)
requests = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 9), min_size=1, max_size=3),
        "max_new": st.integers(4, 12),
        "min_new": st.integers(0, 4),
        "context": st.sampled_from([60, 60, 8]),
        "retry_budget": st.sampled_from([5, 5, 1, 0]),
        "eos": st.sets(st.sampled_from(ENDS)).map(sorted),
        "stop": st.sampled_from(STOPS),
        "stop_ids": st.sets(st.sampled_from(ENDS)).map(sorted),
        "include_stop": st.booleans(),
        "alignment": st.sampled_from(["text", "token", "span"]),
        "final_cache": st.sampled_from(["pending", "repaired"]),
        "skip_special": st.booleans(),
        "order": st.permutations([reason.value for reason in FinishReason]),
    }
)
ONE_OF_EACH: dict[Trigger, Command] = {
    Trigger.ATTEMPT_STARTED: StartAttempt(10**6, "worker"),
    Trigger.LANES_REBUILT: RebuildLanes("prefill", 0),
    Trigger.CALL_COMPLETED: CompleteCall(1, 4, b"s" * 32),
    Trigger.CALL_FAILED: FailCall("call_failed"),
    Trigger.PROMPT_RECORDED: RecordPrompt(()),
    Trigger.DECISION_MADE: IssueDecision(selection(50), b"x"),
    Trigger.OUTPUT_COMMITTED: CommitOutput(),
    Trigger.REQUEST_CLOSED: CloseRequest(FinishReason.CANCELLED),
    Trigger.REQUEST_FAILED: FailRequest("artifact_gone"),
}
interruptions = st.sampled_from([*map(CloseRequest, sorted(FROM_OUTSIDE)), FailRequest("artifact_gone")])
live = precondition(lambda self: not self.state.status.terminal)


class AnyHistory(RuleBasedStateMachine):
    """One live job under every command in any order, faults and crashes included."""

    @initialize(options=requests)
    def admit(self, options: dict[str, Any]) -> None:
        self.live = Live.admit(**options)
        self.replayed = [fold_all(self.live.events)]
        self.decisions: list[IssueDecision] = []

    @property
    def state(self) -> State:
        return self.live.state

    def takes(self, trigger: Trigger) -> bool:
        return (self.state.status, trigger) in TABLE

    @live
    @rule(choice=choices)
    def step(self, choice: IssueDecision) -> None:
        """What `next_step` owes, alone in its append."""
        owed = next_step(self.state)
        if owed is Step.CLOSE:
            assert self.state.spec.repaired
            self.live.do(CloseRequest(self.state.due[0]))
            return
        self.live.do({Step.CALL: call(self.state), Step.DECIDE: choice, Step.COMMIT: CommitOutput()}[owed])
        self.decisions += [choice] if owed is Step.DECIDE else []

    @live
    @rule(turns=st.lists(choices, min_size=1, max_size=4))
    def turns(self, turns: list[IssueDecision]) -> None:
        """Whole turns, each in one append."""
        for choice in turns:
            if self.takes(Trigger.CALL_COMPLETED) and not self.state.due:
                self.live.do(call(self.state), choice, CommitOutput())
                self.decisions.append(choice)

    @rule(skipped=st.integers(1, 3))
    def crash(self, skipped: int) -> None:
        """Everything but the log is lost; another worker takes over and brings the lanes back."""
        restored = fold_all(self.live.events)
        assert restored == self.state
        self.live.states[-1] = restored
        if self.state.status.terminal:
            return
        self.live.attempt(self.state.tenure.fence + skipped)
        if self.takes(Trigger.LANES_REBUILT) and not due_reasons(self.state):
            scores = scores_of(self.state) if self.state.status is Status.PREFILLED else b""
            self.live.do(RebuildLanes("prefill", self.state.frontier.processed, scores))

    @precondition(lambda self: self.takes(Trigger.CALL_FAILED) and not due_reasons(self.state))
    @rule()
    def fail_call(self) -> None:
        before = self.state
        self.live.do(FailCall("call_failed", "a fault"))
        spent = before.tenure.failures == before.spec.retry_budget
        assert self.state.status is (Status.FAILED if spent else before.status)
        assert self.state.frontier[:4] == before.frontier[:4]
        assert self.state.scores == (b"" if spent else before.scores)

    @precondition(lambda self: not self.state.status.terminal and len(self.live.events) > 15)
    @rule(end=interruptions)
    def interrupt(self, end: Command) -> None:
        output = self.state.frontier.output
        self.live.do(end)
        assert self.state.frontier.output == output

    # ---- what comes twice, too late, or from elsewhere changes nothing

    def refused(self, command: Command) -> type[Problem]:
        before, length = self.state, len(self.live.events)
        with pytest.raises(Problem) as caught:
            self.live.do(command)
        assert (self.state, len(self.live.events)) == (before, length)
        return type(caught.value)

    @invariant()
    def a_command_that_the_table_does_not_take_is_refused(self) -> None:
        wanted = Terminal if self.state.status.terminal else IllegalTransition
        for trigger, command in ONE_OF_EACH.items():
            if not self.takes(trigger):
                assert self.refused(command) is wanted

    @invariant()
    def a_receipt_is_consumed_once_and_no_other_takes_its_place(self) -> None:
        before, length, status = self.state, len(self.live.events), self.state.status
        if self.state.frontier.output:
            assert self.live.do(CommitOutput(self.state.last_receipt)).events == ()
            assert (self.state, len(self.live.events)) == (before, length)
        decided = self.state.frontier.output > 0 or status is Status.DECIDED
        wanted = Terminal if status.terminal else ReceiptConflict if decided else IllegalTransition
        assert self.refused(CommitOutput(b"\7" * 32)) is wanted

    @invariant()
    def no_reason_that_does_not_hold_and_no_fence_that_is_old_is_taken(self) -> None:
        if not self.state.status.terminal:
            for reason in set(FinishReason) - FROM_OUTSIDE if not due_reasons(self.state) else ():
                assert self.refused(CloseRequest(reason)) is BrokenInvariant
            assert self.refused(StartAttempt(self.state.tenure.fence, "worker")) is BrokenInvariant

    # ---- what always holds

    @invariant()
    def replay_equals_live_at_every_length(self) -> None:
        for event in self.live.events[len(self.replayed) :]:
            self.replayed.append(fold(self.replayed[-1], event))
        assert self.replayed == self.live.states
        assert self.replayed[-1].digest() == self.state.digest()

    @invariant()
    def the_frontiers_balance(self) -> None:
        prompt, output, processed, unprocessed, suffix = self.state.frontier
        status = self.state.status
        assert processed + unprocessed == prompt + output
        closed = state_closed_by_itself(self.state)
        if closed and output:
            assert unprocessed == (0 if self.state.spec.repaired else 1)
        if status in (Status.PREFILLED, Status.DECIDED):
            assert (unprocessed, suffix) == (0, Suffix.EMPTY)
        elif status.terminal:
            assert suffix is (Suffix.CLOSED_UNPROCESSED if unprocessed else Suffix.EMPTY)
        else:
            assert (unprocessed, suffix) == (prompt if status is Status.ADMITTED else 1, Suffix.PENDING_NEXT_CALL)

    @invariant()
    def only_some_states_hold_a_receipt_a_score_row_or_an_ending(self) -> None:
        status = self.state.status
        assert (self.state.receipt is not None) == (status is Status.DECIDED)
        assert bool(self.state.scores) == (status in (Status.PREFILLED, Status.DECIDED))
        assert (self.state.ending is not None) == status.terminal

    @invariant()
    def the_text_is_one_decode_cut_at_the_first_stop(self) -> None:
        check_text(self.live, self.decisions)

    @invariant()
    def a_stream_from_any_sequence_is_exactly_the_rest(self) -> None:
        transcript = self.live.transcript
        seen, last = "", 0
        for emission in transcript.emissions:
            assert emission.sequence > last
            assert emission.characters == len(seen)
            seen, last = seen + emission.text, emission.sequence
        assert seen == transcript.text
        tokens = [token for emission in transcript.emissions for token in emission.tokens]
        assert [token.token for token in tokens] == transcript.token_ids[: len(tokens)]


def state_closed_by_itself(state: State) -> bool:
    return state.status is Status.CLOSED and FROM_OUTSIDE.isdisjoint(state.due)


def check_text(live: Live, decisions: list[IssueDecision]) -> None:
    """The text is what plain search over the whole gives, with the tokens that it is made of."""
    state, transcript = live.state, live.transcript
    output = state.frontier.output
    whole = search(decisions[:output], state.spec)
    tokens = [token for emission in transcript.emissions for token in emission.tokens]
    places = [token.place for token in tokens]
    assert whole.text.startswith(transcript.text)
    assert places == whole.places[: len(places)]
    if state.status.terminal:
        assert (transcript.text, places) == (whole.text, whole.places)
    assert whole.stopped in (None, output)
    assert (FinishReason.STOP_STRING in state.due) == (whole.stopped is not None)
    for token in tokens:
        assert (token.token, token.piece) == (decisions[token.place].selection.token, decisions[token.place].piece)
        assert (token.byte_offset, token.end) == whole.ranges[token.place]
        assert token.character_offset == len(
            [begin for begin in characters(whole.data)[1:] if begin <= token.byte_offset]
        )


def characters(data: bytes) -> list[int]:
    """Where each character begins, and where the last one ends: a whole one, or the longest beginning of one."""
    begins = [0]
    while data[begins[-1] :]:
        rest = data[begins[-1] :]
        size = next((size for size in range(1, 5) if "\ufffd" not in rest[:size].decode("utf-8", "replace")), 0)
        if not size:
            with pytest.raises(UnicodeDecodeError) as caught:
                rest.decode()
            size = caught.value.end
        begins.append(begins[-1] + size)
    return begins


class Whole(NamedTuple):
    """By plain search over the whole: the text, the places of its tokens, and the output number at which a stop
    string completed; with all bytes, and the range of each token in them."""

    text: str
    places: list[int]
    stopped: int | None
    data: bytes
    ranges: list[tuple[int, int]]


def search(decisions: list[IssueDecision], spec: Spec) -> Whole:
    """The stop that ends first counts, of these the longest; it counts from output number min_new_tokens on.

    A hidden token is not visible, and is a stop where it equals one.
    """
    data, ranges, found = b"", list[tuple[int, int]](), None
    for output, choice in enumerate(decisions, 1):
        armed, begin = output >= spec.min_new_tokens, len(data)
        if choice.hidden and spec.skip_special:
            ranges.append((begin, begin))
            if armed and choice.piece in spec.matcher.stops:
                found = begin, begin, output
                break
            continue
        data += choice.piece
        ranges.append((begin, len(data)))
        for end in range(begin + 1, len(data) + 1) if armed else ():
            if sizes := [len(stop) for stop in spec.matcher.stops if data[:end].endswith(stop)]:
                found = end - max(sizes), end, output
                break
        if found:
            break
    start, end, stopped = found or (len(data), len(data), None)
    cut = end if spec.include_stop else start
    if spec.alignment == "token":
        ends = [last for _, last in ranges]
        cut = len(data) if spec.include_stop else max((last for last in ends if last <= start), default=0)
        places = [place for place, last in enumerate(ends) if last <= cut]
    else:
        places = [place for place, (first, last) in enumerate(ranges) if first < cut or first == last <= cut]
    places = places if spec.alignment != "span" else list(range(len(ranges)))
    # Hidden tokens that follow what was cut off go with it.
    places = [place for place in places if set(range(place)) <= set(places)]
    return Whole(data[:cut].decode("utf-8", "replace"), places, stopped, data, ranges)


@pytest.mark.contract("FSM-7", "OUT-2")
@given(requests, st.lists(choices, min_size=12, max_size=12))
def test_a_job_shows_one_decode_of_its_bytes_cut_at_the_stop_that_completed_first(options, decisions):
    live = Live.admit(**options)
    crank(live, lambda step: decisions[step])
    check_text(live, decisions)
    assert live.state.ending is not None
    assert live.state.ending.finish is rank(live.state.due, live.state.spec.finish_order)[0]


AnyHistory.TestCase.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=30)
TestAnyHistory = pytest.mark.contract("FSM-3", "FSM-4", "FSM-5", "FSM-7", "FSM-9", "FSM-10", "OUT-2", "OUT-7")(
    AnyHistory.TestCase
)


# ---- a changed log ---------------------------------------------------------------------------------------------


def eventful(end: Command) -> list[Event]:
    """A log with every event and with something in every field, in which a commit follows everything but its end."""
    live = Live.admit(stop=["ab"], retry_budget=2, echo=True, extras=[{"kind": "prompt_logprobs", "top": 2}])
    live.attempt()
    live.do(FailCall("call_failed", "a fault"))
    record = RecordPrompt(prompt_tokens(live.state))
    live.do(call(live.state), record, IssueDecision(drawn(50), b"xa", False, 1), CommitOutput())
    live.attempt(5)
    live.do(RebuildLanes("prefill", live.state.frontier.processed))
    live.do(call(live.state))
    live.do(RebuildLanes("reexecute", 2, b"r" * 32))
    live.do(IssueDecision(selection(51), b"a", True))
    live.attempt(9)
    live.do(CommitOutput())
    live.do(end)
    return live.events


LOST_ROW = LanesRebuilt("reexecute", 2, b"r" * 32)
LOGS = {"closed": eventful(CloseRequest(FinishReason.TIMEOUT)), "failed": eventful(FailRequest("artifact_gone", "why"))}

# What no decision depends on: only the chain of the log, and the fence that its appends carry, can witness these.
REPORTED = {
    ("request.admitted", "parent"),
    ("attempt.started", "fence"),
    ("attempt.started", "worker"),
    ("attempt.started", "facts"),
    ("lanes.rebuilt", "form"),
    ("lanes.rebuilt", "tokens"),
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
            for name in value._fields:
                yield from (value._replace(**{name: other}) for other in others(getattr(value, name)))
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


# ---- the digest that a commit carries ---------------------------------------------------------------------------


def decided_state() -> State:
    live = Live.admit(stop=["ab"])
    live.turn(50, b"x\xe2\x82")
    live.turn(51, b"\xaca")
    live.do(call(live.state), IssueDecision(drawn(52), b"y"))
    return live.state


BEFORE = decided_state()
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
}


@pytest.mark.contract("FSM-5", "FSM-6")
def test_the_digest_of_a_state_covers_every_field_that_a_decision_can_depend_on_and_no_tenure() -> None:
    assert {*OTHER_FIELDS, *UNBOUND} == set(State._fields)
    digests = [BEFORE.digest()]
    for name, values in OTHER_FIELDS.items():
        digests += [BEFORE._replace(**{name: value}).digest() for value in values]
    assert len(digests) > 40
    assert len(set(digests)) == len(digests)
    assert {BEFORE._replace(**{name: value}).digest() for name, value in UNBOUND.items()} == {BEFORE.digest()}


# ---- how a log begins, and what may not follow -----------------------------------------------------------------


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
def test_a_commit_is_proven_by_the_beginning_of_its_state_or_by_all_of_it() -> None:
    live = Live.admit()
    live.turn(50)
    decided, event = live.states[-2], live.events[-1]
    assert isinstance(event, OutputCommitted)
    whole = live.state.digest()
    assert event.state == whole[:STATE_BYTES]
    for size in (STATE_BYTES, 31, 32):
        assert fold(decided, OutputCommitted(1, whole[:size])) == live.state
    wrong = bytes([whole[0] ^ 1]) + whole[1:]
    for proof in (b"", whole[: STATE_BYTES - 1], wrong[:STATE_BYTES], wrong, whole[1:], whole + b"x"):
        with pytest.raises(BrokenInvariant, match="FSM-6"):
            fold(decided, OutputCommitted(1, proof))


@pytest.mark.contract("FSM-7")
def test_nothing_is_computed_after_a_finish_reason_has_fallen_due() -> None:
    live = Live.admit(stop_ids=[9])
    due = live.turn(9).states[-2]
    assert due.due == (FinishReason.STOP_TOKEN,)
    for command in (call(due), FailCall("call_failed"), RebuildLanes("prefill", 3)):
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
        transition(live.state, RebuildLanes("prefill", tokens))


@pytest.mark.contract("FSM-3", "FSM-5")
def test_a_rebuild_brings_a_score_row_exactly_where_one_was_lost() -> None:
    live = Live.admit()
    live.turn(50)
    with pytest.raises(BrokenInvariant, match="score row"):
        transition(live.state, RebuildLanes("prefill", 3, b"s" * 32))
    live.do(call(live.state))
    with pytest.raises(BrokenInvariant, match="score row"):
        transition(live.state, RebuildLanes("prefill", 4))
    before = live.state
    live.do(RebuildLanes("prefill", 4, b"s" * 32))
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
