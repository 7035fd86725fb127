"""The files of a request: a prompt, a conversation, a schema or a grammar; all are read alike, byte order marks too."""

from __future__ import annotations

import select
import sys
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ...fsm.errors import LimitExceeded, PromptMissing, SchemaViolation, UnreadableInput
from ...fsm.limits import REQUEST_BYTES_MAX

PIPED_S = 10.0

# UTF-32's first: little-endian, it begins as UTF-16's does.
_FOREIGN_MARKS = {BOM_UTF32_LE: "UTF-32", BOM_UTF32_BE: "UTF-32", BOM_UTF16_LE: "UTF-16", BOM_UTF16_BE: "UTF-16"}


def json_value(path: str) -> Any:
    """The JSON value in a file. Errors: those of `read`, and of the strict parser."""
    from ...fsm.request.strict_json import parse

    return parse(read(path))


def request(path: str) -> dict[str, Any]:
    """The fields of a request in a file. Errors: those of `json_value`, and SchemaViolation for another value."""
    value = json_value(path)
    if not isinstance(value, dict):
        raise SchemaViolation("request", "it must be an object with the fields of a request")
    return value


def piped() -> str:
    """What somebody pipes in, who has given no prompt otherwise: its first byte is waited for shortly.

    Errors: PromptMissing where nothing comes, or only a terminal is there; those of `read_text`.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise PromptMissing("there is no standard input" if sys.stdin is None else "standard input is a terminal")
    with suppress(OSError, ValueError):  # it is no file that can be waited for
        if not select.select([sys.stdin.fileno()], [], [], PIPED_S)[0]:
            raise PromptMissing(f"nothing has come on standard input in {PIPED_S:.0f} s")
    if text := read_text("-"):
        return text
    raise PromptMissing("standard input is empty")


def conversation(path: str) -> Any:
    """The conversation in a file: a list of messages, or an object that holds one and nothing else."""
    value = json_value(path)
    if not isinstance(value, dict) or "messages" not in value:
        return value
    for field in value:
        if field != "messages":
            raise SchemaViolation(field, "beside its messages a conversation says nothing; give a flag for it")
    return value["messages"]


def read_text(path: str) -> str:
    """The text in a file, line ends as they are. Errors: those of `read`, and UnreadableInput for what is no UTF-8."""
    try:
        return read(path).decode()
    except UnicodeDecodeError as error:
        raise UnreadableInput(path, f"it is not UTF-8 at byte {error.start}") from error


def read(path: str) -> bytes:
    """A whole file, or standard input for -, without a UTF-8 byte order mark: it is no part of the text.

    Errors: UnreadableInput, also for one whose mark says that it is UTF-16 or UTF-32; LimitExceeded for what is larger
    than any request may be.
    """
    try:
        if path == "-":
            if sys.stdin is None:
                raise UnreadableInput(path, "standard input is closed")
            raw = _bounded(sys.stdin.buffer)
        else:
            with Path(path).open("rb") as file:
                raw = _bounded(file)
    except (OSError, ValueError) as error:
        raise UnreadableInput(path, getattr(error, "strerror", None) or str(error)) from error
    for mark, name in _FOREIGN_MARKS.items():
        if raw.startswith(mark):
            raise UnreadableInput(path, f"it is {name} by its byte order mark, and UTF-8 is read: convert it")
    return raw.removeprefix(BOM_UTF8)


def _bounded(file: IO[bytes]) -> bytes:
    raw = file.read(REQUEST_BYTES_MAX + 1)
    if len(raw) > REQUEST_BYTES_MAX:
        raise LimitExceeded(limit="request_bytes", value=len(raw), maximum=REQUEST_BYTES_MAX)
    return raw
