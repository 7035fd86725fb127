"""The table of the machine is whole, and a table that is not is refused before anything runs."""

from __future__ import annotations

import importlib.util
from itertools import product

import pytest

from decodelog.fsm.errors import BrokenTable, IllegalTransition
from decodelog.fsm.machine import compiled as machine
from decodelog.fsm.machine import table
from decodelog.fsm.machine.compiled import TABLE, build, check, compile_table, target
from decodelog.fsm.machine.states import Status, Trigger
from decodelog.fsm.machine.table import INITIAL, ROWS

pytestmark = pytest.mark.contract("FSM-1")

A, P, D, N, C, F = Status
PAIRS = list(product(Status, Trigger))


def test_the_six_states_are_the_contract_s() -> None:
    assert [status.value for status in Status] == ["ADMITTED", "PREFILLED", "DECIDED", "PENDING", "CLOSED", "FAILED"]
    assert [status for status in Status if status.terminal] == [C, F]


@pytest.mark.parametrize(("status", "trigger"), PAIRS, ids=lambda value: value.value)
def test_the_compiled_table_says_what_the_library_s_machine_says(status: Status, trigger: Trigger) -> None:
    found = [transition.dest for transition in build().get_transitions(trigger.value, status.value)]
    assert found == ([TABLE[status, trigger].value] if (status, trigger) in TABLE else [])


def test_the_library_s_machine_knows_no_other_state_or_trigger() -> None:
    built = build()
    assert built.initial == INITIAL.value
    assert set(built.states) == {status.value for status in Status}
    assert set(built.events) == {trigger.value for trigger in Trigger}
    assert built.models == []


@pytest.mark.parametrize(("status", "trigger"), PAIRS, ids=lambda value: value.value)
def test_a_pair_outside_the_table_is_an_illegal_transition(status: Status, trigger: Trigger) -> None:
    if (status, trigger) in TABLE:
        assert target(status, trigger) is TABLE[status, trigger]
        return
    with pytest.raises(IllegalTransition) as caught:
        target(status, trigger)
    assert (caught.value.state, caught.value.trigger) == (status.value, trigger.value)


def test_the_compiled_table_cannot_be_edited() -> None:
    with pytest.raises(TypeError):
        TABLE[C, Trigger.CALL_COMPLETED] = P  # type: ignore[index]


def without(*removed: tuple[Trigger, Status]) -> list[machine.Row]:
    return [row for row in ROWS if (row[0], row[1]) not in removed]


BROKEN = {
    "a state without a path to it": (
        [row for row in ROWS if row[2] is not N],
        r"no path from ADMITTED to .*PENDING",
    ),
    "states with a path only from each other": (
        [*without((Trigger.DECISION_MADE, P)), (Trigger.DECISION_MADE, N, D)],
        r"no path from ADMITTED to .*DECIDED.*PENDING",
    ),
    "two targets for one pair": ([*ROWS, (Trigger.CALL_COMPLETED, A, N)], "call.completed from ADMITTED has 2 targets"),
    "a row written twice": ([*ROWS, ROWS[0]], "call.completed from ADMITTED has 2 targets"),
    "a way out of CLOSED": ([*ROWS, (Trigger.CALL_COMPLETED, C, P)], "CLOSED is terminal and has an exit"),
    "a way out of FAILED": ([*ROWS, (Trigger.ATTEMPT_STARTED, F, A)], "FAILED is terminal and has an exit"),
    "a trigger that a terminal state takes and ignores": (
        [*ROWS, (Trigger.REQUEST_CLOSED, C, C)],
        "CLOSED is terminal and has an exit",
    ),
    "a trigger that nothing takes": (
        without((Trigger.LANES_REBUILT, P), (Trigger.LANES_REBUILT, N)),
        "no state takes .*lanes.rebuilt",
    ),
    "a live state that never ends": (
        [
            *without((Trigger.OUTPUT_COMMITTED, D), (Trigger.REQUEST_CLOSED, D), (Trigger.REQUEST_FAILED, D)),
            (Trigger.OUTPUT_COMMITTED, P, N),
        ],
        "DECIDED is live and has no exit",
    ),
    "no row at all": ([], "no path from ADMITTED"),
}


@pytest.mark.parametrize(("rows", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_table_is_refused(rows: list[machine.Row], reason: str) -> None:
    with pytest.raises(BrokenTable, match=reason):
        check(compile_table(build(rows)))


def test_a_broken_table_is_refused_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("decodelog.fsm.machine.again", machine.__file__)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(again := importlib.util.module_from_spec(spec))
    assert again.TABLE == TABLE
    monkeypatch.setattr(table, "ROWS", (*ROWS, (Trigger.CALL_COMPLETED, C, P)))
    with pytest.raises(BrokenTable, match="CLOSED is terminal"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
