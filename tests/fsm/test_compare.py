"""Two runs at six levels: the first step that differs, and there the first level, is the verdict."""

from __future__ import annotations

from typing import Any

import pytest
from jobs import Live, call, crank, decision, drawn, prompt_tokens, selection

from decodelog.fsm.errors import BrokenInvariant
from decodelog.fsm.machine.transition import (
    CloseRequest,
    CommitOutput,
    CompleteCall,
    FailCall,
    IssueDecision,
    RecordPrompt,
)
from decodelog.fsm.reading.compare import LEVELS, Difference, compare, run_of, shown
from decodelog.fsm.reading.transcript import Transcript
from decodelog.fsm.request.finish import FinishReason

pytestmark = pytest.mark.contract("RES-3")


def live(steps: int = 4, **options: Any) -> Live:
    """A job of so many steps, the third of which a test may have otherwise."""
    at = Live.admit(max_new=8, stop=["<53>"], **options)
    for step in range(steps):
        at.turn(50 + step)
    return at


def verdict(one: Live, other: Live, level: str = "state") -> tuple[int, str, str] | None:
    found = compare(run_of(one.events), run_of(other.events), level)
    return None if found is None else found[:3]


def with_third(**facts: Any) -> Live:
    at = live(2)
    scores = facts.pop("scores", None)
    piece = facts.pop("piece", b"<52>")
    token = facts.pop("token", 52)
    made = call(at.state)
    at.do(
        made._replace(scores=scores) if scores else made,
        IssueDecision(selection(token, **facts), piece),
        CommitOutput(),
    )
    return at


def test_a_run_is_the_same_as_itself_whatever_came_between_its_steps() -> None:
    eventful = Live.admit(max_new=8, stop=["<53>"], retry_budget=3)
    eventful.attempt()
    eventful.do(FailCall("call_failed", "a fault"))
    eventful.turn(50)
    eventful.attempt(3)
    eventful.rebuild()
    for step in (1, 2, 3):
        eventful.turn(50 + step)
    assert verdict(live(), live()) is verdict(live(retry_budget=3), eventful) is None


@pytest.mark.parametrize(
    ("facts", "level", "name"),
    [
        ({"scores": b"s" * 32}, "tensor", "scores"),
        ({"support": 299}, "policy", "support"),
        ({"margin": 1.25}, "policy", "margin"),
        ({"unit_draw": 0.5, "start": 0.25, "end": 0.75}, "policy", "draw"),
        ({"alternatives": drawn(52).alternatives}, "policy", "alternatives"),
        ({"token": 60}, "decision", "token"),
        ({"logprob": -0.125}, "decision", "logprob"),
        ({"logprob_raw": -0.125}, "decision", "logprob_raw"),
        ({"piece": b"<5>"}, "sequence", "bytes"),
        ({"scores": b"s" * 32, "token": 60, "piece": b"x"}, "tensor", "scores"),  # what is later cures nothing
    ],
)
def test_the_first_level_that_differs_is_the_verdict(facts: dict[str, Any], level: str, name: str) -> None:
    plain, other = with_third(), with_third(**facts)
    assert verdict(plain, other) == (2, level, name)
    for each in LEVELS[: LEVELS.index(level) + 1]:
        assert verdict(plain, other, each) == (2, level, name)
    beyond = LEVELS[LEVELS.index(level) + 1 :]
    if len(facts) == 1 and level == "tensor":
        assert all(verdict(plain, other, each) is None for each in beyond)


def test_another_prompt_or_policy_differs_at_the_first_step() -> None:
    """Another prompt or another policy is a difference at the first step."""
    assert verdict(live(), live(prompt=[1, 40, 42])) == (0, "state", "prompt")
    sampled: dict[str, Any] = {"policy.family": "sample", "policy.transforms": [{"kind": "temperature", "value": 1.0}]}
    assert verdict(live(), live(**sampled)) == (0, "policy", "family")


def test_only_an_ended_shorter_run_differs_and_where_it_ends() -> None:
    """A shorter run that has ended differs where it ends and one that goes on does not."""
    whole, part = live(4), live(2)
    assert verdict(whole, part) is verdict(part, whole) is None
    part.do(CloseRequest(FinishReason.CANCELLED))
    assert verdict(whole, part) == (2, "sequence", "tokens")
    ended = live(2)
    ended.do(CloseRequest(FinishReason.TIMEOUT))
    assert verdict(part, ended) == (2, "sequence", "finish")


