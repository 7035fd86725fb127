"""Every command with good input: what it prints, as text and as JSON, and how it exits."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from commandline import TEXT, decodelog, jobs, script

from decodelog.fsm.errors import DatabaseUnavailable, LostTenure
from decodelog.fsm.request.draft import Draft, draft_from
from decodelog.fsm.request.transforms import QUESTIONS
from decodelog.service.cli.commands import COMMANDS
from decodelog.service.cli.commands.worker import Watch
from decodelog.service.cli.draft_flags import DraftFlags, transform_flags
from decodelog.service.jobs.submit import CHANCE_DIGITS, DIGITS
from decodelog.service.streams.reading import transcript_of
from decodelog.store.engine import open_store

RESULT = [
    "job",
    "identity",
    "state",
    "finish_reason",
    "matched_stop",
    "text",
    "token_ids",
    "tokens",
    "usage",
    "eos_ids",
]


@pytest.fixture
def db(tmp_path: Path) -> str:
    """A SQLite database that is not there yet."""
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def done(db: str, short_model: Path) -> str:
    """The name of a finished job."""
    return str(decodelog("run", "--model", short_model, "--prompt", "Go", "--json", db=db).json["job"])


@pytest.mark.contract("OUT-7")
def test_run_prints_the_text_and_nothing_else(db: str, short_model: Path) -> None:
    ran = decodelog("run", "--model", short_model, "--prompt", "Go", db=db)
    (row,) = jobs(db)
    assert (ran.code, ran.stdout) == (0, f"{TEXT}\n")
    assert f"job {row.job}" in ran.stderr
    assert "workers in turn ended" not in ran.stderr
    assert "eos: 3 prompt + " in ran.stderr


def test_run_and_show_print_the_same_object(db: str, short_model: Path) -> None:
    ran = decodelog("run", "--model", short_model, "--prompt", "Go", "--json", db=db)
    assert list(ran.json) == RESULT
    assert ran.json["state"] == "CLOSED"
    assert ran.json["text"] == TEXT
    assert ran.json == decodelog("show", ran.json["job"], "--json", db=db).json
    shown = decodelog("show", ran.json["job"], db=db).stdout
    assert f"state     CLOSED (eos)\nmodel     {short_model}\n" in shown
    assert shown.endswith(f"\n\n{TEXT}\n")


@pytest.mark.contract("ENV-8")
@pytest.mark.parametrize("policy", [(), ("--temperature", 1)], ids=["greedy", "sampled without a seed"])
def test_a_repeated_key_attaches_or_refuses_another_request(
    db: str, short_model: Path, policy: tuple[object, ...]
) -> None:
    """A repeated key attaches to the job and another request under it is refused."""
    request = ("--model", short_model, "--max-new-tokens", 9, "--idempotency-key", "order 17", *policy)
    submitted = decodelog("submit", *request, "--prompt", "Go", "--json", db=db).json
    ran = decodelog("run", *request, "--prompt", "Go", db=db)
    again = decodelog("run", *request, "--prompt", "Go", "--json", db=db)
    assert submitted["created"]
    assert f"attached to job {submitted['job']}" in ran.stderr
    assert (again.json["text"], again.json["usage"]["attempts"]) == (ran.stdout[:-1], 1)
    assert not decodelog("submit", *request, "--prompt", "Go", "--json", db=db).json["created"]
    refused = decodelog("run", *request, "--prompt", "Gone", "--json", db=db)
    assert (refused.code, refused.error["code"]) == (2, "idempotency_conflict")
    assert (refused.error["job"], refused.error["field"]) == (submitted["job"], "prompt.token_ids")
    assert len(jobs(db)) == 1


def test_worker_drains_what_was_submitted_and_says_how_each_ended(db: str, short_model: Path, tmp_path: Path) -> None:
    broken = script(tmp_path / "broken", script={"text": "abc"}, faults=[{"step": 1, "kind": "nan"}])
    good = decodelog("submit", "--model", short_model, "--prompt", "Go", db=db).stdout.strip()
    bad = decodelog("submit", "--model", broken, "--prompt", "Go", db=db).stdout.strip()
    drained = decodelog("worker", "--drain", "--json", db=db)
    listings = {listing["job"]: listing for listing in drained.lines}
    assert drained.code == 1
    assert (listings[good]["state"], listings[good]["finish_reason"]) == ("CLOSED", "eos")
    assert (listings[bad]["state"], listings[bad]["error"]["code"]) == ("FAILED", "non_finite_scores")
    assert decodelog("worker", "--drain", db=db).stdout == ""
    listed = {each["job"]: each for each in decodelog("jobs", "--json", db=db).json}
    for job, listing in listings.items():
        assert {name: listed[job][name] for name in listing} == listing
    table = decodelog("jobs", db=db).stdout.splitlines()
    assert [line.split()[0] for line in table] == ["JOB", good, bad]


def test_a_failed_job_exits_with_1_and_says_why(db: str, tmp_path: Path) -> None:
    model = script(tmp_path / "m", script={"text": "abc"}, faults=[{"step": 1, "kind": "raise"}])
    ran = decodelog("run", "--model", model, "--prompt", "Go", "--retry-budget", 1, "--json", db=db)
    assert (ran.code, ran.json["state"], ran.json["text"]) == (1, "FAILED", "a")
    assert ran.json["error"]["code"] == "call_failed"
    assert "failed [call_failed]" in ran.stderr
    assert decodelog("resume", ran.json["job"], db=db).code == 1
    assert decodelog("show", ran.json["job"], db=db).code == 0


def test_resume_all_brings_every_unfinished_job_to_its_end(db: str, short_model: Path, done: str) -> None:
    submitted = [decodelog("submit", "--model", short_model, "--prompt", "Go", db=db).stdout.strip() for _ in range(3)]
    resumed = decodelog("resume", "--all", "--rebuild", "reexecute", db=db)
    assert (resumed.code, sorted(line.split()[0] for line in resumed.stdout.splitlines())) == (0, sorted(submitted))
    assert {row.finish for row in jobs(db)} == {"eos"}
    assert decodelog("resume", done, db=db).stdout == f"{TEXT}\n"


def test_a_job_is_named_by_any_beginning_that_no_other_has(
    db: str, short_model: Path, done: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert decodelog("show", done[:2], "--json", db=db).json["job"] == done
    assert decodelog("show", "@last", "--json", db=db).json["job"] == done
    noise = sum(DIGITS.index(digit) * 32**place for place, digit in enumerate(reversed(done[:CHANCE_DIGITS])))
    monkeypatch.setattr("secrets.randbits", lambda bits: noise ^ 1)
    other = decodelog("submit", "--model", short_model, "--prompt", "Go", db=db).stdout.strip()
    ambiguous = decodelog("show", done[:3], "--json", db=db)
    assert (ambiguous.code, ambiguous.error["code"]) == (2, "ambiguous_job")
    assert ambiguous.error["candidates"] == [done, other]
    unknown = decodelog("show", done[:-1] + "-", "--json", db=db)
    assert (unknown.code, unknown.error["code"], unknown.error["candidates"][-1]) == (2, "unknown_job", done)
    assert done in decodelog("show", "ulli", db=db).stderr


def test_a_shell_completes_commands_options_and_names_of_jobs(
    db: str, done: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_DECODELOG_COMPLETE", "complete_bash")

    def completed(*words: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", " ".join(["decodelog", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        return decodelog().stdout.split()

    assert completed("sh") == ["show"]
    assert completed("cancel", "--wa") == ["--wait"]
    monkeypatch.setenv("DECODELOG_DB", db)
    assert completed("show", done[:2]) == [done]
    assert completed("show", "u") == []
    monkeypatch.setenv("DECODELOG_DB", "sqlite:////nowhere/at/all.db")
    assert completed("show", done[:2]) == []


@pytest.mark.contract("OUT-7")
def test_tail_from_any_sequence_number_gives_exactly_the_rest(db: str, done: str) -> None:
    whole = decodelog("tail", done, "--json", db=db).lines
    assert "".join(emission["text"] for emission in whole) == TEXT
    assert [emission["finish"] for emission in whole if emission["finish"]] == ["eos"]
    for start in (1, 2, 5, 6, whole[-2]["sequence"], whole[-1]["sequence"], whole[-1]["sequence"] + 1):
        rest = [emission for emission in whole if emission["sequence"] >= start]
        assert decodelog("tail", done, "--from", start, "--json", "--no-follow", db=db).lines == rest
    middle = whole[len(whole) // 2]
    text = "".join(emission["text"] for emission in whole if emission["sequence"] >= middle["sequence"])
    assert decodelog("tail", done, "--from", middle["sequence"], db=db).stdout == f"{text}\n"
    assert TEXT[middle["characters"] :] == text
    assert TEXT.encode()[middle["bytes"] :] == text.encode()


@pytest.mark.contract("FSM-2")
def test_events_are_one_a_line_for_people_and_for_programs(db: str, done: str) -> None:
    objects = decodelog("events", done, "--json", db=db).lines
    lines = decodelog("events", done, db=db).stdout.splitlines()
    assert [each["sequence"] for each in objects] == list(range(1, len(objects) + 1))
    assert [line.split()[:2] for line in lines] == [[str(each["sequence"]), each["event"]] for each in objects]
    assert objects[0]["envelope"]["schema"] == "numinens.request.v1"
    kinds = [each["event"] for each in objects]
    assert kinds[:5] == ["request.admitted", "attempt.started", "call.completed", "decision.made", "output.committed"]
    assert objects[3]["receipt"]["selection"]["token"] == TEXT.encode()[0]
    assert bytes.fromhex(objects[3]["receipt"]["piece"]) == TEXT.encode()[:1]
    assert decodelog("events", done, "--from", 7, db=db).stdout.splitlines() == lines[6:]


@pytest.mark.contract("LOG-3")
def test_audit_finds_a_changed_byte_names_it_and_exits_with_1(db: str, short_model: Path, done: str) -> None:
    assert decodelog("audit", db=db).stdout.endswith("no fault\n")
    other = decodelog("run", "--model", short_model, "--prompt", "Go", "--json", db=db).json["job"]
    with sqlite3.connect(db.removeprefix("sqlite:///")) as connection:
        (payload,) = connection.execute("SELECT payload FROM appends WHERE first = 6 LIMIT 1").fetchone()
        changed = payload[:-1] + bytes([payload[-1] ^ 1])
        connection.execute("UPDATE appends SET payload = ? WHERE payload = ?", (changed, payload))
    connection.close()
    audited = decodelog("audit", "--all", "--json", db=db)
    assert (audited.code, audited.json["ok"], audited.json["jobs"]) == (1, False, 2)
    assert {(fault["job"], fault["sequence"]) for fault in audited.json["faults"]} == {(done, 6)}
    assert decodelog("audit", other, "--json", db=db).json["ok"]
    assert f"{done}  event 6  [" in decodelog("audit", done, db=db).stdout
    shown = decodelog("show", done, "--json", db=db)
    damage = shown.json["damage"]
    assert (shown.code, damage["code"], damage["sequence"]) == (2, "corrupt_record", 6)
    assert len(decodelog("jobs", "--json", db=db).json) == 2


@pytest.mark.contract("LOG-6")
def test_db_commands_make_and_check_a_schema(empty_url: str) -> None:
    assert decodelog("db", "current", "--json", db=empty_url).json["revision"] is None
    missing = decodelog("db", "check", "--json", db=empty_url)
    assert (missing.code, missing.error["code"]) == (2, "schema_missing")
    upgraded = decodelog("db", "upgrade", "--json", db=empty_url).json
    assert upgraded["revision"] == upgraded["needed"]
    assert decodelog("db", "upgrade", "--json", db=empty_url).json == upgraded
    assert decodelog("db", "check", db=empty_url).stdout == f"{upgraded['needed']}\n"


@pytest.mark.contract("FSM-9")
def test_cancel_ends_a_waiting_job_and_is_refused_after_another_end(db: str, short_model: Path, done: str) -> None:
    waiting = decodelog("submit", "--model", short_model, "--prompt", "Go", db=db).stdout.strip()
    assert decodelog("cancel", waiting, db=db).stdout == f"{waiting} is cancelled with 0 tokens\n"
    before = decodelog("events", done, db=db).stdout
    late = decodelog("cancel", done, "--json", db=db)
    assert (late.code, late.error["code"], late.error["reason"]) == (2, "terminal", "eos")
    assert decodelog("events", done, db=db).stdout == before


@pytest.mark.contract("ENV-7")
def test_a_prompt_comes_from_an_argument_a_file_or_standard_input(db: str, short_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("Wie geht's?\n", encoding="utf-8")
    chat = tmp_path / "chat.json"
    messages = [{"role": "user", "content": "Hi"}]
    chat.write_text(json.dumps(messages), encoding="utf-8")

    def identity(*source: object, stdin: str | None = None) -> str:
        return str(decodelog("submit", "--model", short_model, *source, "--json", db=db, stdin=stdin).json["identity"])

    assert identity("--prompt", "Wie geht's?\n") == identity("--prompt-file", file)
    assert identity("--prompt-file", file) == identity("--prompt-file", "-", stdin="Wie geht's?\n")
    assert identity("--chat", chat) == identity("--user", "Hi") == identity("--chat", "-", stdin=json.dumps(messages))
    assert identity("--user", "Hi") != identity("--prompt", "Hi")


@pytest.mark.contract("OUT-2", "FSM-7")
@pytest.mark.parametrize(
    ("flags", "text", "finish"),
    [
        (("--stop", "sea", "--stop", "the"), "Rivers carry ", "stop_string"),
        (("--stop", "sea", "--include-stop"), "Rivers carry the mountains to the sea", "stop_string"),
        (("--stop", r"\n"), TEXT, "eos"),
        (("--stop-token-id", ord("y")), "Rivers carr", "stop_token"),
        (("--stop-token-id", ord("y"), "--include-stop"), "Rivers carry", "stop_token"),
        (("--max-new-tokens", 6), "Rivers", "length"),
        (("--max-new-tokens", 0), "", "length"),
        (("--deadline-ms", 1), "", "timeout"),
        (("--stop-token-id", ord("y"), "--min-new-tokens", 14, "--max-new-tokens", 15), "Rivers carr\0 th", "length"),
        (("--logit-bias", "113=10000", "--max-new-tokens", 3), "qqq", "length"),
        (("--logit-bias", "113=10000", "--banned-token-id", 113, "--max-new-tokens", 6), "Rivers", "length"),
        (("--allowed-token-id", 113, "--allowed-token-id", 256, "--max-new-tokens", 2), "qq", "length"),
        (("--batch-width", 4, "--logprobs", 2, "--max-new-tokens", 6), "Rivers", "length"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_flags_end_a_job_where_they_say(
    db: str, short_model: Path, flags: tuple[object, ...], text: str, finish: str
) -> None:
    result = decodelog("run", "--model", short_model, "--prompt", "Go", *flags, "--json", db=db).json
    assert (result["text"], result["finish_reason"]) == (text, finish)


@pytest.mark.contract("ENV-7", "POL-2")
def test_every_flag_of_the_policy_reaches_the_draft_under_its_name() -> None:
    numbers: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": 9,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 0.8,
        "xtc_probability": 0.3,
        "xtc_threshold": 0.2,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "presence_penalty": -0.3,
        "dry_multiplier": 0.7,
        "dry_base": 1.5,
        "dry_allowed_length": 3,
        "dry_range": 100,
        "dry_sequence_breakers": ["."],
        "no_repeat_ngram_size": 3,
        "allowed_token_ids": [5, 7],
        "banned_token_ids": [9],
    }
    pairs = {"logit_bias": ["5=-1.5", "7=2"], "forced_tokens": ["0=5"]}
    told = {
        "logit_bias": [{"token_id": 5, "bias": -1.5}, {"token_id": 7, "bias": 2}],
        "forced_tokens": [{"step": 0, "token_id": 5}],
    }
    others: dict[str, Any] = {"min_new_tokens": 2, "seed": 4, "logprobs": 5, "ignore_eos": True, "n": 3}
    assert {flag.name for flag in transform_flags()} == {*numbers, *told} == QUESTIONS.keys() - {"own_transforms"}
    made = DraftFlags("m", prompt="x", transforms={**numbers, **pairs}, **others).draft()
    assert made == draft_from({"prompt": "x", **numbers, **told, **others})
    named = {**numbers, **told, **others}.keys()
    assert all(getattr(made, name) != getattr(Draft(prompt="x"), name) for name in named)


@pytest.mark.contract("POL-5")
def test_a_seed_repeats_a_sample_and_no_seed_records_a_fresh_one(db: str, tmp_path: Path) -> None:
    model = script(tmp_path / "flat", script={"rows": [[0.0] * 256], "then": "repeat"})
    request = ("run", "--model", model, "--prompt", "Go", "--max-new-tokens", 12, "--top-k", 200, "--json")
    one, same, *fresh = (
        decodelog(*request, *seed, db=db).json
        for seed in (("--seed", 3), ("--seed", 3), ("--top-p", 0.9), ("--seed", 4))
    )
    assert one["token_ids"] == same["token_ids"]
    assert one["identity"] == same["identity"] != fresh[0]["identity"]
    assert len({tuple(each["token_ids"]) for each in (one, *fresh)}) == 3


def test_a_model_directory_means_the_same_from_another_folder(
    db: str, short_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(short_model.parent)
    decodelog("submit", "--model", short_model.name, "--prompt", "Go", db=db)
    monkeypatch.chdir("/")
    assert decodelog("worker", "--drain", db=db).code == 0
    assert jobs(db)[0].finish == "eos"


def test_a_worker_has_a_line_for_each_job_in_hand(db: str, short_model: Path) -> None:
    job = decodelog("submit", "--model", short_model, "--prompt", "Go", db=db).stdout.strip()
    with closing(open_store(db)) as store:
        before = transcript_of(store, job).state
        assert before is not None
        assert decodelog("worker", "--drain", db=db).code == 0
        after = transcript_of(store, job).state
    assert after is not None
    watch = Watch(json=False)
    for name in ("job-1", "job-2"):
        watch.see(name, [], before)
    watch.see("job-1", [], after._replace(ending=None))
    time.sleep(0.01)
    first, second, rest = watch.lines()
    assert first.startswith(job)
    assert (f" {after.frontier.output}/256 tokens" in first, " 0/256 tokens" in second) == (True, True)
    assert float(first.split()[-1].removesuffix("/s")) > float(second.split()[-1].removesuffix("/s")) == 0
    assert rest == "jobs in hand: 2; tokens so far: 0"


def test_a_job_that_another_worker_took_over_is_no_longer_in_hand(db: str, short_model: Path) -> None:
    job = decodelog("submit", "--model", short_model, "--prompt", "Go", db=db).stdout.strip()
    with closing(open_store(db)) as store:
        state = transcript_of(store, job).state
    assert state is not None
    watch = Watch(json=False)
    for name in ("job-1", "job-2"):
        watch.see(name, [], state)
    watch.hear("job-1", LostTenure("job-1", "overtaken", "fence 2"))
    assert watch.lines()[1:] == ["jobs in hand: 1; tokens so far: 0"]
    assert not watch.failed
    watch.hear("job-2", DatabaseUnavailable("db", "away"))
    assert watch.failed


def test_the_database_comes_from_the_environment_where_no_flag_names_one(
    db: str, done: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECODELOG_DB", db)
    assert [each["job"] for each in decodelog("jobs", "--json").json] == [done]


def test_models_are_listed_and_unknown_ones_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECODELOG_HOME", str(tmp_path))
    (listing,) = decodelog("model", "ls", "--json").json
    assert (listing["name"], listing["fetched"]) == ("smollm2-135m-instruct", False)
    assert "smollm2-135m-instruct  not fetched" in decodelog("model", "ls").stdout
    unknown = decodelog("model", "fetch", "smollm9", "--json")
    assert (unknown.code, unknown.error["code"], unknown.error["known"]) == (2, "unknown_model", [listing["name"]])


def test_every_command_explains_itself_with_an_example() -> None:
    everything = decodelog("--help").stdout
    for name, listed in COMMANDS.items():
        helped = decodelog(name, "--help")
        assert helped.code == 0
        assert f"  {name} " in everything
        assert helped.stdout.count("Example: decodelog") == len(listed.examples)
        assert listed.examples or "Commands:" in helped.stdout
        assert all(example.startswith(f"decodelog {name}") for example in listed.examples)
    assert decodelog("--version").stdout.startswith("decodelog ")


@pytest.mark.contract("OUT-5", "OUT-6")
def test_structure_is_asked_for_by_flags_and_reported_in_the_result(sqlite_url: str, tmp_path: Path) -> None:
    said = script(tmp_path / "said", script={"text": 'So: {"a": 1} <c>[2]</c> 12-34'})

    def run(*flags: object, stdin: str | None = None) -> tuple[str, str, bool]:
        done = decodelog("run", "--model", said, "--prompt", "Go", *flags, "--json", db=sqlite_url, stdin=stdin).json
        return done["text"], done["finish_reason"], done["structure_complete"]

    assert run("--stop-on-json") == ('So: {"a": 1}', "structured_complete", True)
    assert run("--stop-on-tool-call", "<c>", "</c>") == ('So: {"a": 1} <c>[2]</c>', "structured_complete", True)
    assert run("--regex", "So: [^ ]+ 1}") == ('So: {"a": 1}', "structured_complete", True)
    assert run("--regex", "So: [^ ]+ 1}", "--max-new-tokens", 3) == ("So:", "length", False)
    lark = 'start: "So: " /[^<]+/ "<c>"'
    assert run("--grammar", "-", stdin=lark) == ('So: {"a": 1} <c>', "structured_complete", True)
    (tmp_path / "schema.json").write_text('{"const": 7}', encoding="utf-8")
    assert run("--json-schema", tmp_path / "schema.json") == ("7", "structured_complete", True)
