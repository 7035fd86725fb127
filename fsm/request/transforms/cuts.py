"""Transforms that go over a whole row, and that only sampling has a use for."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from ... import limits
from .definition import Asked, At, Effect, OneTransform, Place

TEMPERATURE_LEAST: Final = 1e-5
"""Below it nothing but rounding is left of any score but the best."""

LEAST: Final = 5e-324  # the smallest positive double

Probability = Annotated[float, Field(ge=0, le=1)]
_ABOVE_1 = At(1.01, "above 1", Effect.REFUSED)


class Cut(OneTransform):
    """One of these."""


class Temperature(Cut):
    """Divides the scores. Temperature 0 is the greedy family, so a value is positive, however small."""

    processor = "TemperatureLogitsWarper"
    kind: Literal["temperature"]
    value: Annotated[
        float,
        Field(gt=0, le=limits.TEMPERATURE_MAX),
        Asked(
            "temperature",
            "0: the best token. Above: sample (0; 1 where one of the next says to sample).",
            "X",
            off=0,
            takes=Annotated[float, Field(ge=0, le=limits.TEMPERATURE_MAX)],
            openai=True,
            edges=(
                At(0, "0", Effect.REFUSED, Effect.GREEDY),
                At(LEAST, f"tiny: below {TEMPERATURE_LEAST:g}", Effect.BEST),
                At(1, "1", Effect.OFF),
                At(limits.TEMPERATURE_MAX, f"{limits.TEMPERATURE_MAX:g}, the most", Effect.ORDINARY),
                At(limits.TEMPERATURE_MAX * 1.01, f"above {limits.TEMPERATURE_MAX:g}", Effect.REFUSED),
            ),
        ),
    ]

    def leaves_one_token(self) -> bool:
        return self.value < TEMPERATURE_LEAST

    def does(self, place: Place) -> str:
        return f"divides the scores by {self.value:g}"


class TopK(Cut):
    """Keeps the k best scores; a k above the vocabulary keeps all."""

    processor = "TopKLogitsWarper"
    kind: Literal["top_k"]
    k: Annotated[
        int,
        Field(ge=1, le=limits.VOCABULARY_SIZE_MAX),
        Asked(
            "top_k",
            "Sample among the K best tokens.",
            "K",
            off=0,
            takes=Annotated[int, Field(ge=0, le=limits.VOCABULARY_SIZE_MAX)],
            edges=(
                At(0, "0", Effect.REFUSED, Effect.LEFT_OUT),
                At(1, "1", Effect.BEST),
                At(limits.VOCABULARY_SIZE_MAX, "the vocabulary, or more", Effect.OFF),
                At(limits.VOCABULARY_SIZE_MAX + 1, f"above {limits.VOCABULARY_SIZE_MAX}", Effect.REFUSED),
            ),
        ),
    ]

    def leaves_one_token(self) -> bool:
        return self.k == 1

    def does(self, place: Place) -> str:
        return f"keeps the {self.k} best scores" if self.k > 1 else "keeps the best score alone"


class TopP(Cut):
    """Keeps the smallest set of best tokens whose probability reaches p: 0 keeps the best one, 1 keeps all."""

    processor = "TopPLogitsWarper"
    kind: Literal["top_p"]
    p: Annotated[
        Probability,
        Asked(
            "top_p",
            "Sample among the best tokens that together have probability P.",
            "P",
            off=1,
            openai=True,
            edges=(
                At(0, "0", Effect.BEST),
                At(LEAST, "tiny", Effect.BEST),
                At(1, "1", Effect.OFF, Effect.LEFT_OUT),
                _ABOVE_1,
            ),
        ),
    ]

    def leaves_one_token(self) -> bool:
        return self.p == 0

    def does(self, place: Place) -> str:
        few = f"keeps the fewest best tokens whose probability reaches {self.p:g}"
        return few if self.p else "keeps the best token alone"


class MinP(Cut):
    """Keeps the tokens whose probability is at least p times that of the best one."""

    processor = "MinPLogitsWarper"
    kind: Literal["min_p"]
    p: Annotated[
        Probability,
        Asked(
            "min_p",
            "Sample among tokens with at least P times the probability of the best.",
            "P",
            off=0,
            edges=(
                At(0, "0", Effect.OFF, Effect.LEFT_OUT),
                At(LEAST, "tiny", Effect.ORDINARY),
                At(1, "1", Effect.BEST_AND_EQUALS),
                _ABOVE_1,
            ),
        ),
    ]

    def does(self, place: Place) -> str:
        return f"keeps the tokens with at least {self.p:g} of the best one's probability"


class TypicalP(Cut):
    """Keeps the smallest set of the most typical tokens whose probability reaches p.

    A token is the more typical, the nearer its surprisal is to the entropy; the best token may be left out.
    Source: Meister et al., "Locally Typical Sampling" (2023).
    """

    processor = "TypicalLogitsWarper"
    kind: Literal["typical_p"]
    p: Annotated[
        Probability,
        Asked(
            "typical_p",
            "Sample among the most typical tokens that together have probability P.",
            "P",
            off=1,
            edges=(
                At(0, "0", Effect.MOST_TYPICAL),
                At(LEAST, "tiny", Effect.MOST_TYPICAL),
                At(1, "1", Effect.OFF, Effect.LEFT_OUT),
                _ABOVE_1,
            ),
        ),
    ]

    def leaves_one_token(self) -> bool:
        return self.p == 0

    def does(self, place: Place) -> str:
        few = f"keeps the fewest most typical tokens whose probability reaches {self.p:g}"
        return few if self.p else "keeps the most typical token alone"


class Xtc(Cut):
    """At some steps, of the tokens with at least a probability of `threshold`, removes all but the least probable.

    A step is one of these where a draw of its own is below `probability`; fewer than two such tokens are left alone.
    Probabilities are those that the transforms before it have left. End tokens have no privilege. Of equals the lowest
    ids go first.
    Source: p-e-w, "Exclude Top Choices (XTC)", pull request 6335 of oobabooga/text-generation-webui (2024).
    """

    domain = 1
    kind: Literal["xtc"]
    probability: Annotated[
        Probability,
        Asked(
            "xtc_probability",
            "At this share of the steps, remove all likely tokens but the least likely of them (0.5).",
            "P",
            off=0,
            default=0.5,
            edges=(
                At(0, "0", Effect.OFF, Effect.LEFT_OUT),
                At(LEAST, "tiny", Effect.LEAST_OF_TOP),
                At(1, "1", Effect.LEAST_OF_TOP),
                _ABOVE_1,
            ),
        ),
    ]
    threshold: Annotated[
        Probability,
        Asked(
            "xtc_threshold",
            "The probability from which on --xtc-probability holds a token for likely (0.1).",
            "P",
            default=0.1,
            edges=(
                At(0, "0", Effect.LEAST),
                At(0.51, "above 0.5", Effect.OFF),
                At(1, "1", Effect.OFF),
                _ABOVE_1,
            ),
        ),
    ]

    def does(self, place: Place) -> str:
        unit = place.noise(self.domain)
        if unit >= self.probability:
            return f"off here: its draw {unit:.9f} is not below {self.probability:g}"
        few = f"of the tokens with at least {self.threshold:g} of the probability keeps the least probable"
        return f"{few}, and those below: its draw {unit:.9f} is below {self.probability:g}"


CUTS: Final[tuple[type[Cut], ...]] = (Temperature, TopK, TopP, MinP, TypicalP, Xtc)
"""In the order in which drafts seal them."""
