"""What each state makes of each command: events, nothing, or a typed rejection that changes nothing."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from itertools import product
from typing import get_args

import pytest
from jobs import call, decision, prompt_tokens, scores_of
from situations import SITUATIONS, STATES, held, pending

from decodelog.fsm.errors import Problem
from decodelog.fsm.machine.compiled import target
from decodelog.fsm.machine.events import expand
from decodelog.fsm.machine.fold import fold
from decodelog.fsm.machine.state import NO_RECEIPT, State
from decodelog.fsm.machine.states import Status, Trigger
from decodelog.fsm.machine.transition import (
    CloseRequest,
    Command,
    CommitOutput,
    CompleteCall,
    FailCall,
    FailRequest,
    RebuildLanes,
    RecordPrompt,
    StartAttempt,
    TakeStep,
    transition,
)
from decodelog.fsm.request.finish import FinishReason

COMMANDS: dict[str, Callable[[State], Command]] = {
    "start": lambda state: StartAttempt(2, "worker-2"),
    "start_again": lambda state: StartAttempt(state.tenure.fence, "worker-1"),
    "call": call,
    "call_short": lambda state: CompleteCall(state.frontier.unprocessed - 1, state.frontier.processed, b"s" * 32),
    "fail": lambda state: FailCall("call_failed", "detail"),
    "rebuild": lambda state: RebuildLanes(
        "prefill",
        state.frontier.processed,
        state.frontier.processed,
        scores_of(state) if state.status is Status.PREFILLED else b"",
    ),
    "record": lambda state: RecordPrompt(prompt_tokens(state)),
    "decide": lambda state: decision(60),
    "commit": lambda state: CommitOutput(),
    "commit_held": lambda state: CommitOutput(held(state)),
    "commit_other": lambda state: CommitOutput(b"\x07" * 32),
    "commit_zeros": lambda state: CommitOutput(NO_RECEIPT),
    "step": lambda state: TakeStep(call(state), decision(60)),
    "cancel": lambda state: CloseRequest(FinishReason.CANCELLED),
    "time_out": lambda state: CloseRequest(FinishReason.TIMEOUT),
    "close_length": lambda state: CloseRequest(FinishReason.LENGTH),
    "close_stop": lambda state: CloseRequest(FinishReason.STOP_TOKEN),
    "close_eos": lambda state: CloseRequest(FinishReason.EOS),
    "give_up": lambda state: FailRequest("artifact_gone", "detail"),
}

TABLE = """
ADMITTED   start         -> attempt.started
ADMITTED   start_again   !! broken_invariant
ADMITTED   call          -> call.completed
ADMITTED   call_short    !! broken_invariant
ADMITTED   fail          -> call.failed
ADMITTED   rebuild       !! illegal_transition
ADMITTED   record        !! broken_invariant
ADMITTED   decide        !! illegal_transition
ADMITTED   commit        !! illegal_transition
ADMITTED   commit_held   !! illegal_transition
ADMITTED   commit_other  !! illegal_transition
ADMITTED   commit_zeros  !! illegal_transition
ADMITTED   step          -> call.completed, decision.made, output.committed
ADMITTED   cancel        -> request.closed
ADMITTED   time_out      -> request.closed
ADMITTED   close_length  !! broken_invariant
ADMITTED   close_stop    !! broken_invariant
ADMITTED   close_eos     !! broken_invariant
ADMITTED   give_up       -> request.failed

PREFILLED  start         -> attempt.started
PREFILLED  start_again   !! broken_invariant
PREFILLED  call          !! illegal_transition
PREFILLED  call_short    !! illegal_transition
PREFILLED  fail          -> call.failed
PREFILLED  rebuild       -> lanes.rebuilt
PREFILLED  record        !! broken_invariant
PREFILLED  decide        -> decision.made
PREFILLED  commit        !! illegal_transition
PREFILLED  commit_held   -> nothing
PREFILLED  commit_other  !! receipt_conflict
PREFILLED  commit_zeros  !! receipt_conflict
PREFILLED  step          !! illegal_transition
PREFILLED  cancel        -> request.closed
PREFILLED  time_out      -> request.closed
PREFILLED  close_length  !! broken_invariant
PREFILLED  close_stop    !! broken_invariant
PREFILLED  close_eos     !! broken_invariant
PREFILLED  give_up       -> request.failed

