"""Transforms that name the tokens which may, may not or must come, and those that a program has defined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from ... import limits
from ..canonical import ListOrder
from ..schema import JSON_LIST, Name, Plane, Sha256, TokenId, set_by
from .definition import Asked, Encode, Place, listed
from .edits import Dry, Edit, FrequencyPenalty, LogitBias, NoRepeatNgram, PresencePenalty, RepetitionPenalty, TokenIds


class BannedTokens(Edit):
    """Removes these tokens."""

    processor = "SuppressTokensLogitsProcessor"
    kind: Literal["banned_tokens"]
    token_ids: Annotated[
        TokenIds,
        Asked("banned_token_ids", "Never choose this token; repeatable.", "ID", flag="--banned-token-id"),
    ]

    def named_ids(self) -> Iterable[int]:
        return self.token_ids

    def removes(self, place: Place, token: int) -> bool:
        return token in self.token_ids

    def does(self, place: Place) -> str:
        return f"removes {listed(self.token_ids)}"


class AllowedTokens(Edit):
    """Removes every token but these."""

    kind: Literal["allowed_tokens"]
    token_ids: Annotated[
        TokenIds,
        Asked("allowed_token_ids", "Choose among these tokens only; repeatable.", "ID", flag="--allowed-token-id"),
    ]

    def named_ids(self) -> Iterable[int]:
        return self.token_ids

    def removes(self, place: Place, token: int) -> bool:
        return token not in self.token_ids

    def does(self, place: Place) -> str:
        return f"keeps only {listed(self.token_ids)}"


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


class ForcedTokens(Edit):
    """At some steps removes every token but one, whatever was removed before."""

    processor = "ForcedBOSTokenLogitsProcessor"
    kind: Literal["forced_tokens"]
    tokens: Annotated[
        Forced,
        Asked(
            "forced_tokens",
            "Make output token number STEP, counted from 0, this one; repeatable.",
            "STEP=ID",
            flag="--forced-token",
        ),
    ]

    def named_ids(self) -> Iterable[int]:
        return (each.token_id for each in self.tokens)

    def at(self, step: int) -> int | None:
        """The token that the step is to have, if one is said."""
        return next((each.token_id for each in self.tokens if each.step == step), None)

    def removes(self, place: Place, token: int) -> bool:
        return self.at(place.step) not in (None, token)

    def does(self, place: Place) -> str:
        forced = self.at(place.step)
        return "forces nothing at this step" if forced is None else f"keeps only token {forced} at this step"


class OwnName(Plane):
    """One of a program's own transforms, as a request binds it."""

    name: Name
    version: Annotated[int, Field(ge=1, le=limits.SAFE_INTEGER_MAX)]
    sha256: Sha256


OwnNames = Annotated[tuple[OwnName, ...], JSON_LIST, ListOrder.ORDERED, Field(max_length=limits.OWN_TRANSFORMS_MAX)]


class Own(Edit):
    """Puts what a function of a program makes of the row in its place; a token that was removed stays removed.

    The function is bound by its name, its version and the SHA-256 of its source: a process that has another one under
    that name does not run the request.
    """

    kind: Literal["own"]
    name: Annotated[Name, Asked("own_transforms", takes=OwnNames)]
    version: Annotated[int, Field(ge=1, le=limits.SAFE_INTEGER_MAX)]
    sha256: Sha256

    @classmethod
    def entries(cls, draft: Mapping[str, Any], encode: Encode) -> list[dict[str, Any]]:
        named = draft.get("own_transforms") or ()
        return [cls.entry(name=each.name, version=each.version, sha256=each.sha256) for each in named]

    @property
    def once(self) -> str:
        return f"{self.kind} {self.name}"

    def does(self, place: Place) -> str:
        return f"is {self.name}, version {self.version}, of the program that made the request"


EDITS: Final[tuple[type[Edit], ...]] = (
    *(LogitBias, RepetitionPenalty, FrequencyPenalty, PresencePenalty, Dry, NoRepeatNgram),
    *(BannedTokens, AllowedTokens, ForcedTokens, Own),
)
"""In the order in which drafts seal them."""
