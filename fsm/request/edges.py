"""What the policy's numbers mean at their edges, one meaning each: 0, 1, a tiny number, the largest, and beyond."""

from __future__ import annotations

from typing import Final, NamedTuple

from .transforms import QUESTIONS, Question
from .transforms.definition import Effect


class Edge(NamedTuple):
    """One number of one transform.

    question  the keyword that it is for in a draft, and the field in an envelope
    value     the number; of a bias, the bias
    words     what it stands for in a table
    sealed    its effect in an envelope
    drafted   its effect in a draft
    """

    question: Question
    value: float
    words: str
    sealed: Effect
    drafted: Effect

    @property
    def kind(self) -> str:
        return self.question.transform.tag()


EDGES: Final[tuple[Edge, ...]] = tuple(
    Edge(question, at.value, at.words, at.sealed, at.sealed if at.drafted is None else at.drafted)
    for question in QUESTIONS.values()
    for at in question.asked.edges
)
