"""The flags of a request, shared by the commands that take one, and the draft that they make."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from ...fsm.errors import ConflictingFlags, PromptMissing
from ...fsm.limits import NUMBER_BYTES_MAX
from ...fsm.request.transforms import QUESTIONS
from .durations import milliseconds
from .input_files import conversation, json_value, piped, read_text, request

if TYPE_CHECKING:
    from ...fsm.request.draft import Draft

SOURCES = ("prompt", "prompt_file", "user", "chat")
READ = ("request", "prompt", "prompt_file", "user", "chat", "json_schema", "grammar")
"""What may be `-`, standard input."""
STRUCTURES = ("json_schema", "regex", "grammar", "stop_on_json", "stop_on_tool_call")
PASSED_ON = (
    *("seed", "logprobs", "min_new_tokens", "deadline_ms", "n", "choice", "batch_width", "retry_budget"),
    *("consumer_policy", "prompt_logprobs", "alignment", "final_cache"),
)


def _flags(panel: str) -> Callable[..., Any]:
    def flag(name: str, description: str, metavar: str | None = None) -> Any:
        return typer.Option(name, help=description, rich_help_panel=panel, metavar=metavar, show_default=False)

    return flag


_prompt, _policy, _end, _running = map(_flags, ("Prompt", "Choosing tokens", "Ending", "Running"))
_structure, _output = _flags("Structure"), _flags("Output")

_MODEL = _prompt(
    "--model", "A fetched or registered model's name, a registered one's digest, or a checkpoint.", "NAME|DIGEST|DIR"
)
_REQUEST = _prompt(
    "--request",
    "Any fields of a request, as a JSON object; a flag beside it counts instead. - is standard input.",
    "FILE",
)
_PROMPT = _prompt("--prompt", "Text to be completed, as it is; - or nothing at all is standard input.", "TEXT")
_PROMPT_FILE = _prompt("--prompt-file", "The same from a UTF-8 file; - is standard input.", "FILE")
_USER = _prompt("--user", "One user message, through the model's chat template; - is standard input.", "TEXT")
_CHAT = _prompt(
    "--chat",
    'A conversation: a JSON list of {"role", "content"}; an assistant\'s last turn goes on. - is standard input.',
    "FILE",
)
_SYSTEM = _prompt("--system", "A system message before --user.", "TEXT")
_TRUST_MESSAGES = _prompt("--trust-messages", "Control tokens spelled in user and tool messages are control tokens.")
_SEED = _policy("--seed", "Seed of the noise (a fresh one, which is recorded).", "N")
_CHOICE = _policy("--choice", "Which of several answers this is: each has noise of its own (0).", "N")
_LOGPROBS = _policy("--logprobs", "Record the N best alternatives to every token.", "N")
_ECHO = _output("--echo", "The text begins with the prompt's.")
_PROMPT_LOGPROBS = _output(
    "--prompt-logprobs", "Record log-probabilities of the prompt's tokens, with N alternatives to each.", "N"
)
_INCLUDE_STOP = _output("--include-stop", "The text ends after the stop string or stop id, and not before it.")
_ALIGNMENT = _output(
    "--alignment",
    "Where the text ends at a stop: cut there, at a token's end, or cut there with every token kept (text).",
    "text|token|span",
)
_FINAL_CACHE = _output(
    "--final-cache", "Repaired: one more call processes the last token (pending).", "pending|repaired"
)
_JSON_SCHEMA = _structure("--json-schema", "The output is one JSON value of this schema; - is standard input.", "FILE")
_REGEX = _structure("--regex", "The whole output matches this regular expression.", "REGEX")
_GRAMMAR = _structure("--grammar", "The output is a text of this Lark grammar; - is standard input.", "FILE")
_STOP_ON_JSON = _structure("--stop-on-json", "End after the first whole JSON object or array.")
_STOP_ON_TOOL_CALL = _structure(
    "--stop-on-tool-call", "End after JSON between these two markers; an empty END: after the JSON.", "BEGIN END"
)
_MAX_NEW_TOKENS = _end("--max-new-tokens", 'Tokens at most, or "until_context" (256).', "N")
_MIN_NEW_TOKENS = _end("--min-new-tokens", "Tokens before which nothing but a limit ends the output.", "N")
_STOP = _end("--stop", r"End before this text, taken as it is; repeatable. A newline is $'\n' in a shell.", "TEXT")
_STOP_TOKEN_ID = _end("--stop-token-id", "End at this token; repeatable.", "ID")
_EOS_TOKEN_ID = _end("--eos-token-id", "Of the model's end tokens, this one ends the output; repeatable (all).", "ID")
_IGNORE_EOS = _end("--ignore-eos", "Go on after the model's end token.")
_DEADLINE_MS = _end("--deadline-ms", "End as `timeout` this long after submission.", "MS")
_N = _running("--n", "Answers to make, each a job with noise of its own (1).", "N")
_BATCH_WIDTH = _running("--batch-width", "Rows of every model call; part of the request (1).", "N")
_RETRY_BUDGET = _running("--retry-budget", "Failed model calls in a row that the job survives (3).", "N")
_CONSUMER_POLICY = _running(
    "--consumer-policy", "What becomes of the job when its reader leaves (detach).", "detach|cancel"
)
_RETAIN = _running("--retain", "Let `decodelog sweep` erase the content so long after the end, like 7d.", "TIME")
_IDEMPOTENCY_KEY = _running("--idempotency-key", "The same key and request are the same job, run once.", "KEY")


@dataclass(frozen=True)
class DraftFlags:
    """What a person asks for. None and False mean that a flag was not given.

    transforms   what the flags of `transform_flags` were given, by keyword
    """

    model: Annotated[str, _MODEL]
    request: Annotated[str | None, _REQUEST] = None
    prompt: Annotated[str | None, _PROMPT] = None
    prompt_file: Annotated[str | None, _PROMPT_FILE] = None
    user: Annotated[str | None, _USER] = None
    system: Annotated[str | None, _SYSTEM] = None
    chat: Annotated[str | None, _CHAT] = None
    trust_messages: Annotated[bool, _TRUST_MESSAGES] = False
    transforms: Mapping[str, Any] = field(default_factory=dict)
    seed: Annotated[int | None, _SEED] = None
    choice: Annotated[int | None, _CHOICE] = None
    logprobs: Annotated[int | None, _LOGPROBS] = None
    echo: Annotated[bool, _ECHO] = False
    prompt_logprobs: Annotated[int | None, _PROMPT_LOGPROBS] = None
    include_stop: Annotated[bool, _INCLUDE_STOP] = False
    alignment: Annotated[str | None, _ALIGNMENT] = None
    final_cache: Annotated[str | None, _FINAL_CACHE] = None
    json_schema: Annotated[str | None, _JSON_SCHEMA] = None
    regex: Annotated[str | None, _REGEX] = None
    grammar: Annotated[str | None, _GRAMMAR] = None
    stop_on_json: Annotated[bool, _STOP_ON_JSON] = False
    stop_on_tool_call: Annotated[tuple[str, str] | None, _STOP_ON_TOOL_CALL] = None
    max_new_tokens: Annotated[str | None, _MAX_NEW_TOKENS] = None
    min_new_tokens: Annotated[int | None, _MIN_NEW_TOKENS] = None
    stop: Annotated[list[str] | None, _STOP] = None
    stop_token_id: Annotated[list[int] | None, _STOP_TOKEN_ID] = None
    eos_token_id: Annotated[list[int] | None, _EOS_TOKEN_ID] = None
    ignore_eos: Annotated[bool, _IGNORE_EOS] = False
    deadline_ms: Annotated[int | None, _DEADLINE_MS] = None
    n: Annotated[int | None, _N] = None
    batch_width: Annotated[int | None, _BATCH_WIDTH] = None
    retry_budget: Annotated[int | None, _RETRY_BUDGET] = None
    consumer_policy: Annotated[str | None, _CONSUMER_POLICY] = None
    idempotency_key: Annotated[str | None, _IDEMPOTENCY_KEY] = None
    retain: Annotated[str | None, _RETAIN] = None

    @property
    def retain_ms(self) -> int | None:
        """How long the job's content may stay, in ms."""
        return None if self.retain is None else milliseconds(self.retain, "--retain")

    def draft(self) -> Draft:
        """The draft of these flags, checked as strictly as a request from the network.

        Errors: ConflictingFlags, UnreadableInput, LimitExceeded, MalformedJson, SchemaViolation.
        """
        from ...fsm.request.draft import PROMPTS, draft_from

        asked = self.given()
        prompt = self._prompt(not asked.keys().isdisjoint(PROMPTS))
        if prompt.keys() & PROMPTS:
            asked = {name: value for name, value in asked.items() if name not in (*PROMPTS, "trust_messages")}
        return draft_from(asked | prompt)

    def given(self) -> dict[str, Any]:
        """The fields of a draft that were given, but for flags of its prompt: a flag counts before the file.

        Errors: as `draft`, but for SchemaViolation of a field.
        """
        from ...fsm.request.draft import STRUCTURES as STRUCTURED

        read = [f"--{name.replace('_', '-')}" for name in READ if getattr(self, name) == "-"]
        if len(read) > 1:
            raise ConflictingFlags(" and ".join(read), "standard input is read once; name a file")
        asked = {} if self.request is None else request(self.request)
        flags = self._flags()
        if not flags.keys().isdisjoint(STRUCTURED):
            asked = {name: value for name, value in asked.items() if name not in STRUCTURED}
        return asked | flags

    def _flags(self) -> dict[str, Any]:
        value = {name: getattr(self, name) for name in PASSED_ON if getattr(self, name) is not None}
        flags: dict[str, Any] = {
            "ignore_eos": self.ignore_eos,
            "include_stop": self.include_stop,
            "echo_prompt": self.echo,
        }
        flags |= {"stop": self.stop, "stop_token_ids": self.stop_token_id, "eos_token_ids": self.eos_token_id}
        value |= {name: flag for name, flag in flags.items() if flag}
        value |= {name: _said(name, given) for name, given in self.transforms.items() if given not in (None, [])}
        value |= self._structure()
        if self.max_new_tokens is not None:
            value["max_new_tokens"] = _count(self.max_new_tokens)
        return value

    def _prompt(self, in_file: bool) -> dict[str, Any]:
        """The prompt of the flags; nothing where none is given and the file has one."""
        given = [f"--{source.replace('_', '-')}" for source in SOURCES if getattr(self, source) is not None]
        if len(given) > 1:
            raise ConflictingFlags(" and ".join(given), "give one of them")
        if self.system is not None and self.user is None:
            raise ConflictingFlags("--system", "it comes before --user; write it into the --chat, or give --user")
        trusting = {"trust_messages": True} if self.trust_messages else {}
        if self.chat is not None:
            return {"messages": conversation(self.chat)} | trusting
        if self.user is not None:
            before = [] if self.system is None else [{"role": "system", "content": self.system}]
            return {"messages": [*before, {"role": "user", "content": _text(self.user)}]} | trusting
        if in_file and not given:
            return trusting
        if self.trust_messages:
            raise ConflictingFlags("--trust-messages", "it is about --user and --chat, and neither is given")
        if self.prompt_file is not None:
            return {"prompt": read_text(self.prompt_file)}
        if self.prompt is not None:
            return {"prompt": _text(self.prompt)}
        if any(getattr(self, name) == "-" for name in READ):
            raise PromptMissing("standard input is what another flag reads")
        return {"prompt": piped()}

    def _structure(self) -> dict[str, Any]:
        asked = {name: getattr(self, name) for name in STRUCTURES if getattr(self, name)}
        given = [f"--{name.replace('_', '-')}" for name in asked]
        if len(given) > 1 and not set(asked) <= {"stop_on_json", "stop_on_tool_call"}:
            raise ConflictingFlags(" and ".join(given), "give one of them")
        if self.json_schema is not None:
            return {"json_schema": json_value(self.json_schema)}
        if self.grammar is not None:
            return {"grammar": read_text(self.grammar)}
        if markers := asked.pop("stop_on_tool_call", None):
            asked["stop_on_tool_calls"] = [dict(zip(("begin", "end"), markers, strict=True))]
        return asked


