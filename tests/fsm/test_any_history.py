"""Every history of a job: replay equals live, the frontiers balance, and the text is one decode of its bytes."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from jobs import Live, call, crank, scores_of, selection
from strategies import choices, requests

from decodelog.fsm.errors import BrokenInvariant, IllegalTransition, Problem, ReceiptConflict, Terminal
from decodelog.fsm.machine.compiled import TABLE
from decodelog.fsm.machine.fold import fold, fold_all
from decodelog.fsm.machine.next_step import Step, due_reasons, next_step
from decodelog.fsm.machine.spec import Spec
from decodelog.fsm.machine.state import State
from decodelog.fsm.machine.states import Status, Suffix, Trigger
from decodelog.fsm.machine.transition import (
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
)
from decodelog.fsm.request.finish import FROM_OUTSIDE, FinishReason, rank

ONE_OF_EACH: dict[Trigger, Command] = {
    Trigger.ATTEMPT_STARTED: StartAttempt(10**6, "worker"),
    Trigger.LANES_REBUILT: RebuildLanes("prefill", 0, 0),
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
        commands: dict[Step, Command] = {Step.CALL: call(self.state), Step.DECIDE: choice, Step.COMMIT: CommitOutput()}
        self.live.do(commands[owed])
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
            self.live.rebuild(scores)

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

    A hidden token is not visible, and is a stop where it equals one. A token that is a stop by its id is left out
    unless stops are to be included; where it also completes a stop string, what begins earlier counts.
    """
    data, ranges, found, withheld = b"", list[tuple[int, int]](), None, False
    for output, choice in enumerate(decisions, 1):
        armed, begin = output >= spec.min_new_tokens, len(data)
        withheld = armed and choice.selection.token in spec.stop_ids and not spec.include_stop
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
        if found or withheld:
            break
    start, end, stopped = found or (len(data), len(data), None)
    if withheld and ranges:
        start = min(start, ranges[-1][0])
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
def test_a_job_shows_one_decode_of_its_bytes_cut_at_the_first_stop(
    options: dict[str, Any], decisions: list[IssueDecision]
) -> None:
    """A job shows one decode of its bytes cut at the stop that completed first."""
    live = Live.admit(**options)
    crank(live, lambda step: decisions[step])
    check_text(live, decisions)
    assert live.state.ending is not None
    assert live.state.ending.finish is rank(live.state.due, live.state.spec.finish_order)[0]


AnyHistory.TestCase.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=30)
TestAnyHistory = pytest.mark.contract("FSM-3", "FSM-4", "FSM-5", "FSM-7", "FSM-9", "FSM-10", "OUT-2", "OUT-7")(
    AnyHistory.TestCase
)
