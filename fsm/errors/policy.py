"""The policy: scores, draws, and rows that nothing can be chosen from."""

from __future__ import annotations

from dataclasses import dataclass

from .problem import Defect, Rejected


@dataclass(eq=False)
class WrongScores(Defect):
    """A transform or a draw was given another score kind, axis or vocabulary map than its own (POL-1)."""

    code = "wrong_scores"
    says = "{operation} takes {wanted} and was given {found}; convert the scores, or use those of this model"
    operation: str
    wanted: str
    found: str


@dataclass(eq=False)
class WrongDraw(Defect):
    """Only a stochastic decision consumes a draw, and each consumes exactly one (POL-5)."""

    code = "wrong_draw"
    says = "row {row} has a {family} plan and was given the draw {draw}; give a number in [0, 1) to sampled rows only"
    row: int
    family: str
    draw: str


@dataclass(eq=False)
class NonFiniteScores(Rejected):
    """A numeric fault of one row (FSM-10): nothing was decided for it, and its lanes must not be used again."""

    code = "non_finite_scores"
    says = "the score row has a NaN or an infinity, so no token was chosen; check the checkpoint's weights and dtype"


@dataclass(eq=False)
class NoTokenLeft(Rejected):
    """A numeric fault of one row: its transforms removed every token, so nothing was decided for it."""

    code = "no_token_left"
    says = "the transforms removed every token of the score row, so none was chosen; allow more tokens, or ban fewer"


@dataclass(eq=False)
class GrammarTooCostly(Rejected):
    """A grammar's parser has reached what its steps may cost; `reason` says which bound it was, or what was spent.

    The job ends with what was committed; its next token is left undecided.
    """

    code = "grammar_too_costly"
    says = "the grammar costs too much to follow: {reason}; say it in one way only, with longer terminals"
    reason: str


@dataclass(eq=False)
class OwnTransformMissing(Rejected):
    """The request binds a transform of a program, and this process has not registered that very one (ENV-9)."""

    code = "own_transform_missing"
    says = (
        "the request needs the transform {name}, version {version}, with the source {sha256}, and this process has "
        "{found}; register that function before jobs are run, or leave the job to a process that has it"
    )
    name: str
    version: int
    sha256: str
    found: str


@dataclass(eq=False)
class OwnTransformFault(Rejected):
    """A transform of a program raised, or gave something that is no row of scores; its job ends with what it has."""

    code = "own_transform_fault"
    says = (
        "the transform {name}, version {version}, gave no row of scores: {reason}; correct it, register it with "
        "another version, and submit the request again"
    )
    name: str
    version: int
    reason: str
