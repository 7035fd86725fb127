"""One model bound to one cache: prepare a call, then select it (CALL-1 to CALL-5).

`prepare` validates every request and computes every layer's new rows beyond the lanes' frontiers; `select` checks both
rosters and that nothing moved meanwhile, and only then lets all lanes advance. Until then, and after any error, every
lane is what it was (ALL_OLD): rows at or beyond a lane's length are scratch, so a failed or abandoned call needs no
repair, and committed rows are never written again.

A session belongs to the first thread that uses it, and refuses any other by name.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from itertools import islice, repeat
from threading import Thread, current_thread
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ...fsm.errors import (
    CallFailed,
    DecodeNeedsPrefill,
    EmptyPrompt,
    ForeignLane,
    LaneFull,
    OptimizerStepRefused,
    PrefillNeedsEmptyLane,
    PreparedCacheChanged,
    PromptTooLong,
    ScoreNotConsumable,
    SessionClosed,
    SessionMismatch,
    SessionOfAnotherThread,
    TokenOutOfRange,
)
from ..caches.abi import CacheAbi
from ..caches.arena import Arena, Lane
from ..caches.binding import verify_binding
from .decoder.model import Decoder, Span, Watch
from .decoder.probe import call_rows
from .rosters import Bound, Evidence, Passport, Ticket, require_complete
from .work import Work, work_of_call

__all__ = ["Decode", "Lane", "Prefill", "Session", "Ticket"]


class Prefill(NamedTuple):
    """Fill an empty lane with `tokens` and score the last of them; `watch` is handed the score rows of all of them."""

    lane: Lane
    tokens: Sequence[int]
    watch: Watch | None = None


class Decode(NamedTuple):
    """Append `token` to a filled lane and score it."""

    lane: Lane
    token: int


class Session:
    """Binds `decoder` to `arena` until closed.

    width          rows of every decode call: dummy rows fill up, larger batches take several calls. A row's result then
                   does not depend on its mates, on their number, or on its slot; it does depend on the width.
    call_rows      the rows that decode calls really have here: `width`, unless calls of that many do not treat their
                   rows alike on this stack (see `probe`)
    prefill_chunk  positions of one prefill pass; None takes a prompt in one
    work           counters of the selected calls since the last reset
    """

    def __init__(self, decoder: Decoder, arena: Arena, *, width: int = 1, prefill_chunk: int | None = None) -> None:
        """Errors: SessionMismatch, naming what the cache and the model disagree on; UnequalRows; ValueError for the two
        sizes."""
        if width < 1 or (prefill_chunk is not None and prefill_chunk < 1):
            raise ValueError("width and prefill_chunk are at least 1")
        verify_binding(arena, decoder.abi, decoder.binding(), decoder.config.context, decoder.device)
        self.decoder, self.arena, self.width, self.prefill_chunk = decoder, arena, width, prefill_chunk
        self.work = Work()
        self.call_rows = call_rows(decoder, width)
        self._workspace = decoder.workspace(self.call_rows)
        self._parameters = decoder.parameters()
        self._revisions = arena.binding.revisions
        self._event = 0
        self._owner: Thread | None = None
        self._guard = _refuse_optimizer_steps(self)
        weakref.finalize(self, self._guard.remove)
        self._closed = False

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the binding: optimizers may step again. Lanes keep their state until their arena's binding is broken."""
        self._guard.remove()
        self._closed = True

    @property
    def recorded(self) -> tuple[tuple[str, str], ...]:
        """What the probe of this stack has found, as (name, value) pairs."""
        probed = "alike in every row and slot, beside any mates"
        return ("call_rows", str(self.call_rows)), ("call_rows_probed", probed)

    @property
    def cache(self) -> Session:
        """Its lanes hold K/V rows, which `rows` and `restore` take out and put back."""
        return self

    @property
    def abi(self) -> CacheAbi:
        return self.arena.abi

    # ---- lanes -----------------------------------------------------------------------------------------------------

    def open(self, request: str, positions: int) -> Lane:
        """An empty lane of `positions` positions: prompt and output together. Errors: LaneTooLarge, NoFreeSlot."""
        self._check_open()
        return self.arena.reserve(request, positions)

    def release(self, lane: Lane) -> None:
        """Give the lane's slot back. Errors: ForeignLane, SessionOfAnotherThread."""
        self._check_thread()
        self.arena.release(lane)

    def reset(self, lane: Lane | None = None) -> None:
        """Empty one lane, or every lane and the counters. Storage and binding stay; prepared calls become stale."""
        self._check_thread()
        if lane is not None:
            self.arena.check(lane)
        for each in self.arena.lanes.values() if lane is None else (lane,):
            each.length = 0
            each.staging += 1
        if lane is None:
            self.work = Work()

    def rows(self, lane: Lane, start: int, stop: int) -> Tensor:
        """A copy of the lane's rows [start, stop), on the host: [layers, 2, kv_heads, stop - start, head_dim].

        start, stop   within the lane's length. Errors: ForeignLane; ValueError for a range that is no state.
        """
        self._check_thread()
        self.arena.check(lane)
        if not 0 <= start < stop <= lane.length:
            raise ValueError(f"rows {start} to {stop} of a lane of {lane.length}")
        return self.arena.rows[:, lane.slot, :, :, start:stop].to("cpu", copy=True).contiguous()

    def restore(self, lane: Lane, parts: Sequence[Tensor]) -> None:
        """Fill an empty lane with rows as `rows` gave them, one part after the other.

        Errors, before anything changes: SessionClosed, ForeignLane, PrefillNeedsEmptyLane, SessionMismatch for rows of
        another shape or type, PromptTooLong for more than the lane has room for.
        """
        self._check_open()
        self.arena.check(lane)
        if lane.length:
            raise PrefillNeedsEmptyLane(lane.request, lane.length)
        abi, count = self.arena.abi, sum(part.shape[3] for part in parts)
        for part in parts:
            shape = (abi.layers, 2, abi.kv_heads, part.shape[3], abi.head_dim)
            if tuple(part.shape) != shape or part.dtype is not abi.dtype:
                raise SessionMismatch("rows", f"{list(shape)} {abi.dtype}", f"{list(part.shape)} {part.dtype}")
        if count > lane.capacity:
            raise PromptTooLong(lane.request, count, lane.capacity)
        at = 0
        for part in parts:
            self.arena.rows[:, lane.slot, :, :, at : at + part.shape[3]] = part
            at += part.shape[3]
        lane.length = at
        lane.staging += 1

    # ---- the call --------------------------------------------------------------------------------------------------

    def prepare(self, calls: Sequence[Prefill | Decode]) -> Ticket:
        """Compute the rows and scores of at least one call without changing logical state.

        Errors, before anything is computed: SessionClosed, SessionMismatch (a parameter changed), ForeignLane,
        EmptyPrompt, PromptTooLong, PrefillNeedsEmptyLane, DecodeNeedsPrefill, LaneFull, TokenOutOfRange.
        CallFailed where the computation itself fails. All of them are ALL_OLD.
        """
        self._check_open()
        self._check_revisions()
        if not calls:
            raise ValueError("a call has at least one row")
        if len({id(call.lane) for call in calls}) < len(calls):
            raise ForeignLane(calls[0].lane.request, "or of a mate is named twice in one call")
        for call in calls:
            self._check_call(call)
        rows = tuple(self._bind(call) for call in calls)
        self._event += 1
        ticket = Ticket(self._event, rows, self.arena.epoch, [])
        try:
            ticket.evidence = self._run(calls, rows)
        except (RuntimeError, MemoryError) as error:
            raise CallFailed(str(error)) from error
        return ticket

    def select(self, ticket: Ticket) -> Tensor:
        """ALL_NEW: advance every lane of the call and release its scores, [B, V] float32 in the order of the calls.

        Everything that may fail comes before the first change. Scores may hold NaN or infinities: a fault of its own
        row only, which the policy finds.
        Errors, each ALL_OLD: PreparedCacheChanged, RosterIncomplete, ScoreNotConsumable (selected or discarded before).
        """
        self._check_open()
        if ticket.state != "prepared":
            raise ScoreNotConsumable(ticket.state)
        self._check_unchanged(ticket)
        require_complete(ticket, self.decoder.stages, self.decoder.lanes)
        scores = _gather(ticket.evidence)
        work = sum((bound.work for bound in ticket.rows), self.work)
        lanes, stops = [row.lane for row in ticket.rows], [row.passport.stop for row in ticket.rows]
        ticket.state = "selected"
        # One pass inside C: there is no bytecode boundary at which a signal's exception could part the lanes.
        deque(map(setattr, lanes, repeat("length"), stops), maxlen=0)
        self.work = work
        return scores

    def discard(self, ticket: Ticket) -> None:
        """ALL_OLD by decision (a cancel or a timeout in flight): the ticket can no longer be selected. Idempotent."""
        self._check_thread()
        if ticket.state == "prepared":
            ticket.state = "discarded"

    # ---- checks ----------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosed
        self._check_thread()

    def _check_thread(self) -> None:
        caller = current_thread()
        if self._owner is not caller:
            if self._owner is not None:
                raise SessionOfAnotherThread(self._owner.name, caller.name)
            self._owner = caller

    def _check_revisions(self) -> None:
        revisions = [parameter._version for parameter in self._parameters]
        for index, (then, now) in enumerate(zip(self._revisions, revisions, strict=True)):
            if then != now:
                name = self.arena.binding.parameters[index][0]
                raise SessionMismatch("revision", f"{name} at {then}", f"{name} at {now}")

    def _check_call(self, call: Prefill | Decode) -> None:
        lane = call.lane
        self.arena.check(lane)
        if isinstance(call, Prefill):
            if not len(call.tokens):
                raise EmptyPrompt(lane.request)
            if lane.length:
                raise PrefillNeedsEmptyLane(lane.request, lane.length)
            if len(call.tokens) > lane.capacity:
                raise PromptTooLong(lane.request, len(call.tokens), lane.capacity)
            self._check_tokens(lane, call.tokens)
        else:
            if not lane.length:
                raise DecodeNeedsPrefill(lane.request)
            if lane.length >= lane.capacity:
                raise LaneFull(lane.request, lane.capacity)
            self._check_tokens(lane, (call.token,))

    def _check_tokens(self, lane: Lane, tokens: Sequence[int]) -> None:
        size = self.decoder.config.vocabulary_size
        if min(tokens) < 0 or max(tokens) >= size:
            offset, token = next((i, token) for i, token in enumerate(tokens) if not 0 <= token < size)
            raise TokenOutOfRange(lane.request, lane.length + offset, token, size)

    def _check_unchanged(self, ticket: Ticket) -> None:
        def changed(bound: Bound, what: str) -> NoReturn:
            raise PreparedCacheChanged(bound.passport.request, what)

        for bound in ticket.rows:
            lane, passport = bound.lane, bound.passport
            if self.arena.lanes.get(passport.slot) is not lane or lane.generation != passport.generation:
                changed(bound, "lane")
            if lane.length != passport.start:
                changed(bound, "length")
            if lane.staging != bound.staging or self.arena.epoch != ticket.epoch:
                changed(bound, "storage")
        if ticket.rows and any(p._version != r for p, r in zip(self._parameters, self._revisions, strict=True)):
            changed(ticket.rows[0], "model")

    # ---- computing -------------------------------------------------------------------------------------------------

    def _bind(self, call: Prefill | Decode) -> Bound:
        lane, prefill = call.lane, isinstance(call, Prefill)
        stop = lane.length + (len(call.tokens) if isinstance(call, Prefill) else 1)
        lane.staging += 1
        config = self.decoder.config
        work = work_of_call(config.layers, config.heads, lane.length, stop, prefill)
        return Bound(lane, Passport(lane.request, lane.generation, lane.slot, lane.length, stop), lane.staging, work)

    def _run(self, calls: Sequence[Prefill | Decode], rows: tuple[Bound, ...]) -> list[tuple[Evidence, int]]:
        """One pass for each prompt, one for each `call_rows` decodes; the evidence in the order of the calls."""
        places: dict[int, tuple[Evidence, int]] = {}
        decodes = []
        for index, call in enumerate(calls):
            if isinstance(call, Prefill):
                places[index] = self._prefill(call, rows[index].passport), 0
            else:
                decodes.append((index, call.token))
        pending = iter(decodes)
        while batch := list(islice(pending, self.call_rows)):
            segments = [Span(calls[index].lane.slot, rows[index].passport.start, 1) for index, _ in batch]
            tokens = [token for _, token in batch]
            evidence = self.decoder.forward(self.arena, self._workspace, tokens, segments, self._event)
            places.update((index, (evidence, place)) for place, (index, _) in enumerate(batch))
        return [places[index] for index in range(len(calls))]

    def _prefill(self, call: Prefill, passport: Passport) -> Evidence:
        """Pass the prompt through in chunks. Only the last has scores; what an earlier one lacks, the whole lacks.

        A watch sees every row, in order, before the call is selected: what it has seen counts only if the call does.
        """
        size = self.prefill_chunk or len(call.tokens)
        starts = range(0, len(call.tokens), size)
        stages, landed = self.decoder.stages.full, self.decoder.lanes.full
        for start in starts:
            chunk, last = list(call.tokens[start : start + size]), start == starts[-1]
            segment = Span(passport.slot, start, len(chunk))
            work = self.decoder.workspace(len(chunk), apart=False)
            evidence = self.decoder.forward(self.arena, work, chunk, [segment], self._event, last, call.watch)
            stages &= evidence.stages | (0 if last else self.decoder.head_stages)
            landed &= evidence.landed[0]
        evidence.stages, evidence.landed[0] = stages, landed
        return evidence


def _gather(evidence: list[tuple[Evidence, int]]) -> Tensor:
    """The score rows in the order of the calls, [B, V]; a single pass in order is handed on as it is."""
    whole = evidence[0][0].scores if evidence else None
    if whole is not None and len(whole) == len(evidence) and all(part.scores is whole for part, _ in evidence):
        return whole
    return torch.stack([part.scores[place] for part, place in evidence if part.scores is not None])


def _refuse_optimizer_steps(session: Session) -> RemovableHandle:
    """While the session lives, a step of any optimizer that holds its parameters raises before anything is updated.

    The hook holds the session weakly: one that was dropped without `close` refuses nothing.
    """
    reference = weakref.ref(session)

    def hook(optimizer: Optimizer, *_: object) -> None:
        alive = reference()
        if alive is None:
            return
        bound = {id(parameter) for parameter in alive.decoder.parameters()}
        if any(id(parameter) in bound for group in optimizer.param_groups for parameter in group["params"]):
            raise OptimizerStepRefused

    return register_optimizer_step_pre_hook(hook)
