"""The transforms of the policy plane: members of one tagged union, each defined by one class.

Names and meanings are those of the transformers library's processors where it has one: `processor` names the class that
a transform equals, and the tests hold it so.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, get_type_hints

from pydantic import Field

from .cuts import CUTS, Cut, Temperature
from .definition import Asked, OneTransform
from .grammar import Grammar
from .lists import EDITS, AllowedTokens, BannedTokens, ForcedToken, ForcedTokens, Own

__all__ = [
    "CUTS",
    "EDITS",
    "QUESTIONS",
    "SEALED_ORDER",
    "AllowedTokens",
    "BannedTokens",
    "Cut",
    "ForcedToken",
    "ForcedTokens",
    "Grammar",
    "OneTransform",
    "Own",
    "Question",
    "Temperature",
    "Transform",
]

# In the order in which a draft seals them; an envelope may have another.
SEALED_ORDER: Final[tuple[type[OneTransform], ...]] = (Grammar, *EDITS, *CUTS)

if TYPE_CHECKING:
    Transform = OneTransform
else:
    Transform = Annotated[reduce(or_, SEALED_ORDER), Field(discriminator="kind")]


class Question(NamedTuple):
    """A keyword of a draft: the transform and its field that it is about, its mark, and what a draft takes for it."""

    transform: type[OneTransform]
    field: str
    asked: Asked
    takes: Any


def _questions(transform: type[OneTransform]) -> dict[str, Question]:
    hints = get_type_hints(transform, include_extras=True)
    return {
        asked.keyword: Question(transform, field, asked, hints[field] if asked.takes is None else asked.takes)
        for field, asked in transform.asked().items()
    }


# As the command line lists them.
QUESTIONS: Final[dict[str, Question]] = {
    keyword: question for transform in (*CUTS, *EDITS) for keyword, question in _questions(transform).items()
}
