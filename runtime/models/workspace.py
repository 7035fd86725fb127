"""Buffers of one call and the views into them, made once: a decode step then spends its time in the weights."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import DecoderConfig
from .parameters import Parameters


class Workspace:
    """Scratch for calls of exactly `rows` rows. Contents mean nothing between calls; nothing in it is ever handed out.

    stream   [R, W + 1], the residual stream; its last column holds sqrt(W eps), see `normalise`
    normal   [R, W]
    heads    [R, Q + 2 H, D], queries, keys and values; queries and fresh (keys, values) are views of it
    grouped  of each row, its queries by key/value head: [1, H, Q / H, D]
    mixed    [R, Q * D], what attention read; zero in dummy rows
    gate, up [R, hidden]
    """

    def __init__(self, config: DecoderConfig, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        def empty(*shape: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.empty(rows, *shape, dtype=kind, device=device)

        heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
        all_heads = heads + 2 * kv_heads
        with torch.inference_mode():
            self.rows = rows
            self.stream = empty(config.width + 1).zero_()
            self.residual = self.stream[:, : config.width]
            self.normal = empty(config.width)
            self.qkv = empty(all_heads * head_dim)
            self.heads = self.qkv.view(rows, all_heads, head_dim)
            self.queries, self.fresh = self.heads[:, :heads], self.heads[:, heads:]
            self.grouped = list(self.queries.view(rows, 1, kv_heads, -1, head_dim).unbind(0))
            self.mixed = empty(heads * head_dim)
            self.gate_up = empty(2 * config.hidden)
            self.gate, self.up = self.gate_up.chunk(2, -1)
            self._length = empty(1, kind=torch.float32)
            self._wide = self.heads if dtype is torch.float32 else empty(all_heads, head_dim, kind=torch.float32)
            self._pairs = torch.view_as_complex(self._wide.view(rows, all_heads, -1, 2))
            self._floor = math.sqrt(config.width * config.rms_eps)

    def load(self, tokens: Tensor, weights: Parameters) -> None:
        """Put the tokens' embeddings into the residual stream; rows beyond them are dummies, zero."""
        count = len(tokens)
        self.stream[:, -1] = self._floor
        self.residual[:count] = F.embedding(tokens, weights.embedding)
        self.residual[count:] = 0
        self.mixed[count:] = 0

    def normalise(self) -> Tensor:
        """Root-mean-square normalisation of the residual stream, but for the weight and a factor sqrt(W): `normal`.

        x / sqrt(|x|^2 / W + eps) = sqrt(W) x / sqrt(|x|^2 + W eps): the divisor is the length of the whole row, the
        last column included. Computed in float32 whatever the dtype.
        """
        torch.linalg.vector_norm(self.stream, 2, -1, True, dtype=torch.float32, out=self._length)
        return torch.div(self.residual, self._length, out=self.normal)

    def turn(self, turns: Tensor) -> None:
        """Rotate `heads` in place, computed in float32: turns [R, Q + 2 H, D / 2] complex64, 1 for values."""
        if self._wide is self.heads:
            self._pairs.mul_(turns)
        else:
            self._wide.copy_(self.heads)
            self._pairs.mul_(turns)
            self.heads.copy_(self._wide)
