"""Transforms that touch the tokens which they name, or which the text so far names, and one that programs define.

Penalties and biases act on scores in nats as the transforms before them left them, and a score that would leave the
range of its type stays at the end of it. A token that was removed stays removed, but for the one that is forced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ... import limits
from ..canonical import ListOrder, TextForm
from ..schema import JSON_LIST, SET_OF_INTS, Plane, TokenId, set_by
from .cuts import LEAST
from .definition import Asked, At, Effect, Encode, OneTransform, Place, listed, shifted, shortened

Scope = Literal["prompt", "output", "both"]
Shift = Annotated[float, Field(ge=-limits.SCORE_SHIFT_MAX, le=limits.SCORE_SHIFT_MAX)]
TokenIds = Annotated[
    tuple[TokenId, ...],
    JSON_LIST,
    ListOrder.SET,
    SET_OF_INTS,
    Field(min_length=1, max_length=limits.POLICY_TOKEN_IDS_MAX),
]
_SCOPES = {"prompt": "the prompt", "output": "the output", "both": "prompt or output"}


def _around(off: float, least: float, most: float) -> tuple[At, ...]:
    """The edges of a penalty or bias that does nothing at `off`; where the least is 0, it is itself out of bounds."""
    low = [
        At(least * 1.01, f"below {least:g}", Effect.REFUSED),
        At(least, f"{least:g}, the least", Effect.ORDINARY),
    ]
    if least == 0:
        low = [At(0, "0", Effect.REFUSED), At(LEAST, "tiny", Effect.ORDINARY)]
    return (
        *low,
        At(off, f"{off:g}", Effect.OFF, Effect.LEFT_OUT),
        At(most, f"{most:g}, the most", Effect.ORDINARY),
        At(most * 1.01, f"above {most:g}", Effect.REFUSED),
    )


_OF_SHIFT = _around(0, -limits.SCORE_SHIFT_MAX, limits.SCORE_SHIFT_MAX)


class Edit(OneTransform):
    """One of these."""


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


class LogitBias(Edit):
    """Adds a bias to the scores of some tokens."""

    processor = "SequenceBiasLogitsProcessor"
    kind: Literal["logit_bias"]
    biases: Annotated[
        Biases,
        Asked(
            "logit_bias",
            "Add a bias to the score of one token; repeatable.",
            "ID=BIAS",
            # A bias is one of a list, from which nothing is left out.
            edges=tuple(each._replace(drafted=None) for each in _OF_SHIFT),
        ),
    ]

    def named_ids(self) -> Iterable[int]:
        return (each.token_id for each in self.biases)

    def does(self, place: Place) -> str:
        return shortened([f"adds {each.bias:+g} to token {each.token_id}" for each in self.biases])

    def did(self, place: Place, token: int) -> str:
        return shifted(next((each.bias for each in self.biases if each.token_id == token), 0.0))


class RepetitionPenalty(Edit):
    """Divides the positive scores of the scope's tokens by the penalty, and multiplies the negative ones.

    Source: Keskar et al., "CTRL: A Conditional Transformer Language Model for Controllable Generation" (2019).
    """

    processor = "RepetitionPenaltyLogitsProcessor"
    always: ClassVar[Mapping[str, Any]] = {"scope": "both"}
    kind: Literal["repetition_penalty"]
    penalty: Annotated[
        float,
        Field(gt=0, le=limits.REPETITION_PENALTY_MAX),
        Asked(
            "repetition_penalty",
            "Above 1: disfavour tokens of prompt and output.",
            "X",
            off=1,
            edges=_around(1, 0, limits.REPETITION_PENALTY_MAX),
        ),
    ]
    scope: Scope

    def does(self, place: Place) -> str:
        scores = f"scores of tokens in {_SCOPES[self.scope]}"
        return f"divides positive and multiplies negative {scores} by {self.penalty:g}"

    def did(self, place: Place, token: int) -> str:
        return "among them" if token in place.tokens(self.scope) else "not among them: unchanged"


class FrequencyPenalty(Edit):
    """Subtracts the penalty from a token's score once for each time that the scope has it."""

    always: ClassVar[Mapping[str, Any]] = {"scope": "output"}
    kind: Literal["frequency_penalty"]
    penalty: Annotated[
        Shift,
        Asked(
            "frequency_penalty",
            "Subtract from a token's score for each time it was put out.",
            "X",
            off=0,
            openai=True,
            edges=_OF_SHIFT,
        ),
    ]
    scope: Scope

    def does(self, place: Place) -> str:
        return f"subtracts {self.penalty:g} from a token's score each time that {_SCOPES[self.scope]} has it"

    def did(self, place: Place, token: int) -> str:
        count = place.tokens(self.scope).count(token)
        return f"there {count} times: {shifted(-self.penalty * count)}" if count else "not there: unchanged"


