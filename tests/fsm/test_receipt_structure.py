"""Where a grammar's parser stands is in each receipt, and decides with it how the job ends."""

from __future__ import annotations

from typing import Any

import pytest
from jobs import EOS, Live, call, selection

from decodelog.fsm.errors import BrokenInvariant, Terminal
from decodelog.fsm.machine.commit import cuts
from decodelog.fsm.machine.fold import fold_all
from decodelog.fsm.machine.states import Status
from decodelog.fsm.machine.transition import CloseRequest, CommitOutput, IssueDecision, transition
from decodelog.fsm.output.standing import Standing
from decodelog.fsm.output.stop_matcher import Match
from decodelog.fsm.request.finish import FinishReason

pytestmark = pytest.mark.contract("FSM-5")

GRAMMAR = {"policy.transforms": [{"kind": "grammar", "language": "regex", "source": "a+b?"}]}
INCOMPLETE, COMPLETE, TERMINATED, INVALID = Standing


def prefilled(**options: Any) -> Live:
    live = Live.admit(**options)
    live.do(call(live.state))
    return live


def structured(**options: Any) -> Live:
    return prefilled(**GRAMMAR, **options)


def turn(live: Live, token: int, piece: bytes, standing: Standing, hidden: bool = False) -> dict[str, Any]:
    if live.state.status is not Status.PREFILLED:
        live.do(call(live.state))
    live.do(IssueDecision(selection(token), piece, hidden, structure=standing), CommitOutput())
    return live.transcript.result()


@pytest.mark.contract("OUT-5")
def test_a_decision_names_a_parsers_standing_exactly_with_a_grammar() -> None:
    """A decision names a parser's standing exactly where there is a grammar."""
    with pytest.raises(BrokenInvariant, match="OUT-5"):
        transition(structured().state, IssueDecision(selection(50), b"a"))
    with pytest.raises(BrokenInvariant, match="OUT-5"):
        transition(prefilled().state, IssueDecision(selection(50), b"a", structure=COMPLETE))


@pytest.mark.contract("OUT-5", "FSM-6", "FSM-7")
@pytest.mark.parametrize(
    ("standing", "finish", "whole"),
    [
        (INCOMPLETE, "length", False),
        (COMPLETE, "length", True),
        (TERMINATED, "structured_complete", True),
        (INVALID, "structured_error", False),
    ],
)
def test_the_standing_in_the_last_receipt_decides_the_end(standing: Standing, finish: str, whole: bool) -> None:
    live = structured(max_new=1)
    result = turn(live, 50, b"a", standing)
    assert (result["finish_reason"], result["structure_complete"], result["text"]) == (finish, whole, "a")
    assert fold_all(live.events) == live.state


@pytest.mark.contract("OUT-5", "OUT-3")
def test_an_end_token_after_a_whole_text_is_eos_and_nothing_follows() -> None:
    live = structured()
    assert turn(live, 50, b"a", COMPLETE)["finish_reason"] is None
    result = turn(live, EOS, b"<eos>", COMPLETE, hidden=True)
    assert (result["finish_reason"], result["structure_complete"], result["text"]) == ("eos", True, "a")
    with pytest.raises(Terminal):
        transition(live.state, IssueDecision(selection(EOS), b"<eos>", True, structure=COMPLETE))


@pytest.mark.contract("OUT-5", "FSM-9")
def test_terminated_is_absorbing() -> None:
    live = structured()
    turn(live, 50, b"ab", TERMINATED)
    with pytest.raises(Terminal):
        transition(live.state, call(live.state))


@pytest.mark.contract("OUT-5", "FSM-7")
@pytest.mark.parametrize(("stop", "triggers"), [("b", ["stop_string", "structured_complete"]), ("a", ["stop_string"])])
def test_a_stop_string_cuts_the_text_so_it_is_not_whole(stop: str, triggers: list[str]) -> None:
    live = structured(stop=[stop])
    result = turn(live, 50, b"ab", TERMINATED)
    assert (result["finish_reason"], result["structure_complete"]) == ("stop_string", False)
    assert [reason.value for reason in live.state.due] == triggers


@pytest.mark.contract("OUT-5", "OUT-3")
@pytest.mark.parametrize(
    ("ends", "found", "include_stop", "cut"),
    [
        (True, (0, 3), False, True),  # the stop begins in the structure, and takes its last byte away
        (True, (0, 2), False, True),
        (True, (0, 3), True, False),  # but not where the text has it
        (True, (1, 3), False, False),  # it lies in the token that came after the structure
        (True, (1, 2), False, False),
        (False, (0, 3), False, False),  # the structure ends where the stop does
        (False, (0, 2), False, True),  # and here behind it
        (False, (0, 2), True, True),
    ],
)
def test_a_stop_cuts_a_structure_short_by_where_it_lies(
    ends: bool, found: tuple[int, int], include_stop: bool, cut: bool
) -> None:
    """The text before has one byte, and the token two; it is whole text before an end token, else by the token."""
    spec = structured(stop=["x"], include_stop=include_stop).state.spec
    assert cuts(Match(0, *found), 1, 2, ends, spec) is cut


@pytest.mark.contract("OUT-5")
def test_a_fault_or_a_cancel_leaves_what_the_parser_said_last() -> None:
    live = structured()
    turn(live, 50, b"a", COMPLETE)
    live.do(CloseRequest(FinishReason.CANCELLED))
    result = live.transcript.result()
    assert (result["finish_reason"], result["structure_complete"]) == ("cancelled", True)
