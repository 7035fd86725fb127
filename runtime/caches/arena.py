"""A slot arena: one tensor for the keys and values of all lanes of all layers.

The arena knows storage. How much of a slot is logical state is the lane's `length`, which the request owns: rows at
and beyond it are scratch that no call reads. So a candidate row is written straight to the next physical position and
becomes state only when the lane's length passes it; what an earlier tenant left in a slot is invisible likewise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from ...fsm.errors import ForeignLane, LaneTooLarge, NoFreeSlot
from .abi import Binding, CacheAbi

ALIGNED = 32  # positions: 128 bytes at least, whatever head and dtype


@dataclass(slots=True, eq=False)
class Lane:
    """One request's logical tenure of a slot.

    length      positions that are logical state: the request's frontier P, moved only by a session
    capacity    positions that the request may use; fixed at reservation
    generation  tells this tenure from every other of the same slot
    staging     counts the calls prepared on this lane: a later call overwrites an earlier one's candidate rows
    """

    request: str
    slot: int
    generation: int
    capacity: int
    length: int = 0
    staging: int = 0


class Window(NamedTuple):
    """One layer's storage as one call sees it, views.

    fresh         [rows, 2 * H, D], the positions to write: keys, then values
    keys, values  [1, H, stop, D], what the rows may read once `fresh` is written
    """

    fresh: Tensor
    keys: Tensor
    values: Tensor


@dataclass(slots=True, eq=False)
class Arena:
    """Axes: L layers, S slots, H kv_heads, P positions, D head_dim.

    rows            [L, S, 2, H, P, D] of abi.dtype: keys, then values; undefined beyond a lane's length
    positions_max   growth stops here; reservations beyond it are refused
    epoch           raised whenever the storage moves
    """

    abi: CacheAbi
    binding: Binding
    slots: int
    positions: int
    positions_max: int
    device: torch.device
    step: int = 256
    epoch: int = 0
    rows: Tensor = field(init=False)
    lanes: dict[int, Lane] = field(default_factory=dict, init=False)
    _generation: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.rows = self._storage(self.positions)

    @property
    def keys(self) -> Tensor:
        """[L, S, H, P, D], rotated; a view."""
        return self.rows[:, :, 0]

    @property
    def values(self) -> Tensor:
        """[L, S, H, P, D]; a view."""
        return self.rows[:, :, 1]

    def reserve(self, request: str, positions: int) -> Lane:
        """Take the lowest free slot for `positions` positions; the storage grows in steps where it is too short.

        Errors, before anything changes: LaneTooLarge, NoFreeSlot.
        """
        if not 1 <= positions <= self.positions_max:
            raise LaneTooLarge(request, positions, self.positions_max)
        slot = next((index for index in range(self.slots) if index not in self.lanes), None)
        if slot is None:
            raise NoFreeSlot(self.slots)
        if positions > self.positions:
            self.grow(min(-(-positions // self.step) * self.step, self.positions_max))
        self._generation += 1
        self.lanes[slot] = lane = Lane(request, slot, self._generation, positions)
        return lane

    def release(self, lane: Lane) -> None:
        """Free the lane's slot; the lane is dead afterwards. Errors: ForeignLane."""
        self.check(lane)
        del self.lanes[lane.slot]

    def check(self, lane: Lane) -> None:
        """Refuse a lane that is not a live tenure of this arena. Errors: ForeignLane."""
        if self.lanes.get(lane.slot) is not lane:
            raise ForeignLane(lane.request, "was released, or belongs to another cache")

    def grow(self, positions: int) -> None:
        """Move every lane's logical rows into storage of `positions` positions. No effect where it is long enough."""
        if positions <= self.positions:
            return
        rows = self._storage(positions)
        for slot, lane in self.lanes.items():
            rows[:, slot, :, :, : lane.length] = self.rows[:, slot, :, :, : lane.length]
        self.rows, self.positions = rows, positions
        self.epoch += 1

    def window(self, slot: int, start: int, rows: int) -> list[Window]:
        """What a call that appends `rows` positions at `start` writes and reads, of each layer: views."""
        storage, stop = self.rows[:, slot], start + rows
        fresh = storage[:, :, :, start:stop].flatten(1, 2).transpose(1, 2).unbind(0)
        keys, values = storage[:, 0, None, :, :stop].unbind(0), storage[:, 1, None, :, :stop].unbind(0)
        return list(map(Window, fresh, keys, values))

    def _storage(self, positions: int) -> Tensor:
        """A fresh tensor. Pages are touched only where rows are written, so unused capacity costs no memory.

        Each head of each slot begins at an aligned address, so that a call computes the same in every slot.
        """
        aligned = -(-positions // ALIGNED) * ALIGNED
        shape = (self.abi.layers, self.slots, 2, self.abi.kv_heads, aligned, self.abi.head_dim)
        with torch.inference_mode(False):
            return torch.empty(shape, dtype=self.abi.dtype, device=self.device)[..., :positions, :]
