"""A decoder's parameters, in the form that its calls use.

Projections that read the same rows are fused (q, k, v; gate, up); those whose result is added to the residual stream
are kept transposed, as views; a norm's weight is float32 and carries the factor sqrt(width) of its formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .config import DecoderConfig

Take = Callable[..., Tensor]
"""take(name, *shape): one parameter by its name in a Hugging Face Llama checkpoint."""


class Block(NamedTuple):
    """One layer's parameters. A bias that the checkpoint lacks is None.

    query_key_value, gate_up  [out, in]
    output, down              [in, out]
    """

    attention_norm: Tensor
    query_key_value: Tensor
    query_key_value_bias: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    hidden_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class Parameters(NamedTuple):
    """All of them; with a tied output, `head` is `embedding` itself."""

    embedding: Tensor
    blocks: list[Block]
    norm: Tensor
    head: Tensor

    def named(self) -> list[tuple[str, Tensor]]:
        """Every parameter once, in a fixed order."""
        named = [("embedding", self.embedding)]
        for index, block in enumerate(self.blocks):
            named += [(f"block.{index}.{name}", value) for name, value in block._asdict().items() if value is not None]
        named.append(("norm", self.norm))
        return named if self.head is self.embedding else [*named, ("head", self.head)]


def take_parameters(config: DecoderConfig, take: Take, dtype: torch.dtype) -> Parameters:
    """Take every parameter that `config` calls for, once; all but the norms become `dtype`."""

    def norm(name: str) -> Tensor:
        return take(name, config.width).float() * math.sqrt(config.width)

    def matrix(name: str) -> Tensor:
        return take(name, config.vocabulary_size, config.width).to(dtype)

    # Outside inference mode, so that every parameter keeps the version counter that a session watches.
    with torch.inference_mode(False), torch.no_grad():
        embedding = matrix("model.embed_tokens.weight")
        blocks = [_take_block(config, take, norm, dtype, f"model.layers.{index}.") for index in range(config.layers)]
        head = embedding if config.tied else matrix("lm_head.weight")
        return Parameters(embedding, blocks, norm("model.norm.weight"), head)


def _take_block(config: DecoderConfig, take: Take, norm: Take, dtype: torch.dtype, prefix: str) -> Block:
    query, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    width, hidden = config.width, config.hidden
    attention = (("self_attn.q_proj", query), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv))
    output = (("self_attn.o_proj", width),)
    feed, down = (("mlp.gate_proj", hidden), ("mlp.up_proj", hidden)), (("mlp.down_proj", width),)

    def weight(parts: Sequence[tuple[str, int]], inputs: int) -> Tensor:
        return torch.cat([take(f"{prefix}{name}.weight", size, inputs) for name, size in parts]).to(dtype)

    def bias(parts: Sequence[tuple[str, int]], present: bool) -> Tensor | None:
        return torch.cat([take(f"{prefix}{name}.bias", size) for name, size in parts]).to(dtype) if present else None

    return Block(
        attention_norm=norm(f"{prefix}input_layernorm.weight"),
        query_key_value=weight(attention, width),
        query_key_value_bias=bias(attention, config.query_bias),
        output=weight(output, query).t(),
        output_bias=bias(output, config.output_bias),
        hidden_norm=norm(f"{prefix}post_attention_layernorm.weight"),
        gate_up=weight(feed, width),
        gate_up_bias=bias(feed, config.hidden_bias),
        down=weight(down, hidden).t(),
        down_bias=bias(down, config.hidden_bias),
    )
