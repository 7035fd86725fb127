"""explain: one decision told from the log, whatever the policy was."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commandline import TEXT, decodelog, script

from decodelog.fsm.evidence.receipt import Alternative, Selection
from decodelog.fsm.evidence.rng import unit_draw
from decodelog.fsm.machine.transition import CloseRequest, CompleteCall, IssueDecision, StartAttempt
from decodelog.fsm.request.finish import FinishReason
from decodelog.fsm.request.transforms import ForcedTokens
from decodelog.fsm.request.transforms.cuts import TopP, TypicalP
from decodelog.fsm.request.transforms.edits import LogitBias
from decodelog.runtime.loop.job import Job
from decodelog.service.database import opened
from decodelog.service.inspect.explain import decision_of, explained
from decodelog.service.inspect.explain_text import told
from decodelog.service.inspect.policy_text import effects, removers


@pytest.fixture
def db(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


def job_of(db: str, model: Path, *flags: object) -> str:
    return str(decodelog("run", "--model", model, "--prompt", "Go", *flags, "--json", db=db).json["job"])


def facts_of(db: str, job: str, step: int | None = None) -> Any:
    return decodelog("explain", job, *(() if step is None else ("--step", step)), "--json", db=db).json


def lines_of(db: str, job: str, step: int | None = None) -> dict[str, list[str]]:
    """The printed lines by what they are about; those without a name belong to the one before."""
    explained = decodelog("explain", job, *(() if step is None else ("--step", step)), db=db)
    assert (explained.code, explained.stderr) == (0, "")
    lines: dict[str, list[str]] = {}
    about = ""
    for line in explained.stdout.splitlines():
        about = line[:8].strip() or about
        lines.setdefault(about, []).append(line[10:])
    return lines


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
    for said in ("keeps the 3 best scores", "adds +1.5 to token 65", "seed 7", "which removed it", "3 of"):
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


@pytest.mark.contract("POL-5", "POL-6", "FSM-5")
def test_each_sampled_step_is_told_as_its_receipt_and_its_stream_have_it(db: str, tmp_path: Path) -> None:
    """Every byte scores the same, so that a sample is a real choice."""
    flat = script(tmp_path / "flat", script={"rows": [[0.0] * 256], "then": "repeat"})
    job = job_of(db, flat, "--temperature", 0.5, "--top-k", 40, "--seed", 5, "--logprobs", 3, "--max-new-tokens", 4)
    events = decodelog("events", job, "--json", db=db).lines
    receipts = [event["receipt"] for event in events if event["event"] == "decision.made"]
    commits = [event for event in events if event["event"] == "output.committed"]
    shown = [each for each in decodelog("tail", job, "--json", db=db).lines if each["tokens"]]
    for step, (receipt, commit, emission) in enumerate(zip(receipts, commits, shown, strict=True)):
        facts, chosen = facts_of(db, job, step), receipt["selection"]
        assert events[facts["sequence"] - 1]["receipt"] == receipt
        assert facts["committed_sequence"] == commit["sequence"] == emission["sequence"]
        assert (facts["receipt"], facts["token"], facts["bytes"]) == (
            receipt["receipt_id"],
            chosen["token"],
            receipt["piece"],
        )
        assert facts["draw"]["unit"] == chosen["unit_draw"] == unit_draw("philox4x32-10", 5, 0, 0, step)
        for name in ("support", "logprob_raw", "logprob", "margin"):
            assert facts[name] == chosen[name]
        assert [each["token"] for each in facts["alternatives"]] == [0, 1, 2]
        assert facts["released"] == emission["text"]
        assert facts["released_at"] == {name: emission[name] for name in ("characters", "bytes")}
    assert lines_of(db, job, 2)["draw"][0].endswith(", from philox4x32-10, seed 5, choice 0, branch 0, step 2")


@pytest.mark.contract("POL-2")
def test_each_transform_is_explained_for_the_chosen_token(db: str, short_model: Path) -> None:
    """Each transform says what it does here and what it did to the chosen token."""
    flags: tuple[object, ...] = ("--logit-bias", "113=10000", "--repetition-penalty", 1.5, "--frequency-penalty", 0.25)
    flags += ("--presence-penalty", 0.5, "--no-repeat-ngram-size", 4, "--banned-token-id", ord("R"), "--logprobs", 2)
    job = job_of(db, short_model, *flags, "--max-new-tokens", 5, "--min-new-tokens", 1)
    assert lines_of(db, job, 0)["policy"] == [
        "greedy: the best score after these, in order",
        "min_new_tokens: removes token 256: the output has 0 of at least 1 tokens",
        "logit_bias: adds +10000 to token 113; the chosen token: its score changed by +10000",
        "repetition_penalty: divides positive and multiplies negative scores of tokens in prompt or output by 1.5; "
        "the chosen token: not among them: unchanged",
        "frequency_penalty: subtracts 0.25 from a token's score each time that the output has it; "
        "the chosen token: not there: unchanged",
        "presence_penalty: subtracts 0.5 once from the score of each token in the output; "
        "the chosen token: not there: unchanged",
        "no_repeat_ngram: removes what would repeat 4 tokens in a row of prompt or output: here nothing",
        "banned_tokens: removes token 82",
    ]
    first = facts_of(db, job, 0)
    assert [each["kind"] for each in first["effects"]][1:] == [each["kind"] for each in first["transforms"]]
    assert (first["alternatives"][0]["token"], first["alternatives"][0]["removed_by"]) == (82, ["banned_tokens"])
    assert lines_of(db, job, 0)["best 1"] == [
        "token 82 'R': log-probability 0.0000 before the policy, which removed it: banned_tokens"
    ]
    later = lines_of(db, job, 3)["policy"]
    assert later[1] == "min_new_tokens: off: the output has 3 of at least 1 tokens"
    assert later[3].endswith("the chosen token: among them")
    assert later[4].endswith("the chosen token: there 3 times: its score changed by -0.75")
    assert later[5].endswith("the chosen token: there: its score changed by -0.5")


@pytest.mark.contract("POL-2", "POL-5")
def test_a_transforms_repetition_and_draw_are_told_from_the_log(db: str, tmp_path: Path) -> None:
    same = script(tmp_path / "same", script={"text": "x", "then": "repeat"})
    flags = ("--dry-multiplier", 2, "--dry-base", 2, "--dry-allowed-length", 1, "--dry-sequence-breaker", "z")
    job = job_of(db, same, *flags, "--xtc-probability", 0.5, "--seed", 5, "--max-new-tokens", 4, "--prompt", "ab")
    told = [lines_of(db, job, step)["policy"] for step in range(4)]
    draws = [unit_draw("philox4x32-10", 5, 0, 0, step, 1) for step in range(4)]
    assert {draw < 0.5 for draw in draws} == {True, False}
    for draw, (_, dry, _, xtc) in zip(draws, told, strict=True):
        assert dry.startswith("dry: subtracts 2 * 2 ** (length - 1) where 1 tokens or more would repeat: here ")
        assert f"its draw {draw:.9f} is {'' if draw < 0.5 else 'not '}below 0.5" in xtc
    assert told[0][1].endswith("here nothing; the chosen token: unchanged")
    assert told[2][1].endswith("here 2 from token 120 (1); the chosen token: its score changed by -2")
    assert told[3][1].endswith("here 4 from token 120 (2); the chosen token: its score changed by -4")


@pytest.mark.contract("POL-2", "OUT-3")
@pytest.mark.parametrize(
    ("flags", "by", "step"),
    [
        (("--no-repeat-ngram-size", 1), "no_repeat_ngram", 1),
        (("--no-repeat-ngram-size", 2), "no_repeat_ngram", 2),
        (("--allowed-token-id", 65, "--allowed-token-id", 66), "allowed_tokens", 3),
    ],
)
def test_an_alternative_that_was_removed_names_what_was_sure_to_remove_it(
    db: str, tmp_path: Path, flags: tuple[object, ...], by: str, step: int
) -> None:
    """The model would say x for ever; the fourth token is not to be one."""
    same = script(tmp_path / "same", script={"text": "x", "then": "repeat"})
    job = job_of(db, same, *flags, "--logprobs", 1, "--max-new-tokens", 4)
    facts = facts_of(db, job, step)
    (best,) = facts["alternatives"]
    assert (best["token"], best["logprob"], best["removed_by"]) == (ord("x"), None, [by])
    assert facts["token"] != ord("x")


@pytest.mark.contract("OUT-3", "POL-2")
def test_an_end_token_that_came_too_early_names_what_held_it_back(db: str, tmp_path: Path) -> None:
    short = script(tmp_path / "short", script={"text": "a"})
    job = job_of(db, short, "--min-new-tokens", 3, "--logprobs", 1)
    assert facts_of(db, job, 1)["alternatives"][0]["removed_by"] == ["min_new_tokens"]
    assert facts_of(db, job)["alternatives"][0]["removed_by"] == []


@pytest.mark.contract("OUT-1", "OUT-2", "FSM-7")
def test_what_is_held_back_and_why_and_what_the_end_releases(db: str, short_model: Path) -> None:
    place = TEXT.encode().index("é".encode())
    job = job_of(db, short_model, "--max-new-tokens", place + 1)
    facts, lines = facts_of(db, job), lines_of(db, job)
    assert lines["token"] == ["195 '\ufffd', bytes c3"]
    assert lines["text"] == ["nothing became visible", "bytes c3 are held back: no whole character yet"]
    assert (facts["undecoded"], facts["released"], facts["flushed"]) == ("c3", "", "\ufffd")
    assert lines["end"] == ["the job ended: length", "'\ufffd' became visible with the end"]
    stopped = job_of(db, short_model, "--stop", "the", "--max-new-tokens", 16)
    held = lines_of(db, stopped, 14)
    assert held["text"] == ["nothing became visible", "'th' is held back: it may begin a stop string"]
    assert lines_of(db, stopped)["end"] == ["the job ended: stop_string, which comes before length, stopped by 'the'"]
    assert lines_of(db, stopped, 3)["text"] == ["'e' became visible at character 3, byte 3"]


@pytest.mark.contract("OUT-6")
def test_a_detectors_structure_is_no_parsers(db: str, tmp_path: Path) -> None:
    job = job_of(db, script(tmp_path / "json", script={"text": "a [1] b"}), "--stop-on-json")
    facts = facts_of(db, job)
    assert (facts["structure"], facts["finish_reason"]) == (None, "structured_complete")


@pytest.mark.contract("FSM-5")
def test_a_special_token_and_a_row_of_one_score_are_told_as_that(db: str, short_model: Path) -> None:
    decodelog("submit", "--model", short_model, "--prompt", "Go", db=db)
    with opened(db) as store:
        (claim,) = store.claim("tester", 60_000, 1)
        held = Job.load(store, claim)
        best = Alternative(7, -1.0, -math.inf), Alternative(65, -1.5, -0.5)
        prompt = len(held.state.spec.prompt)
        held.record(
            store,
            StartAttempt(claim.fence, "tester"),
            CompleteCall(prompt, prompt, bytes(32)),
            IssueDecision(Selection(65, 1, -1.5, -0.5, math.inf, alternatives=best), b"A", True),
        )
    lines = lines_of(db, claim.job)
    assert lines["token"] == ["65 'A', bytes 41, a special token that is not shown"]
    assert lines["margin"] == ["best raw score over the second best, before the policy: there is no second token"]
    assert lines["chance"] == ["log-probability -1.5000 before the policy, -0.5000 after it (+1.0000)"]
    assert lines["best 1"] == ["token 7: log-probability -1.0000 before the policy, which removed it"]
    assert lines["best 2"][0].endswith(", chosen")


def test_it_needs_no_model_and_no_framework(db: str, short_model: Path) -> None:
    job = job_of(db, short_model)
    shutil.rmtree(short_model)
    program = (
        "import sys; from typer.testing import CliRunner; from decodelog.service.cli.app import app;"
        "done = CliRunner().invoke(app, sys.argv[1:]); print(done.exit_code, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program, "explain", job, "--db", db]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout == "0 False\n"


def test_edges_and_long_lists_are_short_sentences(db: str, short_model: Path) -> None:
    job = job_of(db, short_model, "--top-p", 0.9, "--temperature", 1, "--max-new-tokens", 1)
    with opened(db) as store:
        spec = decision_of(store, job).spec
    many = [{"token_id": token, "bias": -1} for token in range(10)]
    policy = spec.envelope.policy.model_copy(
        update={
            "transforms": (
                TopP(kind="top_p", p=0),
                TypicalP(kind="typical_p", p=0),
                LogitBias.model_validate({"kind": "logit_bias", "biases": many}),
                ForcedTokens.model_validate({"kind": "forced_tokens", "tokens": [{"step": 1, "token_id": 5}]}),
            )
        }
    )
    object.__setattr__(spec, "envelope", spec.envelope.model_copy(update={"policy": policy}))
    best, typical, bias, forced = effects(spec, (), 3)
    assert best == {"kind": "top_p", "does": "keeps the best token alone", "chosen": None}
    assert typical["does"] == "keeps the most typical token alone"
    assert bias["does"].startswith("adds -1 to token 0, ")
    assert bias["does"].endswith("adds -1 to token 7 and 2 more")
    assert bias["chosen"] == "its score changed by -1"
    assert (forced["does"], list(removers(spec, (), 3))) == ("forces nothing at this step", [])
    assert effects(spec, (9,), 5)[3]["does"] == "keeps only token 5 at this step"
    assert (list(removers(spec, (9,), 3)), list(removers(spec, (9,), 5))) == (["forced_tokens"], [])