class PresencePenalty(Edit):
    """Subtracts the penalty once from the score of each token that the scope has."""

    always: ClassVar[Mapping[str, Any]] = {"scope": "output"}
    kind: Literal["presence_penalty"]
    penalty: Annotated[
        Shift,
        Asked(
            "presence_penalty",
            "Subtract from the score of each token that the output has.",
            "X",
            off=0,
            openai=True,
            edges=_OF_SHIFT,
        ),
    ]
    scope: Scope

    def does(self, place: Place) -> str:
        return f"subtracts {self.penalty:g} once from the score of each token in {_SCOPES[self.scope]}"

    def did(self, place: Place, token: int) -> str:
        return f"there: {shifted(-self.penalty)}" if token in place.tokens(self.scope) else "not there: unchanged"


_BREAKERS = ("\n", ":", '"', "*")
Breaker = Annotated[str, TextForm.VERBATIM, Field(min_length=1, max_length=limits.DRY_BREAKER_CHARACTERS_MAX)]


def dry_shift(multiplier: float, base: float, beyond: int) -> float:
    """What a token loses that goes on with a repetition of so many tokens beyond those allowed, in nats."""
    try:
        return min(multiplier * base**beyond, limits.SCORE_SHIFT_MAX)
    except OverflowError:
        return limits.SCORE_SHIFT_MAX


def _again(text: Sequence[int]) -> list[int]:
    """At each place how many tokens from there on are the first ones again. Source: Gusfield, "Algorithms on Strings,
    Trees, and Sequences" (1997), the Z algorithm."""
    lengths = [0] * len(text)
    left = right = 0
    for at in range(1, len(text)):
        length = min(lengths[at - left], right - at) if at < right else 0
        while at + length < len(text) and text[length] == text[at + length]:
            length += 1
        if at + length > right:
            left, right = at, at + length
        lengths[at] = length
    return lengths


class Dry(Edit):
    """Subtracts multiplier * base ** (n - allowed_length) from each token that would repeat n tokens and go on as then.

    n is how many of the last tokens stand, somewhere among the last `range` tokens of prompt and output, before that
    token too; of several such places the one with the largest n counts, and nothing is subtracted where it is below
    `allowed_length`. A breaker ends what is repeated, and is not touched itself. No token loses more than the largest
    shift of a score.

    Only the last `range` tokens are looked at, so that a token costs the same however long the text is: the lengths at
    all places of that window follow from those of a token before in one pass over it.
    Source: p-e-w, "DRY: A modern repetition penalty that reliably prevents looping", pull request 5677 of
    oobabooga/text-generation-webui (2024); as there, a draft's breaker is the last token of `a` with it behind.
    """

    always: ClassVar[Mapping[str, Any]] = {"breaker_ids": ()}
    kind: Literal["dry"]
    multiplier: Annotated[
        float,
        Field(ge=0, le=limits.SCORE_SHIFT_MAX),
        Asked(
            "dry_multiplier",
            "Disfavour tokens that go on with a repetition, by X times the base to the power of its length (0.8).",
            "X",
            off=0,
            default=0.8,
            edges=(
                At(-0.01, "below 0", Effect.REFUSED),
                At(0, "0", Effect.OFF, Effect.LEFT_OUT),
                At(LEAST, "tiny", Effect.ORDINARY),
                At(limits.SCORE_SHIFT_MAX, f"{limits.SCORE_SHIFT_MAX:g}, the most", Effect.ORDINARY),
                At(limits.SCORE_SHIFT_MAX * 1.01, f"above {limits.SCORE_SHIFT_MAX:g}", Effect.REFUSED),
            ),
        ),
    ]
    base: Annotated[
        float,
        Field(ge=1, le=limits.DRY_BASE_MAX),
        Asked(
            "dry_base",
            "The base of that power (1.75).",
            "X",
            default=1.75,
            edges=(
                At(0.99, "below 1", Effect.REFUSED),
                At(1, "1, the same at every length", Effect.ORDINARY),
                At(limits.DRY_BASE_MAX, f"{limits.DRY_BASE_MAX:g}, the most", Effect.ORDINARY),
                At(limits.DRY_BASE_MAX * 1.01, f"above {limits.DRY_BASE_MAX:g}", Effect.REFUSED),
            ),
        ),
    ]
    allowed_length: Annotated[
        int,
        Field(ge=1, le=limits.DRY_RANGE_MAX),
        Asked(
            "dry_allowed_length",
            "The length from which on a repetition is disfavoured (2).",
            "N",
            default=2,
            edges=(
                At(0, "0", Effect.REFUSED),
                At(limits.DRY_RANGE_MAX, "longer than the text so far", Effect.OFF),
                At(limits.DRY_RANGE_MAX + 1, f"above {limits.DRY_RANGE_MAX}", Effect.REFUSED),
            ),
        ),
    ]
    range: Annotated[
        int,
        Field(ge=1, le=limits.DRY_RANGE_MAX),
        Asked(
            "dry_range",
            "How many of the last tokens of prompt and output are looked at (2048).",
            "N",
            default=2048,
            edges=(
                At(0, "0", Effect.REFUSED),
                At(1, "1", Effect.OFF),
                At(limits.DRY_RANGE_MAX, f"{limits.DRY_RANGE_MAX}, the most", Effect.ORDINARY),
                At(limits.DRY_RANGE_MAX + 1, f"above {limits.DRY_RANGE_MAX}", Effect.REFUSED),
            ),
        ),
    ]
    breaker_ids: Annotated[
        tuple[TokenId, ...],
        JSON_LIST,
        ListOrder.SET,
        SET_OF_INTS,
        Field(max_length=limits.DRY_BREAKERS_MAX),
        Asked(
            "dry_sequence_breakers",
            "A text over which no repetition goes; repeatable (a newline, :, a double quote and *).",
            "TEXT",
            flag="--dry-sequence-breaker",
            takes=Annotated[
                tuple[Breaker, ...], JSON_LIST, ListOrder.ORDERED, Field(max_length=limits.DRY_BREAKERS_MAX)
            ],
        ),
    ]

    @classmethod
    def entries(cls, draft: Mapping[str, Any], encode: Encode) -> list[dict[str, Any]]:
        if not (asked := super().entries(draft, encode)):
            return []  # a request without it needs no tokenizer for it
        texts = draft.get("dry_sequence_breakers")
        ends = [encode(f"a{text}")[-1:] for text in (_BREAKERS if texts is None else texts)]
        breaker_ids = sorted({token for end in ends for token in end})
        return [entry | {"breaker_ids": breaker_ids} for entry in asked]

    def named_ids(self) -> Iterable[int]:
        return self.breaker_ids

    def shift(self, length: int) -> float:
        """What a token loses that goes on with a repetition of so many tokens, in nats."""
        return dry_shift(self.multiplier, self.base, length - self.allowed_length)

    def lengths(self, tokens: Sequence[int]) -> dict[int, int]:
        """Token -> the length of the longest repetition that it would go on with, where that is not allowed."""
        newest, breakers = tokens[-self.range :][::-1], frozenset(self.breaker_ids)
        unbroken = next((at for at, token in enumerate(newest) if token in breakers), len(newest))
        found: dict[int, int] = {}
        for then, length in zip(newest, _again(newest)[1:], strict=False):
            length = min(length, unbroken)
            if length >= self.allowed_length and then not in breakers:
                found[then] = max(length, found.get(then, 0))
        return found

    def does(self, place: Place) -> str:
        found = sorted(self.lengths(place.tokens("both")).items())
        here = shortened([f"{self.shift(length):g} from token {token} ({length})" for token, length in found])
        formula = f"{self.multiplier:g} * {self.base:g} ** (length - {self.allowed_length})"
        return f"subtracts {formula} where {self.allowed_length} tokens or more would repeat: here {here or 'nothing'}"

    def did(self, place: Place, token: int) -> str:
        length = self.lengths(place.tokens("both")).get(token)
        return shifted(0.0 if length is None else -self.shift(length))


