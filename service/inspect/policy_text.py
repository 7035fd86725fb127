"""The transforms of a request's policy in words: what each does at one step, and what it did to one token there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...fsm.evidence.rng import unit_draw
from ...fsm.machine.spec import Spec
from ...fsm.request.transforms.definition import Place, listed


def place_of(spec: Spec, output: Sequence[int]) -> Place:
    """Where a request decides after these output tokens."""
    rng = spec.envelope.rng

    def noise(domain: int) -> float:
        return unit_draw(rng.algorithm, rng.seed, rng.choice, 0, len(output), domain)

    return Place(spec.prompt, tuple(output), noise)


def effects(spec: Spec, output: Sequence[int], token: int) -> list[dict[str, Any]]:
    """Each transform in order: what it does after these tokens, and to this token where the log can say so.

    What holds back the tokens that end the output comes before all of them.
    """
    place = place_of(spec, output)
    found: list[dict[str, Any]] = []
    least, ending = spec.min_new_tokens, spec.ending_ids
    if least and ending:
        there = f"the output has {place.step} of at least {least} tokens"
        does = f"removes {listed(sorted(ending))}: {there}" if place.step < least else f"off: {there}"
        found.append({"kind": "min_new_tokens", "does": does, "chosen": None})
    for each in spec.envelope.policy.transforms:
        found.append({"kind": each.kind, "does": each.does(place), "chosen": each.did(place, token)})
    return found


def removers(spec: Spec, output: Sequence[int], token: int) -> Iterator[str]:
    """What is sure to remove a token after these, whatever the scores are."""
    place = place_of(spec, output)
    if place.step < spec.min_new_tokens and token in spec.ending_ids:
        yield "min_new_tokens"
    yield from (each.kind for each in spec.envelope.policy.transforms if each.removes(place, token))
