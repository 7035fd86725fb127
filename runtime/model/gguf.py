"""Convert one Llama-architecture GGUF file into a checkpoint directory that any loader of such directories reads.

Source: the GGUF specification (ggml-org/ggml, docs/gguf.md) and the tensor names of the `gguf` package.
The file's quantised values are widened to float32 once; nothing is re-quantised.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from ...fsm.errors import BrokenArtifact, UnsupportedModel

_CONTROL, _USER_DEFINED = 3, 4
_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_DIGITS_APART = {"smollm"}  # pre-tokenizers that split every digit off, then split as byte-level BPE does


@dataclass(frozen=True, slots=True)
class _Source:
    """A GGUF file's metadata and its reader."""

    reader: gguf.GGUFReader
    facts: dict[str, Any]

    def need(self, key: str) -> Any:
        if key not in self.facts:
            raise UnsupportedModel(key, "absent", "a GGUF file that states it")
        return self.facts[key]

    def number(self, key: str) -> float:
        """A float32 fact as the shortest decimal that means the same float32."""
        return float(str(np.float32(self.need(key))))


def convert_gguf(source: Path, target: Path) -> None:
    """Write config, weights and tokenizer of the GGUF file `source` into the existing, empty directory `target`.

    Weights are float32, named and laid out as in a Hugging Face Llama checkpoint. The same file gives the same bytes.
    Errors: BrokenArtifact; UnsupportedModel for another architecture or tokenizer.
    """
    try:
        reader = gguf.GGUFReader(source)
        origin = _Source(reader, {key: field.contents() for key, field in reader.fields.items()})
    except Exception as error:  # the library checks little, and raises what its reading stumbles over
        raise BrokenArtifact(str(source), str(error) or type(error).__name__) from error
    for key, wanted in (("general.architecture", "llama"), ("tokenizer.ggml.model", "gpt2")):
        if origin.need(key) != wanted:
            raise UnsupportedModel(key, repr(origin.need(key)), repr(wanted))
    config = _config(origin)
    _write_json(target / "config.json", config)
    _write_json(target / "tokenizer.json", _tokenizer(origin))
    _write_json(target / "tokenizer_config.json", _tokenizer_config(origin))
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    weights = dict(_weights(reader, heads, kv_heads))
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})


def _config(origin: _Source) -> dict[str, Any]:
    heads = origin.need("llama.attention.head_count")
    width = origin.need("llama.embedding_length")
    if any(key.startswith("llama.rope.scaling") for key in origin.facts):
        raise UnsupportedModel("llama.rope.scaling", "present", "a GGUF file without rotary scaling")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(origin.need("tokenizer.ggml.tokens")),
        "hidden_size": width,
        "intermediate_size": origin.need("llama.feed_forward_length"),
        "num_hidden_layers": origin.need("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": origin.facts.get("llama.attention.head_count_kv", heads),
        "head_dim": origin.facts.get("llama.rope.dimension_count", width // heads),
        "hidden_act": "silu",
        "max_position_embeddings": origin.need("llama.context_length"),
        "rms_norm_eps": origin.number("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": origin.number("llama.rope.freq_base") if "llama.rope.freq_base" in origin.facts else 10000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in origin.reader.tensors),
        "bos_token_id": origin.facts.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": origin.facts.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": origin.facts.get("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
    }


def _weights(reader: gguf.GGUFReader, heads: int, kv_heads: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if tensor.name.endswith("attn_q.weight"):
            values = _halves(values, heads)
        elif tensor.name.endswith("attn_k.weight"):
            values = _halves(values, kv_heads)
        yield _checkpoint_name(tensor.name), np.ascontiguousarray(values)


def _halves(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Put each head's rows back in the order [first half | second half].

    GGUF stores the two members of a rotary pair side by side (0, d/2, 1, d/2+1, ...), checkpoints half a head apart.
    """
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _checkpoint_name(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    block, _, rest = name.removeprefix("blk.").partition(".")
    part, _, kind = rest.partition(".")
    if not block.isdigit() or part not in _BLOCK_NAMES or kind != "weight":
        raise UnsupportedModel("tensor", name, "the tensors of a plain Llama block")
    return f"model.layers.{block}.{_BLOCK_NAMES[part]}.weight"


def _tokenizer(origin: _Source) -> dict[str, Any]:
    """A `tokenizer.json` for byte-level BPE: vocabulary, merges, and the added tokens that the token types name."""
    flavour = origin.need("tokenizer.ggml.pre")
    if flavour not in _DIGITS_APART:
        raise UnsupportedModel("tokenizer.ggml.pre", repr(flavour), f"one of {sorted(_DIGITS_APART)}")
    tokens, types = origin.need("tokenizer.ggml.tokens"), origin.need("tokenizer.ggml.token_type")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [
        {
            "id": index,
            "content": tokens[index],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == _CONTROL,
        }
        for index, kind in enumerate(types)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in origin.need("tokenizer.ggml.merges")],
        },
    }


def _tokenizer_config(origin: _Source) -> dict[str, Any]:
    tokens = origin.need("tokenizer.ggml.tokens")
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special = {
        name: tokens[origin.facts[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in names.items()
        if f"tokenizer.ggml.{key}_token_id" in origin.facts
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(origin.facts.get("tokenizer.ggml.add_bos_token", False)),
        "add_prefix_space": bool(origin.facts.get("tokenizer.ggml.add_space_prefix", False)),
        "clean_up_tokenization_spaces": False,
        "model_max_length": origin.need("llama.context_length"),
        **special,
        "chat_template": origin.facts.get("tokenizer.chat_template"),
    }


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