def restless(at: Live, what: str) -> Live:
    """What may follow a job's last commit without a commit of its own, up to where `what` says."""
    for each in ("attempt", "failure", "rebuild", "call", "again", "decision"):
        match each:
            case "attempt":
                at.attempt(at.fence + 1)
            case "failure":
                at.do(FailCall("call_failed", "a fault"))
            case "rebuild" if at.state.frontier.processed:
                at.rebuild()
            case "call":
                at.do(call(at.state))
            case "again":
                at.attempt(at.fence + 1)
                at.rebuild(b"s" * 32)
            case "decision":
                at.do(decision(60))
        if each == what:
            break
    return at


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("what", ["attempt", "failure", "rebuild", "call", "again", "decision"])
def test_what_follows_the_last_commit_is_no_difference_of_runs_that_go_on(what: str, steps: int, level: str) -> None:
    quiet, other = live(steps, retry_budget=3), restless(live(steps, retry_budget=3), what)
    assert verdict(quiet, other, level) is verdict(other, quiet, level) is None
    parted = live(steps, retry_budget=3, prompt=[1, 40, 42, 43])
    assert verdict(other, parted, level) is not None


def test_a_recorded_prompt_before_the_first_commit_is_no_difference() -> None:
    quiet, recorded = Live.admit(echo=True), Live.admit(echo=True)
    recorded.attempt()
    recorded.do(RecordPrompt(prompt_tokens(recorded.state)))
    assert verdict(quiet, recorded) is verdict(recorded, quiet) is None


def test_a_repair_of_one_run_is_no_difference_before_both_ended() -> None:
    """A repair that one run has made is no difference before both have ended."""
    owing, repaired = (Live.admit(max_new=1, final_cache="repaired") for _ in range(2))
    for at in (owing, repaired):
        at.turn(50)
    repaired.do(call(repaired.state))
    assert verdict(owing, repaired) is verdict(repaired, owing) is None
    repaired.do(CloseRequest(FinishReason.LENGTH))
    assert verdict(owing, repaired) is verdict(repaired, owing) is None


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize(
    ("asked", "level", "name"),
    [
        ({"prompt": [1, 40, 42]}, "state", "prompt"),
        ({"prompt": [1, 40, 41, 42]}, "state", "prompt"),
        ({"text_interface.tokenizer_sha256": "0" * 64}, "state", "tokenizer"),
        ({"stop": ["<99>"]}, "state", "stops"),
        ({"termination.detectors": [{"kind": "json_value"}]}, "state", "detectors"),
        ({"artifact.architecture": "another"}, "tensor", "architecture"),
        ({"artifact.checkpoint_sha256": "0" * 64}, "tensor", "checkpoint"),
        ({"artifact.config_sha256": "0" * 64}, "tensor", "configuration"),
        ({"artifact.weight_dtype": "another"}, "tensor", "weight_dtype"),
        ({"runtime.compute_dtype": "bfloat16"}, "tensor", "compute_dtype"),
        ({"runtime.logit_dtype": "float64"}, "tensor", "logit_dtype"),
        ({"policy.family": "sample"}, "policy", "family"),
        ({"policy.transforms": [{"kind": "top_k", "k": 3}]}, "policy", "transforms"),
        ({"stop_ids": [99]}, "policy", "ending_ids"),
        ({"min_new": 1}, "policy", "min_new_tokens"),
    ],
)
def test_what_decides_the_steps_is_compared_whether_there_are_any_or_not(
    asked: dict[str, Any], level: str, name: str, steps: int
) -> None:
    """Also of a run that ended against one that has not begun; and not where only later levels count."""

    def after(steps: int, **asked: Any) -> Live:
        at = Live.admit(**asked)
        for step in range(steps):
            at.turn(50 + step)
        return at

    plain, other = after(steps), after(steps, **asked)
    assert verdict(plain, other) == verdict(plain, other, level) == (0, level, name)
    assert verdict(plain, other, "sequence") is None or "prompt" in asked or "termination.detectors" in asked
    done = after(2)
    done.do(CloseRequest(FinishReason.CANCELLED))
    assert verdict(done, after(0, **asked)) == verdict(after(0, **asked), done) == (0, level, name)


def test_limits_and_what_is_only_shown_decide_no_step() -> None:
    for asked in ({"max_new": 7}, {"context": 60}, {"artifact.release_id": "another"}, {"policy.logprobs_top": 2}):
        assert verdict(Live.admit(), Live.admit(**asked)) is None


def test_other_noise_is_a_difference_of_the_first_draw_that_is_not_made() -> None:
    sampled: dict[str, Any] = {"policy.family": "sample", "policy.transforms": [{"kind": "temperature", "value": 1.0}]}
    one, other, more = (live(steps, **sampled, **{"rng.seed": seed}) for steps, seed in ((2, 1), (2, 2), (3, 2)))
    assert verdict(one, other) == verdict(one, more) == (2, "policy", "noise")
    assert verdict(one, other, "decision") is None
    assert verdict(live(2), live(2, **{"rng.seed": 2})) is None  # nothing is drawn
    for at in (one, other):
        at.do(CloseRequest(FinishReason.CANCELLED))
    assert verdict(one, other) is None  # nor is it after the end


