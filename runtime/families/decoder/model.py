"""The native decoder: RMSNorm, rotary positions, grouped query heads, SwiGLU (Llama 2, arXiv:2307.09288).

Axes throughout: R rows of one call, W width of the residual stream, Q query heads, H key/value heads, D head_dim,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ....fsm.errors import UnsupportedModel
from ...caches.abi import Binding, CacheAbi
from ...caches.arena import Arena, Window
from ..rosters import Evidence, Owner, Roster
from .config import DecoderConfig, read_config
from .parameters import Parameters, padded, take_parameters
from .weights import Checkpoint
from .workspace import Workspace

Watch = Callable[[Tensor], None]
"""Receives score rows [n, V] float32 in the order of their positions; they are valid during the call only."""

WATCHED_ROWS = 32  # scored at a time: 6 MB of a vocabulary of 49,152, whatever the prompt's length

INFERENCE_MODE = True  # of every call; the scores are inference tensors: read them, do not write into them
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Span(NamedTuple):
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
        self.probed: dict[tuple[int, int], bool] = {}  # of `probe`: whether rows are alike, by rows and threads
        self.dtype, self.device = weights.embedding.dtype, weights.embedding.device
        layers = range(config.layers)
        self.stages = Roster(("embedding", *(f"block.{i}" for i in layers), "final_norm", "head", "output_row"))
        self.lanes = Roster(tuple(f"block.{i}.{part}" for i in layers for part in ("key", "value")))
        self.head_stages = self.stages.full & ~((2 << config.layers) - 1)
        self._rotary = config.rope.table(0, config.head_dim)
        # Values, and what pads them, are not turned.
        turned, fused = (config.heads + config.kv_heads), config.heads + 2 * config.kv_heads
        still = padded(fused * config.head_dim) // 2 - turned * config.head_dim // 2
        self._still = torch.ones(1, still, dtype=torch.complex64, device=self.device)

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

    def shallow(self) -> Decoder:
        """This model with its first layer only, and the same parameters: its products are those of the whole."""
        blocks = self.weights.blocks[:1]
        return Decoder(replace(self.config, layers=len(blocks)), self.weights._replace(blocks=blocks))

    # ---- the call --------------------------------------------------------------------------------------------------

    def workspace(self, rows: int, apart: bool = True) -> Workspace:
        """Scratch for calls of `rows` rows, each a request of its own or all of one, for one call at a time."""
        return Workspace(self.config, rows, self.dtype, self.device, apart)

    @torch.inference_mode(INFERENCE_MODE)
    def forward(
        self,
        arena: Arena,
        work: Workspace,
        tokens: Sequence[int],
        segments: Sequence[Span],
        event: int,
        head: bool = True,
        watch: Watch | None = None,
    ) -> Evidence:
        """Compute the segments' rows and write their keys and values at their physical positions.

        work      as many rows as every matrix product has: those beyond the tokens are dummies, so that one row's
                  result does not depend on how many others there are
        tokens    the segments' token ids, one after the other, in 0..V
        segments  one of any number of rows, or any number of one row each; in distinct slots, within their storage
        event     recorded as the completion event once the device has finished
        head      False computes keys and values only
        watch     is handed the scores of every row of the one segment; those that are returned are the same without it
        returns   scores [len(segments), V] float32, of each segment's last row, and what was completed.
        Changes no logical state: only rows at or beyond `start` are written. Deterministic for one number of threads.
        """
        work.load(torch.tensor(tokens, device=self.device), self.weights)
        turns = work.together(self._turns(segments, work.rows - len(tokens)))
        windows = [arena.window(*segment) for segment in segments]
        mask = _mask(segments[0], self.device)
        evidence = Evidence(None, 1, [0] * len(segments), [])
        for index, block in enumerate(self.weights.blocks):
            _project(work.normalise(), block.query_key_value, block.query_key_value_bias, work.qkv)
            work.turn(turns)
            if len(tokens) == len(segments):
                mixed = _attend_rows(work, [window[index] for window in windows])
            else:
                mixed = _attend_block(work, windows[0][index], mask)
            evidence.landed = [landed | 3 << 2 * index for landed in evidence.landed]
            _add_projection(work, mixed, block.output, block.output_bias)
            _project(work.normalise(), block.gate_up, block.gate_up_bias, work.gate_up)
            _add_projection(work, work.activate(), block.down, block.down_bias)
            evidence.stages |= 2 << index
        if head or watch is not None:
            rows = work.normalise().mul_(self.weights.norm)
            if watch is not None:
                for part in torch.split(rows[: len(tokens)], WATCHED_ROWS):
                    watch(self._of_vocabulary(F.linear(part, self.weights.head)))
            if head:
                self._score(rows, segments, evidence)
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        evidence.event = event
        return evidence

    def _score(self, last: Tensor, segments: Sequence[Span], evidence: Evidence) -> None:
        """Score each segment's last row: of a block that is its last row, of single rows all, dummies too."""
        if segments[0].rows > 1:
            last = last[-1:]
        # A single row takes the matrix-vector product: it is nearly twice as fast on a CPU.
        scores = F.linear(last[0], self.weights.head)[None] if len(last) == 1 else F.linear(last, self.weights.head)
        evidence.scores = self._of_vocabulary(scores[: len(segments)])
        evidence.owners = [Owner(slot, start + rows - 1) for slot, start, rows in segments]
        evidence.stages |= self.head_stages

    def _of_vocabulary(self, scores: Tensor) -> Tensor:
        """[n, V] float32, contiguous: without the columns that pad the head."""
        return scores[:, : self.config.vocabulary_size].float().contiguous()

    def _turns(self, segments: Sequence[Span], dummies: int) -> Tensor:
        """The turns of the call's rows, [R, (Q + 2 H) * D / 2, padded] complex64; a dummy row stands at position 0."""
        end = max(segment.start + segment.rows for segment in segments)
        table = self._rotary
        if len(table) < end:
            size = min(max(2 * end, 512), self.config.context)
            # Assigned whole: sessions of other threads go on with the table that they have.
            self._rotary = table = self.config.rope.table(size, self.config.head_dim).to(self.device)
        places = [start + offset for _, start, rows in segments for offset in range(rows)] + [0] * dummies
        turns = table[torch.tensor(places, device=self.device)]
        config, still = self.config, self._still.expand(len(places), -1)
        return torch.cat((turns.repeat(1, config.heads + config.kv_heads), still), 1)