def transform_flags() -> list[inspect.Parameter]:
    """A flag for each keyword of a draft that asks for a transform; entries of a list come one by one."""
    flags = []
    for name, question in QUESTIONS.items():
        asked = question.asked
        if asked.words:
            flag = _policy(asked.flag or f"--{name.replace('_', '-')}", asked.words, asked.metavar)
            flags.append(_flag(name, Annotated[_typed(question.takes) | None, flag], None))
    return flags


def _typed(takes: Any) -> Any:
    """The type of a flag, of what a draft takes: an object of two fields is the text `FIRST=SECOND`."""
    kind = get_args(takes)[0] if get_origin(takes) is Annotated else takes
    if get_origin(kind) is tuple:
        return list[_typed(get_args(kind)[0])]  # type: ignore[misc]
    return kind if kind in (int, float) else str


def _flag(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _said(name: str, given: Any) -> Any:
    """What a flag was given, as a draft has it; which numbers are legal is the draft's to say."""
    asked = QUESTIONS[name].asked
    return [_pair(name, text) for text in given] if "=" in asked.metavar else given


def takes_draft(*left_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command, whose first parameter is a DraftFlags, a parameter for each flag in its place, but for some."""
    return partial(_with_flags, left_out)


def _with_flags(left_out: Collection[str], command: Callable[..., None]) -> Callable[..., None]:
    others = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    hints = get_type_hints(DraftFlags, include_extras=True)
    asking = transform_flags()
    own, flags = list[str](), list[inspect.Parameter]()
    for each in fields(DraftFlags):
        if each.name == "transforms":
            flags += asking
        elif each.name not in left_out:
            own.append(each.name)
            default = inspect.Parameter.empty if each.default is MISSING else each.default
            flags.append(_flag(each.name, hints[each.name], default))

    def with_flags(**given: Any) -> None:
        transforms = {flag.name: given.pop(flag.name) for flag in asking}
        draft_flags = DraftFlags(**{"model": ""} | {name: given.pop(name) for name in own}, transforms=transforms)
        command(draft_flags, **given)

    parameters = [*flags, *(other.replace(kind=inspect.Parameter.KEYWORD_ONLY) for other in others)]
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {each.name: each.annotation for each in parameters}
    with_flags.__name__, with_flags.__doc__ = command.__name__, command.__doc__
    return with_flags


def _text(given: str) -> str:
    return read_text("-") if given == "-" else given


def _count(text: str) -> int | str:
    is_number = len(text) <= NUMBER_BYTES_MAX and text.removeprefix("-").isdecimal()
    return int(text) if is_number else text


def _pair(name: str, text: str) -> dict[str, int | float]:
    """`FIRST=SECOND` as an entry of a list of a draft; the metavar says what they are called."""
    question = QUESTIONS[name]
    element = get_args(get_args(question.takes)[0])[0]
    written = zip(element.model_fields.items(), text.split("=", 1), strict=True)
    try:
        return {field: info.annotation(part) for (field, info), part in written}
    except ValueError as error:
        flag = question.asked.flag or f"--{name.replace('_', '-')}"
        raise typer.BadParameter(f"{text!r} is not {question.asked.metavar}, in numbers", param_hint=flag) from error