class NoRepeatNgram(Edit):
    """Removes each token that would complete a sequence of `size` tokens which the scope has already.

    The sequence that it would complete is the last one of prompt and output, wherever it begins.
    """

    processor = "NoRepeatNGramLogitsProcessor"
    always: ClassVar[Mapping[str, Any]] = {"scope": "both"}
    kind: Literal["no_repeat_ngram"]
    size: Annotated[
        int,
        Field(ge=1, le=limits.NGRAM_SIZE_MAX),
        Asked(
            "no_repeat_ngram_size",
            "Let no sequence of N tokens come twice.",
            "N",
            off=0,
            takes=Annotated[int, Field(ge=0, le=limits.NGRAM_SIZE_MAX)],
            edges=(
                At(0, "0", Effect.REFUSED, Effect.LEFT_OUT),
                At(1, "1", Effect.NONE_TWICE),
                At(limits.NGRAM_SIZE_MAX, "longer than the text so far", Effect.OFF),
                At(limits.NGRAM_SIZE_MAX + 1, f"above {limits.NGRAM_SIZE_MAX}", Effect.REFUSED),
            ),
        ),
    ]
    scope: Scope

    def completions(self, place: Place) -> set[int]:
        """The tokens that would complete a sequence again."""
        size, whole, scope = self.size, place.tokens("both"), place.tokens(self.scope)
        if len(whole) < size - 1:
            return set()
        last = whole[len(whole) - size + 1 :]
        return {scope[at + size - 1] for at in range(len(scope) - size + 1) if scope[at : at + size - 1] == last}

    def removes(self, place: Place, token: int) -> bool:
        return token in self.completions(place)

    def does(self, place: Place) -> str:
        removed = sorted(self.completions(place))
        here = f"here {listed(removed)}" if removed else "here nothing"
        return f"removes what would repeat {self.size} tokens in a row of {_SCOPES[self.scope]}: {here}"
