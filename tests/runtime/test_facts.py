"""What a process computes on, as recorded facts: each follows its own source, and none is a constant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from decodelog.runtime.families.decoder import facts
from decodelog.runtime.families.decoder.config import parse_config
from decodelog.runtime.families.decoder.facts import runtime_facts
from decodelog.runtime.families.decoder.model import Decoder, seeded_decoder
from decodelog.runtime.families.decoder.parameters import take_parameters
from decodelog.runtime.families.session import Prefill, Session

Patch = pytest.MonkeyPatch

CONFIG = parse_config(
    {
        "model_type": "llama",
        "vocab_size": 11,
        "hidden_size": 8,
        "intermediate_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
    }
)


@pytest.fixture
def decoder() -> Decoder:
    return seeded_decoder(CONFIG, 1)


def returning(place: str, name: str, value: object) -> Callable[[Patch, Decoder], None]:
    """A function of torch that says something else."""

    def patch(patch: Patch, _: Decoder) -> None:
        owner: Any = torch
        for part in filter(None, place.split(".")):
            owner = getattr(owner, part)
        assert callable(getattr(owner, name))
        patch.setattr(owner, name, lambda: value)

    return patch


def own(name: str, value: object) -> Callable[[Patch, Decoder], None]:
    return lambda patch, decoder: patch.setattr(decoder, name, value, raising=True)


def half_cache(patch: Patch, decoder: Decoder) -> None:
    abi = replace(decoder.abi, dtype=torch.float16)
    patch.setattr(Decoder, "abi", property(lambda self: abi))


def flag(name: str) -> Callable[[Patch, Decoder], None]:
    """A flag of a backend of torch turned round, as a program may turn it."""

    def patch(patch: Patch, _: Decoder) -> None:
        backends: Any = torch.backends.mkldnn
        patch.setattr(backends, name, not getattr(backends, name))

    return patch


def a_card(patch: Patch, decoder: Decoder) -> None:
    patch.setattr(torch.cuda, "get_device_name", lambda device: f"the card at {device}")
    patch.setattr(decoder, "device", torch.device("cuda", 3))


SOURCES: dict[str, tuple[Callable[[Patch, Decoder], None], dict[str, object]]] = {
    "torch": (lambda patch, _: patch.setattr(torch, "__version__", "0.1"), {"torch_version": "0.1"}),
    "device": (a_card, {"device": "cuda:3", "device_name": "the card at cuda:3"}),
    "capability": (returning("backends.cpu", "get_cpu_capability", "ABACUS"), {"cpu_capability": "ABACUS"}),
    "threads": (returning("", "get_num_threads", 77), {"threads": 77}),
    "interop threads": (returning("", "get_num_interop_threads", 78), {"interop_threads": 78}),
    "weights": (own("dtype", torch.bfloat16), {"weight_dtype": "bfloat16", "cache_dtype": "bfloat16"}),
    "cache": (half_cache, {"cache_dtype": "float16"}),
    "training": (own("training", True), {"eval_mode": False}),
    "inference": (lambda patch, _: patch.setattr(facts, "INFERENCE_MODE", False), {"inference_mode": False}),
    "determinism": (
        returning("", "are_deterministic_algorithms_enabled", True),
        {"deterministic_algorithms": True},
    ),
    "matmul": (returning("", "get_float32_matmul_precision", "medium"), {"float32_matmul_precision": "medium"}),
    "mkldnn": (flag("enabled"), {"mkldnn_enabled": None}),
    "mkldnn determinism": (flag("deterministic"), {"mkldnn_deterministic": None}),
    "mkl": (returning("backends.mkl", "is_available", "elsewhere"), {"mkl_available": "elsewhere"}),
    "flash": (returning("backends.cuda", "flash_sdp_enabled", "off"), {"flash_attention_enabled": "off"}),
    "efficient": (
        returning("backends.cuda", "mem_efficient_sdp_enabled", "off"),
        {"memory_efficient_attention_enabled": "off"},
    ),
    "math": (returning("backends.cuda", "math_sdp_enabled", "off"), {"math_attention_enabled": "off"}),
}
FIXED = {"score_dtype", "attention"}
"""What this decoder is by construction; see below for what that says."""


@pytest.mark.contract("CALL-10")
@pytest.mark.parametrize("source", SOURCES)
def test_each_fact_follows_its_own_source_and_no_other_moves(decoder: Decoder, source: str) -> None:
    before = runtime_facts(decoder)
    turn, expected = SOURCES[source]
    # None: a flag of the build, which was turned round.
    told = {name: (not before[name]) if value is None else value for name, value in expected.items()}
    with pytest.MonkeyPatch.context() as patch:
        turn(patch, decoder)
        after = runtime_facts(decoder)
    assert {name: after[name] for name in after if after[name] != before[name]} == told
    assert runtime_facts(decoder) == before


@pytest.mark.contract("CALL-10")
def test_every_fact_has_a_source_that_moves_it(decoder: Decoder) -> None:
    moved = {name for _, expected in SOURCES.values() for name in expected}
    assert moved | FIXED == set(runtime_facts(decoder))
    assert not moved & FIXED


@pytest.mark.contract("CALL-10")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_facts_of_a_call_are_what_its_scores_and_rows_are(dtype: torch.dtype) -> None:
    """Also of those that this decoder is by construction."""
    decoder = Decoder(CONFIG, take_parameters(CONFIG, lambda _, *shape: torch.ones(shape), dtype))
    with Session(decoder, decoder.new_arena(1, 8)) as session:
        scores = session.select(session.prepare([Prefill(session.open("request", 4), [1, 2])]))
        told = runtime_facts(decoder)
        assert f"torch.{told['score_dtype']}" == str(scores.dtype)
        assert f"torch.{told['cache_dtype']}" == str(session.arena.rows.dtype)
        assert f"torch.{told['weight_dtype']}" == str(decoder.parameters()[0].dtype) == str(dtype)
        assert scores.is_inference() is told["inference_mode"]
        assert told["device"] == str(scores.device)


@pytest.mark.contract("CALL-10")
def test_facts_are_those_of_the_moment(decoder: Decoder) -> None:
    """What a program sets for real, and not only what a function is made to say."""
    before, threads = runtime_facts(decoder), torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    torch.use_deterministic_algorithms(True)
    try:
        after = runtime_facts(decoder)
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
    assert {name for name in before if before[name] != after[name]} == {"threads", "deterministic_algorithms"}
    assert after["threads"] == threads + 1
