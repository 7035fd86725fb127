"""A request through its flags and files: marks of byte order, conversations as clients write them, and end tokens."""

from __future__ import annotations

import codecs
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commandline import decodelog, jobs, script
from typer.testing import CliRunner

from decodelog.service.cli.app import app
from decodelog.service.database import open_database
from decodelog.service.streams.reading import transcript_of

EOS, ANSWER = 256, 257
FOREIGN = ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
MARKS = {
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}
FILES = {
    "--prompt-file": "say\r\nit",
    "--chat": '[{"role": "user", "content": "say"}]',
    "--json-schema": '{"type": "object"}',
    "--grammar": 'start: "good"',
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(script(tmp_path / "model", script={"text": '{"a":"good"}'}))


def prompt(url: str) -> tuple[bytes, Any]:
    """The newest job's prompt, without what ends it, and its request."""
    store = open_database(url)
    try:
        state = transcript_of(store, jobs(url)[-1].job).state
        assert state is not None
        return bytes(token for token in state.spec.prompt if token < 256), state.spec.envelope
    finally:
        store.close()


def given(flag: str, path: str) -> list[str]:
    return [flag, path] if flag in ("--prompt-file", "--chat") else ["--prompt", "say", flag, path]


# ---- marks of byte order ---------------------------------------------------------------------------------------------


@pytest.mark.contract("ENV-1", "ENV-7")
@pytest.mark.parametrize("flag", FILES)
@pytest.mark.parametrize("stdin", [True, False])
def test_a_utf8_mark_is_no_part_of_any_file(
    flag: str, stdin: bool, model: str, sqlite_url: str, tmp_path: Path
) -> None:
    identities = []
    for mark in (b"", codecs.BOM_UTF8):
        raw = mark + FILES[flag].encode()
        (tmp_path / "file").write_bytes(raw)
        arguments = ["submit", "--model", model, *given(flag, "-" if stdin else str(tmp_path / "file"))]
        told = CliRunner().invoke(app, [*arguments, "--json", "--db", sqlite_url], input=raw if stdin else None)
        identities.append(json.loads(told.stdout)["identity"])
    assert identities[0] == identities[1]
    if flag == "--prompt-file":
        assert prompt(sqlite_url)[0] == b"say\r\nit"


@pytest.mark.contract("ENV-1", "ENV-7")
@pytest.mark.parametrize("flag", FILES)
@pytest.mark.parametrize("encoding", FOREIGN)
def test_a_file_of_another_encoding_is_refused_by_its_name(
    flag: str, encoding: str, model: str, sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(MARKS.get(encoding, b"") + FILES[flag].encode(encoding))
    refused = decodelog("submit", "--model", model, *given(flag, str(tmp_path / "file")), "--json", db=sqlite_url)
    assert (refused.code, refused.error["code"]) == (2, "unreadable_input")
    assert encoding[:6].upper() in refused.error["message"]
    assert jobs(sqlite_url) == []


# ---- conversations ---------------------------------------------------------------------------------------------------

TEXT = {"type": "text", "text": "say"}
CONVERSATIONS: list[tuple[Any, bytes]] = [
    ([{"role": "user", "content": [TEXT]}], b"user: say\nassistant: "),
    ([{"role": "user", "content": [TEXT, {"type": "text", "text": " it"}]}], b"user: say it\nassistant: "),
    ([{"role": "user", "content": []}], b"user: \nassistant: "),
    ({"messages": [{"role": "user", "content": "say"}]}, b"user: say\nassistant: "),
    ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], b"user: a\nassistant: b"),
]
REFUSED: list[tuple[Any, str, str]] = [
    ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "messages[0].content", "image_url"),
    ([{"role": "user", "content": [TEXT, "x"]}], "messages[0].content", "part 1"),
    ([{"role": "user", "content": [TEXT | {"cache_control": 1}]}], "messages[0].content", "part 0"),
    ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content", "part 0"),
    ([{"role": "user", "content": None}], "messages[0].content", "null"),
    ([{"role": "user", "content": {"text": "x"}}], "messages[0].content", "object"),
    ([{"role": "developer", "content": "x"}], "messages[0].role", "system"),
    ([{"role": "assistant", "content": "x", "tool_calls": []}], "messages[0].tool_calls", "no such field"),
    ({"messages": [{"role": "user", "content": "x"}], "temperature": 1}, "temperature", "flag"),
    ({"messages": {"role": "user", "content": "x"}}, "messages", "list"),
    ({"conversation": []}, "messages", "list"),
]


