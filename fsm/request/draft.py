"""What people write: a prompt, a chat or token ids, and ordinary sampling flags. `seal` makes an envelope of it.

A draft is as strict as an envelope, but its fields have defaults. Where a default is null, null means "not given".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, create_model, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from .. import limits
from ..errors import SchemaViolation
from .canonical import ListOrder, TextForm
from .envelope import (
    Alignment,
    Compatibility,
    ConsumerPolicy,
    EosIds,
    FinalCache,
    RngAlgorithm,
    StopIds,
    StopStrings,
    ZeroTokenChoice,
)
from .schema import JSON_LIST, Plane, TokenId, text_within_bytes, typed, violation
from .strict_json import check_value, kind_of, parse
from .transforms import QUESTIONS

UNTIL_CONTEXT: Final = "until_context"
NEW_TOKENS_DEFAULT: Final = 256
RETRY_BUDGET_DEFAULT: Final = 3


def _budget(value: Any) -> Any:
    """A count of tokens, or the word for "as many as the context holds". No number stands for "unlimited"."""
    if value == UNTIL_CONTEXT:
        return value
    if type(value) is not int:
        raise PydanticKnownError("int_type")
    if value < 0:
        reason = f'it must be at least 0; write "{UNTIL_CONTEXT}" for as many tokens as the context holds'
        raise PydanticCustomError("rule", "{reason}", {"reason": reason})
    if value > limits.NEW_TOKENS_MAX:
        raise PydanticKnownError("less_than_equal", {"le": limits.NEW_TOKENS_MAX})
    return value


TokenBudget = Annotated[int | Literal["until_context"], BeforeValidator(_budget)]


def _joined(value: Any) -> Any:
    """The text of a list of text parts, with nothing between them; another value as it is."""
    if type(value) is not list:
        return value
    for index, part in enumerate(value):
        if type(part) is not dict or part.keys() != {"type", "text"} or type(part["text"]) is not str:
            found = part.get("type") if type(part) is dict else part
            reason = f'part {index} is not {{"type": "text", "text": ...}}, and only text is taken; it is {found!r:.60}'
            raise PydanticCustomError("rule", "{reason}", {"reason": reason})
        if part["type"] != "text":
            reason = f"part {index} is of type {part['type']!r:.60}, and only text is taken"
            raise PydanticCustomError("rule", "{reason}", {"reason": reason})
    return "".join(part["text"] for part in value)


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that JSON can express: a program's objects may hold values that JSON cannot."""
    check_value(schema, ("json_schema",))
    return schema


class Message(Plane):
    """One turn of a chat, as its template takes it. `content` may be a list of text parts, which are joined."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Annotated[str, TextForm.VERBATIM, BeforeValidator(_joined), Field(max_length=limits.TEXT_CHARACTERS_MAX)]


class Markers(Plane):
    """What a tool call stands between; where `end` is empty, the call's JSON ends it."""

    begin: str
    end: str = ""


GrammarSource = Annotated[str, TextForm.VERBATIM, Field(min_length=1), text_within_bytes(limits.GRAMMAR_BYTES_MAX)]
PROMPTS: Final = ("prompt", "messages", "token_ids")
STRUCTURES: Final = ("json_schema", "regex", "grammar", "stop_on_json", "stop_on_tool_calls")


if TYPE_CHECKING:
    Asking = Plane
else:
    # A field for each keyword that asks for a transform.
    Asking = create_model(
        "Asking", __base__=Plane, **{name: (question.takes | None, None) for name, question in QUESTIONS.items()}
    )


