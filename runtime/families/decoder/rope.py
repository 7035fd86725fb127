"""Rotary position embedding: frequencies and tables (RoFormer, arXiv:2104.09864; Llama 3.1's wavelength scaling)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....fsm.errors import UnsupportedModel
from .fields import count, positive, table

KINDS = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class Rope:
    """One rotary transform. The last four fields count only for the kinds that name them.

    theta     base of the geometric wavelengths, in positions per turn
    factor    how far the wavelengths are stretched (linear, llama3)
    low, high wavelengths longer than original/low are stretched in full, shorter than original/high not at all (llama3)
    original  context length before stretching, in positions (llama3)
    """

    kind: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low: float = 1.0
    high: float = 1.0
    original: int = 0

    def __str__(self) -> str:
        text = f"{self.kind}(theta={self.theta:g}"
        if self.kind != "default":
            text += f";factor={self.factor:g}"
        if self.kind == "llama3":
            text += f";low={self.low:g};high={self.high:g};original={self.original}"
        return text + ")"

    def frequencies(self, head_dim: int) -> Tensor:
        """Turns, in radians per position, of each feature pair: [head_dim / 2] float32."""
        base = 1.0 / self.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        if self.kind == "linear":
            return base / self.factor
        if self.kind == "llama3":
            turns = self.original / (2 * math.pi / base)
            kept = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
            return (1 - kept) * base / self.factor + kept * base
        return base

    def table(self, positions: int, head_dim: int) -> Tensor:
        """Each position's turn of each feature pair, as unit complex numbers: [positions, head_dim / 2] complex64.

        Multiplying a pair (a + bi) by its entry rotates it. Angles are computed in float32.
        """
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * self.frequencies(head_dim)
        return torch.complex(angles.cos(), angles.sin())


def rope_from_config(raw: Mapping[str, Any]) -> Rope:
    """Read `rope_parameters`, or the older `rope_theta` with `rope_scaling`. Errors: UnsupportedModel."""
    settings = table(raw, "rope_parameters") or table(raw, "rope_scaling")
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind not in KINDS:
        raise UnsupportedModel("rope_type", repr(kind), f"one of {list(KINDS)}")
    if settings.get("partial_rotary_factor", 1) != 1:
        raise UnsupportedModel("partial_rotary_factor", repr(settings["partial_rotary_factor"]), "1")
    theta = positive(settings if "rope_theta" in settings else raw, "rope_theta", 10000.0)
    if kind == "default":
        return Rope(theta=theta)
    factor = positive(settings, "factor")
    if kind == "linear":
        return Rope("linear", theta, factor)
    low, high = positive(settings, "low_freq_factor"), positive(settings, "high_freq_factor")
    if low >= high:
        raise UnsupportedModel("low_freq_factor", f"{low:g}", f"less than high_freq_factor {high:g}")
    original = count(settings, "original_max_position_embeddings", raw.get("max_position_embeddings"))
    return Rope("llama3", theta, factor, low, high, original)