@pytest.mark.contract("ENV-2", "ENV-7")
@pytest.mark.parametrize(("chat", "expected"), CONVERSATIONS)
def test_a_conversation_as_clients_write_it_is_taken(
    chat: Any, expected: bytes, model: str, sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "chat").write_text(json.dumps(chat))
    assert decodelog("submit", "--model", model, "--chat", tmp_path / "chat", db=sqlite_url).code == 0
    assert prompt(sqlite_url)[0] == expected


@pytest.mark.contract("ENV-2")
def test_a_system_message_comes_before_the_users(model: str, sqlite_url: str) -> None:
    given = ("submit", "--model", model, "--system", "Be short.", "--user", "say")
    assert decodelog(*given, db=sqlite_url).code == 0
    assert prompt(sqlite_url)[0] == b"system: Be short.\nuser: say\nassistant: "


@pytest.mark.contract("ENV-2", "ENV-7")
@pytest.mark.parametrize(("chat", "path", "word"), REFUSED)
def test_what_is_no_text_in_a_conversation_is_refused_by_its_place(
    chat: Any, path: str, word: str, model: str, sqlite_url: str, tmp_path: Path
) -> None:
    (tmp_path / "chat").write_text(json.dumps(chat))
    refused = decodelog("submit", "--model", model, "--chat", tmp_path / "chat", "--json", db=sqlite_url)
    assert (refused.code, refused.error["code"], refused.error["path"]) == (2, "schema_violation", path)
    assert word in refused.error["message"]


@pytest.mark.contract("ENV-7")
def test_messages_are_trusted_only_where_there_are_messages(model: str, sqlite_url: str) -> None:
    refused = decodelog("submit", "--model", model, "--prompt", "x", "--trust-messages", "--json", db=sqlite_url)
    assert (refused.code, refused.error["code"]) == (2, "conflicting_flags")
    assert decodelog("submit", "--model", model, "--user", "x", "--trust-messages", db=sqlite_url).code == 0


# ---- whole requests, and what is piped in ----------------------------------------------------------------------------


@pytest.mark.contract("ENV-2", "ENV-7")
def test_a_request_file_says_all_that_flags_say_and_flags_count_before_it(
    model: str, sqlite_url: str, tmp_path: Path
) -> None:
    whole = {"prompt": "say", "temperature": 0.5, "seed": 3, "stop": ["x"], "stop_on_json": True, "max_new_tokens": 9}
    (tmp_path / "request").write_text(json.dumps(whole))

    def identity(*flags: object) -> str:
        return str(decodelog("submit", "--model", model, *flags, "--json", db=sqlite_url).json["identity"])

    flags = ("--temperature", 0.5, "--seed", 3, "--stop", "x", "--max-new-tokens", 9)
    file = ("--request", tmp_path / "request")
    assert identity(*file) == identity("--prompt", "say", *flags, "--stop-on-json")
    assert identity(*file, "--user", "a", "--seed", 4, "--regex", "b*") == identity(
        "--user", "a", *flags, "--seed", 4, "--regex", "b*"
    )


@pytest.mark.contract("ENV-2")
def test_a_field_that_a_request_does_not_have_is_told_the_nearest(model: str, sqlite_url: str, tmp_path: Path) -> None:
    (tmp_path / "request").write_text('{"prompt": "say", "temprature": 1}')
    refused = decodelog("submit", "--model", model, "--request", tmp_path / "request", "--json", db=sqlite_url)
    assert (refused.error["code"], refused.error["path"]) == ("schema_violation", "temprature")
    assert "the nearest is temperature" in refused.error["message"]


@pytest.mark.contract("ENV-7")
def test_what_is_piped_in_is_the_prompt_where_none_is_given(model: str, sqlite_url: str) -> None:
    assert decodelog("submit", "--model", model, db=sqlite_url, stdin="say\n").code == 0
    assert prompt(sqlite_url)[0] == b"say\n"
    for flag, expected in (("--prompt", b"say"), ("--user", b"user: say\nassistant: ")):
        assert decodelog("submit", "--model", model, flag, "-", db=sqlite_url, stdin="say").code == 0
        assert prompt(sqlite_url)[0] == expected