DECIDED    start         -> attempt.started
DECIDED    start_again   !! broken_invariant
DECIDED    call          !! illegal_transition
DECIDED    call_short    !! illegal_transition
DECIDED    fail          !! illegal_transition
DECIDED    rebuild       !! illegal_transition
DECIDED    record        !! illegal_transition
DECIDED    decide        !! illegal_transition
DECIDED    commit        -> output.committed
DECIDED    commit_held   -> output.committed
DECIDED    commit_other  !! receipt_conflict
DECIDED    commit_zeros  !! receipt_conflict
DECIDED    step          !! illegal_transition
DECIDED    cancel        -> request.closed
DECIDED    time_out      -> request.closed
DECIDED    close_length  !! broken_invariant
DECIDED    close_stop    !! broken_invariant
DECIDED    close_eos     !! broken_invariant
DECIDED    give_up       -> request.failed

PENDING    start         -> attempt.started
PENDING    start_again   !! broken_invariant
PENDING    call          -> call.completed
PENDING    call_short    !! broken_invariant
PENDING    fail          -> call.failed
PENDING    rebuild       -> lanes.rebuilt
PENDING    record        !! illegal_transition
PENDING    decide        !! illegal_transition
PENDING    commit        !! illegal_transition
PENDING    commit_held   -> nothing
PENDING    commit_other  !! receipt_conflict
PENDING    commit_zeros  !! receipt_conflict
PENDING    step          -> call.completed, decision.made, output.committed
PENDING    cancel        -> request.closed
PENDING    time_out      -> request.closed
PENDING    close_length  !! broken_invariant
PENDING    close_stop    !! broken_invariant
PENDING    close_eos     !! broken_invariant
PENDING    give_up       -> request.failed

CLOSED     start         !! terminal
CLOSED     start_again   !! terminal
CLOSED     call          !! terminal
CLOSED     call_short    !! terminal
CLOSED     fail          !! terminal
CLOSED     rebuild       !! terminal
CLOSED     record        !! terminal
CLOSED     decide        !! terminal
CLOSED     commit        !! terminal
CLOSED     commit_held   -> nothing
CLOSED     commit_other  !! terminal
CLOSED     commit_zeros  !! terminal
CLOSED     step          !! terminal
CLOSED     cancel        !! terminal
CLOSED     time_out      !! terminal
CLOSED     close_length  !! terminal
CLOSED     close_stop    !! terminal
CLOSED     close_eos     !! terminal
CLOSED     give_up       !! terminal

FAILED     start         !! terminal
FAILED     start_again   !! terminal
FAILED     call          !! terminal
FAILED     call_short    !! terminal
FAILED     fail          !! terminal
FAILED     rebuild       !! terminal
FAILED     record        !! terminal
FAILED     decide        !! terminal
FAILED     commit        !! terminal
FAILED     commit_held   -> nothing
FAILED     commit_other  !! terminal
FAILED     commit_zeros  !! terminal
FAILED     step          !! terminal
FAILED     cancel        !! terminal
FAILED     time_out      !! terminal
FAILED     close_length  !! terminal
FAILED     close_stop    !! terminal
FAILED     close_eos     !! terminal
FAILED     give_up       !! terminal
"""

# What one state makes of a command can depend on what the request asked for and on what came before.
SPECIAL = """
FRESH           start         -> attempt.started
FRESH           start_again   !! broken_invariant
FRESH           call          -> call.completed
FRESH           commit_zeros  !! illegal_transition

LAST            commit        -> output.committed, request.closed
LAST            commit_held   -> output.committed, request.closed
LAST            commit_other  !! receipt_conflict
LAST            cancel        -> request.closed
LAST            close_eos     !! broken_invariant

SPENT           fail          -> call.failed, request.failed
SPENT           call          -> call.completed
SPENT           start         -> attempt.started
SPENT           rebuild       -> lanes.rebuilt

CANCELLED       commit        !! terminal
CANCELLED       commit_held   -> nothing
CANCELLED       decide        !! terminal
CANCELLED       cancel        !! terminal

NO_CALL         start         -> attempt.started
NO_CALL         call          !! broken_invariant
NO_CALL         fail          !! broken_invariant
NO_CALL         close_length  -> request.closed
NO_CALL         close_eos     !! broken_invariant
NO_CALL         cancel        -> request.closed

PREFILL_ONLY    close_length  !! broken_invariant
PREFILL_ONLY    call          -> call.completed
PREFILL_ONLY    fail          -> call.failed
PREFILL_ONLY    cancel        -> request.closed

ECHO            record        -> prompt.recorded
ECHO            call          -> call.completed
ECHO            commit_zeros  !! illegal_transition

