"""Read a checkpoint's `config.json` into the few numbers that a Llama-like decoder is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....fsm.errors import UnsupportedModel
from ....fsm.limits import LAYERS_MAX, VOCABULARY_SIZE_MAX
from ...files import read_json
from .fields import count, flag, positive, shown
from .rope import Rope, rope_from_config

MODEL_TYPES = ("llama", "mistral", "qwen2")
# Keys that change the arithmetic, with the only value under which ours is right. An absent key is fine.
_FIXED: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "partial_rotary_factor": (None, 1, 1.0),
    "quantization_config": (None,),
    "is_encoder_decoder": (False, None),
    "pretraining_tp": (1, None),
}


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Shapes and constants of one decoder.

    Axes: width (the residual stream), heads x head_dim queries, kv_heads x head_dim keys and values, hidden (SwiGLU).
    query_bias    whether the q, k and v projections have a bias; output_bias whether o has one
    hidden_bias   whether the feed-forward projections have one
    tied          whether the output head is the embedding matrix
    """

    model_type: str
    vocabulary_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    context: int
    rms_eps: float
    rope: Rope
    tied: bool
    query_bias: bool
    output_bias: bool
    hidden_bias: bool


def read_config(path: Path) -> DecoderConfig:
    """Parse `config.json` of the directory `path`. Errors: BrokenArtifact, UnsupportedModel naming key and value."""
    return parse_config(read_json(path / "config.json"))


def parse_config(raw: Mapping[str, Any]) -> DecoderConfig:
    """Check the configuration `raw` and reduce it. Errors: UnsupportedModel naming key and value."""
    model_type = raw.get("model_type")
    if model_type not in MODEL_TYPES:
        raise UnsupportedModel("model_type", shown(model_type), f"one of {list(MODEL_TYPES)}")
    for key, allowed in _FIXED.items():
        if key in raw and raw[key] not in allowed:
            raise UnsupportedModel(key, shown(raw[key]), f"one of {list(allowed)}")
    _refuse_windows(raw)
    width, heads = count(raw, "hidden_size"), count(raw, "num_attention_heads")
    kv_heads = count(raw, "num_key_value_heads", heads if model_type == "llama" else None)
    head_dim = count(raw, "head_dim", width // heads)
    if heads % kv_heads:
        raise UnsupportedModel("num_key_value_heads", str(kv_heads), f"a divisor of {heads} heads")
    if head_dim % 2:
        raise UnsupportedModel("head_dim", str(head_dim), "an even head width")
    bias = flag(raw, "attention_bias")
    context = count(raw, "max_position_embeddings")
    return DecoderConfig(
        model_type=model_type,
        vocabulary_size=count(raw, "vocab_size", maximum=VOCABULARY_SIZE_MAX),
        width=width,
        layers=count(raw, "num_hidden_layers", maximum=LAYERS_MAX),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=count(raw, "intermediate_size"),
        context=context,
        rms_eps=positive(raw, "rms_norm_eps", 1e-6),
        rope=rope_from_config(raw),
        tied=flag(raw, "tie_word_embeddings"),
        query_bias=True if model_type == "qwen2" else bias,
        output_bias=bias and model_type == "llama",
        hidden_bias=flag(raw, "mlp_bias") and model_type == "llama",
    )


def _refuse_windows(raw: Mapping[str, Any]) -> None:
    """Only full causal attention: a window that the model type would apply is refused, an idle setting is not."""
    kinds = raw.get("layer_types")
    if kinds is not None and not (isinstance(kinds, list) and all(kind == "full_attention" for kind in kinds)):
        raise UnsupportedModel("layer_types", shown(kinds), "only 'full_attention'")
    # Mistral applies a window of 4096 where the key is absent; Qwen2 applies one only on request; Llama never does.
    idle = {"llama": True, "mistral": False, "qwen2": not flag(raw, "use_sliding_window")}[raw["model_type"]]
    window = raw.get("sliding_window", 4096)
    if window is not None and not idle:
        raise UnsupportedModel("sliding_window", shown(window), "full attention")
