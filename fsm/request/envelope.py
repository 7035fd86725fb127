"""The sealed request envelope `numinens.request.v1`: nine planes that decide what a generation run is.

The schema is closed, and its bytes are for good: a later feature enters as a new member of a tagged union (a `kind`,
`mode` or `family`), of a `Reserved` list, or in place of a null, so that no envelope sealed before changes its bytes.
Texts and lists carry the marks of `canonical`. No clock, address, job id or worker name is part of it.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator

from .. import limits
from ..errors import SchemaViolation, UnknownVersion
from .artifact import artifact_digest
from .canonical import ListOrder, TextForm, canonical_bytes, request_identity
from .finish import FinishReason
from .schema import (
    JSON_LIST,
    SET_OF_INTS,
    CacheAbi,
    Name,
    Plane,
    Reserved,
    Sha256,
    TokenId,
    text_within_bytes,
    typed,
    violation,
)
from .strict_json import kind_of, parse, path_text
from .transforms import Transform

SCHEMA_NAME: Final = "numinens.request.v1"
KNOWN_SCHEMAS: Final = (SCHEMA_NAME,)
_VERSION_CHARACTERS_SHOWN = 100

EosIds = Annotated[tuple[TokenId, ...], JSON_LIST, ListOrder.SET, SET_OF_INTS, Field(max_length=limits.EOS_IDS_MAX)]
StopString = Annotated[str, TextForm.VERBATIM, Field(min_length=1), text_within_bytes(limits.STOP_STRING_BYTES_MAX)]
StopStrings = Annotated[tuple[StopString, ...], JSON_LIST, ListOrder.ORDERED, Field(max_length=limits.STOP_STRINGS_MAX)]
StopIds = Annotated[
    tuple[TokenId, ...], JSON_LIST, ListOrder.SET, SET_OF_INTS, Field(max_length=limits.STOP_TOKEN_IDS_MAX)
]
Dtype = Literal["float16", "bfloat16", "float32", "float64"]
RngAlgorithm = Literal["philox4x32-10", "splitmix64"]
DeviceClass = Literal["cpu", "cuda", "mps"]
Compatibility = Literal["exact", "any_revision", "any_device"]
ZeroTokenChoice = Literal["no_call", "prefill_only"]
Alignment = Literal["token", "text", "span"]
FinalCache = Literal["pending", "repaired"]
ConsumerPolicy = Literal["detach", "cancel"]


class Artifact(Plane):
    """Which weights and configuration; `adapters` will list what is laid over them."""

    release_id: Name
    architecture: Name
    checkpoint_sha256: Sha256
    config_sha256: Sha256
    weight_dtype: Name
    adapters: Reserved


class TextInterface(Plane):
    """How text becomes ids and back. A null special id: the tokenizer declares none."""

    tokenizer_sha256: Sha256
    template_sha256: Sha256 | None
    bos_id: TokenId | None
    eos_ids: EosIds
    pad_id: TokenId | None
    vocabulary_size: Annotated[int, Field(ge=1, le=limits.VOCABULARY_SIZE_MAX)]


class PromptSource(Plane):
    """What the ids were made from. The ids are what the model sees; the text itself is not part of the request."""

    kind: Literal["tokens", "text", "chat"]


class Prompt(Plane):
    """The input ids, and for each whether it is visible (1). `start_state` will name a state to begin from."""

    token_ids: Annotated[tuple[TokenId, ...], JSON_LIST, ListOrder.ORDERED, Field(max_length=limits.PROMPT_TOKENS_MAX)]
    attention_mask: Annotated[
        tuple[Annotated[int, Field(ge=0, le=1)], ...],
        JSON_LIST,
        ListOrder.ORDERED,
        Field(max_length=limits.PROMPT_TOKENS_MAX),
    ]
    source: PromptSource
    start_state: None


class PositionVisibility(Plane):
    """Who attends to whom, and at which positions: a visible token's position is the count of visible ones before."""

    mode: Literal["causal"]
    position_rule: Literal["valid_token_cumsum"]
    cache_position_start: Annotated[int, Field(ge=0, le=limits.CONTEXT_TOKENS_MAX)]
    context_tokens_max: Annotated[int, Field(ge=1, le=limits.CONTEXT_TOKENS_MAX)]


class Policy(Plane):
    """From a score row to a token: transforms in the order they are applied, then the family's choice."""

    family: Literal["greedy", "sample"]
    transforms: Annotated[tuple[Transform, ...], JSON_LIST, ListOrder.ORDERED, Field(max_length=limits.TRANSFORMS_MAX)]
    tie_rule: Literal["lowest_token_id"]
    score_kind: Literal["logits"]
    logprobs_top: Annotated[int, Field(ge=0, le=limits.LOGPROBS_TOP_MAX)]


