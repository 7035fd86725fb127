"""Checkpoints that this decoder would compute wrongly are refused by name, and broken ones are told from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from decodelog.fsm.errors import BrokenArtifact, UnsupportedModel
from decodelog.runtime.families.decoder.config import parse_config, read_config
from decodelog.runtime.families.decoder.model import load_decoder, seeded_decoder
from decodelog.runtime.families.decoder.parameters import take_parameters
from decodelog.runtime.families.decoder.rope import Rope

RAW: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 11,
    "hidden_size": 16,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
SIZES = [key for key in RAW if key != "model_type"] + ["head_dim"]
BAD_NUMBERS = ("a", None, True, 0, -1e-6, float("nan"), float("inf"), 10**400)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.contract("FAM-7")
@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("model_type", {"model_type": "gemma2"}),
        ("model_type", {"model_type": None}),
        ("hidden_act", {"hidden_act": "gelu"}),
        ("partial_rotary_factor", {"partial_rotary_factor": 0.5}),
        ("partial_rotary_factor", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}),
        ("quantization_config", {"quantization_config": {"bits": 4}}),
        ("rope_type", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
        ("rope_type", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}),
        ("rope_type", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}),
        ("factor", {"rope_scaling": {"type": "linear"}}),
        ("factor", {"rope_scaling": {"type": "linear", "factor": -1.0}}),
        ("rope_theta", {"rope_theta": 0}),
        ("low_freq_factor", {"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}),
        ("high_freq_factor", {"rope_scaling": {k: v for k, v in LLAMA3.items() if k != "high_freq_factor"}}),
        ("sliding_window", {"model_type": "mistral", "sliding_window": 4096}),
        ("sliding_window", {"model_type": "mistral"}),  # the key's absence means 4096
        ("sliding_window", {"model_type": "qwen2", "sliding_window": 16, "use_sliding_window": True}),
        ("layer_types", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("num_key_value_heads", {"num_key_value_heads": 3}),
        ("num_key_value_heads", {"num_key_value_heads": None, "model_type": "qwen2"}),
        ("head_dim", {"head_dim": 5}),
        ("vocab_size", {"vocab_size": "11"}),
        ("num_hidden_layers", {"num_hidden_layers": 0}),
        ("max_position_embeddings", {"max_position_embeddings": None}),
        ("layer_types", {"layer_types": 3}),
        ("layer_types", {"layer_types": "full_attention"}),
        ("layer_types", {"layer_types": ["full_attention", ["full_attention"], 1]}),
        ("rope_scaling", {"rope_scaling": "x"}),
        ("rope_scaling", {"rope_scaling": []}),
        ("rope_parameters", {"rope_parameters": 2}),
        ("rope_type", {"rope_scaling": {"rope_type": ["linear"]}}),
        ("original_max_position_embeddings", {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 0.5}}),
        *(("rope_theta", {"rope_theta": bad}) for bad in BAD_NUMBERS),
        *(("rms_norm_eps", {"rms_norm_eps": bad}) for bad in BAD_NUMBERS),
        *((key, {key: bad}) for key in SIZES for bad in ("16", -4, 0, True, 16.0, [16])),
        *((key, {key: "false"}) for key in ("attention_bias", "mlp_bias", "tie_word_embeddings")),
        ("use_sliding_window", {"model_type": "qwen2", "use_sliding_window": 0}),
    ],
)
def test_what_would_be_computed_wrongly_is_refused_by_its_key(key: str, changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        parse_config(RAW | changes)
    assert caught.value.key == key


@pytest.mark.contract("FAM-7")
@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 16},  # Llama has none
        {"model_type": "qwen2", "sliding_window": 16, "use_sliding_window": False},
        {"model_type": "mistral", "sliding_window": None},
        {"layer_types": ["full_attention", "full_attention"]},
        {"rope_scaling": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {"attention_dropout": 0.5, "some_new_key": 1},  # no part of inference
    ],
)
def test_idle_settings_change_nothing(changes: dict[str, Any]) -> None:
    plain, found = parse_config(RAW), parse_config(RAW | changes)
    assert found.rope == plain.rope == Rope(theta=10000.0)
    assert (found.heads, found.kv_heads, found.head_dim) == (4, 2, 4)


@pytest.mark.contract("FAM-7")
def test_biases_follow_the_model_type() -> None:
    def biases(**changes: object) -> tuple[bool, bool, bool]:
        found = parse_config(RAW | changes)
        return found.query_bias, found.output_bias, found.hidden_bias

    assert biases() == (False, False, False)
    assert biases(attention_bias=True) == (True, True, False)
    assert biases(mlp_bias=True) == (False, False, True)
    assert biases(model_type="qwen2") == (True, False, False)
    assert biases(model_type="mistral", sliding_window=None) == (False, False, False)


@pytest.mark.contract("FAM-7")
@pytest.mark.parametrize("scaling", [{"rope_type": "linear", "factor": 4.0}, LLAMA3])
def test_scaled_frequencies_equal_transformers(scaling: dict[str, Any]) -> None:
    parameters = scaling | {"rope_theta": 500.0}
    expected, _ = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](
        LlamaConfig(head_dim=64, rope_parameters=parameters), device=torch.device("cpu")
    )
    found = parse_config(RAW | {"rope_parameters": parameters}).rope.frequencies(64)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0.0)


@pytest.mark.contract("CALL-3")
def test_a_transform_names_every_number_that_changes_it() -> None:
    assert str(parse_config(RAW).rope) == "default(theta=10000)"
    scaled = parse_config(RAW | {"rope_theta": 5e5, "rope_scaling": LLAMA3}).rope
    assert str(scaled) == "llama3(theta=500000;factor=8;low=1;high=4;original=64)"


# ---- files -----------------------------------------------------------------------------------------------------------


def write(directory: Path, **changes: Any) -> dict[str, torch.Tensor]:
    """A checkpoint of zeros that fits RAW with `changes`; returns its tensors."""
    raw = RAW | changes
    (directory / "config.json").write_text(json.dumps(raw))
    tensors: dict[str, torch.Tensor] = {}

    def record(name: str, *shape: int) -> torch.Tensor:
        tensors[name] = torch.zeros(shape)
        return tensors[name]

    take_parameters(parse_config(raw), record, torch.float32)
    save_file(tensors, directory / "model.safetensors")
    return tensors


@pytest.mark.contract("FAM-7")
def test_a_sound_directory_loads_and_its_weights_are_copies(tmp_path: Path) -> None:
    write(tmp_path)
    decoder = load_decoder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert decoder.weights.embedding.abs().sum() == 0
    assert len(decoder.parameters()) == 2 + 2 * 4 + 1
    assert all(not parameter.requires_grad for parameter in decoder.parameters())


@pytest.mark.contract("FAM-7")
def test_a_tied_checkpoint_may_repeat_its_embedding(tmp_path: Path) -> None:
    tensors = write(tmp_path, tie_word_embeddings=True)
    save_file(tensors | {"lm_head.weight": torch.zeros(11, 16)}, tmp_path / "model.safetensors")
    decoder = load_decoder(tmp_path)
    assert decoder.weights.head is decoder.weights.embedding


@pytest.mark.contract("FAM-7")
@pytest.mark.parametrize(
    ("damage", "kind", "words"),
    [
        ("no config", BrokenArtifact, "config.json"),
        ("config of no object", BrokenArtifact, "not a JSON object"),
        ("no weights", BrokenArtifact, "no safetensors"),
        ("broken weights", BrokenArtifact, "model.safetensors"),
        ("a missing tensor", BrokenArtifact, "model.layers.1.mlp.up_proj.weight"),
        ("a tensor of another shape", BrokenArtifact, r"\(3, 16\)"),
        ("a foreign tensor", UnsupportedModel, "q_norm"),
        ("a missing shard", BrokenArtifact, "shard-2.safetensors"),
        ("config that is no UTF-8", BrokenArtifact, r"config\.json.*utf-8"),
        ("config that nests too deep", BrokenArtifact, r"config\.json"),
        ("config with half a character", BrokenArtifact, r"config\.json.*surrogates"),
    ],
)
def test_a_broken_directory_is_typed(tmp_path: Path, damage: str, kind: type[Exception], words: str) -> None:
    tensors = write(tmp_path)
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    if damage == "no config":
        config.unlink()
    elif damage == "config of no object":
        config.write_text("[]")
    elif damage == "config that is no UTF-8":
        config.write_bytes(b'{"model_type": "\xff"}')
    elif damage == "config that nests too deep":
        config.write_text("[" * 100_000)
    elif damage == "config with half a character":
        config.write_text('{"model_type": "\\ud800"}')
    elif damage == "no weights":
        weights.unlink()
    elif damage == "broken weights":
        weights.write_bytes(weights.read_bytes()[:100])
    elif damage == "a missing tensor":
        del tensors["model.layers.1.mlp.up_proj.weight"]
        save_file(tensors, weights)
    elif damage == "a tensor of another shape":
        save_file(tensors | {"model.embed_tokens.weight": torch.zeros(3, 16)}, weights)
    elif damage == "a foreign tensor":
        save_file(tensors | {"model.layers.0.self_attn.q_norm.weight": torch.zeros(4)}, weights)
    elif damage == "a missing shard":
        index = {"weight_map": {name: f"shard-{1 + (name == 'x')}.safetensors" for name in (*tensors, "x")}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        weights.rename(tmp_path / "shard-1.safetensors")
    with pytest.raises(kind, match=words):
        load_decoder(tmp_path)


@pytest.mark.contract("FAM-7")
@pytest.mark.parametrize(
    "weight_map",
    [
        None,
        [],
        {},
        ["model.safetensors"],
        {"x": 1},
        {"x": ["model.safetensors"]},
        {"x": "../outside.safetensors"},
        {"x": "/outside.safetensors"},
        {"x": "deeper/model.safetensors"},
        {"x": "config.json"},
        {"x": ".."},
        {"x": ""},
        {"x": "\0.safetensors"},
    ],
)
def test_an_index_names_files_of_its_own_directory_only(tmp_path: Path, weight_map: object) -> None:
    directory = tmp_path / "model"
    (directory / "deeper").mkdir(parents=True)
    save_file(write(directory), tmp_path / "outside.safetensors")
    save_file(write(directory), directory / "deeper/model.safetensors")
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({} if weight_map is None else {"weight_map": weight_map}))
    with pytest.raises(BrokenArtifact) as caught:
        load_decoder(directory)
    assert caught.value.path == str(index)


@pytest.mark.contract("FAM-7")
def test_read_config_reads_what_parse_config_parses(tmp_path: Path) -> None:
    write(tmp_path)
    assert read_config(tmp_path) == parse_config(RAW)


def test_a_seed_gives_one_model() -> None:
    config = parse_config(RAW)
    one, same, other = (seeded_decoder(config, seed).parameters() for seed in (1, 1, 2))
    assert all(torch.equal(left, right) for left, right in zip(one, same, strict=True))
    assert not torch.equal(one[0], other[0])