@pytest.mark.parametrize("level", LEVELS)
def test_a_run_that_ended_earlier_differs_at_a_level_that_counts(level: str) -> None:
    ended, longer = live(2), live(3)
    ended.do(CloseRequest(FinishReason.CANCELLED))
    assert verdict(ended, longer, level) == (2, "resume" if level == "resume" else "sequence", "tokens")


def test_where_a_run_stands_in_the_end_is_the_last_level() -> None:
    """The same tokens and text, and one more call in one of them."""
    plain, repaired = (Live.admit(max_new=2, final_cache=cache) for cache in ("pending", "repaired"))
    for at in (plain, repaired):
        crank(at, lambda step: decision(50 + step))
    assert verdict(plain, repaired) == (2, "resume", "frontier")


def test_a_prompt_record_and_an_uncommitted_decision_are_no_step() -> None:
    """A prompt's record and a decision that is not committed are no step."""
    echoed = Live.admit(max_new=8, echo=True)
    echoed.do(RecordPrompt(prompt_tokens(echoed.state)))
    echoed.do(CompleteCall(3, 3, b"s" * 32), decision(50))
    assert len(run_of(echoed.events).steps) == 0
    with pytest.raises(BrokenInvariant, match="without events"):
        run_of([])


def test_a_difference_says_what_is_on_both_sides() -> None:
    found = compare(run_of(with_third().events), run_of(with_third(token=60).events))
    assert found == Difference(2, "decision", "token", 52, 60)


# ---- every fact ------------------------------------------------------------------------------------------------------


def told(live: Live) -> tuple[Any, ...]:
    """What a log says of a run, as plain dictionaries."""
    plain = run_of(live.events)
    facts = [{level: dict(names) for level, names in each.items()} for each in plain.steps]
    return dict(plain.request), facts, dict(plain.end), dict(plain.ahead)


def test_what_a_run_is_compared_by_is_each_of_these_facts_and_no_other() -> None:
    """Each with its value, as read from the log step by step: a fact that is left out or swapped is seen here."""
    at = Live.admit(max_new=3, stop=["<53>"], **{"policy.family": "sample", "rng.seed": 7})
    befores, receipts, afters = [], [], []
    for step in range(3):
        at.do(call(at.state))
        befores.append(at.state)
        best = drawn(50 + step, 0.25 + step / 8)
        at.do(IssueDecision(best, b"<%d>" % (50 + step), step == 1))
        receipts.append(at.state.receipt)
        at.do(CommitOutput())
        afters.append(at.states[-1 - (step == 2)])  # the last commit ends the job, in an event of its own
    spec = at.state.spec
    envelope = spec.envelope
    request, steps, end, next_ = told(at)
    for found, before, receipt, after in zip(steps, befores, receipts, afters, strict=True):
        assert receipt is not None
        chosen, place = receipt.selection, before.frontier
        assert found == {
            "state": {
                "output": place.output,
                "processed": place.processed,
                "unprocessed": place.unprocessed,
                "suffix": place.suffix,
                "horizon": before.horizon,
                "structure": before.structure,
            },
            "tensor": {"scores": before.scores},
            "policy": {
                "support": chosen.support,
                "margin": chosen.margin,
                "draw": chosen.unit_draw,
                "alternatives": chosen.alternatives,
            },
            "decision": {
                "token": chosen.token,
                "interval": (chosen.start, chosen.end),
                "logprob_raw": chosen.logprob_raw,
                "logprob": chosen.logprob,
                "structure": receipt.structure,
            },
            "sequence": {
                "bytes": receipt.piece,
                "hidden": receipt.hidden,
                "text": after.delta,
                "due": after.due,
            },
        }
    assert request["state"] == {
        "prompt": spec.prompt,
        "tokenizer": envelope.text_interface.tokenizer_sha256,
        "stops": envelope.termination.stop_strings,
        "detectors": envelope.termination.detectors,
    }
    assert set(request["tensor"]) == {
        *("architecture", "checkpoint", "configuration"),
        *("weight_dtype", "compute_dtype", "logit_dtype"),
    }
    assert set(request["policy"]) == {"family", "transforms", "ending_ids", "min_new_tokens"}
    assert end == {
        "sequence": {
            "finish": (FinishReason.LENGTH, ""),
            "triggers": at.state.due,
            "stop": None,
            "text": at.state.delta,
        },
        "resume": {
            "status": at.state.status,
            "frontier": at.state.frontier,
            "horizon": at.state.horizon,
            "structure": at.state.structure,
        },
    }
    rng = envelope.rng
    assert next_ == {
        "policy": {"noise": (rng.algorithm, 7, rng.choice)},
        "resume": {"frontier": (3, 3), "horizon": at.state.horizon, "structure": at.state.structure},
    }
    shown_steps = [
        {"sequence": {name: found["sequence"][name] for name in ("bytes", "hidden", "text")}} for found in steps
    ]
    of_readers = shown(at.transcript)
    assert [dict(each) for each in of_readers.steps] == shown_steps
    assert (of_readers.request, of_readers.end, of_readers.ahead, of_readers.ending) == (
        {},
        end,
        next_,
        at.state.ending,
    )


