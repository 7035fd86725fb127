"""The transforms of a request's policy in words: what each does at one step, and what it did to one token there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ...fsm.machine.spec import Spec
from ...fsm.request import transforms

SHOWN = 8  # of a list of tokens, where the list is longer

_SCOPES = {"prompt": "the prompt", "output": "the output", "both": "prompt or output"}
_LANGUAGES = {"json_schema": "a JSON schema", "regex": "a regular expression", "lark": "a Lark grammar"}


class Place(NamedTuple):
    """Where a decision is made: the request, and the output tokens before it."""

    spec: Spec
    output: Sequence[int]

    @property
    def step(self) -> int:
        return len(self.output)

    def tokens(self, scope: str) -> Sequence[int]:
        """The tokens of a scope, in order."""
        prompt = self.spec.prompt if scope != "output" else ()
        return (*prompt, *(self.output if scope != "prompt" else ()))


def effects(place: Place, token: int) -> list[dict[str, Any]]:
    """Each transform in order: what it does at this place, and to this token where the log can say so.

    What holds back the tokens that end the output comes before all of them.
    """
    found: list[dict[str, Any]] = []
    least, ending = place.spec.min_new_tokens, place.spec.ending_ids
    if least and ending:
        there = f"the output has {place.step} of at least {least} tokens"
        does = f"removes {listed(sorted(ending))}: {there}" if place.step < least else f"off: {there}"
        found.append({"kind": "min_new_tokens", "does": does, "chosen": None})
    for each in place.spec.envelope.policy.transforms:
        found.append({"kind": each.kind, "does": _does(each, place), "chosen": _did(each, place, token)})
    return found


def removers(place: Place, token: int) -> Iterator[str]:
    """The transforms that remove a token here whatever the scores are."""
    if place.step < place.spec.min_new_tokens and token in place.spec.ending_ids:
        yield "min_new_tokens"
    for transform in place.spec.envelope.policy.transforms:
        match transform:
            case transforms.BannedTokens(token_ids=ids) if token in ids:
                yield transform.kind
            case transforms.AllowedTokens(token_ids=ids) if token not in ids:
                yield transform.kind
            case transforms.ForcedTokens() if (forced := _forced(transform, place)) is not None and forced != token:
                yield transform.kind
            case transforms.NoRepeatNgram() if token in _completions(transform, place):
                yield transform.kind


def _forced(transform: transforms.ForcedTokens, place: Place) -> int | None:
    return next((each.token_id for each in transform.tokens if each.step == place.step), None)


def _completions(transform: transforms.NoRepeatNgram, place: Place) -> set[int]:
    """The tokens that would complete a sequence again."""
    size, whole, scope = transform.size, place.tokens("both"), place.tokens(transform.scope)
    if len(whole) < size - 1:
        return set()
    last = whole[len(whole) - size + 1 :]
    return {scope[at + size - 1] for at in range(len(scope) - size + 1) if scope[at : at + size - 1] == last}


def _does(transform: transforms.Transform, place: Place) -> str:
    match transform:
        case transforms.Temperature(value=value):
            return f"divides the scores by {value:g}"
        case transforms.TopK(k=k):
            return f"keeps the {k} best scores" if k > 1 else "keeps the best score alone"
        case transforms.TopP(p=0):
            return "keeps the best token alone"
        case transforms.TopP(p=p):
            return f"keeps the fewest best tokens whose probability reaches {p:g}"
        case transforms.MinP(p=p):
            return f"keeps the tokens with at least {p:g} of the best one's probability"
        case transforms.TypicalP(p=0):
            return "keeps the most typical token alone"
        case transforms.TypicalP(p=p):
            return f"keeps the fewest most typical tokens whose probability reaches {p:g}"
        case transforms.RepetitionPenalty(penalty=penalty, scope=scope):
            return f"divides positive and multiplies negative scores of tokens in {_SCOPES[scope]} by {penalty:g}"
        case transforms.FrequencyPenalty(penalty=penalty, scope=scope):
            return f"subtracts {penalty:g} from a token's score each time that {_SCOPES[scope]} has it"
        case transforms.PresencePenalty(penalty=penalty, scope=scope):
            return f"subtracts {penalty:g} once from the score of each token in {_SCOPES[scope]}"
        case transforms.NoRepeatNgram(size=size, scope=scope):
            removed = sorted(_completions(transform, place))
            here = f"here {listed(removed)}" if removed else "here nothing"
            return f"removes what would repeat {size} tokens in a row of {_SCOPES[scope]}: {here}"
        case transforms.LogitBias(biases=biases):
            return shortened([f"adds {each.bias:+g} to token {each.token_id}" for each in biases])
        case transforms.AllowedTokens(token_ids=ids):
            return f"keeps only {listed(ids)}"
        case transforms.BannedTokens(token_ids=ids):
            return f"removes {listed(ids)}"
        case transforms.ForcedTokens():
            forced = _forced(transform, place)
            return "forces nothing at this step" if forced is None else f"keeps only token {forced} at this step"
        case transforms.Grammar(language=language, source=source):
            return f"keeps what leads on in {_LANGUAGES[language]} of {len(source.encode())} bytes"


def _did(transform: transforms.Transform, place: Place, token: int) -> str | None:
    """What became of the token's score; None where that depends on scores, which the log does not hold."""
    match transform:
        case transforms.LogitBias(biases=biases):
            bias = next((each.bias for each in biases if each.token_id == token), 0.0)
            return _shifted(bias)
        case transforms.FrequencyPenalty(penalty=penalty, scope=scope):
            count = place.tokens(scope).count(token)
            return f"there {count} times: {_shifted(-penalty * count)}" if count else "not there: unchanged"
        case transforms.PresencePenalty(penalty=penalty, scope=scope):
            return f"there: {_shifted(-penalty)}" if token in place.tokens(scope) else "not there: unchanged"
        case transforms.RepetitionPenalty(scope=scope):
            return "among them" if token in place.tokens(scope) else "not among them: unchanged"
    return None


def _shifted(amount: float) -> str:
    return f"its score changed by {amount:+g}" if amount else "unchanged"


def listed(ids: Sequence[int]) -> str:
    """Tokens by their ids."""
    return f"{'token' if len(ids) == 1 else 'tokens'} {shortened([str(token) for token in ids])}"


def shortened(items: Sequence[str]) -> str:
    """The first of the items, and how many more there are."""
    more = len(items) - SHOWN
    return ", ".join(items[:SHOWN]) + (f" and {more} more" if more > 0 else "")
