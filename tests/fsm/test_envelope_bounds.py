"""The bounds of the schema: a maximum is admitted, and what exceeds it is refused by the limit's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from envelope_examples import changed, full

from decodelog.fsm import limits
from decodelog.fsm.errors import LimitExceeded
from decodelog.fsm.request.envelope import admitted

ENTRIES: list[tuple[str, str, Callable[[int], dict[str, int]]]] = [
    ("logit_bias", "biases", lambda id: {"token_id": id, "bias": 1}),
    ("forced_tokens", "tokens", lambda id: {"token_id": 1, "step": id}),
]
DRY = {"kind": "dry", "multiplier": 1, "base": 2, "allowed_length": 2, "range": 9, "breaker_ids": []}
# path | what reaches its bound | what exceeds it | name of the limit
OF_TRANSFORMS: list[tuple[dict[str, Any], str, Any, Any, str]] = [
    ({"kind": "min_p"}, "p", 1, 1.0001, "p"),
    ({"kind": "typical_p"}, "p", 1, 2, "p"),
    ({"kind": "repetition_penalty", "scope": "both"}, "penalty", 1000, 1000.5, "penalty"),
    ({"kind": "frequency_penalty", "scope": "both"}, "penalty", 10_000, 10_001, "penalty"),
    ({"kind": "presence_penalty", "scope": "both"}, "penalty", 10_000, 10_001, "penalty"),
    ({"kind": "no_repeat_ngram", "scope": "both"}, "size", 32, 33, "size"),
    ({"kind": "xtc", "threshold": 0.1}, "probability", 1, 1.5, "probability"),
    ({"kind": "xtc", "probability": 0.1}, "threshold", 1, 1.5, "threshold"),
    (DRY, "multiplier", 10_000, 10_001, "multiplier"),
    (DRY, "base", 100, 101, "base"),
    (DRY, "allowed_length", 8192, 8193, "allowed_length"),
    (DRY, "range", 8192, 8193, "range"),
    (DRY, "breaker_ids", list(range(64)), list(range(65)), "breaker_ids (elements)"),
    ({"kind": "banned_tokens"}, "token_ids", list(range(2**14)), list(range(2**14 + 1)), "token_ids (elements)"),
    *(
        (
            {"kind": kind},
            name,
            [entry(id) for id in range(1024)],
            [entry(id) for id in range(1025)],
            f"{name} (elements)",
        )
        for kind, name, entry in ENTRIES
    ),
]
BOUNDS: list[tuple[str, Any, Any, str]] = [
    ("artifact.release_id", "x" * 200, "x" * 201, "artifact.release_id (characters)"),
    ("runtime.cache.abi", "x" * 4096, "x" * 4097, "runtime.cache.abi (characters)"),
    ("prompt.token_ids[0]", 2**21 - 1, 2**21, "prompt.token_ids[0]"),
    ("prompt.attention_mask[0]", 1, 2, "prompt.attention_mask[0]"),
    ("position_visibility.context_tokens_max", 2**20, 2**20 + 1, "position_visibility.context_tokens_max"),
    ("policy.transforms[0].value", 1000, 1000.5, "policy.transforms[0].value"),
    ("policy.transforms[2].p", 1, 1.0000001, "policy.transforms[2].p"),
    ("policy.logprobs_top", 20, 21, "policy.logprobs_top"),
    *(
        (
            "policy.transforms[1]",
            {**entry, name: inside},
            {**entry, name: outside},
            f"policy.transforms[1].{limit}",
        )
        for entry, name, inside, outside, limit in OF_TRANSFORMS
    ),
    ("rng.seed", 2**53 - 1, 2**53, "rng.seed"),
    ("rng.choice", 1023, 1024, "rng.choice"),
    ("runtime.batch_width", 1024, 1025, "runtime.batch_width"),
    ("runtime.retry_budget", 100, 101, "runtime.retry_budget"),
    ("termination.max_new_tokens", 2**20 + 1, 2**20 + 2, "termination.max_new_tokens"),
    ("termination.deadline_ms", 30 * 86400 * 1000, 30 * 86400 * 1000 + 1, "termination.deadline_ms"),
    ("termination.stop_strings", ["x"] * 64, ["x"] * 65, "termination.stop_strings (elements)"),
    ("termination.stop_strings[1]", "\u00e9" * 512, "\u00e9" * 513, "termination.stop_strings[1] (bytes)"),
    ("termination.stop_token_ids", list(range(1024)), list(range(1025)), "termination.stop_token_ids (elements)"),
    ("text_interface.eos_ids", list(range(64)), list(range(65)), "text_interface.eos_ids (elements)"),
]


@pytest.mark.contract("ENV-1")
@pytest.mark.parametrize(("path", "inside", "outside", "limit"), BOUNDS)
def test_a_bound_of_a_field_admits_its_maximum_and_names_what_exceeds_it(
    path: str, inside: Any, outside: Any, limit: str
) -> None:
    assert admitted(changed(full(), {path: inside}))
    with pytest.raises(LimitExceeded) as caught:
        admitted(changed(full(), {path: outside}))
    assert caught.value.limit == limit
    assert caught.value.value > caught.value.maximum


@pytest.mark.contract("ENV-1")
def test_the_largest_prompt_is_admitted_and_one_token_more_refused() -> None:
    """The largest prompt is admitted whole and one token more is refused."""

    def sized(count: int) -> dict[str, Any]:
        last = limits.VOCABULARY_SIZE_MAX - 1
        return changed(full(), {"prompt.token_ids": [last] * count, "prompt.attention_mask": [1] * count})

    envelope = admitted(sized(limits.PROMPT_TOKENS_MAX))
    assert len(envelope.prompt.token_ids) == limits.PROMPT_TOKENS_MAX
    assert len(envelope.canonical_bytes()) <= limits.REQUEST_BYTES_MAX
    with pytest.raises(LimitExceeded, match=r"prompt\.token_ids"):
        admitted(sized(limits.PROMPT_TOKENS_MAX + 1))
