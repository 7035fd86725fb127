"""Batches: the file form of OpenAI's API, each line answered exactly once, whatever is killed."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from commandline import PATIENCE_S, POLL_S, TEXT, decodelog, ended, jobs, process, script

import decodelog as package
from decodelog.fsm.errors import SchemaViolation
from decodelog.service.batch.chat import line_of, request_of


def line(custom_id: str, url: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "m", **body}}


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines), encoding="utf-8")
    return path


def answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_bytes().splitlines()]


@pytest.fixture
def seeded(tmp_path: Path) -> Path:
    """A model that says something else for each seed."""
    return script(tmp_path / "seeded", script={"seed": 3})


CHAT = [{"role": "user", "content": "Hi"}]


def test_each_line_is_answered_in_the_form_of_the_api(sqlite_url: str, short_model: Path, tmp_path: Path) -> None:
    lines = [
        line("whole", messages=CHAT, temperature=0, logprobs=True, top_logprobs=2, top_p=0.01),
        line("short", "/v1/completions", prompt="a", max_tokens=4, temperature=0),
        line("wrong", messages=CHAT, tools=[]),
        line("empty", "/v1/completions", prompt=""),
    ]
    out = tmp_path / "out.jsonl"
    done = decodelog(
        "batch", written(tmp_path / "in.jsonl", lines), out, "--model", short_model, "--json", db=sqlite_url
    )
    assert (done.code, done.json["lines"], done.json["refused"]) == (1, 4, 2)
    whole, short, wrong, empty = answers(out)
    assert [each["custom_id"] for each in answers(out)] == ["whole", "short", "wrong", "empty"]
    assert whole["response"]["status_code"] == 200
    body = whole["response"]["body"]
    assert body["choices"][0]["message"] == {"role": "assistant", "content": TEXT}
    assert (body["object"], body["choices"][0]["finish_reason"]) == ("chat.completion", "stop")
    content = body["choices"][0]["logprobs"]["content"]
    assert bytes(byte for token in content for byte in token["bytes"]) == TEXT.encode()
    assert {len(token["top_logprobs"]) for token in content} == {2}
    body = short["response"]["body"]
    assert (body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == (TEXT[:4], "length")
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 4
    assert (wrong["response"]["status_code"], empty["response"]["status_code"]) == (400, 400)
    assert "body.tools" in wrong["response"]["body"]["error"]["message"]
    assert len(jobs(sqlite_url)) == 2


@pytest.mark.contract("API-2", "RES-4")
def test_a_batch_that_is_killed_again_and_again_answers_each_line_once(
    sqlite_url: str, seeded: Path, tmp_path: Path
) -> None:
    lines = [line(f"{number}", messages=CHAT, max_tokens=3 + number % 5) for number in range(60)]
    given = ("batch", written(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl", "--model", seeded, "--lanes", 4)
    out, reached = tmp_path / "out.jsonl", 0
    for kill in range(4):
        with process(*given, db=sqlite_url) as running:
            until = time.monotonic() + PATIENCE_S
            while time.monotonic() < until:
                count = out.read_bytes().count(b"\n") if out.exists() else 0
                if count > reached:
                    break
                time.sleep(POLL_S)
            running.send_signal(signal.SIGKILL)
            running.wait()
        reached = out.read_bytes().count(b"\n")
        if kill % 2:
            with out.open("ab") as torn:
                torn.write(b'{"id": "batch_req_')
    with process(*given, db=sqlite_url) as running:
        assert ended(running).code == 0
    assert [each["custom_id"] for each in answers(out)] == [each["custom_id"] for each in lines]
    assert len(jobs(sqlite_url)) == len(lines)
    whole = tmp_path / "whole.jsonl"
    decodelog("batch", tmp_path / "in.jsonl", whole, "--model", seeded, db=f"sqlite:///{tmp_path}/other.db")
    assert [texts(each) for each in answers(out)] == [texts(each) for each in answers(whole)]
    assert decodelog("audit", "--all", db=sqlite_url).code == 0


def texts(answer: Mapping[str, Any]) -> Any:
    return answer["response"]["body"]["choices"]


def test_a_file_that_is_no_batch_admits_nothing(sqlite_url: str, short_model: Path, tmp_path: Path) -> None:
    good = line("a", messages=CHAT)
    for lines in ([good, good], [good, {"custom_id": "b"}], [good, line("b", "/v1/embeddings", input="a")]):
        source = written(tmp_path / "in.jsonl", lines)
        done = decodelog("batch", source, tmp_path / "out", "--model", short_model, "--json", db=sqlite_url)
        assert (done.code, done.error["code"]) == (2, "schema_violation")
        assert "line 2" in done.error["message"]
    (tmp_path / "in.jsonl").write_text(json.dumps(good) + "\n{", encoding="utf-8")
    assert decodelog("batch", tmp_path / "in.jsonl", tmp_path / "out", db=sqlite_url).code == 2
    assert decodelog("batch", tmp_path / "none", tmp_path / "out", db=sqlite_url).code == 2
    assert jobs(sqlite_url) == []
    assert not (tmp_path / "out").exists()


def test_a_file_of_other_answers_is_left_as_it_is(sqlite_url: str, short_model: Path, tmp_path: Path) -> None:
    source = written(tmp_path / "in.jsonl", [line("a", messages=CHAT, max_tokens=1)])
    edited = written(tmp_path / "edited.jsonl", [line("a", messages=CHAT, max_tokens=2)])
    old = tmp_path / "old.jsonl"
    assert decodelog("batch", edited, old, "--model", short_model, db=sqlite_url).code == 0
    other = written(tmp_path / "out.jsonl", [{"custom_id": "a", "response": {}}])
    (tmp_path / "notes.txt").write_bytes(b"no line end")
    for out in (other, tmp_path / "notes.txt", source, old):
        before = out.read_bytes()
        done = decodelog("batch", source, out, "--model", short_model, "--json", db=sqlite_url)
        assert (done.code, done.error["code"], out.read_bytes()) == (2, "unwritable_output", before)


def test_a_fault_of_the_process_ends_the_batch_and_answers_no_line(
    sqlite_url: str, short_model: Path, tmp_path: Path
) -> None:
    """Run again as it should be, it goes on; and a line that was refused still counts then."""
    lines = [line("a", messages=CHAT, max_tokens=1), line("b", messages=CHAT, tools=[])]
    source, out = written(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    done = decodelog("batch", source, out, "--model", tmp_path / "nowhere", "--json", db=sqlite_url)
    assert (done.code, done.error["code"], out.read_bytes()) == (2, "unknown_model", b"")
    for _ in range(2):
        done = decodelog("batch", source, out, "--model", short_model, "--json", db=sqlite_url)
        assert (done.code, done.json["refused"], len(answers(out))) == (1, 1, 2)


@pytest.mark.parametrize(
    ("body", "request_fields"),
    [
        ({"prompt": "a"}, {"prompt": "a", "temperature": 1.0}),
        ({"prompt": "a", "stop": "x", "n": 1, "user": "me", "seed": None}, {"stop": ["x"]}),
        ({"prompt": "a", "logit_bias": {"5": -1}}, {"logit_bias": [{"token_id": 5, "bias": -1}]}),
        ({"prompt": "a", "max_completion_tokens": 7, "top_p": 0.5}, {"max_new_tokens": 7, "top_p": 0.5}),
        ({"prompt": "a", "response_format": {"type": "json_object"}}, {"json_schema": {"type": "object"}}),
        ({"prompt": "a", "response_format": {"type": "text"}}, {}),
    ],
)
def test_the_fields_of_the_api_mean_what_they_mean_there(body: dict[str, Any], request_fields: dict[str, Any]) -> None:
    request = request_of(line_of(json.dumps(line("a", "/v1/completions", **body)).encode()))
    assert request == {"prompt": "a", "temperature": 1.0, "max_new_tokens": 16, **request_fields}


def test_a_chat_without_a_count_goes_on_until_the_context_ends() -> None:
    request = request_of(line_of(json.dumps(line("a", messages=CHAT)).encode()))
    assert request == {"messages": CHAT, "temperature": 1.0, "max_new_tokens": "until_context"}
    both = request_of(line_of(json.dumps(line("a", messages=CHAT, max_tokens=3, max_completion_tokens=9)).encode()))
    assert both["max_new_tokens"] == 9


@pytest.mark.parametrize(
    "body",
    [
        {"n": 2},
        {"tools": []},
        {"logit_bias": {"a": 1}},
        {"response_format": {"type": "xml"}},
        {"temprature": 1},
        {"prompt": "a"},
    ],
)
def test_a_field_that_is_not_taken_is_refused_by_name(body: dict[str, Any]) -> None:
    with pytest.raises(SchemaViolation, match=next(iter(body))):
        request_of(line_of(json.dumps(line("a", **body)).encode()))


def test_a_program_maps_requests_to_results_in_their_order(sqlite_url: str, seeded: Path) -> None:
    requests = [
        {"custom_id": f"{n}", "prompt": "a", "temperature": 1.0, "max_new_tokens": 1 + n % 3} for n in range(20)
    ]
    with package.open(sqlite_url, lanes=2) as log:
        for name, result in log.map(str(seeded), requests, prefix="mine/"):
            assert result.usage.completion_tokens == 1 + int(name) % 3
            if name == "4":
                break
        begun = len(log.jobs())
        named = list(log.map(str(seeded), iter(requests), prefix="mine/"))
        assert [name for name, _ in named] == [request["custom_id"] for request in requests]
        assert begun < len(log.jobs()) == len(requests)
        assert log.audit().ok
