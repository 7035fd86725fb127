"""A decoder's parameters, in the form that its calls use.

Projections are kept [in, out], the faster way round for few rows, and fused where they read the same rows (q, k, v;
gate, up). Their rows carry the weight of the norm before them, and the factor sqrt(width) of that norm's formula.
The query and key columns of a head are ordered so that the two members of a rotary pair lie side by side.

Every axis that a call's buffers have (the residual stream, the fused heads, the hidden layer, the vocabulary) is padded
with zeros to a multiple of ALIGNED. Then every row of every operand begins at an aligned address and is a whole number
of vectors, so that no row is computed by another path than its neighbours. The axes of real checkpoints are such
multiples anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import DecoderConfig

ALIGNED = 64
"""Elements: two of torch's widest vectors of bfloat16, which it works on at a time; 256 bytes of float32."""

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
    """All of them, padded. embedding and head are [vocabulary, width], one tensor where they are tied.

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


def padded(size: int) -> int:
    """The next multiple of ALIGNED."""
    return -(-size // ALIGNED) * ALIGNED


def _pad(values: Tensor) -> Tensor:
    """`values` with every axis padded with zeros; as given where nothing is missing."""
    missing = [padded(size) - size for size in reversed(values.shape)]
    if not any(missing):
        return values
    return F.pad(values, [each for count in missing for each in (0, count)])


def take_parameters(config: DecoderConfig, take: Take, dtype: torch.dtype) -> Parameters:
    """Take every parameter that `config` calls for, once; all but the final norm become `dtype`."""

    def norm(name: str) -> Tensor:
        return take(name, config.width).float() * math.sqrt(config.width)

    def matrix(name: str) -> Tensor:
        return _pad(take(name, config.vocabulary_size, config.width).to(dtype))

    # Outside inference mode, so that every parameter keeps the version counter that a session watches.
    with torch.inference_mode(False), torch.no_grad():
        embedding = matrix("model.embed_tokens.weight")
        blocks = [_take_block(config, take, norm, dtype, f"model.layers.{index}.") for index in range(config.layers)]
        head = embedding if config.tied else matrix("lm_head.weight")
        return Parameters(embedding, blocks, _pad(norm("model.norm.weight")), head)


def _take_block(config: DecoderConfig, take: Take, norm: Take, dtype: torch.dtype, prefix: str) -> Block:
    query, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    width, hidden = config.width, config.hidden
    attention = (("self_attn.q_proj", query), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv))
    output = (("self_attn.o_proj", width),)
    feed, down = (("mlp.gate_proj", hidden), ("mlp.up_proj", hidden)), (("mlp.down_proj", width),)

    def arranged(name: str, values: Tensor) -> Tensor:
        if name.endswith(("q_proj", "k_proj")):
            return _pairs(values, config.head_dim)
        return _pad_outputs(values) if name.endswith(("gate_proj", "up_proj")) else values

    def weight(parts: Sequence[tuple[str, int]], inputs: int, before: Tensor | None = None) -> Tensor:
        rows = torch.cat([arranged(name, take(f"{prefix}{name}.weight", size, inputs)) for name, size in parts]).t()
        return _pad((rows if before is None else rows * before[:, None]).to(dtype)).contiguous()

    def bias(parts: Sequence[tuple[str, int]], present: bool) -> Tensor | None:
        if not present:
            return None
        return _pad(torch.cat([arranged(name, take(f"{prefix}{name}.bias", size)) for name, size in parts]).to(dtype))

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


def _pad_outputs(values: Tensor) -> Tensor:
    """`values` [out, ...] with its first axis padded with zeros."""
    missing = padded(len(values)) - len(values)
    return torch.cat((values, values.new_zeros(missing, *values.shape[1:]))) if missing else values


def _pairs(values: Tensor, head_dim: int) -> Tensor:
    """Reorder each head's rows from [first half | second half] to (0, d/2, 1, d/2 + 1, ...)."""
    return values.view(-1, 2, head_dim // 2, *values.shape[1:]).transpose(1, 2).reshape(values.shape)
