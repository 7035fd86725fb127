"""explain: one decision told from the log, whatever the policy was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commandline import TEXT, decodelog, script

from decodelog.fsm.finish import FinishReason
from decodelog.fsm.receipt import Selection
from decodelog.fsm.transition import CloseRequest, CompleteCall, IssueDecision, StartAttempt
from decodelog.runtime.job import Job
from decodelog.service.database import opened
from decodelog.service.explain import decision_of, explained, told


@pytest.fixture
def db(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


def job_of(db: str, model: Path, *flags: object) -> str:
    return str(decodelog("run", "--model", model, "--prompt", "Go", *flags, "--json", db=db).json["job"])


@pytest.mark.contract("FSM-5", "FSM-7", "POL-6")
def test_every_step_of_a_greedy_job_is_told_and_adds_up_to_its_text(db: str, short_model: Path) -> None:
    job = job_of(db, short_model, "--logprobs", 2)
    result = decodelog("show", job, "--json", db=db).json
    told_text = ""
    for step, token in enumerate(result["token_ids"]):
        facts = decodelog("explain", job, "--step", step, "--json", db=db).json
        assert (facts["step"], facts["token"], facts["family"], facts["draw"]) == (step, token, "greedy", None)
        assert facts["alternatives"][0]["token"] == token
        assert facts["committed"] is True
        told_text += facts["released"]
        assert (facts["finish_reason"] is None) is (step < len(result["token_ids"]) - 1)
    assert told_text == result["text"] == TEXT
    last = decodelog("explain", job, db=db)
    assert (last.code, facts["finish_reason"]) == (0, "eos")
    assert "nothing was drawn" in last.stdout
    assert "the job ended: eos" in last.stdout


@pytest.mark.contract("FSM-5", "POL-2", "POL-5")
def test_a_sampled_step_names_its_transforms_and_where_its_draw_came_from(db: str, short_model: Path) -> None:
    flags = ("--temperature", 0.8, "--top-k", 3, "--logit-bias", "65=1.5", "--seed", 7, "--logprobs", 4)
    job = job_of(db, short_model, *flags, "--max-new-tokens", 4)
    facts = decodelog("explain", job, "--step", 2, "--json", db=db).json
    assert [transform["kind"] for transform in facts["transforms"]] == ["logit_bias", "temperature", "top_k"]
    draw = facts["draw"]
    assert draw["start"] <= draw["unit"] < draw["end"]
    assert (draw["seed"], draw["choice"], draw["step"]) == (7, 0, 2)
    assert facts["support"] == 3
    assert [each["logprob"] is None for each in facts["alternatives"]][3] is True
    words = decodelog("explain", job, "--step", 2, db=db).stdout
    for said in ("top_k k 3", "logit_bias biases 65=1.5", "seed 7", "removed by the policy", "3 of"):
        assert said in words


@pytest.mark.contract("OUT-2", "FSM-7")
def test_what_is_held_back_and_the_stop_that_ended_the_job_are_told(db: str, short_model: Path) -> None:
    job = job_of(db, short_model, "--stop", "carry")
    begun = decodelog("explain", job, "--step", len("Rivers c") - 1, "--json", db=db).json
    assert (begun["released"], bytes.fromhex(begun["held"])) == ("", b"c")
    assert "'c' is held back" in decodelog("explain", job, "--step", len("Rivers c") - 1, db=db).stdout
    last = decodelog("explain", job, "--json", db=db).json
    assert (last["finish_reason"], last["triggers"]) == ("stop_string", ["stop_string"])


@pytest.mark.contract("FSM-6")
def test_a_decision_that_was_recorded_and_not_consumed_is_told_as_that(db: str, short_model: Path) -> None:
    decodelog("submit", "--model", short_model, "--prompt", "Go", db=db)
    with opened(db) as store:
        (claim,) = store.claim("tester", 60_000, 1)
        held = Job.load(store, claim)
        held.record(
            store,
            StartAttempt(claim.fence, "tester"),
            CompleteCall(held.state.frontier.unprocessed, len(held.state.spec.prompt), bytes(32)),
            IssueDecision(Selection(65, 258, -0.5, -0.5, 1.0), b"A"),
        )
        facts = explained(decision_of(store, claim.job))
        held.record(store, CloseRequest(FinishReason.CANCELLED))
        over = explained(decision_of(store, claim.job))
    assert (facts["committed"], facts["released"], facts["text"]) == (False, None, "A")
    assert any("commits this very token" in words for _, words in told(facts))
    assert (over["committed"], over["finish_reason"]) == (False, "cancelled")
    assert any("the job ended before it was: cancelled" in words for _, words in told(over))


@pytest.mark.contract("FSM-10")
def test_the_last_decision_of_a_failed_job_says_what_it_failed_of(db: str, tmp_path: Path) -> None:
    spoiled = script(tmp_path / "spoiled", script={"text": "abcdef"}, faults=[{"step": 3, "kind": "nan"}])
    ran = decodelog("run", "--model", spoiled, "--prompt", "Go", "--json", db=db)
    assert ran.code == 1
    facts = decodelog("explain", ran.json["job"], "--json", db=db).json
    assert (facts["step"], facts["committed"], facts["finish_reason"]) == (2, True, None)
    assert "non_finite" in facts["error"]
    assert "the job failed before another decision" in decodelog("explain", ran.json["job"], db=db).stdout


def test_a_step_that_is_not_there_is_refused_with_the_ones_that_are(db: str, short_model: Path) -> None:
    job = job_of(db, short_model, "--max-new-tokens", 3)
    refused = decodelog("explain", job, "--step", 3, db=db)
    assert refused.code == 2
    assert "name one from 0 to 2" in refused.stderr
    waiting = decodelog("submit", "--model", short_model, "--prompt", "Go", db=db).stdout.strip()
    assert "has no decision yet" in decodelog("explain", waiting, db=db).stderr
    assert decodelog("explain", job, "--step", -1, db=db).code == 2


@pytest.mark.contract("OUT-5")
def test_a_grammars_standing_is_part_of_the_story(db: str, short_model: Path) -> None:
    job = job_of(db, short_model, "--regex", "R[a-z]+ ")
    facts = decodelog("explain", job, "--json", db=db).json
    assert (facts["structure"], facts["finish_reason"]) == ("terminated", "structured_complete")
    assert facts["transforms"][0]["kind"] == "grammar"
    assert json.loads(json.dumps(facts)) == facts
