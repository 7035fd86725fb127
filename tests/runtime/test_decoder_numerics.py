"""The native decoder against transformers' own forward, on tiny random checkpoints and on the real model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config

from decodelog.fsm.errors import Problem
from decodelog.runtime.families.decoder.model import Decoder, load_decoder
from decodelog.runtime.families.session import Decode, Prefill, Session
from decodelog.runtime.model.releases import find_model
from decodelog.runtime.text.tokenizer import load_text

# Largest absolute difference of a logit. Tiny models have logits of order 1; the real one's reach 31.
TINY_TOLERANCE = 2e-5
REAL_TOLERANCE = 5e-4
# Same stack, other call shapes (chunks, cached steps): rounding only.
SHAPE_TOLERANCE = 2e-5

_SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
CONFIGS = {
    "grouped": LlamaConfig(**_SHAPE, rms_norm_eps=1e-5),
    "one-to-one": LlamaConfig(**{**_SHAPE, "num_key_value_heads": 6}),
    "multi-query": LlamaConfig(**{**_SHAPE, "num_key_value_heads": 1}),
    "tied": LlamaConfig(**_SHAPE, tie_word_embeddings=True),
    "wide-head": LlamaConfig(**_SHAPE, head_dim=24),
    "biased": LlamaConfig(**_SHAPE, attention_bias=True, mlp_bias=True),
    "qwen2": Qwen2Config(**_SHAPE, sliding_window=32),
    "mistral": MistralConfig(**_SHAPE, sliding_window=None),
    "linear": LlamaConfig(**_SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}),
    "llama3": LlamaConfig(**_SHAPE, rope_parameters=_LLAMA3),
    "large-eps": LlamaConfig(**_SHAPE, rms_norm_eps=0.5),
}


def save_checkpoint(config: PreTrainedConfig, directory: Path, **options: object) -> torch.nn.Module:
    """A seeded random model of `config`, its biases and norms too, written as a checkpoint directory."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
            elif "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.mul_(10)
    model.save_pretrained(directory, **options)
    made: torch.nn.Module = model
    return made


@torch.no_grad()
def reference(model: torch.nn.Module, tokens: list[int]) -> Tensor:
    """transformers' logits of every position, without a cache: [T, V]."""
    scores: Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0]
    return scores


def native(decoder: Decoder, prompt: list[int], steps: list[int], chunk: int | None = None) -> Tensor:
    """Our logits after the prompt and after each further token: [1 + len(steps), V]."""
    arena = decoder.new_arena(2, 8)
    with Session(decoder, arena, prefill_chunk=chunk) as session:
        session.open("mate", 3)
        lane = session.open("request", len(prompt) + len(steps))
        rows = [session.select(session.prepare([Prefill(lane, prompt)]))[0]]
        rows += [session.select(session.prepare([Decode(lane, token)]))[0] for token in steps]
    return torch.stack(rows)


