"""What a K/V cache and a model must agree on before a row is appended."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class CacheAbi:
    """Geometry, dtype and key rotation of a slot arena. Keys are stored rotated, rotary pairs side by side."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    rope: str

    def __str__(self) -> str:
        return (
            f"slot_arena/v1:layers={self.layers},kv_heads={self.kv_heads},head_dim={self.head_dim},"
            f"dtype={str(self.dtype).removeprefix('torch.')},rope={self.rope}"
        )


@dataclass(frozen=True, slots=True)
class Binding:
    """Evidence of the model whose rows a cache may hold (CALL-3).

    model        the decoder's configuration, as text
    parameters   ordered (name, object id, storage address) of every parameter
    revisions    ordered `Tensor._version` of every parameter: an in-place update raises it
    """

    model: str
    parameters: tuple[tuple[str, int, int], ...]
    revisions: tuple[int, ...]
