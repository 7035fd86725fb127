"""The flags of a request, shared by the commands that take one, and the draft that they make."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from ..fsm.errors import ConflictingFlags, LimitExceeded, UnreadableInput
from ..fsm.limits import REQUEST_BYTES_MAX

if TYPE_CHECKING:
    from ..fsm.draft import Draft

PROMPT, POLICY, END, RUNNING = "Prompt", "Choosing tokens", "Ending", "Running"

SOURCES = {"--prompt": "prompt", "--prompt-file": "prompt_file", "--user": "user", "--chat": "chat"}


def flag(name: str, panel: str, description: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=description, rich_help_panel=panel, metavar=metavar, show_default=False)


@dataclass(frozen=True)
class DraftFlags:
    """What a person asks for. None and False mean that a flag was not given."""

    model: Annotated[str, flag("--model", PROMPT, "A fetched model's name, or a checkpoint directory.", "NAME|DIR")]
    prompt: Annotated[str | None, flag("--prompt", PROMPT, "Text to be completed, as it is.", "TEXT")] = None
    prompt_file: Annotated[
        str | None, flag("--prompt-file", PROMPT, "The same from a UTF-8 file; - is standard input.", "FILE")
    ] = None
    user: Annotated[
        str | None, flag("--user", PROMPT, "One user message, through the model's chat template.", "TEXT")
    ] = None
    chat: Annotated[
        str | None,
        flag("--chat", PROMPT, 'A conversation: a JSON list of {"role", "content"}; - is standard input.', "FILE"),
    ] = None
    temperature: Annotated[
        float | None,
        flag("--temperature", POLICY, "0 takes the best token; above, sample (0; 1 with --top-k or --top-p).", "X"),
    ] = None
    top_k: Annotated[int | None, flag("--top-k", POLICY, "Sample among the K best tokens.", "K")] = None
    top_p: Annotated[
        float | None, flag("--top-p", POLICY, "Sample among the best tokens that together have probability P.", "P")
    ] = None
    seed: Annotated[int | None, flag("--seed", POLICY, "Seed of the noise (a fresh one, which is recorded).", "N")] = None
    logprobs: Annotated[
        int | None, flag("--logprobs", POLICY, "Record the N best alternatives of every token.", "N")
    ] = None
    max_new_tokens: Annotated[
        str | None, flag("--max-new-tokens", END, 'Tokens at most, or "until_context" (256).', "N")
    ] = None
    stop: Annotated[
        list[str] | None,
        flag("--stop", END, r"End before this text, taken literally; repeatable. A newline is $'\n' in a shell.", "TEXT"),
    ] = None
    stop_token_id: Annotated[
        list[int] | None, flag("--stop-token-id", END, "End at this token; repeatable.", "ID")
    ] = None
    ignore_eos: Annotated[bool, flag("--ignore-eos", END, "Go on after the model's end token.")] = False
    include_stop: Annotated[bool, flag("--include-stop", END, "Keep the stop text in the result.")] = False
    deadline_ms: Annotated[
        int | None, flag("--deadline-ms", END, "End as `timeout` this long after submission.", "MS")
    ] = None
    batch_width: Annotated[
        int | None, flag("--batch-width", RUNNING, "Rows of every model call; part of the request (1).", "N")
    ] = None
    retry_budget: Annotated[
        int | None, flag("--retry-budget", RUNNING, "Failed model calls in a row that the job survives (3).", "N")
    ] = None
    idempotency_key: Annotated[
        str | None,
        flag("--idempotency-key", RUNNING, "The same key with the same request is the same job, run once.", "KEY"),
    ] = None

    def draft(self) -> Draft:
        """The draft of these flags, checked as strictly as a request from a wire.

        Errors: ConflictingFlags, UnreadableInput, LimitExceeded, MalformedJson, SchemaViolation.
        """
        from ..fsm.draft import draft_from

        given = [name for name, attribute in SOURCES.items() if getattr(self, attribute) is not None]
        if len(given) != 1:
            advice = f"give one of {', '.join(SOURCES)}"
            raise ConflictingFlags(" and ".join(given), advice) if given else typer.BadParameter(advice)
        plain = ("temperature", "top_k", "top_p", "seed", "logprobs", "deadline_ms", "batch_width", "retry_budget")
        value = self._prompt() | {name: getattr(self, name) for name in plain if getattr(self, name) is not None}
        if self.max_new_tokens is not None:
            value["max_new_tokens"] = _count(self.max_new_tokens)
        value |= {"stop": self.stop or [], "stop_token_ids": self.stop_token_id or []}
        value |= {"ignore_eos": self.ignore_eos, "include_stop": self.include_stop}
        return draft_from(value)

    def _prompt(self) -> dict[str, Any]:
        if self.chat is not None:
            from ..fsm.strict_json import parse

            return {"messages": parse(_read(self.chat))}
        if self.user is not None:
            return {"messages": [{"role": "user", "content": self.user}]}
        if self.prompt_file is None:
            return {"prompt": self.prompt}
        try:
            return {"prompt": _read(self.prompt_file).decode()}
        except UnicodeDecodeError as error:
            raise UnreadableInput(self.prompt_file, f"it is not UTF-8 at byte {error.start}") from error


def takes_draft(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command`, whose first parameter is a DraftFlags, one parameter for each flag instead."""
    first, *others = inspect.signature(command, eval_str=True).parameters.values()
    hints = get_type_hints(DraftFlags, include_extras=True)
    flags = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in fields(DraftFlags)
    ]

    def with_flags(**given: Any) -> None:
        draft_flags = DraftFlags(**{flag.name: given.pop(flag.name) for flag in flags})
        command(draft_flags, **given)

    parameters = [*flags, *(other.replace(kind=inspect.Parameter.KEYWORD_ONLY) for other in others)]
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {each.name: each.annotation for each in parameters}
    with_flags.__name__, with_flags.__doc__ = command.__name__, command.__doc__
    return with_flags


def _count(text: str) -> int | str:
    return int(text) if text.removeprefix("-").isdecimal() else text


def _read(path: str) -> bytes:
    """A whole file, or standard input for -, unless it is larger than any request may be."""
    try:
        if path == "-":
            return _bounded(sys.stdin.buffer)
        with Path(path).open("rb") as file:
            return _bounded(file)
    except OSError as error:
        raise UnreadableInput(path, error.strerror or str(error)) from error


def _bounded(file: IO[bytes]) -> bytes:
    raw = file.read(REQUEST_BYTES_MAX + 1)
    if len(raw) > REQUEST_BYTES_MAX:
        raise LimitExceeded(limit="request_bytes", value=len(raw), maximum=REQUEST_BYTES_MAX)
    return raw