@pytest.mark.contract("ENV-7")
def test_a_pipe_in_which_nothing_comes_is_not_waited_for(model: str, sqlite_url: str) -> None:
    silent, kept = os.pipe()
    program = (
        "from decodelog.service.cli import input_files; input_files.PIPED_S = 0.1;"
        "from decodelog.service.cli.entry import main; main()"
    )
    given = [sys.executable, "-c", program, "submit", "--model", model, "--db", sqlite_url]
    try:
        for stdin, reason in ((silent, "nothing has come"), (subprocess.DEVNULL, "is empty")):
            told = subprocess.run(given, stdin=stdin, capture_output=True, encoding="utf-8", timeout=600, check=False)
            assert (told.returncode, "error[prompt_missing]" in told.stderr, reason in told.stderr) == (2, True, True)
    finally:
        os.close(kept)
    assert jobs(sqlite_url) == []


@pytest.mark.contract("ENV-7")
def test_show_tells_what_is_not_as_usual_and_all_of_it_where_asked(model: str, sqlite_url: str) -> None:
    request = ("--temperature", 0.8, "--seed", 7, "--stop", "x" * 200, "--max-new-tokens", 9, "--echo")
    job = decodelog("run", "--model", model, "--prompt", "say " * 100, *request, "--json", db=sqlite_url).json["job"]
    shown = decodelog("show", job, db=sqlite_url).stdout
    for line in (
        "temperature 0.8\n",
        "seed 7\n",
        "max_new_tokens 9\n",
        "echo_prompt True\n",
        "tokens    9/9 new ones\n",
    ):
        assert line in shown, line
    assert f"prompt    401 tokens of text: {('say ' * 100)[:100]}...\n" in shown
    assert ("x" * 200 in shown, "batch_width" in shown, "\nended     " in shown) == (False, False, True)
    whole = decodelog("show", job, "--all", db=sqlite_url).stdout
    assert ("x" * 200 in whole, "runtime.batch_width 1\n" in whole, "say " * 100 in whole) == (True, True, True)
    sealed = decodelog("show", job, "--all", "--json", db=sqlite_url).json["request"]
    assert (sealed["rng"]["seed"], len(sealed["prompt"]["token_ids"])) == (7, 401)


# ---- end tokens ------------------------------------------------------------------------------------------------------


@pytest.mark.contract("ENV-6", "ENV-7", "OUT-3")
def test_end_tokens_are_shown_and_can_be_narrowed(model: str, sqlite_url: str) -> None:
    """The end tokens of a job are shown and can be narrowed to the model's own."""
    request = ("--model", model, "--user", "x", "--json")
    told = decodelog("run", *request, db=sqlite_url).json
    assert (told["eos_ids"], told["finish_reason"]) == ([EOS], "eos")
    assert decodelog("show", told["job"], "--json", db=sqlite_url).json["eos_ids"] == [EOS]
    assert f"ends at   {EOS}\n" in decodelog("show", told["job"], db=sqlite_url).stdout
    narrowed = decodelog("run", *request, "--eos-token-id", EOS, db=sqlite_url).json
    assert (narrowed["eos_ids"], narrowed["identity"]) == ([EOS], told["identity"])
    ignored = decodelog("run", *request, "--ignore-eos", "--max-new-tokens", 20, db=sqlite_url).json
    assert (ignored["eos_ids"], ignored["finish_reason"]) == ([], "length")
    assert "no end token" in decodelog("show", ignored["job"], db=sqlite_url).stdout
    refused = decodelog("run", *request, "--eos-token-id", 65, db=sqlite_url)
    assert (refused.code, refused.error["check"]) == (2, "termination.eos_ids")
    both = decodelog("run", *request, "--eos-token-id", EOS, "--ignore-eos", db=sqlite_url)
    assert (both.code, both.error["code"]) == (2, "schema_violation")


@pytest.mark.contract("ENV-7", "OUT-3")
def test_a_fork_keeps_the_end_tokens_of_its_origin(model: str, sqlite_url: str) -> None:
    told = decodelog("run", "--model", model, "--user", "x", "--json", db=sqlite_url).json
    fork = decodelog("fork", told["job"], "--at", 1, "--max-new-tokens", 50, "--json", db=sqlite_url).json
    assert prompt(sqlite_url)[1].termination.eos_ids == (EOS,)
    assert fork["created"]
