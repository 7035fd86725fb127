"""Bad input: each a typed error in one line that says what to do, exit code 2, and nothing lost or half-made."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
from functools import partial
from pathlib import Path

import pytest
from commandline import decodelog, jobs, script

from decodelog.fsm.limits import GRAMMAR_BYTES_MAX, REQUEST_BYTES_MAX
from decodelog.store import engine
from decodelog.store.database import schema

# Words in capitals stand for files and folders that the test makes.
REFUSED = """
no_prompt            prompt_missing        run --model GOOD
no_prompt_in_request prompt_missing        run --model GOOD --request NO_PROMPT
misspelt_request     schema_violation      run --model GOOD --request MISSPELT
request_not_a_map    schema_violation      run --model GOOD --request NOBODY
stdin_twice          conflicting_flags     run --model GOOD --user - --json-schema -
two_prompts          conflicting_flags     run --model GOOD --prompt x --user y
system_alone         conflicting_flags     run --model GOOD --prompt x --system y
no_model             wrong_use             run --prompt x
unknown_model        unknown_model         run --model nobody --prompt x
not_fetched          model_not_fetched     run --model smollm2-135m-instruct --prompt x
broken_script        broken_artifact       run --model BROKEN --prompt x
broken_checkpoint    broken_artifact       submit --model EMPTY --prompt x
not_a_number         wrong_use             run --model GOOD --prompt x --top-k many
negative_budget      schema_violation      run --model GOOD --prompt x --max-new-tokens -1
no_budget            schema_violation      run --model GOOD --prompt x --max-new-tokens lots
endless_budget       schema_violation      run --model GOOD --prompt x --max-new-tokens LONG
empty_key            schema_violation      run --model GOOD --prompt x --idempotency-key ''
long_key             limit_exceeded        run --model GOOD --prompt x --idempotency-key LONG
key_not_utf8         schema_violation      submit --model GOOD --prompt x --idempotency-key SURROGATE
job_not_utf8         schema_violation      show SURROGATE
model_of_nobody      unknown_model         run --model ~nobody.at.all --prompt x
model_too_long       unknown_model         run --model LONG --prompt x
huge_budget          limit_exceeded        run --model GOOD --prompt x --max-new-tokens 99999999
nan_temperature      schema_violation      run --model GOOD --prompt x --temperature nan
negative_temperature schema_violation      run --model GOOD --prompt x --temperature -1
top_p_above_1        limit_exceeded        run --model GOOD --prompt x --top-p 1.5
penalty_of_nothing   schema_violation      run --model GOOD --prompt x --repetition-penalty 0
huge_penalty         limit_exceeded        run --model GOOD --prompt x --presence-penalty 1e9
long_ngram           limit_exceeded        run --model GOOD --prompt x --no-repeat-ngram-size 99
bias_without_number  wrong_use             run --model GOOD --prompt x --logit-bias 65
bias_of_no_token     wrong_use             run --model GOOD --prompt x --logit-bias A=1
nan_bias             schema_violation      run --model GOOD --prompt x --logit-bias 65=nan
bias_twice           schema_violation      run --model GOOD --prompt x --logit-bias 65=1 --logit-bias 65=2
foreign_bias         not_admissible        run --model GOOD --prompt x --logit-bias 100000=1
nothing_allowed      schema_violation      run --model GOOD --prompt x --allowed-token-id 65 --banned-token-id 65
ends_before_minimum  not_admissible        run --model GOOD --prompt x --allowed-token-id 256 --min-new-tokens 1
minimum_above_budget schema_violation      run --model GOOD --prompt x --max-new-tokens 2 --min-new-tokens 3
seed_too_large       limit_exceeded        run --model GOOD --prompt x --seed 9007199254740992
equal_choices        schema_violation      run --model GOOD --prompt x --n 2
no_choices           schema_violation      submit --model GOOD --prompt x --n 0 --temperature 1
too_many_choices     limit_exceeded        submit --model GOOD --prompt x --n 129 --temperature 1
too_many_logprobs    limit_exceeded        run --model GOOD --prompt x --logprobs 21
two_structures       conflicting_flags     run --model GOOD --prompt x --regex a --json-schema SCHEMA
grammar_and_stop     conflicting_flags     run --model GOOD --prompt x --grammar LARK --stop-on-json
grammar_without_end  not_admissible        run --model GOOD --prompt x --regex a --ignore-eos
bad_regex            grammar_refused       run --model GOOD --prompt x --regex (
empty_language       grammar_refused       submit --model GOOD --prompt x --regex EMPTY_LANGUAGE
bad_schema           grammar_refused       submit --model GOOD --prompt x --json-schema BAD_SCHEMA
schema_not_json      malformed_json        submit --model GOOD --prompt x --json-schema NOT_JSON
schema_repeated_key  schema_violation      submit --model GOOD --prompt x --json-schema TWICE
schema_not_an_object schema_violation      submit --model GOOD --prompt x --json-schema NOBODY
missing_schema       unreadable_input      submit --model GOOD --prompt x --json-schema nowhere.json
bad_grammar          grammar_refused       submit --model GOOD --prompt x --grammar NOBODY
binary_grammar       unreadable_input      submit --model GOOD --prompt x --grammar BINARY
huge_grammar         limit_exceeded        submit --model GOOD --prompt x --grammar LARGE
blank_marker         schema_violation      run --model GOOD --prompt x --stop-on-tool-call a ' b'
empty_stop           schema_violation      run --model GOOD --prompt x --stop ''
foreign_stop_token   not_admissible        run --model GOOD --prompt x --stop-token-id 100000
empty_prompt         schema_violation      run --model GOOD --prompt ''
prompt_too_long      not_admissible        run --model SMALL --prompt 0123456789
oversized_prompt     limit_exceeded        run --model GOOD --prompt-file HUGE
binary_prompt        unreadable_input      run --model GOOD --prompt-file BINARY
half_a_surrogate     schema_violation      run --model GOOD --prompt SURROGATE
missing_prompt_file  unreadable_input      run --model GOOD --prompt-file nowhere.txt
folder_as_prompt     unreadable_input      run --model GOOD --prompt-file EMPTY
chat_not_json        malformed_json        run --model GOOD --chat NOT_JSON
chat_not_a_list      schema_violation      run --model GOOD --chat OBJECT
chat_unknown_role    schema_violation      run --model GOOD --chat ROLE
chat_unknown_field   schema_violation      submit --model GOOD --chat FIELD
chat_repeated_key    schema_violation      submit --model GOOD --chat REPEATED
chat_too_deep        limit_exceeded        submit --model GOOD --chat DEEP
empty_chat           schema_violation      submit --model GOOD --chat NOBODY
unknown_job          unknown_job           show nothing
resume_unknown_job   unknown_job           resume nothing
events_unknown_job   unknown_job           events nothing
tail_unknown_job     unknown_job           tail nothing --from 7
cancel_unknown_job   unknown_job           cancel nothing
audit_unknown_job    unknown_job           audit nothing
resume_what          wrong_use             resume
resume_both          wrong_use             resume nothing --all
audit_both           wrong_use             audit nothing --all
export_unknown_job   unknown_job           export nothing --out NOWHERE
export_what          wrong_use             export --out NOWHERE
export_both          wrong_use             export nothing --all --out NOWHERE
export_to_nothing    wrong_use             export --all
export_to_a_folder   unwritable_output     export --all --force --out EMPTY
export_over_a_file   unwritable_output     export --all --out NOBODY
export_below_a_file  unwritable_output     export --all --out NOBODY/x
export_without_name  unwritable_output     export --all --out ''
verify_nothing       not_an_export         verify NOWHERE
verify_a_folder      not_an_export         verify EMPTY
verify_another_file  not_an_export         verify HUGE
sequence_zero        wrong_use             events nothing --from 0
no_lanes             wrong_use             worker --lanes 0
unknown_rebuild      wrong_use             worker --rebuild magic
unknown_flag         wrong_use             jobs --colour
unknown_command      wrong_use             jbos
unwritable_picture   unwritable_output     diagram --svg --out EMPTY
demo_folder_is_there unwritable_output     demo --model GOOD --keep EMPTY
"""

CASES = [line.split(maxsplit=2) for line in REFUSED.strip().splitlines()]


@pytest.fixture
def made(tmp_path: Path) -> dict[str, str]:
    """What the words in capitals stand for."""
    texts = {
        "NOT_JSON": "[{'role': 'user'}]",
        "OBJECT": '{"role": "user", "content": "x"}',
        "ROLE": '[{"role": "boss", "content": "x"}]',
        "FIELD": '[{"role": "user", "content": "x", "mood": "good"}]',
        "REPEATED": '[{"role": "user", "content": "x", "content": "y"}]',
        "DEEP": "[" * 40 + "]" * 40,
        "NOBODY": "[]",
        "NO_PROMPT": '{"temperature": 1}',
        "MISSPELT": '{"prompt": "x", "temprature": 1}',
        "SCHEMA": '{"type": "object"}',
        "BAD_SCHEMA": '{"type": "foo"}',
        "TWICE": '{"type": "object", "type": "array"}',
        "LARK": "start: /a/",
        "LARGE": "start: " + '"a" ' * GRAMMAR_BYTES_MAX,
        "HUGE": "x" * (REQUEST_BYTES_MAX + 1),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "BINARY").write_bytes(b"abc\xff")
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "EMPTY" / "config.json").write_text("{", encoding="utf-8")
    (script(tmp_path / "BROKEN") / "scripted.json").write_text('{"script": {}}', encoding="utf-8")
    script(tmp_path / "GOOD", script={"text": "good"})
    script(tmp_path / "SMALL", script={"text": "small"}, context=8)
    places = {name: str(tmp_path / name) for name in (*texts, "BINARY", "EMPTY", "BROKEN", "GOOD", "SMALL")}
    places["EMPTY_LANGUAGE"] = r"[^\u0000-\U0010FFFF]"
    return places | {"SURROGATE": os.fsdecode(b"\xff"), "LONG": "9" * 5000}


@pytest.mark.contract("ENV-1", "ENV-2", "ENV-6", "ENV-8")
@pytest.mark.parametrize(("name", "code", "command"), CASES, ids=[case[0] for case in CASES])
def test_bad_input_is_refused_with_one_clear_line(
    name: str, code: str, command: str, made: dict[str, str], sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECODELOG_DB", sqlite_url)
    monkeypatch.setenv("DECODELOG_HOME", made["EMPTY"])
    arguments = [made.get(word, word) for word in shlex.split(command)]
    told, shown = decodelog(*arguments, "--json"), decodelog(*arguments)
    assert (told.code, told.error["code"]) == (2, code)
    assert told.error["message"]
    assert (shown.code, shown.stdout) == (2, "")
    if code == "wrong_use":
        assert "--help" in shown.stderr or "-h" in shown.stderr
    else:
        (line,) = [line for line in shown.stderr.splitlines() if line.startswith("error[")]
        assert line == f"error[{code}]: {' '.join(told.error['message'].split())}"
    assert jobs(sqlite_url) == []


def test_a_fault_of_the_program_itself_is_one_line_too(monkeypatch: pytest.MonkeyPatch, sqlite_url: str) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("decodelog.store.appending.event_log.DatabaseLog.pages", broken)
    told = decodelog("jobs", "--json", db=sqlite_url)
    assert (told.code, told.error["code"]) == (1, "unexpected")
    assert "ZeroDivisionError: a bug" in told.error["message"]


def test_every_code_of_the_table_is_a_name_that_programs_can_rely_on() -> None:
    from decodelog.fsm import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.Problem)]
    assert {code for _, code, _ in CASES} <= {kind.code for kind in kinds} | {"wrong_use"}


@pytest.mark.parametrize("command", ["jobs", "show x", "events x", "tail x", "audit", "resume --all"])
def test_reading_commands_make_no_database(command: str, empty_sqlite_url: str) -> None:
    refused = decodelog(*command.split(), "--json", db=empty_sqlite_url)
    assert (refused.code, refused.error["code"]) == (2, "schema_missing")
    assert "decodelog db upgrade" in refused.error["message"]
    assert not Path(empty_sqlite_url.removeprefix("sqlite:///")).exists()


def test_a_worker_makes_the_database_where_run_does(empty_sqlite_url: str, made: dict[str, str]) -> None:
    """Whichever of a worker and its first submitter begins first."""
    file = Path(empty_sqlite_url.removeprefix("sqlite:///"))
    assert decodelog("worker", "--drain", db=empty_sqlite_url).code == 0
    assert file.exists()
    assert decodelog("submit", "--model", made["GOOD"], "--prompt", "x", db=empty_sqlite_url).code == 0
    assert decodelog("worker", "--drain", db=empty_sqlite_url).code == 0
    assert [row.finish for row in jobs(empty_sqlite_url)] == ["eos"]


@pytest.mark.contract("LOG-6")
def test_a_newer_schema_is_left_alone(sqlite_url: str, made: dict[str, str]) -> None:
    path = sqlite_url.removeprefix("sqlite:///")
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    for command in (["jobs"], ["run", "--model", made["GOOD"], "--prompt", "x"], ["db", "upgrade"], ["db", "check"]):
        refused = decodelog(*command, "--json", db=sqlite_url)
        assert (refused.code, refused.error["code"], refused.error["found"]) == (2, "schema_newer", "9999")
    assert schema.current(sqlite_url) == "9999"


@pytest.mark.contract("LOG-2")
def test_a_locked_database_is_waited_for_and_then_refused(
    sqlite_url: str, made: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "open_store", partial(engine.open_store, busy_timeout_ms=50))
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    connection.execute("BEGIN IMMEDIATE")
    refused = decodelog("submit", "--model", made["GOOD"], "--prompt", "x", "--json", db=sqlite_url)
    connection.close()
    assert (refused.code, refused.error["code"]) == (2, "database_locked")
    assert jobs(sqlite_url) == []


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("sqlite:///FOLDER/missing/jobs.db", "folder_missing"),
        ("sqlite:///FOLDER", "unsupported_database"),
        ("sqlite:///FILE", "unsupported_database"),
        ("mysql://host/jobs", "unsupported_database"),
        ("jobs.db", "unsupported_database"),
        ("postgresql://127.0.0.1:1/jobs", "database_unavailable"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused(url: str, code: str, tmp_path: Path, made: dict[str, str]) -> None:
    url = url.replace("FOLDER", made["EMPTY"]).replace("FILE", made["NOT_JSON"])
    Path(made["NOT_JSON"]).write_text("not a database " * 400, encoding="utf-8")
    refused = decodelog("run", "--model", made["GOOD"], "--prompt", "x", "--json", db=url)
    assert (refused.code, refused.error["code"]) == (2, code)
    assert "password" not in json.dumps(refused.error)


@pytest.mark.contract("ENV-9")
def test_a_job_whose_model_has_changed_is_left_to_others(sqlite_url: str, made: dict[str, str]) -> None:
    job = decodelog("submit", "--model", made["GOOD"], "--prompt", "x", db=sqlite_url).stdout.strip()
    script(Path(made["GOOD"]), script={"text": "another"})
    resumed = decodelog("resume", job, "--json", db=sqlite_url)
    assert (resumed.code, resumed.error["code"]) == (2, "model_not_here")
    assert "what lies there has another digest" in resumed.error["message"]
    drained = decodelog("worker", "--drain", db=sqlite_url)
    assert (drained.code, "are left to others" in drained.stderr) == (1, True)
    (row,) = jobs(sqlite_url)
    assert (row.status.value, row.owner, row.head.sequence) == ("ADMITTED", None, 1)
    script(Path(made["GOOD"]), script={"text": "good"})
    assert decodelog("resume", job, db=sqlite_url).stdout == "good\n"
