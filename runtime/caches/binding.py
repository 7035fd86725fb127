"""Check that a cache was made for a model as the model is now (CALL-3, FAM-6)."""

from __future__ import annotations

import torch

from ...fsm.errors import SessionMismatch
from .abi import Binding, CacheAbi
from .arena import Arena

_AXES = ("layer count", "batch", "geometry", "geometry", "capacity", "geometry")


def verify_binding(arena: Arena, abi: CacheAbi, model: Binding, context: int, device: torch.device) -> None:
    """Refuse `arena` where it differs from the model that `abi`, `model`, `context` (positions) and `device` describe.

    Changes nothing. Errors: SessionMismatch, whose field is the first that differs: layer count, geometry, dtype, RoPE,
    device, model, revision, batch, capacity or lane length.
    """
    _agree("layer count", arena.abi.layers, abi.layers)
    _agree("geometry", (arena.abi.kv_heads, arena.abi.head_dim), (abi.kv_heads, abi.head_dim))
    _agree("dtype", arena.abi.dtype, abi.dtype)
    _agree("RoPE", arena.abi.rope, abi.rope)
    _agree("device", arena.device, device)
    _verify_model(arena.binding, model)
    _verify_storage(arena, context)


def _verify_model(recorded: Binding, model: Binding) -> None:
    _agree("model", recorded.model, model.model)
    _agree("model", len(recorded.parameters), len(model.parameters))
    for cached, own in zip(recorded.parameters, model.parameters, strict=True):
        _agree("model", cached, own)
    for (name, _, _), then, now in zip(model.parameters, recorded.revisions, model.revisions, strict=True):
        _agree("revision", f"{name} at {then}", f"{name} at {now}")


def _verify_storage(arena: Arena, context: int) -> None:
    declared = (arena.abi.layers, arena.slots, 2, arena.abi.kv_heads, arena.positions, arena.abi.head_dim)
    for axis, found, wanted in zip(_AXES, arena.rows.shape, declared, strict=True):
        _agree(axis, found, wanted)
    _agree("capacity", arena.positions_max, min(arena.positions_max, context))
    for lane in arena.lanes.values():
        _agree("capacity", lane.capacity, min(lane.capacity, arena.positions))
        _agree("lane length", lane.length, min(max(lane.length, 0), lane.capacity))


def _agree(field: str, cache: object, model: object) -> None:
    if cache != model:
        raise SessionMismatch(field, str(cache), str(model))
