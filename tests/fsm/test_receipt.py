"""A receipt is bound to everything that made it so, is consumed once, and survives a crash as itself."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from envelope_examples import changed, full
from hypothesis import given
from hypothesis import strategies as st
from jobs import Live, call, decision, drawn, prompt_tokens, scores_of, selection

from decodelog.fsm.errors import BrokenInvariant, ReceiptConflict
from decodelog.fsm.evidence.receipt import Alternative, Receipt, Selection, issue
from decodelog.fsm.machine.commit import committed
from decodelog.fsm.machine.events import DecisionMade, RequestAdmitted
from decodelog.fsm.machine.fold import fold, fold_all
from decodelog.fsm.machine.next_step import Step, next_step
from decodelog.fsm.machine.state import State
from decodelog.fsm.machine.states import Status
from decodelog.fsm.machine.transition import (
    CommitOutput,
    CompleteCall,
    IssueDecision,
    RecordPrompt,
    StartAttempt,
    transition,
    transitions,
)
from decodelog.fsm.output.standing import Standing
from decodelog.fsm.request.envelope import admitted

pytestmark = pytest.mark.contract("FSM-5")


class Facts(NamedTuple):
    """The arguments of `issue`, by name."""

    binding: bytes = b"b" * 32
    step: int = 3
    branch: int = 0
    prior: bytes = b"p" * 32
    scores: bytes = b"s" * 32
    selection: Selection = drawn(50)
    piece: bytes = b"piece"
    hidden: bool = False
    structure: Standing | None = None

    def with_selection(self, **facts: Any) -> Facts:
        return self._replace(selection=self.selection._replace(**facts))

    def with_alternatives(self, *alternatives: Alternative) -> Facts:
        return self.with_selection(alternatives=alternatives)


FACTS = Facts()
FIRST, SECOND = FACTS.selection.alternatives
OTHERS: dict[str, Facts] = {
    "binding": FACTS._replace(binding=b"c" * 32),
    "step": FACTS._replace(step=4),
    "branch": FACTS._replace(branch=1),
    "prior": FACTS._replace(prior=b"q" * 32),
    "scores": FACTS._replace(scores=b"t" * 32),
    "piece": FACTS._replace(piece=b"piecf"),
    "piece longer": FACTS._replace(piece=b"piece\0"),
    "piece empty": FACTS._replace(piece=b""),
    "hidden": FACTS._replace(hidden=True),
    **{f"structure and {standing}": FACTS._replace(structure=standing) for standing in Standing},
    "hidden and structure": FACTS._replace(hidden=True, structure=Standing.COMPLETE),
    "selection.token": FACTS.with_selection(token=51),
    "selection.support": FACTS.with_selection(support=299),
    "selection.logprob_raw": FACTS.with_selection(logprob_raw=math.nextafter(-0.5, 0)),
    "selection.logprob": FACTS.with_selection(logprob=math.nextafter(-0.25, 0)),
    "selection.margin": FACTS.with_selection(margin=math.inf),
    "selection.unit_draw": FACTS.with_selection(unit_draw=math.nextafter(0.3, 1)),
    "selection.start": FACTS.with_selection(start=math.nextafter(0.15, 0)),
    "selection.end": FACTS.with_selection(end=math.nextafter(0.65, 0)),
    "selection.unit_draw, start and end": FACTS.with_selection(unit_draw=None, start=None, end=None),
    "selection.alternatives": FACTS.with_alternatives(),
    "alternatives fewer": FACTS.with_alternatives(FIRST),
    "alternatives more": FACTS.with_alternatives(FIRST, SECOND, SECOND),
    "alternatives in another order": FACTS.with_alternatives(SECOND, FIRST),
    "alternatives.token": FACTS.with_alternatives(FIRST, SECOND._replace(token=52)),
    "alternatives.logprob_raw": FACTS.with_alternatives(FIRST, SECOND._replace(logprob_raw=-1.4)),
    "alternatives.piece": FACTS.with_alternatives(FIRST._replace(piece=b""), SECOND._replace(piece=b"")),
    "alternatives.piece longer": FACTS.with_alternatives(FIRST._replace(piece=b"a"), SECOND._replace(piece=b"")),
    "alternatives.piece of the other": FACTS.with_alternatives(FIRST._replace(piece=b""), SECOND._replace(piece=b"a")),
    "alternatives.logprob": FACTS.with_alternatives(FIRST, SECOND._replace(logprob=-math.inf)),
}


def test_any_change_of_any_bound_fact_changes_the_receipt_id() -> None:
    ids = {name: issue(*facts).receipt_id for name, facts in {"": FACTS, **OTHERS}.items()}
    assert len(set(ids.values())) == len(ids)
    assert all(len(receipt_id) == 32 for receipt_id in ids.values())


def test_no_bound_fact_was_left_out_of_the_test_above() -> None:
    names = {name for names in OTHERS for name in names.replace(" and ", ", ").split(", ")}
    assert set(Facts._fields) - {"selection"} <= names
    assert {f"selection.{name}" for name in Selection._fields} <= names | {"selection.start", "selection.end"}
    assert {f"alternatives.{name}" for name in Alternative._fields} <= names


def test_issuing_again_from_the_same_facts_gives_the_same_receipt() -> None:
    assert issue(*FACTS) == issue(*FACTS)
    receipt = issue(*FACTS)
    assert (receipt.step, receipt.branch, receipt.piece, receipt.hidden) == (3, 0, b"piece", False)
    assert receipt.selection == FACTS.selection


tokens = st.integers(0, 3)
floats = st.sampled_from([0.0, -0.5, struct.unpack("<d", b"\1\0\0\0\0\0\0\0")[0]])
draws = st.sampled_from([(None, None, None), (0.0, 0.0, 1.0), (0.5, 0.0, 1.0)])
selections = st.builds(
    lambda token, support, raw, log, margin, draw, best: Selection(
        token, support, raw, log, margin, draw[0], draw[1], draw[2], best
    ),
    tokens,
    tokens,
    floats,
    floats,
    floats,
    draws,
    st.one_of(
        st.lists(st.builds(Alternative, tokens, floats, floats, st.none()), max_size=3),
        st.lists(st.builds(Alternative, tokens, floats, floats, st.binary(max_size=2)), max_size=3),
    ).map(tuple),
)
# Pieces that look like what stands before a piece in the bytes that are digested.
packed = st.one_of(selections.map(Selection.packed), st.binary(max_size=2), st.just(struct.pack("<ddd", 0.0, 0.0, 1.0)))
pieces = st.lists(packed, max_size=3).map(b"".join)
structures = st.none() | st.sampled_from(Standing)
facts = st.builds(
    Facts, step=tokens, branch=tokens, selection=selections, piece=pieces, hidden=st.booleans(), structure=structures
)


@given(facts, facts)
def test_two_different_decisions_never_have_one_id(one: Facts, other: Facts) -> None:
    assert (issue(*one).receipt_id == issue(*other).receipt_id) == (one == other)


@given(selections, selections)
def test_no_selection_s_bytes_begin_another_s(one: Selection, other: Selection) -> None:
    assert one == other or not one.packed().startswith(other.packed())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (  # the piece of a greedy choice spells a draw
            Facts(selection=selection(50), hidden=True, piece=struct.pack("<ddd", 0.5, 0.25, 0.75) + b"\0rest"),
            Facts(selection=selection(50, unit_draw=0.5, start=0.25, end=0.75), hidden=False, piece=b"rest"),
        ),
        (  # the piece spells an alternative
            Facts(
                selection=selection(50, alternatives=(FIRST,)), piece=struct.pack("<Idd", *SECOND[:3])[1:] + b"\0rest"
            ),
            Facts(selection=selection(50, alternatives=(FIRST, SECOND._replace(token=0))), piece=b"rest"),
        ),
    ],
    ids=["draw", "alternative"],
)
def test_a_piece_cannot_pass_for_a_part_of_the_selection(one: Facts, other: Facts) -> None:
    assert issue(*one).receipt_id != issue(*other).receipt_id


@pytest.mark.parametrize(
    ("unit", "start", "end"),
    [
        (0.5, 0.0, 0.5),  # the interval is half-open
        (0.5, 0.6, 0.9),
        (0.5, 0.1, 0.4),
        (0.5, 0.9, 0.1),
        (-0.1, -0.2, 0.5),
        (1.0, 0.5, 1.5),
        (math.nan, 0.0, 1.0),
        (0.5, math.nan, 1.0),
        (0.5, 0.0, math.nan),
        (0.5, None, 1.0),
        (0.5, 0.0, None),
        (None, 0.0, 1.0),
        (None, 0.0, None),
        (0.5, None, None),
    ],
)
def test_a_draw_outside_its_own_interval_or_without_one_is_refused(unit: float, start: float, end: float) -> None:
    chosen = selection(50, unit_draw=unit, start=start, end=end)
    with pytest.raises(BrokenInvariant, match="FSM-5"):
        issue(*FACTS._replace(selection=chosen))
    live = Live.admit()
    live.do(call(live.state))
    with pytest.raises(BrokenInvariant, match="FSM-5"):
        transition(live.state, IssueDecision(chosen, b""))


@pytest.mark.parametrize(("unit", "start", "end"), [(0.0, 0.0, 1.0), (0.5, 0.5, 0.6), (1 - 2**-53, 0.0, 1.0)])
def test_a_draw_at_the_edge_of_its_interval_is_taken(unit: float, start: float, end: float) -> None:
    chosen = selection(50, unit_draw=unit, start=start, end=end)
    assert issue(*FACTS._replace(selection=chosen)).selection == chosen


@pytest.mark.parametrize(
    "chosen",
    [
        selection(-1),
        selection(2**32),
        selection(50, support=-1),
        selection(50, margin="wide"),
        selection(50, alternatives=(FIRST,) * 256),
        selection(50, alternatives=(FIRST._replace(token=-1),)),
    ],
)
def test_a_selection_that_does_not_fit_is_a_typed_error(chosen: Selection) -> None:
    with pytest.raises(BrokenInvariant, match="does not fit"):
        issue(*FACTS._replace(selection=chosen))


# ---- what the request and the job's past bind ------------------------------------------------------------------------


def first_receipt(job: str = "job-1", **changes: Any) -> Receipt:
    event = RequestAdmitted(job, admitted(changed(full(), changes)).canonical_bytes())
    state = fold(None, event)
    state = transitions(state, [call(state), RecordPrompt(prompt_tokens(state))]).state
    return receipt_of(transition(state, IssueDecision(drawn(50), b"x")).state)


def receipt_of(state: State) -> Receipt:
    assert state.receipt is not None
    return state.receipt


@pytest.mark.parametrize(
    "changes",
    [
        {"policy.transforms[0].value": 0.9},
        {"policy.transforms[1].k": 51},
        {"policy.transforms": [*reversed(full()["policy"]["transforms"])]},
        {"policy.logprobs_top": 3},
        {"rng.algorithm": "splitmix64"},
        {"rng.seed": 43},
        {"rng.choice": 2},
        {"text_interface.vocabulary_size": 301},
        {"text_interface.tokenizer_sha256": "b" * 64},
        {"artifact.checkpoint_sha256": "d" * 64},
        {"prompt.token_ids": [1, 40, 42, 299]},
        {"termination.stop_strings": []},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_same_choice_under_another_request_is_another_receipt(changes: dict[str, Any]) -> None:
    assert first_receipt(**changes).receipt_id != first_receipt().receipt_id


def test_the_same_choice_in_another_job_is_another_receipt() -> None:
    assert first_receipt("job-2").receipt_id != first_receipt("job-1").receipt_id


def third(*turns: tuple[int, bytes, bool], scores: bytes | None = None) -> Receipt:
    live = Live.admit(stop=["ab"])
    for token, piece, hidden in turns:
        live.turn(token, piece, hidden)
    state = live.state
    frontier = state.frontier
    live.do(
        CompleteCall(frontier.unprocessed, frontier.prompt + frontier.output, scores or scores_of(state)),
        decision(60),
    )
    return receipt_of(live.state)


@pytest.mark.parametrize(
    "turns",
    [
        [(50, b"x", False), (52, b"y", False)],
        [(50, b"x", False), (51, b"z", False)],
        [(50, b"x", False), (51, b"y", True)],
        [(51, b"y", False), (50, b"x", False)],
        [(49, b"x", False), (51, b"y", False)],
    ],
)
def test_the_same_choice_after_another_past_is_another_receipt(turns: list[tuple[int, bytes, bool]]) -> None:
    assert third(*turns).receipt_id != third((50, b"x", False), (51, b"y", False)).receipt_id


def test_the_same_choice_from_another_score_row_is_another_receipt() -> None:
    assert third(scores=b"z" * 32).receipt_id != third().receipt_id


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_score_row_s_digest_has_32_bytes(size: int) -> None:
    live = Live.admit()
    with pytest.raises(BrokenInvariant, match="digest of the score row"):
        transition(live.state, CompleteCall(3, 3, bytes(size)))


# ---- a receipt is the state's own ------------------------------------------------------------------------------------


def prefilled(job: str = "job-1") -> Live:
    live = Live.admit(job)
    live.turn(50)
    live.do(call(live.state))
    return live


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("step", lambda receipt: receipt.step + 1),
        ("branch", lambda receipt: receipt.branch + 1),
        ("selection", lambda receipt: receipt.selection._replace(token=61)),
        ("piece", lambda receipt: receipt.piece + b"!"),
        ("hidden", lambda receipt: not receipt.hidden),
        ("structure", lambda receipt: Standing.COMPLETE),
        ("receipt_id", lambda receipt: bytes(32)),
    ],
)
def test_a_receipt_changed_in_any_field_is_not_adopted(field: str, other: Callable[[Receipt], Any]) -> None:
    state = prefilled().state
    receipt = receipt_of(transition(state, IssueDecision(drawn(60), b"x")).state)
    assert fold(state, DecisionMade(receipt)).receipt == receipt
    with pytest.raises(BrokenInvariant, match=r"FSM-5|OUT-5"):
        fold(state, DecisionMade(replace(receipt, **{field: other(receipt)})))


def test_a_receipt_issued_in_another_state_or_job_is_not_adopted() -> None:
    state = prefilled().state
    for stranger in (prefilled("job-2").state, first_state()):
        receipt = receipt_of(transition(stranger, IssueDecision(drawn(60), b"x")).state)
        with pytest.raises(BrokenInvariant, match="FSM-5"):
            fold(state, DecisionMade(receipt))


def first_state() -> State:
    live = Live.admit()
    live.do(call(live.state))
    return live.state


# ---- consumed once, and the same after a crash -----------------------------------------------------------------------


@pytest.mark.contract("FSM-6")
def test_a_decided_state_always_commits_to_the_same_state() -> None:
    """A decided state commits to the same state however often it is computed."""
    live = prefilled()
    live.do(IssueDecision(drawn(60), b"x"))
    decided = live.state
    before = decided.digest()
    outcomes = [committed(decided) for _ in range(3)]
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert len({outcome.digest() for outcome in outcomes}) == 1
    proposals = [transition(decided, CommitOutput()) for _ in range(3)]
    assert proposals[0] == proposals[1] == proposals[2]
    assert decided.digest() == before


@pytest.mark.contract("FSM-6")
def test_after_a_crash_the_recorded_receipt_is_committed() -> None:
    """After a crash between decision and commit the recorded receipt is committed."""
    live = prefilled()
    live.do(IssueDecision(drawn(60), b"x"))
    receipt = receipt_of(live.state)
    logged = list(live.events)
    live.do(CommitOutput())

    restored = fold_all(logged)
    assert (restored.status, restored.receipt, next_step(restored)) == (Status.DECIDED, receipt, Step.COMMIT)
    restored = transition(restored, StartAttempt(7, "worker-7")).state
    proposal = transition(restored, CommitOutput())
    assert proposal.events == (live.events[-1],)
    assert proposal.state.last_receipt == receipt.receipt_id
    assert proposal.state.digest() == live.state.digest()


def test_a_consumed_receipt_is_not_consumed_by_a_later_step() -> None:
    live = prefilled()
    live.do(decision(60))
    consumed = receipt_of(live.state).receipt_id
    live.do(CommitOutput())
    live.do(call(live.state), decision(61))
    with pytest.raises(ReceiptConflict):
        transition(live.state, CommitOutput(receipt_id=b"\1" * 32))
    assert transition(live.state, CommitOutput(consumed)).events == ()
    assert live.state.frontier.output == 2
    live.do(CommitOutput())
    with pytest.raises(ReceiptConflict):
        transition(live.state, CommitOutput(consumed))
    assert live.state.frontier.output == 3
