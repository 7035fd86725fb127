"""A decoder's parameters, in the form that its calls use.

Projections are kept [in, out], the faster way round for few rows, and fused where they read the same rows (q, k, v;
gate, up). Their rows carry the weight of the norm before them, and the factor sqrt(width) of that norm's formula.
The query and key columns of a head are ordered so that the two members of a rotary pair lie side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .config import DecoderConfig

Take = Callable[..., Tensor]
"""take(name, *shape): one parameter by its name in a Hugging Face Llama checkpoint, any floating dtype."""


class Block(NamedTuple):
    """One layer's parameters. Projections are [in, out], contiguous; a bias that the checkpoint lacks is None."""

    query_key_value: Tensor
    query_key_value_bias: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class Parameters(NamedTuple):
    """All of them. embedding and head are [vocabulary, width], one tensor where they are tied.

    norm  the final norm's weight times sqrt(width), float32: it stays apart from the head, which may be the embedding
    """

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
    """Take every parameter that `config` calls for, once; all but the final norm become `dtype`."""

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

    def ordered(name: str, values: Tensor) -> Tensor:
        return _pairs(values, config.head_dim) if name.endswith(("q_proj", "k_proj")) else values

    def weight(parts: Sequence[tuple[str, int]], inputs: int, before: Tensor | None = None) -> Tensor:
        rows = torch.cat([ordered(name, take(f"{prefix}{name}.weight", size, inputs)) for name, size in parts]).t()
        return (rows if before is None else rows * before[:, None]).to(dtype).contiguous()

    def bias(parts: Sequence[tuple[str, int]], present: bool) -> Tensor | None:
        if not present:
            return None
        return torch.cat([ordered(name, take(f"{prefix}{name}.bias", size)) for name, size in parts]).to(dtype)

    return Block(
        query_key_value=weight(attention, width, norm(f"{prefix}input_layernorm.weight")),
        query_key_value_bias=bias(attention, config.query_bias),
        output=weight(output, query),
        output_bias=bias(output, config.output_bias),
        gate_up=weight(feed, width, norm(f"{prefix}post_attention_layernorm.weight")),
        gate_up_bias=bias(feed, config.hidden_bias),
        down=weight(down, hidden),
        down_bias=bias(down, config.hidden_bias),
    )


def _pairs(values: Tensor, head_dim: int) -> Tensor:
    """Reorder each head's rows from [first half | second half] to (0, d/2, 1, d/2 + 1, ...)."""
    return values.view(-1, 2, head_dim // 2, *values.shape[1:]).transpose(1, 2).reshape(values.shape)
