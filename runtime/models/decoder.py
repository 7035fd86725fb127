"""The native decoder: RMSNorm, rotary positions, grouped query heads, SwiGLU (Llama 2, arXiv:2307.09288).

Axes throughout: R rows of one call, W width of the residual stream, Q query heads, H key/value heads, G = Q / H,
D head_dim, T positions that a row sees, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from .parameters import Block, Parameters, take_parameters
from .weights import Checkpoint

INFERENCE_MODE = True  # of every call; the scores are inference tensors: read them, do not write into them
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Segment(NamedTuple):
    """Consecutive new positions [start, start + rows) of the lane in `slot`: so many rows of the call."""

    slot: int
    start: int
    rows: int


class Decoder:
    """Weights and their forward pass. It holds no request state: that is in the arena and its lanes.

    Parameters are fused where one matrix product can serve (q, k, v; gate, up), and never require gradients.
    """

    training = False  # nothing in it behaves otherwise in training

    def __init__(self, config: DecoderConfig, weights: Parameters) -> None:
        self.config, self.weights = config, weights
        self.dtype, self.device = weights.embedding.dtype, weights.embedding.device
        layers = range(config.layers)
        self.stages = Roster(("embedding", *(f"block.{i}" for i in layers), "final_norm", "head", "output_row"))
        self.lanes = Roster(tuple(f"block.{i}.{part}" for i in layers for part in ("key", "value")))
        self.head_stages = self.stages.full & ~((2 << config.layers) - 1)
        self._rotary = config.rope.tables(0, config.head_dim, self.dtype)
        self._floor = torch.tensor((config.width * config.rms_eps) ** 0.5, device=self.device)

    # ---- identity --------------------------------------------------------------------------------------------------

    def parameters(self) -> list[Tensor]:
        """Every parameter once, in a fixed order."""
        return [parameter for _, parameter in self.weights.named()]

    @property
    def abi(self) -> CacheAbi:
        return cache_abi(self.config, self.dtype)

    def binding(self) -> Binding:
        """What an arena records of this model, as it is now."""
        named = self.weights.named()
        identities = tuple((name, id(value), value.data_ptr()) for name, value in named)
        return Binding(repr(self.config), identities, tuple(value._version for _, value in named))

    def new_arena(self, slots: int, positions: int, positions_max: int | None = None) -> Arena:
        """An empty arena for this model, `positions` long at first; it grows up to positions_max (the context)."""
        limit = min(positions_max or self.config.context, self.config.context)
        return Arena(self.abi, self.binding(), slots, min(positions, limit), limit, self.device)

    # ---- the call --------------------------------------------------------------------------------------------------

    @torch.inference_mode(INFERENCE_MODE)
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
        x = F.embedding(torch.tensor(tokens, device=self.device), self.weights.embedding)
        padding = rows - len(tokens)
        if padding:
            x = F.pad(x, (0, 0, 0, padding))
        turns = self._turns(segments, padding)
        slots = [arena.layers_of(segment.slot) for segment in segments]
        idle = x.new_zeros(padding, self.config.heads * self.config.head_dim)
        evidence = Evidence(None, 1, [0] * len(segments), [])
        for index, block in enumerate(self.weights.blocks):
            x = self._block(block, x, turns, segments, [slot[index] for slot in slots], idle)
            evidence.stages |= 2 << index
            evidence.landed = [landed | 3 << 2 * index for landed in evidence.landed]
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
        turns: tuple[Tensor, Tensor],
        segments: Sequence[Segment],
        storage: Sequence[Tensor],
        idle: Tensor,
    ) -> Tensor:
        """One layer over the rows x [R, W], which it overwrites."""
        config = self.config
        qkv = _project(self._normal(x, block.attention_norm), block.query_key_value, block.query_key_value_bias)
        qkv = qkv.view(-1, config.heads + 2 * config.kv_heads, config.head_dim)
        turned = torch.addcmul(qkv * turns[0], qkv.roll(config.head_dim // 2, -1), turns[1])
        if len(segments) == 1 and not len(idle):
            mixed = self._attend(segments[0], turned, storage[0])
        else:
            parts = turned.split_with_sizes([*(segment.rows for segment in segments), len(idle)])
            mixed = torch.cat([*map(self._attend, segments, parts, storage), idle])
        _add_projection(x, mixed, block.output, block.output_bias)
        gate, up = _project(self._normal(x, block.hidden_norm), block.gate_up, block.gate_up_bias).chunk(2, -1)
        return _add_projection(x, F.silu(gate).mul_(up), block.down, block.down_bias)

    def _attend(self, segment: Segment, turned: Tensor, storage: Tensor) -> Tensor:
        """Write the segment's key and value rows, then mix what its rows see: [rows, Q * D].

        turned   [rows, Q + 2 H, D]: rotated queries, rotated keys, values
        storage  [2 * H, P, D] of the slot; written at [start, start + rows), read below start + rows
        """
        _, start, rows = segment
        heads, kv_heads, stop = self.config.heads, self.config.kv_heads, start + rows
        queries, fresh = turned.split_with_sizes([heads, 2 * kv_heads], 1)
        if rows == 1:  # a group's queries share their keys, so they are rows of one small product: no mask, no copies
            storage.select(1, start).copy_(fresh[0])
            keys, values = storage.narrow(1, 0, stop).chunk(2)
            query = queries.view(1, kv_heads, -1, self.config.head_dim)
            return F.scaled_dot_product_attention(query, keys[None], values[None]).view(1, -1)
        storage.narrow(1, start, rows).copy_(fresh.transpose(0, 1))
        keys, values = storage.narrow(1, 0, stop).chunk(2)
        mask = torch.ones(rows, stop, dtype=torch.bool, device=self.device).tril_(start) if start else None
        mixed = F.scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            keys[None],
            values[None],
            mask,
            is_causal=not start,
            enable_gqa=heads != kv_heads,
        )
        return mixed[0].transpose(0, 1).reshape(rows, -1)

    def _score(self, x: Tensor, segments: Sequence[Segment], evidence: Evidence) -> None:
        """Score each segment's last row. Where all are single rows, dummies too keep their place in the product."""
        last, row = [], -1
        for segment in segments:
            row += segment.rows
            last.append(row)
        if row + 1 > len(segments):
            x = x[last]
        evidence.scores = _project(self._normal(x, self.weights.norm), self.weights.head, None)[: len(segments)].float()
        evidence.owners = [Owner(slot, start + count - 1) for slot, start, count in segments]
        evidence.stages |= self.head_stages

    def _turns(self, segments: Sequence[Segment], padding: int) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of the call's rows, [R, Q + 2 H, D]; a dummy row stands at position 0.

        Values turn by no angle, so that one pair of kernels serves queries, keys and values.
        """
        end = max(segment.start + segment.rows for segment in segments)
        if self._rotary[0].shape[0] < end:
            size = min(max(2 * end, 512), self.config.context)
            cosine, sine = self.config.rope.tables(size, self.config.head_dim, self.dtype)
            self._rotary = cosine.to(self.device), sine.to(self.device)
        places = [start + offset for _, start, rows in segments for offset in range(rows)] + [0] * padding
        at = torch.tensor(places, device=self.device)
        both, kv_heads = self.config.heads + self.config.kv_heads, self.config.kv_heads
        cosine, sine = (table[at, None].expand(-1, both, -1) for table in self._rotary)
        still = cosine.new_ones(len(places), kv_heads, self.config.head_dim)
        return torch.cat((cosine, still), 1), torch.cat((sine, torch.zeros_like(still)), 1)

    def _normal(self, x: Tensor, weight: Tensor) -> Tensor:
        """Root-mean-square normalisation over W, computed in float32 whatever the dtype.

        w x / sqrt(|x|^2 / W + eps) = sqrt(W) w x / hypot(|x|, sqrt(W eps)), and `weight` is sqrt(W) w.
        """
        wide = x if self.dtype is torch.float32 else x.float()
        scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).hypot_(self._floor)
        normal = (wide * weight).div_(scale)
        return normal if self.dtype is torch.float32 else normal.to(self.dtype)


def _project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [R, in] times the transpose of weight [out, in]: [R, out]. One row is a matrix-vector product: it is faster."""
    return F.linear(x[0], weight, bias)[None] if len(x) == 1 else F.linear(x, weight, bias)