class Draft(Asking):
    """A request as people write it: exactly one of `prompt`, `messages` and `token_ids`, and flags.

    messages           a chat; where the last message is the assistant's own, the output goes on from it
    trust_messages     control tokens that a user's or a tool's message spells are control tokens. Not given: they are
                       text like any other; the caller's own words, in system and assistant messages, may spell them
    max_new_tokens     a count; 0 makes no output (see zero_token_choice); "until_context" has no bound but the context
    zero_token_choice  only with max_new_tokens 0; not given: no_call, or prefill_only where the prompt is to be scored
    min_new_tokens     tokens before which no end token, stop id or stop string ends the output
    seed               not given: where the policy samples, a fresh one, or the one that follows from an idempotency
                       key; else 0
    eos_token_ids      of the model's end tokens those that end this output; not given: all of them, and in a chat also
                       the end of a turn as the template writes it
    choice             which of several answers to one request this is; each has its own noise
    n                  how many answers: choices 0 to n-1, each an envelope and a job of its own. n is in no envelope,
                       so a choice is the same whether it is asked for alone or with others. Above 1: the policy samples
    logprobs           alternatives recorded for each token; its own log-probabilities always are
    echo_prompt        the text begins with the prompt's
    prompt_logprobs    log-probabilities of the prompt's tokens, and so many alternatives to each; not given: as many
                       as logprobs with an echo, else none
    alignment          text: the text is cut at the stop; token: it ends at a token's end; span: it is cut, and the
                       tokens behind the cut are kept, with what was trimmed of them
    deadline_ms        time from admission after which the job ends as `timeout`
    stop_on_json       end after the first whole JSON object or array; what stands before it is kept
    stop_on_tool_calls the same for a JSON object or array between two markers, of any of these pairs
    json_schema        the output is one JSON value of this schema; properties come in the schema's order
    regex              the whole output matches this regular expression (Rust's syntax; it is anchored as it is)
    grammar            the output is a text of this Lark grammar, from its rule `start`

    What asks for the policy's transforms is said by their definitions (`transforms.QUESTIONS`): not given, each is off.
    They are sealed in the order of `transforms.SEALED_ORDER`, after min_new_tokens. A temperature that is not given is
    0, or 1 where another cut asks for sampling; 0 is greedy, and the other cuts are idle.
    """

    prompt: Annotated[str, TextForm.VERBATIM, Field(min_length=1, max_length=limits.TEXT_CHARACTERS_MAX)] | None = None
    messages: (
        Annotated[
            tuple[Message, ...], JSON_LIST, ListOrder.ORDERED, Field(min_length=1, max_length=limits.MESSAGES_MAX)
        ]
        | None
    ) = None
    token_ids: (
        Annotated[
            tuple[TokenId, ...], JSON_LIST, ListOrder.ORDERED, Field(min_length=1, max_length=limits.PROMPT_TOKENS_MAX)
        ]
        | None
    ) = None
    trust_messages: bool = False
    max_new_tokens: TokenBudget = NEW_TOKENS_DEFAULT
    zero_token_choice: ZeroTokenChoice | None = None
    min_new_tokens: Annotated[int, Field(ge=0, le=limits.NEW_TOKENS_MAX)] = 0
    seed: Annotated[int, Field(ge=0, le=limits.SEED_MAX)] | None = None
    choice: Annotated[int, Field(ge=0, le=limits.CHOICE_MAX)] = 0
    n: Annotated[int, Field(ge=1, le=limits.CHOICES_MAX)] = 1
    rng_algorithm: RngAlgorithm = "philox4x32-10"
    logprobs: Annotated[int, Field(ge=0, le=limits.LOGPROBS_TOP_MAX)] = 0
    prompt_logprobs: Annotated[int, Field(ge=0, le=limits.LOGPROBS_TOP_MAX)] | None = None
    stop: StopStrings = ()
    stop_token_ids: StopIds = ()
    stop_on_json: bool = False
    stop_on_tool_calls: Annotated[
        tuple[Markers, ...], JSON_LIST, ListOrder.ORDERED, Field(max_length=limits.DETECTORS_MAX - 1)
    ] = ()
    json_schema: Annotated[dict[str, Any], AfterValidator(_strict)] | None = None
    regex: GrammarSource | None = None
    grammar: GrammarSource | None = None
    eos_token_ids: Annotated[EosIds, Field(min_length=1)] | None = None
    ignore_eos: bool = False
    deadline_ms: Annotated[int, Field(ge=1, le=limits.DEADLINE_MS_MAX)] | None = None
    include_stop: bool = False
    skip_special_tokens: bool = True
    echo_prompt: bool = False
    alignment: Alignment = "text"
    final_cache: FinalCache = "pending"
    consumer_policy: ConsumerPolicy = "detach"
    batch_width: Annotated[int, Field(ge=1, le=limits.BATCH_WIDTH_MAX)] = 1
    compatibility: Compatibility = "any_revision"
    retry_budget: Annotated[int, Field(ge=0, le=limits.RETRY_BUDGET_MAX)] = RETRY_BUDGET_DEFAULT

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        given = [name for name in PROMPTS if getattr(self, name) is not None]
        if not given:
            raise violation("prompt", "one of prompt, messages and token_ids must be given")
        if len(given) > 1:
            raise violation(given[1], f"{given[0]} is given too; give one of prompt, messages and token_ids")
        structures = [name for name in STRUCTURES if getattr(self, name) not in (None, False, ())]
        if len(structures) > 1 and structures != ["stop_on_json", "stop_on_tool_calls"]:
            raise violation(structures[1], f"{structures[0]} is given too; one of them ends the output")
        if self.trust_messages and self.messages is None:
            raise violation("trust_messages", "it is about messages, and none are given")
        if self.eos_token_ids is not None and self.ignore_eos:
            raise violation("ignore_eos", "eos_token_ids is given too; give one of them")
        if self.zero_token_choice is not None and self.max_new_tokens != 0:
            raise violation("zero_token_choice", "it is a choice only where max_new_tokens is 0")
        if self.max_new_tokens != UNTIL_CONTEXT and self.min_new_tokens > self.max_new_tokens:
            raise violation("min_new_tokens", "it must not exceed max_new_tokens")
        if self.n > 1 and self.choice:
            raise violation("choice", "n asks for choices 0 to n-1; give n, or the one choice")
        allowed, banned = self.asked["allowed_token_ids"], self.asked["banned_token_ids"]
        if allowed is not None and set(allowed) <= set(banned or ()):
            raise violation("banned_token_ids", "it leaves nothing of allowed_token_ids")
        return self

    @property
    def asked(self) -> dict[str, Any]:
        """What asks for transforms, by keyword; None: not given."""
        return {name: getattr(self, name) for name in QUESTIONS}


def as_lists(value: Any) -> Any:
    """A program's value as JSON has it: lists for tuples."""
    if isinstance(value, Mapping):
        return {name: as_lists(item) for name, item in value.items()}
    return [as_lists(item) for item in value] if isinstance(value, tuple | list) else value


def parse_draft(raw: bytes) -> Draft:
    """The draft that a strict JSON text is.

    Raises LimitExceeded, MalformedJson or SchemaViolation for the first fault in the order of the text.
    """
    return draft_from(parse(raw))


def draft_from(value: Any) -> Draft:
    """The draft of a JSON value (dicts and lists), with typed errors; see `parse_draft`."""
    if not isinstance(value, Mapping):
        raise SchemaViolation(path="request", reason=f"it must be an object, and is {kind_of(value)}")
    try:
        return Draft.model_validate(value)
    except ValidationError as error:
        raise typed(error, value, Draft.model_fields) from error
