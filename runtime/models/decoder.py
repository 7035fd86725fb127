"""The native decoder: RMSNorm, rotary positions, grouped query heads, SwiGLU (Llama 2, arXiv:2307.09288).

Axes throughout: R rows of one call, W width of the residual stream, Q query heads, H key/value heads, G = Q / H,
D head_dim, T positions that a row sees, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...fsm.errors import UnsupportedModel
from ..caches.abi import Binding, CacheAbi
from ..caches.arena import Arena, Window
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
        self._rotary = config.rope.table(0, config.head_dim)

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
        x = self._embed(tokens, rows)
        turns = self._turns(segments, rows - len(tokens))
        storage = [arena.window(*segment) for segment in segments]
        idle = x.new_zeros(rows - len(tokens), self.config.heads * self.config.head_dim)
        evidence = Evidence(None, 1, [0] * len(segments), [])
        for index, block in enumerate(self.weights.blocks):
            self._block(block, x, turns, segments, [window[index] for window in storage], idle)
            evidence.stages |= 2 << index
            evidence.landed = [landed | 3 << 2 * index for landed in evidence.landed]
        if head:
            self._score(x, segments, evidence)
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        evidence.event = event
        return evidence

    def _embed(self, tokens: Sequence[int], rows: int) -> Tensor:
        """The residual stream [R, W + 1]: embeddings, zero in dummy rows, and a last column for `_normal`."""
        width = self.config.width
        x = self.weights.embedding.new_zeros(rows, width + 1)
        x[:, width] = math.sqrt(width * self.config.rms_eps)
        x[: len(tokens), :width] = F.embedding(torch.tensor(tokens, device=self.device), self.weights.embedding)
        return x

    def _block(
        self,
        block: Block,
        x: Tensor,
        turns: Tensor,
        segments: Sequence[Segment],
        storage: Sequence[Window],
        idle: Tensor,
    ) -> None:
        """One layer over the rows of the residual stream, in place."""
        config = self.config
        qkv = _project(self._normal(x), block.query_key_value, block.query_key_value_bias)
        turned = self._turn(qkv, turns)
        if len(segments) == 1 and not len(idle):
            mixed = self._attend(segments[0], turned, storage[0])
        else:
            parts = turned.split_with_sizes([*(segment.rows for segment in segments), len(idle)])
            mixed = torch.cat([*map(self._attend, segments, parts, storage), idle])
        stream = x.narrow(1, 0, config.width)
        _add_projection(stream, mixed, block.output, block.output_bias)
        gate, up = _project(self._normal(x), block.gate_up, block.gate_up_bias).chunk(2, -1)
        _add_projection(stream, F.silu(gate).mul_(up), block.down, block.down_bias)

    def _turn(self, qkv: Tensor, turns: Tensor) -> Tensor:
        """Rotate queries and keys, values by no angle: [R, (Q + 2 H) * D] to [R, Q + 2 H, D], in place where it can."""
        pairs = torch.view_as_complex(qkv.float().view(*turns.shape, 2)).mul_(turns)
        return torch.view_as_real(pairs).flatten(2).to(self.dtype)

    def _attend(self, segment: Segment, turned: Tensor, storage: Window) -> Tensor:
        """Write the segment's key and value rows, then mix what its rows see: [rows, Q * D].

        turned  [rows, Q + 2 H, D]: rotated queries, rotated keys, values
        """
        _, start, rows = segment
        heads, kv_heads = self.config.heads, self.config.kv_heads
        queries, fresh = turned.split_with_sizes([heads, 2 * kv_heads], 1)
        storage.fresh.copy_(fresh)
        if rows == 1:  # a group's queries share their keys, so they are rows of one small product: no mask, no copies
            grouped = queries.view(1, kv_heads, heads // kv_heads, self.config.head_dim)
            return F.scaled_dot_product_attention(grouped, storage.keys, storage.values).view(1, -1)
        mask = None
        if start:
            mask = torch.ones(rows, start + rows, dtype=torch.bool, device=self.device).tril_(start)
        mixed = F.scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            storage.keys,
            storage.values,
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
        x = self._normal(x) * self.weights.norm
        x = x.to(self.dtype)
        # A single row takes the matrix-vector product: it is nearly twice as fast on a CPU.
        scores = F.linear(x[0], self.weights.head)[None] if len(x) == 1 else F.linear(x, self.weights.head)
        evidence.scores = scores[: len(segments)].float()
        evidence.owners = [Owner(slot, start + count - 1) for slot, start, count in segments]
        evidence.stages |= self.head_stages

    def _turns(self, segments: Sequence[Segment], padding: int) -> Tensor:
        """The turns of the call's rows, [R, Q + 2 H, D / 2] complex64; a dummy row stands at position 0."""
        end = max(segment.start + segment.rows for segment in segments)
        if len(self._rotary) < end:
            size = min(max(2 * end, 512), self.config.context)
            self._rotary = self.config.rope.table(size, self.config.head_dim).to(self.device)
        places = [start + offset for _, start, rows in segments for offset in range(rows)] + [0] * padding
        turns = self._rotary[torch.tensor(places, device=self.device), None]
        moved = turns.expand(-1, self.config.heads + self.config.kv_heads, -1)
        return torch.cat((moved, torch.ones_like(turns).expand(-1, self.config.kv_heads, -1)), 1)

    def _normal(self, x: Tensor) -> Tensor:
        """Root-mean-square normalisation of the residual stream, but for the weight and a factor sqrt(W): [R, W].

        x / sqrt(|x|^2 / W + eps) = sqrt(W) x / sqrt(|x|^2 + W eps): the last column holds sqrt(W eps), so the
        divisor is the length of the whole row. Computed in float32 whatever the dtype.
        """
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return x.narrow(1, 0, self.config.width).div(size).to(self.dtype)


def _project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [R, in] times weight [in, out], plus the bias: [R, out]."""
    return torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)


def _add_projection(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Add y [R, in] times weight [in, out], plus the bias, to x in place."""
    x.addmm_(y, weight)
    if bias is not None:
        x.add_(bias)


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
