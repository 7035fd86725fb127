"""A tiny checkpoint for tests: two layers of seeded weights over a vocabulary of bytes, with a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

WIDTH, HIDDEN, HEADS, LAYERS = 32, 48, 4, 2
TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message.role }}: {{ message.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant: {% endif %}"
)


def checkpoint(folder: Path, seed: int = 1, generation: dict[str, Any] | None = None, template: str = TEMPLATE) -> Path:
    """Write it; another seed is another model."""
    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<|turn|>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    size = len(alphabet) + 2
    config = {
        "model_type": "llama", "vocab_size": size, "hidden_size": WIDTH, "intermediate_size": HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": 2,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
        "hidden_act": "silu",
    }  # fmt: skip
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer_config.json", {"eos_token": "<|end|>", "chat_template": template})
    if generation is not None:
        write_json(folder / "generation_config.json", generation)
    noise = torch.Generator().manual_seed(seed)
    half = WIDTH // HEADS * 2
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (size, WIDTH), "model.norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        of = f"model.layers.{layer}."
        shapes |= {f"{of}{name}_layernorm.weight": (WIDTH,) for name in ("input", "post_attention")}
        shapes |= {f"{of}self_attn.{name}_proj.weight": (WIDTH, WIDTH) for name in "qo"}
        shapes |= {f"{of}self_attn.{name}_proj.weight": (half, WIDTH) for name in "kv"}
        shapes |= {f"{of}mlp.{name}_proj.weight": (HIDDEN, WIDTH) for name in ("gate", "up")}
        shapes[f"{of}mlp.down_proj.weight"] = (WIDTH, HIDDEN)
    save_file(
        {name: torch.randn(shape, generator=noise) for name, shape in shapes.items()}, folder / "model.safetensors"
    )
    return folder


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
