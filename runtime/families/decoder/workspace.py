"""Buffers of one call and the views into them, made once: a decode step then spends its time in the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import DecoderConfig
from .parameters import ALIGNED, Parameters, padded

THREADED = 32768
"""Elements from which on torch shares an elementwise function among threads (at::internal::GRAIN_SIZE)."""


class Workspace:
    """Scratch for calls of exactly `rows` rows. Contents mean nothing between calls; nothing in it is ever handed out.

    Widths are the padded ones, so each row of each operand of a product is aligned and the operand is contiguous.

    stream   [R, W + ALIGNED], the residual stream; its column W holds sqrt(W eps), see `normalise`
    residual [R, W], a view of it
    normal   [R, W]
    heads    [R, Q + 2 H, D], queries, keys and values, a view of qkv; queries and fresh (keys, values) are views of it
    grouped  of each row, its queries by key/value head: [1, H, Q / H, D]
    mixed    [R, Q * D], what attention read; zero in dummy rows and where it is padded
    attended the part of it that is not padded, a view
    gate, up [R, hidden], views of gate_up
    hidden   [R, hidden]

    apart    each row is a request of its own, so none may be worked on by another path than its neighbours. An
             elementwise function of torch works on a few vectors at a time and on what is left by another path, and
             beyond some size each thread has a part of its own, which may begin and end within a row. So rows go
             through such functions in groups that one thread takes, each row a whole number of vectors.
    """

    def __init__(
        self, config: DecoderConfig, rows: int, dtype: torch.dtype, device: torch.device, apart: bool = True
    ) -> None:
        def empty(*shape: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.empty(rows, *shape, dtype=kind, device=device)

        heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
        all_heads = heads + 2 * kv_heads
        width, hidden, fused = padded(config.width), padded(config.hidden), padded(all_heads * head_dim)
        with torch.inference_mode():
            self.rows = rows
            self.stream = empty(width + ALIGNED).zero_()
            self.residual, self._measured = self.stream[:, :width], self.stream[:, : width + 1]
            self.normal = empty(width)
            self.qkv = empty(fused).zero_()
            self.heads = self.qkv[:, : all_heads * head_dim].view(rows, all_heads, head_dim)
            self.queries, self.fresh = self.heads[:, :heads], self.heads[:, heads:]
            self.grouped = list(self.queries.view(rows, 1, kv_heads, -1, head_dim).unbind(0))
            self.mixed = empty(padded(heads * head_dim)).zero_()
            self.attended = self.mixed[:, : heads * head_dim]
            self.gate_up = empty(2 * hidden)
            self.gate, self.up = self.gate_up.chunk(2, -1)
            self.hidden = empty(hidden)
            self._gates = torch.split(self.gate, _together(rows, hidden, apart))
            self._length = empty(1, kind=torch.float32)
            self._wide = self.qkv if dtype is torch.float32 else empty(fused, kind=torch.float32)
            self._turned = _together(rows, fused // 2, apart)
            self._pairs = torch.split(torch.view_as_complex(self._wide.view(rows, -1, 2)), self._turned)
            self._floor = math.sqrt(config.width * config.rms_eps)

    def load(self, tokens: Tensor, weights: Parameters) -> None:
        """Put the tokens' embeddings into the residual stream; rows beyond them are dummies, zero."""
        count = len(tokens)
        self._measured[:, -1] = self._floor
        self.residual[:count] = F.embedding(tokens, weights.embedding)
        self.residual[count:] = 0
        self.mixed[count:] = 0

    def normalise(self) -> Tensor:
        """Root-mean-square normalisation of the residual stream, but for the weight and a factor sqrt(W): `normal`.

        x / sqrt(|x|^2 / W + eps) = sqrt(W) x / sqrt(|x|^2 + W eps): the divisor is the length of the whole row, the
        column behind it included. Computed in float32 whatever the dtype.
        """
        torch.linalg.vector_norm(self._measured, 2, -1, True, dtype=torch.float32, out=self._length)
        return torch.div(self.residual, self._length, out=self.normal)

    def together(self, turns: Tensor) -> tuple[Tensor, ...]:
        """The turns of a call's rows, [R, (Q + 2 H) D / 2, padded] complex64, 1 for values, by groups of rows."""
        return torch.split(turns, self._turned)

    def turn(self, turns: Sequence[Tensor]) -> None:
        """Rotate `heads` in place, computed in float32, by what `together` gave."""
        if self._wide is not self.qkv:
            self._wide.copy_(self.qkv)
        for pairs, part in zip(self._pairs, turns, strict=True):
            pairs.mul_(part)
        if self._wide is not self.qkv:
            self.qkv.copy_(self._wide)

    def activate(self) -> Tensor:
        """hidden = silu(gate) * up (SwiGLU, arXiv:2002.05202)."""
        for gate in self._gates:
            F.silu(gate, inplace=True)
        return torch.mul(self.gate, self.up, out=self.hidden)


def _together(rows: int, size: int, apart: bool) -> int:
    """How many of `rows` rows, each `size` elements long, go through an elementwise function at once."""
    return min(rows, max(1, (THREADED - 1) // size)) if apart else rows