def _attend_rows(work: Workspace, windows: Sequence[Window]) -> Tensor:
    """Single rows: write each one's key and value, then mix what it sees; [R, Q * D].

    A group's queries share their keys, so they are rows of one small product: no mask, no copies. Each lane has a call
    of its own, so that its result depends on its own length only.
    """
    for row, window in enumerate(windows):
        window.fresh.copy_(work.fresh[row])
        mixed = F.scaled_dot_product_attention(work.grouped[row], window.keys, window.values)
        if work.rows == 1 and mixed.numel() == work.mixed.numel():
            return mixed.view(1, -1)  # the whole of `mixed` already: nothing pads it, and there is no other row
        work.attended[row] = mixed.view(-1)
    return work.mixed


def _attend_block(work: Workspace, window: Window, mask: Tensor | None) -> Tensor:
    """Consecutive rows of one lane: write their keys and values, then mix what each sees; [R, Q * D]."""
    window.fresh.copy_(work.fresh)
    queries = work.queries.transpose(0, 1)[None]
    grouped = queries.shape[1] != window.keys.shape[1]
    mixed = F.scaled_dot_product_attention(
        queries, window.keys, window.values, mask, is_causal=mask is None, enable_gqa=grouped
    )
    work.attended.copy_(mixed[0].transpose(0, 1).flatten(1))
    return work.mixed


def _mask(segment: Span, device: torch.device) -> Tensor | None:
    """Which positions each row of a block sees, [rows, stop]; None where plain causal order says it."""
    _, start, rows = segment
    if not start or rows == 1:
        return None
    return torch.ones(rows, start + rows, dtype=torch.bool, device=device).tril_(start)


def _project(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """out [R, out] = x [R, in] times weight [in, out], plus the bias."""
    if bias is None:
        torch.mm(x, weight, out=out)
    else:
        torch.addmm(bias, x, weight, out=out)


def _add_projection(work: Workspace, y: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Add y [R, in] times weight [in, out], plus the bias, to the residual stream."""
    if work.rows == 1:  # has no neighbour that another path could compute, so that the product may add it
        work.residual.addmm_(y, weight)
        if bias is not None:
            work.residual.add_(bias)
        return
    # Several are not added by it: the stream's rows are not side by side, and `normal` is free until the next norm.
    _project(y, weight, bias, work.normal)
    work.residual.add_(work.normal)


def cache_abi(config: DecoderConfig, dtype: torch.dtype) -> CacheAbi:
    return CacheAbi(config.layers, config.kv_heads, config.head_dim, dtype, str(config.rope))


def load_decoder(directory: Path, *, dtype: str = "float32", device: str = "cpu") -> Decoder:
    """Read the checkpoint in `directory` (config.json and safetensors). Weights are copied: the files may change after.

    Errors: UnsupportedModel, BrokenArtifact, ContradictoryModel.
    """
    config, kind = read_config(directory), torch_dtype(dtype)
    with Checkpoint(directory) as checkpoint:
        if config.tied:
            checkpoint.leave_copy("lm_head.weight", "model.embed_tokens.weight", "tie_word_embeddings = true")
        weights = take_parameters(config, lambda name, *shape: checkpoint.take(name, *shape).to(device), kind)
        checkpoint.finish(config.layers)
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