LEVELS_OF_STEPS = [
    *(("state", name) for name in ("output", "processed", "unprocessed", "suffix", "horizon", "structure")),
    *(("tensor", name) for name in ("scores",)),
    *(("policy", name) for name in ("support", "margin", "draw", "alternatives")),
    *(("decision", name) for name in ("token", "interval", "logprob_raw", "logprob", "structure")),
    *(("sequence", name) for name in ("bytes", "hidden", "text", "due")),
]


@pytest.mark.parametrize(("level", "name"), LEVELS_OF_STEPS)
def test_a_single_fact_of_a_single_step_that_differs_is_the_verdict(level: str, name: str) -> None:
    """Whichever it is: also of those that follow from others, where a fold or a record of it were wrong."""
    plain = run_of(live().events)
    steps = [{each: dict(names) for each, names in step.items()} for step in plain.steps]
    there = steps[2][level][name]
    steps[2][level][name] = ("other", there)
    steps[3]["state"]["output"] = "what comes later is no verdict"
    for one, other, sides in (
        (plain, plain._replace(steps=steps), (there, ("other", there))),
        (plain._replace(steps=steps), plain, (("other", there), there)),
    ):
        assert compare(one, other) == Difference(2, level, name, *sides)
        assert compare(one, other, level) == Difference(2, level, name, *sides)


@pytest.mark.parametrize(
    ("level", "name"),
    [
        *(("sequence", name) for name in ("finish", "triggers", "text")),
        *(("resume", name) for name in ("status", "frontier", "horizon", "structure")),
    ],
)
def test_a_single_fact_of_the_end_that_differs_is_the_verdict(level: str, name: str) -> None:
    plain = run_of(live().events)
    end = {each: dict(names) for each, names in plain.end.items()}
    end[level][name] = ("other", end[level][name])
    assert compare(plain, plain._replace(end=end)) == Difference(
        4, level, name, plain.end[level][name], end[level][name]
    )


@pytest.mark.parametrize(
    ("changes", "differ"),
    [
        ({"rng.seed": 8}, True),
        ({"rng.choice": 1}, True),
        ({"rng.algorithm": "philox4x32-10"}, True),
        ({}, False),
    ],
)
def test_each_part_of_the_noise_that_comes_next_counts(changes: dict[str, Any], differ: bool) -> None:
    sampled: dict[str, Any] = {"policy.family": "sample", "policy.transforms": [{"kind": "temperature", "value": 1.0}]}
    one, other = live(2, **sampled), live(2, **sampled, **changes)
    assert verdict(one, other) == ((2, "policy", "noise") if differ else None)


def test_the_interval_of_one_draw_is_a_difference_of_the_decision() -> None:
    one = with_third(unit_draw=0.5, start=0.25, end=0.75)
    for other in ({"start": 0.375, "end": 0.75}, {"start": 0.25, "end": 0.625}):
        assert verdict(one, with_third(unit_draw=0.5, **other)) == (2, "decision", "interval")


def test_a_prompt_shown_otherwise_differs_in_state_at_the_first_step() -> None:
    """Its text is a place in the stream: what is held and where the output begins differ, and nothing else does."""

    def echoed(piece: bytes) -> Live:
        at = Live.admit(echo=True)
        first, *rest = prompt_tokens(at.state)
        at.do(RecordPrompt((first, *rest[:-1], rest[-1]._replace(piece=piece))))
        at.turn(50)
        return at

    assert verdict(echoed(b"<41>"), echoed(b"<41>")) is None
    assert verdict(echoed(b"<41>"), echoed(b"<4>")) == (0, "state", "horizon")


def test_a_whole_transcript_is_compared_by_what_it_shows() -> None:
    one, other = (shown(with_third(piece=piece).transcript) for piece in (b"<52>", b"<5>"))
    assert compare(one, one) is None
    assert compare(one, other) == Difference(2, "sequence", "bytes", b"<52>", b"<5>")
    hidden = with_third()
    plain = run_of(hidden.events)
    with pytest.raises(BrokenInvariant, match="without events"):
        shown(Transcript())
    assert [step["sequence"]["text"] for step in shown(hidden.transcript).steps] == [
        step["sequence"]["text"] for step in plain.steps
    ]
