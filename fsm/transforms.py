"""The transforms of the policy plane: members of one tagged union, in the order in which they are applied.

Names and meanings are those of the transformers library's processors where it has one. Every numeric edge has one
meaning; "off" says that the transform then changes nothing:

    temperature         value > 0; below 1e-5 the best token alone; 1 is off
    top_k               k >= 1; at or above the vocabulary it is off
    top_p               0: the best token alone; 1: off
    min_p               0: off; 1: the best token and those that score as it does
    typical_p           0: the most typical token alone; 1: off
    repetition_penalty  > 0; 1: off; below 1 it favours what was there
    frequency_penalty   0: off; below 0 it favours what was there
    presence_penalty    0: off; below 0 it favours what was there
    no_repeat_ngram     size 1: no token of the scope comes again; longer than the text so far: off
    logit_bias          0 changes nothing
    allowed_tokens, banned_tokens, forced_tokens    lists of at least one entry

Penalties and biases act on scores in nats as the transforms before them left them, and a score that would leave the
range of its type stays at the end of it. A token that was removed stays removed, but for the one that is forced.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from . import limits
from .canonical import ListOrder, TextForm, ordered_json
from .errors import Rejected
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


class Temperature(Plane):
    """Divides the scores. Temperature 0 is the greedy family, so a value is positive, however small."""

    kind: Literal["temperature"]
    value: Annotated[float, Field(gt=0, le=limits.TEMPERATURE_MAX)]


class TopK(Plane):
    """Keeps the k best scores; a k above the vocabulary keeps all."""

    kind: Literal["top_k"]
    k: Annotated[int, Field(ge=1, le=limits.VOCABULARY_SIZE_MAX)]


class TopP(Plane):
    """Keeps the smallest set of best tokens whose probability reaches p: 0 keeps the best one, 1 keeps all."""

    kind: Literal["top_p"]
    p: Probability


class MinP(Plane):
    """Keeps the tokens whose probability is at least p times that of the best one."""

    kind: Literal["min_p"]
    p: Probability


class TypicalP(Plane):
    """Keeps the smallest set of the most typical tokens whose probability reaches p.

    A token is the more typical, the nearer its surprisal is to the entropy; the best token may be left out.
    Source: Meister et al., "Locally Typical Sampling" (2023).
    """

    kind: Literal["typical_p"]
    p: Probability


class RepetitionPenalty(Plane):
    """Divides the positive scores of the scope's tokens by the penalty, and multiplies the negative ones.

    Source: Keskar et al., "CTRL: A Conditional Transformer Language Model for Controllable Generation" (2019).
    """

    kind: Literal["repetition_penalty"]
    penalty: Annotated[float, Field(gt=0, le=limits.REPETITION_PENALTY_MAX)]
    scope: Scope


class FrequencyPenalty(Plane):
    """Subtracts the penalty from a token's score once for each time that the scope has it."""

    kind: Literal["frequency_penalty"]
    penalty: Shift
    scope: Scope


class PresencePenalty(Plane):
    """Subtracts the penalty once from the score of each token that the scope has."""

    kind: Literal["presence_penalty"]
    penalty: Shift
    scope: Scope


class NoRepeatNgram(Plane):
    """Removes each token that would complete a sequence of `size` tokens which the scope has already.

    The sequence that it would complete is the last one of prompt and output, wherever it begins.
    """

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


class LogitBias(Plane):
    """Adds a bias to the scores of some tokens."""

    kind: Literal["logit_bias"]
    biases: Biases


class AllowedTokens(Plane):
    """Removes every token but these."""

    kind: Literal["allowed_tokens"]
    token_ids: TokenIds


class BannedTokens(Plane):
    """Removes these tokens."""

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


class ForcedTokens(Plane):
    """At some steps removes every token but one, whatever was removed before."""

    kind: Literal["forced_tokens"]
    tokens: Forced


class Grammar(Plane):
    """Keeps the tokens that lead on in a language, and an end token only where the output is whole.

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


Transform = Annotated[
    Temperature
    | TopK
    | TopP
    | MinP
    | TypicalP
    | RepetitionPenalty
    | FrequencyPenalty
    | PresencePenalty
    | NoRepeatNgram
    | LogitBias
    | AllowedTokens
    | BannedTokens
    | ForcedTokens
    | Grammar,
    Field(discriminator="kind"),
]
