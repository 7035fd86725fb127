"""What a request asks for, as its sealed envelope says it: what is not as usual, or all of it."""

from __future__ import annotations

from typing import Any, Final

from ...fsm.request.draft import NEW_TOKENS_DEFAULT, RETRY_BUDGET_DEFAULT
from ...fsm.request.envelope import Envelope

USUAL: Final[dict[str, dict[str, Any]]] = {
    "policy": {"logprobs_top": 0},
    "rng": {"seed": 0, "choice": 0, "algorithm": "philox4x32-10"},
    "runtime": {"batch_width": 1, "compatibility": "any_revision", "retry_budget": RETRY_BUDGET_DEFAULT},
    "termination": {
        **{"max_new_tokens": NEW_TOKENS_DEFAULT, "zero_token_choice": None, "min_new_tokens": 0, "stop_strings": ()},
        **{"stop_token_ids": (), "ignore_eos": False, "deadline_ms": None, "detectors": ()},
    },
    "output": {
        **{"echo_prompt": False, "include_stop": False, "skip_special_tokens": True, "alignment": "text"},
        **{"final_cache": "pending", "consumer_policy": "detach", "extras": ()},
    },
}
"""What a request has that says nothing of it."""


def unusual(envelope: Envelope) -> dict[str, Any]:
    """The transforms by their kinds, and each field that is not as usual."""
    planes = envelope.model_dump(by_alias=True)
    found: dict[str, Any] = {}
    for transform in planes["policy"]["transforms"]:
        kind, *values = transform.values()
        found[kind] = values[0] if len(values) == 1 else " ".join(map(str, values))
    for plane, fields in USUAL.items():
        found |= {name: planes[plane][name] for name, usual in fields.items() if planes[plane][name] != usual}
    return found


def sealed(envelope: Envelope) -> dict[str, Any]:
    """All fields but the prompt's ids, each under its plane's name and its own."""
    planes = envelope.model_dump(mode="json", by_alias=True)
    return {
        f"{plane}.{name}": value
        for plane, fields in planes.items()
        if isinstance(fields, dict)
        for name, value in fields.items()
        if (plane, name) not in (("prompt", "token_ids"), ("prompt", "attention_mask"))
    }