def distance(left: Tensor, right: Tensor) -> float:
    return (left - right).abs().max().item()


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    return torch.randint(0, 97, (40,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.mark.contract("CALL-6", "FAM-1", "FAM-7")
@pytest.mark.parametrize("name", CONFIGS)
def test_prefill_and_every_cached_step_equal_transformers(name: str, tokens: list[int], tmp_path: Path) -> None:
    model = save_checkpoint(CONFIGS[name], tmp_path)
    expected = reference(model, tokens)
    scale = expected.abs().max().item()
    found = native(load_decoder(tmp_path), tokens[:11], tokens[11:])
    assert scale > 0.5  # the comparison below has something to compare
    assert distance(found, expected[10:]) <= TINY_TOLERANCE * max(scale, 1.0)


@pytest.mark.contract("FAM-7")
def test_older_rope_scaling_keys_mean_the_same(tokens: list[int], tmp_path: Path) -> None:
    model = save_checkpoint(CONFIGS["llama3"], tmp_path)
    path = tmp_path / "config.json"
    settings = {key: value for key, value in _LLAMA3.items() if key != "rope_theta"}
    text = path.read_text()
    start = text.index('"rope_parameters"')
    end = text.index("}", start) + 1
    old = f'"rope_theta": 500.0, "rope_scaling": {str(settings)!s}'.replace("'", '"')
    path.write_text(text[:start] + old + text[end:])
    assert distance(native(load_decoder(tmp_path), tokens, [])[0], reference(model, tokens)[-1]) <= TINY_TOLERANCE * 10


@pytest.mark.contract("FAM-7")
def test_a_sharded_checkpoint_loads_like_a_whole_one(tokens: list[int], tmp_path: Path) -> None:
    save_checkpoint(CONFIGS["grouped"], tmp_path / "whole")
    save_checkpoint(CONFIGS["grouped"], tmp_path / "sharded", max_shard_size="50KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    whole, sharded = (native(load_decoder(tmp_path / kind), tokens, [5, 6]) for kind in ("whole", "sharded"))
    assert torch.equal(whole, sharded)


@pytest.mark.contract("CALL-6")
@pytest.mark.parametrize("chunk", [1, 2, 7, 39, 40, 64])
def test_chunked_prefill_equals_one_shot(chunk: int, tokens: list[int], tmp_path: Path) -> None:
    save_checkpoint(CONFIGS["grouped"], tmp_path)
    decoder = load_decoder(tmp_path)
    whole = native(decoder, tokens, [1, 2])
    assert distance(native(decoder, tokens, [1, 2], chunk), whole) <= SHAPE_TOLERANCE * whole.abs().max().item()


@pytest.mark.contract("CALL-6")
def test_cached_equals_complete_prefix_at_every_step(tokens: list[int], tmp_path: Path) -> None:
    save_checkpoint(CONFIGS["grouped"], tmp_path)
    decoder = load_decoder(tmp_path)
    cached = native(decoder, tokens[:1], tokens[1:])
    complete = torch.stack([native(decoder, tokens[: n + 1], [])[0] for n in range(len(tokens))])
    assert distance(cached, complete) <= SHAPE_TOLERANCE * complete.abs().max().item()


def test_bfloat16_weights_stay_near_float32(tokens: list[int], tmp_path: Path) -> None:
    save_checkpoint(CONFIGS["grouped"], tmp_path)
    exact = native(load_decoder(tmp_path), tokens[:9], tokens[9:])
    decoder = load_decoder(tmp_path, dtype="bfloat16")
    found = native(decoder, tokens[:9], tokens[9:])
    assert found.dtype is torch.float32  # scores are widened before anyone reads them
    assert decoder.new_arena(1, 1).rows.dtype is torch.bfloat16
    assert 0 < distance(found, exact) <= 0.1 * exact.abs().max().item()


# ---- the real model ------------------------------------------------------------------------------------------------

NAME = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def real_directory() -> Path:
    try:
        return find_model(NAME, Path.home() / ".cache" / "decodelog")
    except Problem as error:
        pytest.fail(f"{error}: these tests run on the real model")


@pytest.mark.contract("CALL-6", "FAM-1", "FAM-7")
def test_the_real_model_equals_transformers_at_prefill_and_24_cached_steps(real_directory: Path) -> None:
    decoder = load_decoder(real_directory)
    text = load_text(real_directory, decoder.config.vocabulary_size)
    chat = text.apply_chat_template([{"role": "user", "content": "What is the capital of France?"}])
    prompt = text.encode(chat, add_special_tokens=False)
    steps: list[int] = []
    with Session(decoder, decoder.new_arena(1, 128)) as session:
        lane = session.open("request", len(prompt) + 24)
        rows = [session.select(session.prepare([Prefill(lane, prompt)]))[0]]
        for _ in range(24):
            steps.append(int(rows[-1].argmax()))
            rows.append(session.select(session.prepare([Decode(lane, steps[-1])]))[0])
    model = AutoModelForCausalLM.from_pretrained(real_directory, dtype=torch.float32).eval()
    expected = reference(model, prompt + steps)[len(prompt) - 1 :]
    assert text.decode(steps).startswith("The capital of France is Paris.<|im_end|>")
    assert expected.abs().max().item() > 10
    assert distance(torch.stack(rows), expected) <= REAL_TOLERANCE
    assert torch.equal(torch.stack(rows).argmax(-1), expected.argmax(-1))