class Rng(Plane):
    """Where noise comes from: a function of seed, choice, branch and step alone (`counter_v1`, see `rng`)."""

    algorithm: RngAlgorithm
    seed: Annotated[int, Field(ge=0, le=limits.SEED_MAX)]
    choice: Annotated[int, Field(ge=0, le=limits.CHOICE_MAX)]
    stream_rule: Literal["counter_v1"]


class Cache(Plane):
    """Where the rows of earlier tokens are.

    slot_arena   one arena of key/value slots; `abi` names layers, heads, widths, axis order, dtype and key rotation
    none         the model keeps none: what it computes depends on the token ids alone
    """

    kind: Literal["slot_arena", "none"]
    abi: CacheAbi


class Runtime(Plane):
    """What the numbers depend on. A fact that the compatibility class does not bind is null.

    exact         device class and framework revision are those of the sealing process
    any_revision  the device class is; results may differ between framework revisions by rounding
    any_device    neither is bound
    `modes` will list departures from one eager call on one device.
    """

    compute_dtype: Dtype
    logit_dtype: Dtype
    cache: Cache
    batch_width: Annotated[int, Field(ge=1, le=limits.BATCH_WIDTH_MAX)]
    compatibility: Compatibility
    device_class: DeviceClass | None
    framework_revision: Name | None
    retry_budget: Annotated[int, Field(ge=0, le=limits.RETRY_BUDGET_MAX)]
    modes: Reserved

    @model_validator(mode="after")
    def _bound_facts_are_named(self) -> Self:
        if (self.device_class is None) != (self.compatibility == "any_device"):
            raise violation("device_class", "it is null exactly where compatibility is any_device")
        if (self.framework_revision is None) != (self.compatibility != "exact"):
            raise violation("framework_revision", "it is named exactly where compatibility is exact")
        return self


class JsonValueDetector(Plane):
    """Ends the output after its first whole JSON object or array."""

    kind: Literal["json_value"]


class ToolCallMarkers(Plane):
    """Ends the output after the first JSON object or array between two markers; an empty `end`: at its last byte."""

    kind: Literal["tool_call"]
    begin: StopString
    end: Annotated[str, TextForm.VERBATIM, text_within_bytes(limits.STOP_STRING_BYTES_MAX)]

    @model_validator(mode="after")
    def _end_is_no_blank(self) -> Self:
        if self.end[:1] in (" ", "\t", "\n", "\r"):
            raise violation("end", "it must not begin with a blank; blanks may stand before it in any case")
        return self


Detector = Annotated[JsonValueDetector | ToolCallMarkers, Field(discriminator="kind")]


class Termination(Plane):
    """When selection ends. `deadline_ms` counts from admission; `detectors` are completion tests of the text."""

    max_new_tokens: Annotated[int, Field(ge=0, le=limits.NEW_TOKENS_MAX)]
    zero_token_choice: ZeroTokenChoice | None
    min_new_tokens: Annotated[int, Field(ge=0, le=limits.NEW_TOKENS_MAX)]
    stop_strings: StopStrings
    stop_token_ids: StopIds
    eos_ids: EosIds
    ignore_eos: bool
    deadline_ms: Annotated[int, Field(ge=1, le=limits.DEADLINE_MS_MAX)] | None
    finish_order: Annotated[
        tuple[Annotated[FinishReason, Field(strict=False)], ...],
        JSON_LIST,
        ListOrder.ORDERED,
        Field(max_length=len(FinishReason)),
    ]
    detectors: Annotated[tuple[Detector, ...], JSON_LIST, ListOrder.ORDERED, Field(max_length=limits.DETECTORS_MAX)]

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if (self.zero_token_choice is None) != (self.max_new_tokens > 0):
            raise violation("zero_token_choice", "it is named exactly where max_new_tokens is 0")
        if self.min_new_tokens > self.max_new_tokens:
            raise violation("min_new_tokens", "it must not exceed max_new_tokens")
        if sorted(self.finish_order) != sorted(FinishReason):
            raise violation("finish_order", f"it must rank each of {', '.join(FinishReason)} once")
        return self

    @property
    def heeded_eos_ids(self) -> frozenset[int]:
        """The end tokens, unless they are ignored."""
        return frozenset() if self.ignore_eos else frozenset(self.eos_ids)

    @property
    def ending_ids(self) -> frozenset[int]:
        """The one list of tokens that end the output, and that min_new_tokens holds back."""
        return self.heeded_eos_ids | frozenset(self.stop_token_ids)


class PromptLogprobs(Plane):
    """Log-probabilities of the prompt's tokens, with `top` alternatives each."""

    kind: Literal["prompt_logprobs"]
    top: Annotated[int, Field(ge=0, le=limits.LOGPROBS_TOP_MAX)]