def _add_projection(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Add y [R, in] times weight [in, out] to x in place: x is the call's own."""
    x.addmm_(y, weight)
    return x if bias is None else x.add_(bias)


def cache_abi(config: DecoderConfig, dtype: torch.dtype) -> CacheAbi:
    return CacheAbi(config.layers, config.kv_heads, config.head_dim, dtype, str(config.rope))


def load_decoder(directory: Path, *, dtype: str = "float32", device: str = "cpu") -> Decoder:
    """Read the checkpoint in `directory` (config.json and safetensors). Weights are copied: the files may change after.

    Errors: UnsupportedModel, BrokenArtifact.
    """
    config, kind = read_config(directory), torch_dtype(dtype)
    with Checkpoint(directory) as checkpoint:
        weights = take_parameters(config, lambda name, *shape: checkpoint.take(name, *shape).to(device), kind)
        checkpoint.finish(ignore=lambda name: config.tied and name == "lm_head.weight")
    return Decoder(config, weights)


def seeded_decoder(config: DecoderConfig, seed: int) -> Decoder:
    """A float32 decoder with random weights, the same for the same seed: for tests, and to measure without a model."""
    generator = torch.Generator().manual_seed(seed)

    def draw(_: str, *shape: int) -> Tensor:
        noise = torch.randn(shape, generator=generator)
        return noise * shape[-1] ** -0.5 if len(shape) == 2 else 1 + 0.1 * noise

    return Decoder(config, take_parameters(config, draw, torch.float32))


def torch_dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise UnsupportedModel("dtype", name, f"one of {sorted(DTYPES)}")
    return DTYPES[name]
