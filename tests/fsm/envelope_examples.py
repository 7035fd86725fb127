"""Envelopes and facts that the tests of the sealed request start from, and ways to take them apart."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from decodelog.fsm.request.admission import RuntimeFacts
from decodelog.fsm.request.artifact import ArtifactFacts
from decodelog.fsm.request.finish import FinishReason

Path = tuple[str | int, ...]

FACTS = ArtifactFacts(
    release_id="tiny-1",
    architecture="llama",
    checkpoint_sha256="c" * 64,
    config_sha256="f" * 64,
    tokenizer_sha256="a" * 64,
    template_sha256="e" * 64,
    vocabulary_size=300,
    context_tokens_max=64,
    bos_id=1,
    eos_ids=(7, 2),
    pad_id=0,
    cache_abi="2 layers, 2 heads of 4, float32, rope 10000",
    weight_dtype="float32",
)
PLAIN_FACTS = dataclasses.replace(FACTS, template_sha256=None, bos_id=None, pad_id=None, eos_ids=(2,))
RUNTIME = RuntimeFacts("float32", "float32", "slot_arena", "cpu", "torch 2.13.0")


def full() -> dict[str, Any]:
    """An envelope value with something in every field that can hold something."""
    return {
        "schema": "numinens.request.v1",
        "artifact": {
            "release_id": FACTS.release_id,
            "architecture": FACTS.architecture,
            "checkpoint_sha256": FACTS.checkpoint_sha256,
            "config_sha256": FACTS.config_sha256,
            "weight_dtype": FACTS.weight_dtype,
            "adapters": [],
        },
        "text_interface": {
            "tokenizer_sha256": FACTS.tokenizer_sha256,
            "template_sha256": FACTS.template_sha256,
            "bos_id": FACTS.bos_id,
            "eos_ids": [2, 7],
            "pad_id": FACTS.pad_id,
            "vocabulary_size": FACTS.vocabulary_size,
        },
        "prompt": {
            "token_ids": [1, 40, 41, 299],
            "attention_mask": [1, 1, 1, 1],
            "source": {"kind": "chat"},
            "start_state": None,
        },
        "position_visibility": {
            "mode": "causal",
            "position_rule": "valid_token_cumsum",
            "cache_position_start": 0,
            "context_tokens_max": 64,
        },
        "policy": {
            "family": "sample",
            "transforms": [
                {"kind": "temperature", "value": 0.8},
                {"kind": "top_k", "k": 50},
                {"kind": "top_p", "p": 0.95},
            ],
            "tie_rule": "lowest_token_id",
            "score_kind": "logits",
            "logprobs_top": 2,
        },
        "rng": {"algorithm": "philox4x32-10", "seed": 42, "choice": 1, "stream_rule": "counter_v1"},
        "runtime": {
            "compute_dtype": "float32",
            "logit_dtype": "float32",
            "cache": {"kind": "slot_arena", "abi": FACTS.cache_abi},
            "batch_width": 8,
            "compatibility": "exact",
            "device_class": "cpu",
            "framework_revision": RUNTIME.framework_revision,
            "retry_budget": 3,
            "modes": [],
        },
        "termination": {
            "max_new_tokens": 16,
            "zero_token_choice": None,
            "min_new_tokens": 2,
            "stop_strings": ["\n\nUser:", "e\u0301\U0001f600\u0000"],
            "stop_token_ids": [5, 9],
            "eos_ids": [2, 7],
            "ignore_eos": False,
            "deadline_ms": 60000,
            "finish_order": [reason.value for reason in FinishReason],
            "detectors": [],
        },
        "output": {
            "echo_prompt": False,
            "include_stop": True,
            "skip_special_tokens": True,
            "alignment": "text",
            "final_cache": "pending",
            "consumer_policy": "detach",
            "extras": [{"kind": "prompt_logprobs", "top": 3}],
        },
    }


def plain() -> dict[str, Any]:
    """An envelope value of a greedy request, with null and empty wherever that is legal, and no output."""
    return changed(
        full(),
        {
            "text_interface.template_sha256": None,
            "text_interface.bos_id": None,
            "text_interface.pad_id": None,
            "text_interface.eos_ids": [2],
            "policy.family": "greedy",
            "policy.transforms": [],
            "policy.logprobs_top": 0,
            "rng.algorithm": "splitmix64",
            "rng.seed": 0,
            "rng.choice": 0,
            "runtime.compatibility": "any_device",
            "runtime.device_class": None,
            "runtime.framework_revision": None,
            "termination.max_new_tokens": 0,
            "termination.zero_token_choice": "no_call",
            "termination.min_new_tokens": 0,
            "termination.stop_strings": [],
            "termination.stop_token_ids": [],
            "termination.eos_ids": [2],
            "termination.deadline_ms": None,
            "output.include_stop": False,
            "output.extras": [],
        },
    )


def shaped() -> dict[str, Any]:
    """An envelope value with every transform of the policy that `full` has not."""
    return changed(
        full(),
        {
            "policy.transforms": [
                {"kind": "logit_bias", "biases": [{"token_id": 3, "bias": -1.5}, {"token_id": 299, "bias": 100}]},
                {"kind": "repetition_penalty", "penalty": 1.1, "scope": "both"},
                {"kind": "frequency_penalty", "penalty": 0.25, "scope": "output"},
                {"kind": "presence_penalty", "penalty": -0.5, "scope": "prompt"},
                {"kind": "no_repeat_ngram", "size": 3, "scope": "both"},
                {"kind": "banned_tokens", "token_ids": [11, 12]},
                {"kind": "allowed_tokens", "token_ids": [4, 40, 41, 42]},
                {"kind": "forced_tokens", "tokens": [{"step": 0, "token_id": 40}, {"step": 4, "token_id": 4}]},
                {"kind": "temperature", "value": 0.8},
                {"kind": "min_p", "p": 0.05},
                {"kind": "typical_p", "p": 0.9},
            ],
        },
    )


def bent() -> dict[str, Any]:
    """An envelope value with the transforms that neither `full` nor `shaped` has."""
    dry = {"kind": "dry", "multiplier": 0.8, "base": 1.75, "allowed_length": 2, "range": 1024, "breaker_ids": [10, 34]}
    return changed(
        full(),
        {
            "policy.transforms": [
                dry,
                {"kind": "own", "name": "mine", "version": 4, "sha256": "ab" * 32},
                {"kind": "temperature", "value": 0.8},
                {"kind": "xtc", "probability": 0.25, "threshold": 0.125},
            ],
        },
    )


EXAMPLES = {"full": full, "plain": plain, "shaped": shaped, "bent": bent}


def steps(path: str) -> Path:
    """`a.b[3]` as ("a", "b", 3)."""
    parts = path.replace("[", ".").replace("]", "").split(".")
    return tuple(int(part) if part.isdigit() else part for part in parts)


def changed(value: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which the leaf or branch at each path is another one."""
    value = copy.deepcopy(value)
    for path, new in changes.items():
        *above, last = steps(path)
        place: Any = value
        for step in above:
            place = place[step]
        place[last] = new
    return value


def without(value: dict[str, Any], path: str) -> dict[str, Any]:
    """A copy in which the field at the path is missing."""
    value = copy.deepcopy(value)
    *above, last = steps(path)
    place: Any = value
    for step in above:
        place = place[step]
    del place[last]
    return value


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar and every empty list, with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}".removeprefix("."))
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    else:
        yield path, value


def fields(value: Any, path: str = "") -> Iterator[str]:
    """The path of every field of every object."""
    if isinstance(value, dict):
        for key, item in value.items():
            here = f"{path}.{key}".removeprefix(".")
            yield here
            yield from fields(item, here)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from fields(item, f"{path}[{index}]")