class Output(Plane):
    """What the caller gets, and what a complete answer means.

    alignment text       the text is cut at the stop; tokens that begin before the cut are kept, the last perhaps cut in
                         two
    alignment token      the text ends with the last token that has nothing of the stop, and the tokens are kept that it
                         is made of; with include_stop, with the token that completes the stop
    alignment span       the text is cut at the stop; every token is kept, and the visible and the trimmed ranges are
                         published
    include_stop         the text ends after what the request has it stop at, and not before it: a stop string or a stop
                         id, and of both the first byte of either; in streams and results alike. An end token is the
                         model's own, and is shown as the token that it is; under a grammar it is as a stop id
    echo_prompt          the prompt's text, decoded by itself, comes before the output's; offsets count from its
                         beginning
    skip_special_tokens  special tokens show no text and take none away: they neither join nor split what is around
                         them, and one that is the stop itself ends the text where it stands
    final_cache          pending: the last token has no K/V; repaired: one more call gives it one, and its scores are
                         not used
    consumer_policy      detach: the job outlives its reader; cancel: it ends when its reader leaves
    extras               further results, each kind once; prompt_logprobs: the prompt's tokens with log-probabilities
    """

    echo_prompt: bool
    include_stop: bool
    skip_special_tokens: bool
    alignment: Alignment
    final_cache: FinalCache
    consumer_policy: ConsumerPolicy
    extras: Annotated[tuple[PromptLogprobs, ...], JSON_LIST, ListOrder.ORDERED, Field(max_length=limits.KINDS_MAX)]


class Envelope(Plane):
    """One sealed request. Two envelopes are the same request exactly where their identities are equal."""

    schema_name: Literal["numinens.request.v1"] = Field(alias="schema")
    artifact: Artifact
    text_interface: TextInterface
    prompt: Prompt
    position_visibility: PositionVisibility
    policy: Policy
    rng: Rng
    runtime: Runtime
    termination: Termination
    output: Output

    def canonical_bytes(self) -> bytes:
        """RFC 8785 JSON of this envelope; `admit` takes it back to an equal one."""
        return self._canonical

    @cached_property
    def identity(self) -> str:
        """SHA-256 of the domain tag and the canonical bytes, in hexadecimal."""
        return request_identity(self._canonical)

    @property
    def artifact_digest(self) -> str:
        """The digest of the artifact that it is bound to: its model is found by it."""
        of, text = self.artifact, self.text_interface
        return artifact_digest(
            of.release_id, of.architecture, of.checkpoint_sha256, of.config_sha256, of.weight_dtype,
            text.tokenizer_sha256, text.template_sha256,
        )  # fmt: skip

    @cached_property
    def _canonical(self) -> bytes:
        return canonical_bytes(self.model_dump(by_alias=True))


def admit(raw: bytes) -> Envelope:
    """The envelope that `raw` is, or a typed rejection.

    In this order: bounds on the raw bytes, strict JSON, the schema's version, every field; the first fault in the
    order of the document is the one reported. Raises LimitExceeded, MalformedJson, UnknownVersion, SchemaViolation.
    """
    return admitted(parse(raw))


def admitted(value: Any) -> Envelope:
    """The envelope of a strict JSON value (see `admit`)."""
    if not isinstance(value, dict):
        raise SchemaViolation(path="request", reason=f"it must be an object, and is {kind_of(value)}")
    version = value.get("schema")
    if isinstance(version, str) and version not in KNOWN_SCHEMAS:
        raise UnknownVersion(found=version[:_VERSION_CHARACTERS_SHOWN], known=list(KNOWN_SCHEMAS))
    if not isinstance(version, str):
        found = kind_of(version) if "schema" in value else "missing"
        raise SchemaViolation(path="schema", reason=f"it must be a string, and is {found}")
    try:
        return Envelope.model_validate(value)
    except ValidationError as error:
        raise typed(error, value) from error


def first_difference(held: Envelope, offered: Envelope) -> str | None:
    """The path of the first field, in the schema's order, in which two envelopes differ; None where they are equal."""
    path = _difference(held.model_dump(by_alias=True), offered.model_dump(by_alias=True), ())
    return None if path is None else path_text(path)


def _difference(held: Any, offered: Any, path: tuple[str | int, ...]) -> tuple[str | int, ...] | None:
    if isinstance(held, dict) and isinstance(offered, dict):
        for key in held:  # a union's tag is its first field, so unlike members differ there
            if found := _difference(held[key], offered.get(key), (*path, key)):
                return found
        return None
    if isinstance(held, tuple) and isinstance(offered, tuple) and len(held) == len(offered):
        for index, (one, other) in enumerate(zip(held, offered, strict=True)):
            if found := _difference(one, other, (*path, index)):
                return found
        return None
    return None if held == offered else path
