"""What a transform is. One class says all of it but its kernel: fields, edges, how it is asked for, and its words.

The schema, the draft's keywords, the flags of the command line, the table of edges, the checks of a policy and the
sentences of an explanation are made of these classes; `runtime.policy` has a kernel for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, get_args

from ..schema import Plane

Encode = Callable[[str], Sequence[int]]
"""The ids of a text, without special tokens around it."""

SHOWN = 8  # of a list of tokens, where the list is longer


class Effect(StrEnum):
    """What a number does at an edge, in the words of the documentation."""

    REFUSED = "refused"
    LEFT_OUT = "off: left out of the envelope"
    GREEDY = "greedy: the best score, and nothing is drawn"
    OFF = "off: it changes nothing"
    BEST = "the best token alone"
    BEST_AND_EQUALS = "the best token and those that score as it does"
    MOST_TYPICAL = "the most typical token alone"
    LEAST_OF_TOP = "where its draw is below it, of the tokens that reach the threshold the least probable alone"
    LEAST = "where it removes at all, all tokens but the least probable"
    NONE_TWICE = "no token of the scope comes again"
    ORDINARY = "no edge: what it says, and every score stays finite"


class At(NamedTuple):
    """What a number means at one edge.

    value    the number; of a bias, the bias
    words    what it stands for in a table
    sealed   its effect in an envelope
    drafted  its effect in a draft, where that is another
    """

    value: float
    words: str
    sealed: Effect
    drafted: Effect | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """The mark of a field that a draft can ask for: by one such keyword, a transform is asked for.

    keyword   the draft's field
    words     what the flag of the command line says of itself; empty: there is no flag
    metavar   what the flag calls its value
    flag      the flag, where it is not the keyword
    off       the value that leaves the transform out
    default   what is sealed where the transform is asked for by another of its fields
    takes     what a draft takes, where that is another type than the envelope's field
    openai    whether the batch files of OpenAI's API have the field too
    edges     what its numbers mean at their edges
    """

    keyword: str
    words: str = ""
    metavar: str = ""
    flag: str = ""
    off: float | None = None
    default: Any = None
    takes: Any = None
    openai: bool = False
    edges: tuple[At, ...] = ()


class Place(NamedTuple):
    """Where a decision is made: the tokens before it, and the noise that transforms draw there.

    noise   the draw of a transform that has a `domain`
    """

    prompt: Sequence[int]
    output: Sequence[int]
    noise: Callable[[int], float]

    @property
    def step(self) -> int:
        return len(self.output)

    def tokens(self, scope: str) -> Sequence[int]:
        """The tokens of a scope, in order."""
        prompt = self.prompt if scope != "output" else ()
        return (*prompt, *(self.output if scope != "prompt" else ()))


class OneTransform(Plane):
    """What is common to all, and what a transform may say in its own way.

    processor   the class of the transformers library that it equals, if there is one
    always      the fields that a draft has no say in, as it seals them
    domain      which noise it draws once a step, beside the choice's own; 0: none. No two transforms have one domain
    """

    processor: ClassVar[str | None] = None
    always: ClassVar[Mapping[str, Any]] = {}
    domain: ClassVar[int] = 0
    kind: str

    # ---- in a request -----------------------------------------------------------------------------------------

    @classmethod
    def tag(cls) -> str:
        """The tag of its kind."""
        (tag,) = get_args(cls.model_fields["kind"].annotation)
        return str(tag)

    @classmethod
    def asked(cls) -> dict[str, Asked]:
        """Its fields that a draft can ask for."""
        marks = {name: [each for each in field.metadata if isinstance(each, Asked)] for name, field in _fields(cls)}
        return {name: found[0] for name, found in marks.items() if found}

    @classmethod
    def entry(cls, **given: Any) -> dict[str, Any]:
        """What an envelope says of it with these fields, and the others as drafts have them that do not name them."""
        defaults = {name: mark.default for name, mark in cls.asked().items() if mark.default is not None}
        return {"kind": cls.tag(), **defaults, **cls.always, **given}

    @classmethod
    def entries(cls, draft: Mapping[str, Any], encode: Encode) -> list[dict[str, Any]]:
        """What an envelope says of it, of a draft's values by keyword: nothing where it is not asked for, or off."""
        values = {name: (draft.get(mark.keyword), mark.off) for name, mark in cls.asked().items()}
        given = {name: _plain(value) for name, (value, _) in values.items() if value is not None}
        if not given or any(value is not None and value == off for value, off in values.values()):
            return []
        return [cls.entry(**given)]

    @property
    def once(self) -> str:
        """What a policy may hold once."""
        return self.kind

    def named_ids(self) -> Iterable[int]:
        """The token ids that it names."""
        return ()

    def leaves_one_token(self) -> bool:
        """Whether nothing can be drawn after it: one token is left, whatever the scores are."""
        return False

    # ---- in words ---------------------------------------------------------------------------------------------

    def does(self, place: Place) -> str:
        """What it does there."""
        raise NotImplementedError

    def did(self, place: Place, token: int) -> str | None:
        """What became of a token's score; None where that depends on scores, which the log does not hold."""
        return None

    def removes(self, place: Place, token: int) -> bool:
        """Whether it is sure to remove a token there, whatever the scores are."""
        return False


def _fields(kind: type[Plane]) -> Iterable[tuple[str, Any]]:
    return kind.model_fields.items()


def _plain(value: Any) -> Any:
    """A draft's value as JSON has it."""
    if isinstance(value, tuple):
        return [each.model_dump() if isinstance(each, Plane) else each for each in value]
    return value


def shifted(amount: float) -> str:
    return f"its score changed by {amount:+g}" if amount else "unchanged"


def listed(ids: Sequence[int]) -> str:
    """Tokens by their ids."""
    return f"{'token' if len(ids) == 1 else 'tokens'} {shortened([str(token) for token in ids])}"


def shortened(items: Sequence[str]) -> str:
    """The first of the items, and how many more there are."""
    more = len(items) - SHOWN
    return ", ".join(items[:SHOWN]) + (f" and {more} more" if more > 0 else "")
