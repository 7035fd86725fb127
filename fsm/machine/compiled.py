"""The machine: built and checked with `transitions`, then compiled to a lookup for the step.

A trigger through the library costs microseconds and may raise half-way; the step asks a table compiled from the same
machine instead, and never attaches a model to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from transitions import Machine

from ..errors import BrokenTable, IllegalTransition
from .states import Status, Trigger
from .table import INITIAL, ROWS

Row = tuple[Trigger, Status, Status]
Table = Mapping[tuple[Status, Trigger], Status]


def build(rows: Iterable[Row] = ROWS) -> Machine:
    """The library's machine over `rows`, without a model and without its automatic `to_STATE` triggers."""
    return Machine(
        model=None,
        states=[status.value for status in Status],
        initial=INITIAL.value,
        transitions=[[trigger.value, source.value, target.value] for trigger, source, target in rows],
        auto_transitions=False,
        send_event=False,
    )


def compile_table(machine: Machine) -> Table:
    """Read every (state, trigger) pair out of the machine; two targets for one pair are a BrokenTable."""
    table: dict[tuple[Status, Trigger], Status] = {}
    for name, event in machine.events.items():
        for source, found in event.transitions.items():
            if len(found) != 1:
                raise BrokenTable(reason=f"{name} from {source} has {len(found)} targets")
            table[Status(source), Trigger(name)] = Status(str(found[0].dest))
    return MappingProxyType(table)


def check(table: Table) -> None:
    """Every state is reachable, terminal states have no exit, live states have one, every trigger is used."""
    reached, frontier = {INITIAL}, [INITIAL]
    while frontier:
        here = frontier.pop()
        for (source, _), target in table.items():
            if source is here and target not in reached:
                reached.add(target)
                frontier.append(target)
    if missing := set(Status) - reached:
        raise BrokenTable(reason=f"no path from {INITIAL} to {sorted(missing)}")
    if unused := set(Trigger) - {trigger for _, trigger in table}:
        raise BrokenTable(reason=f"no state takes {sorted(unused)}")
    for status in Status:
        exits = {target for (source, _), target in table.items() if source is status and target is not status}
        if status.terminal and any(source is status for source, _ in table):
            raise BrokenTable(reason=f"{status} is terminal and has an exit")
        if not status.terminal and not exits:
            raise BrokenTable(reason=f"{status} is live and has no exit")


TABLE: Table = compile_table(build())
check(TABLE)


def target(status: Status, trigger: Trigger) -> Status:
    """The state after `trigger`; a pair outside the table is an IllegalTransition and changes nothing."""
    try:
        return TABLE[status, trigger]
    except KeyError:
        raise IllegalTransition(state=status.value, trigger=trigger.value) from None
