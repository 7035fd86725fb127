"""The transforms of the policy plane: members of one tagged union, in the order in which they are applied.

Names and meanings are those of the transformers library's processors where it has one: `processor` names the class that
a transform equals, and the tests hold it so. What every number means at its edges is in `edges`.

Penalties and biases act on scores in nats as the transforms before them left them, and a score that would leave the
range of its type stays at the end of it. A token that was removed stays removed, but for the one that is forced.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from .. import limits
from ..errors import Rejected
from .canonical import ListOrder, TextForm, ordered_json
from .schema import JSON_LIST, SET_OF_INTS, Plane, TokenId, set_by, text_within_bytes, violation
from .strict_json import kind_of, parse

Scope = Literal["prompt", "output", "both"]
Probability = Annotated[float, Field(ge=0, le=1)]
Shift = Annotated[float, Field(ge=-limits.SCORE_SHIFT_MAX, le=limits.SCORE_SHIFT_MAX)]
TokenIds = Annotated[
    tuple[TokenId, ...],
    JSON_LIST,
    ListOrder.SET,
    SET_OF_INTS,
    Field(min_length=1, max_length=limits.POLICY_TOKEN_IDS_MAX),
]


class OneTransform(Plane):
    """What is common to all: `processor`, the class of the transformers library that it equals, if there is one."""

    processor: ClassVar[str | None] = None


class Temperature(OneTransform):
    """Divides the scores. Temperature 0 is the greedy family, so a value is positive, however small."""

    processor = "TemperatureLogitsWarper"
    kind: Literal["temperature"]
    value: Annotated[float, Field(gt=0, le=limits.TEMPERATURE_MAX)]


class TopK(OneTransform):
    """Keeps the k best scores; a k above the vocabulary keeps all."""

    processor = "TopKLogitsWarper"
    kind: Literal["top_k"]
    k: Annotated[int, Field(ge=1, le=limits.VOCABULARY_SIZE_MAX)]


class TopP(OneTransform):
    """Keeps the smallest set of best tokens whose probability reaches p: 0 keeps the best one, 1 keeps all."""

    processor = "TopPLogitsWarper"
    kind: Literal["top_p"]
    p: Probability


class MinP(OneTransform):
    """Keeps the tokens whose probability is at least p times that of the best one."""

    processor = "MinPLogitsWarper"
    kind: Literal["min_p"]
    p: Probability


class TypicalP(OneTransform):
    """Keeps the smallest set of the most typical tokens whose probability reaches p.

    A token is the more typical, the nearer its surprisal is to the entropy; the best token may be left out.
    Source: Meister et al., "Locally Typical Sampling" (2023).
    """

    processor = "TypicalLogitsWarper"
    kind: Literal["typical_p"]
    p: Probability


class RepetitionPenalty(OneTransform):
    """Divides the positive scores of the scope's tokens by the penalty, and multiplies the negative ones.

    Source: Keskar et al., "CTRL: A Conditional Transformer Language Model for Controllable Generation" (2019).
    """

    processor = "RepetitionPenaltyLogitsProcessor"
    kind: Literal["repetition_penalty"]
    penalty: Annotated[float, Field(gt=0, le=limits.REPETITION_PENALTY_MAX)]
    scope: Scope


class FrequencyPenalty(OneTransform):
    """Subtracts the penalty from a token's score once for each time that the scope has it."""

    kind: Literal["frequency_penalty"]
    penalty: Shift
    scope: Scope


class PresencePenalty(OneTransform):
    """Subtracts the penalty once from the score of each token that the scope has."""

    kind: Literal["presence_penalty"]
    penalty: Shift
    scope: Scope


class NoRepeatNgram(OneTransform):
    """Removes each token that would complete a sequence of `size` tokens which the scope has already.

    The sequence that it would complete is the last one of prompt and output, wherever it begins.
    """

    processor = "NoRepeatNGramLogitsProcessor"
    kind: Literal["no_repeat_ngram"]
    size: Annotated[int, Field(ge=1, le=limits.NGRAM_SIZE_MAX)]
    scope: Scope


class TokenBias(Plane):
    """What is added to the score of one token, in nats."""

    token_id: TokenId
    bias: Shift


Biases = Annotated[
    tuple[TokenBias, ...],
    JSON_LIST,
    ListOrder.SET,
    set_by("token_id"),
    Field(min_length=1, max_length=limits.LOGIT_BIASES_MAX),
]


class LogitBias(OneTransform):
    """Adds a bias to the scores of some tokens."""

    processor = "SequenceBiasLogitsProcessor"
    kind: Literal["logit_bias"]
    biases: Biases


class AllowedTokens(OneTransform):
    """Removes every token but these."""

    kind: Literal["allowed_tokens"]
    token_ids: TokenIds


class BannedTokens(OneTransform):
    """Removes these tokens."""

    processor = "SuppressTokensLogitsProcessor"
    kind: Literal["banned_tokens"]
    token_ids: TokenIds


class ForcedToken(Plane):
    """The token that output number `step`, counted from 0, is."""

    step: Annotated[int, Field(ge=0, lt=limits.NEW_TOKENS_MAX)]
    token_id: TokenId


Forced = Annotated[
    tuple[ForcedToken, ...],
    JSON_LIST,
    ListOrder.SET,
    set_by("step"),
    Field(min_length=1, max_length=limits.FORCED_TOKENS_MAX),
]


class ForcedTokens(OneTransform):
    """At some steps removes every token but one, whatever was removed before."""

    processor = "ForcedBOSTokenLogitsProcessor"
    kind: Literal["forced_tokens"]
    tokens: Forced


class Grammar(OneTransform):
    """Keeps the tokens that lead on in a language; end tokens and stop ids where the output is whole, and nowhere else.

    language  json_schema: `source` is a schema, an object, without blanks, its numbers and strings as RFC 8785 writes
              them, its keys in their own order, which is the order in which properties are written
              regex: `source` is a regular expression (Rust's syntax) that the whole output matches
              lark: `source` is a context-free grammar with a rule named `start`
    """

    kind: Literal["grammar"]
    language: Literal["json_schema", "regex", "lark"]
    source: Annotated[str, TextForm.VERBATIM, Field(min_length=1), text_within_bytes(limits.GRAMMAR_BYTES_MAX)]

    @model_validator(mode="after")
    def _schema_has_its_one_form(self) -> Self:
        if self.language != "json_schema":
            return self
        try:
            schema = parse(self.source.encode())
        except Rejected as problem:
            raise violation("source", f"it is no JSON schema: {problem}") from problem
        if not isinstance(schema, dict):
            raise violation("source", f"a schema must be an object, and is {kind_of(schema)}")
        if ordered_json(schema) != self.source:
            raise violation("source", "it is not in its one form: no blanks, numbers and strings as RFC 8785 says")
        return self


# In the order in which a draft seals them; an envelope may have another.
Transform = Annotated[
    Grammar
    | LogitBias
    | RepetitionPenalty
    | FrequencyPenalty
    | PresencePenalty
    | NoRepeatNgram
    | BannedTokens
    | AllowedTokens
    | ForcedTokens
    | Temperature
    | TopK
    | TopP
    | MinP
    | TypicalP,
    Field(discriminator="kind"),
]
SEALED_ORDER: Final[tuple[type[OneTransform], ...]] = get_args(get_args(Transform)[0])
