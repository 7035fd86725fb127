"""A slot arena: one key and one value tensor for all lanes of all layers.

The arena knows storage. How much of a slot is logical state is the lane's `length`, which the request owns: rows at and
beyond it are scratch that no call reads, so a candidate row is written straight to the next physical position and becomes
state only when the lane's length passes it. What an earlier tenant left in a slot is invisible for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...fsm.errors import ForeignLane, LaneTooLarge, NoFreeSlot
from .abi import Binding, CacheAbi


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


@dataclass(slots=True, eq=False)
class Arena:
    """Axes: L layers, S slots, H kv_heads, P positions, D head_dim.

    keys, values    [L, S, H, P, D] of abi.dtype; contents beyond a lane's length are undefined
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
    keys: Tensor = field(init=False)
    values: Tensor = field(init=False)
    lanes: dict[int, Lane] = field(default_factory=dict, init=False)
    views: dict[int, list[tuple[Tensor, Tensor]]] = field(default_factory=dict, init=False)
    _generation: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.keys, self.values = self._storage(self.positions)

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
        keys, values = self._storage(positions)
        for slot, lane in self.lanes.items():
            keys[:, slot, :, : lane.length] = self.keys[:, slot, :, : lane.length]
            values[:, slot, :, : lane.length] = self.values[:, slot, :, : lane.length]
        self.keys, self.values, self.positions = keys, values, positions
        self.epoch += 1
        self.views.clear()

    def layers_of(self, slot: int) -> list[tuple[Tensor, Tensor]]:
        """The slot's key and value storage of each layer, as views [1, H, P, D] kept until the storage moves."""
        pairs = self.views.get(slot)
        if pairs is None:
            keys, values = self.keys[:, slot, None].unbind(0), self.values[:, slot, None].unbind(0)
            pairs = self.views[slot] = list(zip(keys, values, strict=True))
        return pairs

    def _storage(self, positions: int) -> tuple[Tensor, Tensor]:
        """Two fresh tensors. Their pages are touched only where rows are written, so unused capacity costs no memory."""
        shape = (self.abi.layers, self.slots, self.abi.kv_heads, positions, self.abi.head_dim)
        with torch.inference_mode(False):
            keys, values = (torch.empty(shape, dtype=self.abi.dtype, device=self.device) for _ in range(2))
        return keys, values
