"""What a program gets of a job: typed values, each with the plain form that the command line prints as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...fsm.errors import CorruptRecord
from ...fsm.machine.events import Parent
from ...fsm.reading.emission import Token, usage_of
from ...fsm.reading.transcript import Transcript
from ...fsm.request.finish import MatchedStop
from ..inspect.explain_text import told


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of committed tokens, those behind a stop too; tokens that had to be computed again; tenures."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    recomputed_tokens: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job FAILED: a stable code, and what happened."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Result:
    """A job as far as it is durable.

    job, identity    its name, and the digest of its request, in hex
    state            ADMITTED, PREFILLED, DECIDED, PENDING, CLOSED or FAILED
    finish_reason    why it ended; None while it runs, and where it failed
    matched_stop     the stop string that ended the output, or the id of the token that did
    text             all text that is released
    tokens           the output tokens that the text has, by the request's alignment
    prompt           the prompt's tokens, where the request asks for them
    structure_complete   where structure was asked for: whether the text is one whole structure; else None
    parent           of a fork: the job and the step that it goes on from
    error            of a failed job
    plain            all of it and more, as the command line prints it
    """

    job: str
    identity: str
    state: str
    finish_reason: str | None
    matched_stop: MatchedStop | None
    text: str
    tokens: tuple[Token, ...]
    prompt: tuple[Token, ...]
    usage: Usage
    structure_complete: bool | None
    parent: Parent | None
    error: Failure | None
    plain: dict[str, Any]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The ids of `tokens`."""
        return tuple(token.token for token in self.tokens)


def result_of(job: str, transcript: Transcript) -> Result:
    """The result of what a transcript has. Errors: CorruptRecord for a log without an admission."""
    state = transcript.state
    if state is None:
        raise CorruptRecord(job, 1, "the log has no admission")
    plain, emissions, ending = transcript.result(), transcript.emissions, state.ending
    failed = ending is not None and ending.finish is None
    return Result(
        job=state.spec.job,
        identity=plain["identity"],
        state=plain["state"],
        finish_reason=plain["finish_reason"],
        matched_stop=state.matched_stop,
        text=transcript.text,
        tokens=tuple(token for emission in emissions for token in emission.tokens),
        prompt=tuple(token for emission in emissions for token in emission.prompt),
        usage=Usage(**usage_of(state)),
        structure_complete=plain.get("structure_complete"),
        parent=transcript.parent,
        error=Failure(**plain["error"]) if failed else None,
        plain=plain,
    )


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a token was chosen, and what came of it. `str` is the text of `decodelog explain`, `facts` its JSON."""

    facts: dict[str, Any]

    def __str__(self) -> str:
        lines = told(self.facts)
        width = max(len(about) for about, _ in lines)
        return "\n".join(f"{about:<{width}}  {words}" for about, words in lines)
