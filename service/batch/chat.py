"""The batch file of OpenAI's API, line by line: a line as a request, and a result as a line.

A line is {"custom_id", "method", "url", "body"}, its body that of a chat completion or a completion. The supported
fields mean what they mean there, so the temperature is 1 where none is given. An unsupported field is refused by name:
ignoring it silently would change what the caller gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ...fsm.errors import Problem, SchemaViolation
from ...fsm.request.draft import UNTIL_CONTEXT
from ...fsm.request.strict_json import parse
from ...fsm.request.transforms import QUESTIONS
from ..api.values import Result

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"

SAME: Final = ("seed", *(keyword for keyword, question in QUESTIONS.items() if question.asked.openai))
IGNORED: Final = ("user", "metadata", "stream", "store")
"""What changes nothing of the answer in a file."""

COMPLETION_TOKENS: Final = 16
"""What a completion has where it says no count; a chat completion goes on until the context ends."""

FINISH: Final = {
    "eos": "stop",
    "stop_string": "stop",
    "stop_token": "stop",
    "structured_complete": "stop",
    "length": "length",
    "context_limit": "length",
}
"""Finish reason -> what the API calls it; others keep their own names."""


class Line(NamedTuple):
    """One line of the file: its name, where it is to go, the model that it asks for, and the request."""

    custom_id: str
    url: str
    model: str
    request: dict[str, Any]


def line_of(raw: bytes) -> Line:
    """Parse a line, but for the fields in its body.

    Errors: MalformedJson, LimitExceeded, SchemaViolation.
    """
    value = parse(raw)
    if not isinstance(value, dict):
        raise SchemaViolation("line", "it must be an object with custom_id, method, url and body")
    custom_id, url, body = value.get("custom_id"), value.get("url"), value.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        raise SchemaViolation("custom_id", "it must be a text that no other line has")
    if value.get("method", "POST") != "POST":
        raise SchemaViolation("method", "it must be POST")
    if url not in (CHAT, COMPLETION):
        raise SchemaViolation("url", f"it must be {CHAT} or {COMPLETION}")
    if not isinstance(body, dict):
        raise SchemaViolation("body", "it must be an object")
    model = body.get("model")
    if not isinstance(model, str):
        raise SchemaViolation("body.model", "it must be a text")
    return Line(custom_id, url, model, body)


def request_of(line: Line) -> dict[str, Any]:
    """The fields of a request in a body. Errors: SchemaViolation."""
    body = {name: value for name, value in line.request.items() if value is not None and name not in IGNORED}
    del body["model"]
    chat = line.url == CHAT
    request: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": UNTIL_CONTEXT if chat else COMPLETION_TOKENS}
    request |= {name: body.pop(name) for name in (*SAME, "messages" if chat else "prompt") if name in body}
    for name in ("max_tokens", "max_completion_tokens"):  # the newer one counts
        if name in body:
            request["max_new_tokens"] = body.pop(name)
    if "stop" in body:
        stop = body.pop("stop")
        request["stop"] = [stop] if isinstance(stop, str) else stop
    if chat and body.pop("logprobs", False):
        request["logprobs"] = body.pop("top_logprobs", 0)
    if "logit_bias" in body:
        request["logit_bias"] = _biases(body.pop("logit_bias"))
    if "response_format" in body:
        request |= _structure(body.pop("response_format"))
    if body.pop("n", 1) != 1:
        raise SchemaViolation("body.n", "one answer a line is taken; write a line for each")
    for name in body:
        raise SchemaViolation(f"body.{name}", "this field is not taken; leave it out")
    return request


def _biases(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, Mapping) or not all(token.isdecimal() for token in value):
        raise SchemaViolation("body.logit_bias", "it must be an object of token ids and numbers")
    return [{"token_id": int(token), "bias": bias} for token, bias in value.items()]


def _structure(value: Any) -> dict[str, Any]:
    match value:
        case {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return {"json_schema": {"type": "object"}}
        case {"type": "json_schema", "json_schema": {"schema": Mapping() as schema}}:
            return {"json_schema": schema}
    raise SchemaViolation("body.response_format", "it is of type text, json_object or json_schema")


def answered(line: Line, result: Result, created_ms: int) -> dict[str, Any]:
    """The line of a job that has ended."""
    if result.error is not None:
        return refused(line, 500, result.error.code, result.error.message, result.job)
    finish = FINISH.get(result.finish_reason or "", result.finish_reason)
    chat = line.url == CHAT
    said = {"message": {"role": "assistant", "content": result.text}} if chat else {"text": result.text}
    usage = result.usage
    body = {
        "id": result.job,
        "object": "chat.completion" if chat else "text_completion",
        "created": created_ms // 1000,
        "model": line.model,
        "choices": [{"index": 0, **said, "logprobs": _logprobs(line, result), "finish_reason": finish}],
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
        },
    }
    return _line(line, 200, result.job, body)


def refused(line: Line, status: int, code: str, message: str, job: str = "") -> dict[str, Any]:
    """The line of a request that was refused, or of a job that failed."""
    error = {"code": code, "message": message, "type": "invalid_request_error" if status < 500 else "server_error"}
    return _line(line, status, job, {"error": error})


def refused_by(line: Line, problem: Problem) -> dict[str, Any]:
    """The line of a request that an error has refused."""
    return refused(line, 400, problem.code, str(problem))


def _line(line: Line, status: int, job: str, body: dict[str, Any]) -> dict[str, Any]:
    response = {"status_code": status, "request_id": job, "body": body}
    return {"custom_id": line.custom_id, "response": response, "error": None}


def _logprobs(line: Line, result: Result) -> dict[str, Any] | None:
    if not line.request.get("logprobs"):
        return None
    content = [
        {
            "token": token.piece.decode(errors="replace"),
            "logprob": token.logprob_raw,
            "bytes": list(token.piece),
            "top_logprobs": [
                {
                    "token": (best.piece or b"").decode(errors="replace"),
                    "logprob": best.logprob_raw,
                    "bytes": None if best.piece is None else list(best.piece),
                }
                for best in token.alternatives
            ],
        }
        for token in result.tokens
        if not token.hidden
    ]
    return {"content": content}
