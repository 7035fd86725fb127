"""The native decoder: RMSNorm, rotary positions, grouped query heads, SwiGLU (Llama 2, arXiv:2307.09288).

Axes throughout: R rows of one call, W width of the residual stream, Q query heads, H key/value heads, G = Q / H,
D head_dim, T positions that a row sees, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...fsm.errors import UnsupportedModel
from ..caches.abi import Binding, CacheAbi
from ..caches.arena import Arena
from ..rosters import Evidence, Owner, Roster
from .config import DecoderConfig, read_config
from .weights import Checkpoint

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Segment(NamedTuple):
    """Consecutive new positions [start, start + count) of the lane in `slot`: `count` rows of the call."""

    slot: int
    start: int
    count: int


class Block(NamedTuple):
    """One layer's parameters. Projections are [out, in]; a bias that the checkpoint lacks is None."""

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


class Decoder:
    """Weights and their forward pass. It holds no request state: that is in the arena and its lanes.

    Parameters are fused where one matrix product can serve (q, k, v; gate, up), and never require gradients.
    """

    def __init__(self, config: DecoderConfig, embedding: Tensor, blocks: list[Block], norm: Tensor, head: Tensor) -> None:
        self.config = config
        self.embedding, self.blocks, self.norm, self.head = embedding, blocks, norm, head
        self.dtype, self.device = embedding.dtype, embedding.device
        self.training = False
        layers = range(config.layers)
        self.stages = Roster(("embedding", *(f"block.{i}" for i in layers), "final_norm", "head", "output_row"))
        self.lanes = Roster(tuple(f"block.{i}.{part}" for i in layers for part in ("key", "value")))
        self.head_stages = self.stages.full & ~((2 << config.layers) - 1)
        self._rotary = config.rope.tables(0, config.head_dim, self.dtype)
        self._floor = torch.tensor(config.rms_eps**0.5, device=self.device)
        self._per_width = config.width**-0.5

    # ---- identity ------------------------------------------------------------------------------------------------

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """Every parameter once, in a fixed order."""
        named = [("embedding", self.embedding)]
        for index, block in enumerate(self.blocks):
            named += [(f"block.{index}.{name}", value) for name, value in block._asdict().items() if value is not None]
        named.append(("norm", self.norm))
        return named if self.head is self.embedding else [*named, ("head", self.head)]

    def parameters(self) -> list[Tensor]:
        return [parameter for _, parameter in self.named_parameters()]

    @property
    def abi(self) -> CacheAbi:
        return cache_abi(self.config, self.dtype)

    def binding(self) -> Binding:
        """What an arena records of this model, as it is now."""
        named = self.named_parameters()
        identities = tuple((name, id(value), value.data_ptr()) for name, value in named)
        return Binding(repr(self.config), identities, tuple(value._version for _, value in named))

    def new_arena(self, slots: int, positions: int, positions_max: int | None = None) -> Arena:
        """An empty arena for this model, `positions` long at first; it grows up to positions_max (the context)."""
        limit = min(positions_max or self.config.context, self.config.context)
        return Arena(self.abi, self.binding(), slots, min(positions, limit), limit, self.device)

    # ---- the call ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def forward(
        self, arena: Arena, tokens: Sequence[int], segments: Sequence[Segment], rows: int, event: int, head: bool = True
    ) -> Evidence:
        """Compute the segments' rows and write their keys and values at their physical positions.

        tokens    the segments' token ids, one after the other, in 0..V
        segments  at least one; each within its slot's storage, each slot at most once
        rows      rows of every matrix product, at least len(tokens): dummy rows fill up, so that one row's result does
                  not depend on how many others there are
        event     recorded as the completion event once the device has finished
        head      False computes keys and values only
        returns   scores [len(segments), V] float32, of each segment's last row, and what was completed.
        Changes no logical state: only rows at or beyond `start` are written. Deterministic for one number of threads.
        """
        x = F.embedding(torch.tensor(tokens, device=self.device), self.embedding)
        padding = rows - len(tokens)
        if padding:
            x = F.pad(x, (0, 0, 0, padding))
        cosine, sine = self._positions(segments, padding)
        slots = [arena.layers_of(segment.slot) for segment in segments]
        stages, landed = 1, [0] * len(segments)
        idle = x.new_zeros(padding, self.config.heads * self.config.head_dim)
        for index, block in enumerate(self.blocks):
            x = self._block(block, x, cosine, sine, segments, [slot[index] for slot in slots], landed, index, idle)
            stages |= 2 << index
        evidence = Evidence(None, stages, landed, [])
        if head:
            self._score(x, segments, evidence)
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        evidence.event = event
        return evidence

    def _block(
        self,
        block: Block,
        x: Tensor,
        cosine: Tensor,
        sine: Tensor,
        segments: Sequence[Segment],
        storage: list[tuple[Tensor, Tensor]],
        landed: list[int],
        index: int,
        idle: Tensor,
    ) -> Tensor:
        config = self.config
        both = config.heads + config.kv_heads
        qkv = _project(self._normal(x, block.attention_norm), block.query_key_value, block.query_key_value_bias)
        qkv = qkv.view(x.shape[0], both + config.kv_heads, config.head_dim)
        turned = qkv[:, :both]
        turned = torch.addcmul(turned * cosine, turned.roll(config.head_dim // 2, -1), sine)
        mixed, row = [], 0
        for lane, (segment, (keys, values)) in enumerate(zip(segments, storage, strict=True)):
            until = row + segment.count
            mixed.append(self._attend(segment, turned[row:until], qkv[row:until, both:], keys, values))
            landed[lane] |= 3 << 2 * index
            row = until
        if idle.shape[0]:
            mixed.append(idle)
        x = _add_projection(x, mixed[0] if len(mixed) == 1 else torch.cat(mixed), block.output, block.output_bias)
        gate, up = _project(self._normal(x, block.hidden_norm), block.gate_up, block.gate_up_bias).chunk(2, -1)
        return _add_projection(x, F.silu(gate).mul_(up), block.down, block.down_bias)

    def _attend(self, segment: Segment, turned: Tensor, value: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Write the segment's key and value rows, then mix what its rows see: [count, Q * D].

        turned        [count, Q + H, D], rotated queries, then rotated keys
        value         [count, H, D]
        keys, values  [1, H, P, D], the slot's storage; written at [start, start + count), read below
        """
        _, start, count = segment
        heads, kv_heads, stop = self.config.heads, self.config.kv_heads, start + count
        if count == 1:  # a group's queries share their keys, so they are rows of one small product: no mask, no copies
            keys.select(2, start).copy_(turned[:, heads:])
            values.select(2, start).copy_(value)
            query = turned[:, :heads].reshape(1, kv_heads, heads // kv_heads, self.config.head_dim)
            mixed = F.scaled_dot_product_attention(query, keys.narrow(2, 0, stop), values.narrow(2, 0, stop))
            return mixed.view(1, -1)
        keys.narrow(2, start, count).copy_(turned[:, heads:].transpose(0, 1))
        values.narrow(2, start, count).copy_(value.transpose(0, 1))
        mask = None
        if start:
            mask = torch.ones(count, stop, dtype=torch.bool, device=keys.device).tril_(start)
        mixed = F.scaled_dot_product_attention(
            turned[:, :heads].transpose(0, 1)[None],
            keys.narrow(2, 0, stop),
            values.narrow(2, 0, stop),
            mask,
            is_causal=not start,
            enable_gqa=heads != kv_heads,
        )
        return mixed[0].transpose(0, 1).reshape(count, -1)

    def _score(self, x: Tensor, segments: Sequence[Segment], evidence: Evidence) -> None:
        """Score each segment's last row; the rows of single-row segments, dummies too, keep their place in the product."""
        last, row = [], -1
        for segment in segments:
            row += segment.count
            last.append(row)
        if row + 1 > len(segments):
            x = x[last]
        evidence.scores = F.linear(self._normal(x, self.norm), self.head)[: len(segments)].float()
        evidence.owners = [Owner(slot, start + count - 1) for slot, start, count in segments]
        evidence.stages |= self.head_stages

    def _positions(self, segments: Sequence[Segment], padding: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the call's rows, [R, 1, D]; a dummy row stands at position 0."""
        end = max(segment.start + segment.count for segment in segments)
        if self._rotary[0].shape[0] < end:
            size = min(max(2 * end, 512), self.config.context)
            tables = self.config.rope.tables(size, self.config.head_dim, self.dtype)
            self._rotary = tables[0].to(self.device), tables[1].to(self.device)
        places = [start + offset for _, start, count in segments for offset in range(count)] + [0] * padding
        at = torch.tensor(places, device=self.device)
        return self._rotary[0][at, None], self._rotary[1][at, None]

    def _normal(self, x: Tensor, weight: Tensor) -> Tensor:
        """Root-mean-square normalisation over W, computed in float32 whatever the dtype.

        sqrt(|x|^2 / W + eps) = hypot(|x| / sqrt(W), sqrt(eps)): half the kernels of the textbook order.
        """
        wide = x.float()
        size = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).mul_(self._per_width)
        return (wide / torch.hypot(size, self._floor)).to(self.dtype).mul_(weight)


def _project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


def _add_projection(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x plus the projection of y, in place: x is this call's own."""
    x.addmm_(y, weight.t())
    return x if bias is None else x.add_(bias)


def cache_abi(config: DecoderConfig, dtype: torch.dtype) -> CacheAbi:
    return CacheAbi(config.layers, config.kv_heads, config.head_dim, dtype, str(config.rope))


def load_decoder(directory: Path, *, dtype: str = "float32", device: str = "cpu") -> Decoder:
    """Read the checkpoint in `directory` (config.json and safetensors). Weights are copied: the files may change after.

    Errors: UnsupportedModel, BrokenArtifact.
    """
    config, kind = read_config(directory), torch_dtype(dtype)
    # Outside inference mode, so that every parameter keeps the version counter that a session watches.
    with torch.inference_mode(False), torch.no_grad(), Checkpoint(directory) as checkpoint:

        def take(name: str, *shape: int) -> Tensor:
            return checkpoint.take(name, shape, kind)

        embedding = take("model.embed_tokens.weight", config.vocabulary_size, config.width)
        blocks = [_load_block(take, config, f"model.layers.{index}.", device) for index in range(config.layers)]
        norm = take("model.norm.weight", config.width)
        head = None if config.tied else take("lm_head.weight", config.vocabulary_size, config.width)
        checkpoint.finish(ignore=lambda name: config.tied and name == "lm_head.weight")
        embedding = embedding.to(device)
        return Decoder(config, embedding, blocks, norm.to(device), embedding if head is None else head.to(device))


def torch_dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise UnsupportedModel("dtype", name, f"one of {sorted(DTYPES)}")
    return DTYPES[name]


def _load_block(take: Callable[..., Tensor], config: DecoderConfig, prefix: str, device: str) -> Block:
    """Read one layer and fuse what one matrix product can serve."""
    query, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    width, hidden = config.width, config.hidden
    attention = (("self_attn.q_proj", query), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv))
    feed = (("mlp.gate_proj", hidden), ("mlp.up_proj", hidden))

    def weight(parts: Sequence[tuple[str, int]], inputs: int) -> Tensor:
        return torch.cat([take(f"{prefix}{name}.weight", size, inputs) for name, size in parts]).to(device)

    def bias(parts: Sequence[tuple[str, int]], present: bool) -> Tensor | None:
        return torch.cat([take(f"{prefix}{name}.bias", size) for name, size in parts]).to(device) if present else None

    output, down = (("self_attn.o_proj", width),), (("mlp.down_proj", width),)
    return Block(
        take(f"{prefix}input_layernorm.weight", width).to(device),
        weight(attention, width),
        bias(attention, config.query_bias),
        weight(output, query),
        bias(output, config.output_bias),
        take(f"{prefix}post_attention_layernorm.weight", width).to(device),
        weight(feed, width),
        bias(feed, config.hidden_bias),
        weight(down, hidden),
        bias(down, config.hidden_bias),
    )