ECHOED          record        !! broken_invariant
ECHOED          call          -> call.completed
ECHOED          commit_held   !! illegal_transition
ECHOED          commit_other  !! illegal_transition

UNECHOED        record        !! broken_invariant
UNECHOED        decide        !! broken_invariant
UNECHOED        cancel        -> request.closed

SCORED          record        -> prompt.recorded
SCORED          decide        !! broken_invariant
SCORED          rebuild       -> lanes.rebuilt
SCORED          start         -> attempt.started

TO_SCORE        record        !! broken_invariant
TO_SCORE        call          -> call.completed

RECORDED        record        !! broken_invariant
RECORDED        decide        -> decision.made
RECORDED        rebuild       -> lanes.rebuilt
RECORDED        commit_held   !! illegal_transition

REPAIR          close_stop    !! broken_invariant
REPAIR          call          -> call.completed
REPAIR          fail          -> call.failed
REPAIR          rebuild       -> lanes.rebuilt
REPAIR          decide        !! illegal_transition
REPAIR          cancel        -> request.closed

REPAIRED        close_stop    -> request.closed
REPAIRED        close_eos     !! broken_invariant
REPAIRED        decide        !! broken_invariant
REPAIRED        call          !! illegal_transition
REPAIRED        rebuild       !! broken_invariant
REPAIRED        cancel        -> request.closed

ECHO_NO_CALL    close_length  !! broken_invariant
ECHO_NO_CALL    record        -> prompt.recorded

SCORE_ONLY      close_length  !! broken_invariant
SCORE_ONLY      record        -> prompt.recorded
SCORE_ONLY      decide        !! broken_invariant

ZERO_PREFILLED  record        !! broken_invariant
ZERO_PREFILLED  decide        !! broken_invariant
ZERO_PREFILLED  rebuild       !! broken_invariant
ZERO_PREFILLED  close_length  -> request.closed
ZERO_PREFILLED  time_out      -> request.closed
"""

ROW = re.compile(r"^(\w+) +(\w+) +(->|!!) +(.+)$")


def rows(table: str) -> list[tuple[str, str, str, str]]:
    matches = [ROW.fullmatch(line) for line in table.splitlines() if line]
    assert None not in matches
    return [match.groups() for match in matches]  # type: ignore[misc, union-attr]


@pytest.mark.contract("FSM-1", "FSM-5", "FSM-7", "FSM-8", "FSM-9", "FSM-10")
@pytest.mark.parametrize(("situation", "name", "arrow", "outcome"), [*rows(TABLE), *rows(SPECIAL)])
def test_each_state_makes_of_each_command_what_the_table_says(
    situation: str, name: str, arrow: str, outcome: str
) -> None:
    live = {**STATES, **SITUATIONS}[situation]()
    state, command = live.state, COMMANDS[name](live.state)
    before = copy.deepcopy(state)
    if arrow == "!!":
        with pytest.raises(Problem) as caught:
            transition(state, command)
        assert caught.value.code == outcome
        assert str(caught.value)
    else:
        proposal = transition(state, command)
        tags = [event.tag for event in proposal.events]
        assert ", ".join(tags) == outcome.replace("nothing", "")
        status, after = state.status, state
        for entry, proposed in zip(proposal.entries, proposal.states, strict=True):
            for event in expand([entry]):
                status, after = target(status, Trigger(event.tag)), fold(after, event)
            assert (after, after.status) == (proposed, status)
        assert proposal.state == after
    assert state == before


@pytest.mark.contract("FSM-1")
def test_the_table_has_every_state_with_every_command_once() -> None:
    pairs = [(state, command) for state, command, _, _ in rows(TABLE)]
    assert sorted(pairs) == sorted(product((status.value for status in Status), COMMANDS))
    assert all(make().state.status.value == name for name, make in STATES.items())
    special = [(situation, command) for situation, command, _, _ in rows(SPECIAL)]
    assert {situation for situation, _ in special} == set(SITUATIONS)
    assert len(special) == len(set(special))


@pytest.mark.contract("FSM-1")
def test_every_kind_of_command_and_every_trigger_is_in_the_table() -> None:
    assert {type(make(pending().state)) for make in COMMANDS.values()} == set(get_args(Command))
    every = [*rows(TABLE), *rows(SPECIAL)]
    told = {tag for _, _, arrow, outcome in every if arrow == "->" for tag in outcome.split(", ")}
    assert told - {"nothing"} == {trigger.value for trigger in Trigger}
