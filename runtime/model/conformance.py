"""What the crank relies on in a model, to be run against any: a model of one's own fails here and not in a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from ...fsm.errors import (
    DecodeNeedsPrefill,
    EmptyPrompt,
    ForeignLane,
    LaneFull,
    ModelNotConforming,
    PrefillNeedsEmptyLane,
    Problem,
    TokenOutOfRange,
)
from ..caches.arena import Lane
from ..families.session import Decode, Prefill
from .port import Model, ModelSession

WIDTH = 3
ROOM = 16


def check_model(model: Model, prompt: Sequence[int] = (1, 2, 3)) -> None:
    """Hold a model to the `Model` protocol by a few dozen calls of it.

    prompt  two to eight token ids that the model can begin with
    A model whose scores depend on anything but the tokens of their own lane is found where that shows in these calls.
    Errors: ModelNotConforming, which says what was asked of the model and what it did.
    """
    for check in (_facts, _prefill, _decode, _all_old, _refusals, _watch, _rows_alone, _kept_rows):
        check(model, list(prompt))


def _require(holds: object, wanted: str, found: object) -> None:
    if not holds:
        raise ModelNotConforming(wanted, str(found))


def _facts(model: Model, prompt: list[int]) -> None:
    facts, text = model.facts, model.text
    size = facts.vocabulary_size
    _require(len(text.pieces) == size, f"text.pieces has the bytes of each of the {size} tokens", len(text.pieces))
    ends = facts.end_ids
    _require(all(0 <= token < size for token in ends), f"every id that ends an output is below {size}", list(ends))
    _require(all(0 <= token < size for token in prompt), f"the prompt's ids are below {size}", prompt)
    _require(model.lanes is None or model.lanes >= WIDTH, f"there is room for {WIDTH} lanes", model.lanes)
    words = [*model.recorded, *model.session(1).recorded]
    flat = [word for pair in words for word in pair]
    _require(all(isinstance(word, str) for word in flat), "what is recorded is pairs of texts", words)


def _prefill(model: Model, prompt: list[int]) -> None:
    with _lane(model.session(1)) as (session, lane):
        ticket = session.prepare([Prefill(lane, prompt)])
        _require(lane.length == 0, "a prepared call leaves its lanes as they are", f"a length of {lane.length}")
        scores = session.select(ticket)
        _require(lane.length == len(prompt), f"a selected prefill leaves a length of {len(prompt)}", lane.length)
        shape = [1, model.facts.vocabulary_size]
        _require(list(scores.shape) == shape, f"a prefill gives scores of shape {shape}", list(scores.shape))
        _require(scores.dtype is torch.float32, "scores are float32", scores.dtype)
        _require(scores.isfinite().all(), "scores are finite", "NaN or infinity among them")


def _decode(model: Model, prompt: list[int]) -> None:
    """One token after the other gives what a prefill of both gives, up to rounding, and the same bits each time."""
    with _lane(model.session(1)) as (session, lane):
        again = _scored(session, lane, prompt)
        _require(lane.length == len(prompt), f"decodes leave a length of {len(prompt)}", lane.length)
    with _lane(model.session(1)) as (session, lane):
        _same(again, _scored(session, lane, prompt), "the same calls give the same bits")
    with _lane(model.session(1)) as (session, lane):
        whole = session.select(session.prepare([Prefill(lane, prompt)]))
    _near(again, whole, "decodes give the scores that a prefill of the same tokens gives")


def _all_old(model: Model, prompt: list[int]) -> None:
    """A prepared call that is not selected has changed nothing, and what is stale cannot be selected."""
    with _lane(model.session(1)) as (session, lane):
        dropped = session.prepare([Prefill(lane, prompt[:1])])
        ticket = session.prepare([Prefill(lane, prompt)])
        scores = session.select(ticket)
        _refused(lambda: session.select(ticket), Problem, "a call is selected once")
        _refused(lambda: session.select(dropped), Problem, "a call is not selected after its lane has moved")
    with _lane(model.session(1)) as (session, lane):
        alone = session.select(session.prepare([Prefill(lane, prompt)]))
        _same(scores, alone, "a call that was prepared and dropped leaves no trace")


def _refusals(model: Model, prompt: list[int]) -> None:
    size = model.facts.vocabulary_size
    with _lane(model.session(1), len(prompt)) as (session, lane):

        def call(which: Prefill | Decode) -> Callable[[], object]:
            return lambda: session.prepare([which])

        _refused(call(Decode(lane, prompt[0])), DecodeNeedsPrefill, "a decode of an empty lane is refused")
        _refused(call(Prefill(lane, [])), EmptyPrompt, "an empty prompt is refused")
        _refused(call(Prefill(lane, [size])), TokenOutOfRange, "a token beyond the vocabulary is refused")
        session.select(session.prepare([Prefill(lane, prompt)]))
        _refused(call(Prefill(lane, prompt)), PrefillNeedsEmptyLane, "a prefill of a filled lane is refused")
        _refused(call(Decode(lane, prompt[0])), LaneFull, "a decode beyond the lane's room is refused")
        _require(lane.length == len(prompt), "a refused call leaves its lane as it is", f"a length of {lane.length}")
        session.release(lane)
        _refused(call(Decode(lane, prompt[0])), ForeignLane, "a lane that was released is refused")


def _watch(model: Model, prompt: list[int]) -> None:
    seen: list[Tensor] = []
    with _lane(model.session(1)) as (session, lane):
        scores = session.select(session.prepare([Prefill(lane, prompt, lambda rows: seen.append(rows.clone()))]))
    rows = torch.cat(seen) if seen else scores[:0]
    _require(len(rows) == len(prompt), f"a watch is given all {len(prompt)} rows of a prefill", len(rows))
    _near(rows[-1:], scores, "the last row that a watch is given is the call's")


def _rows_alone(model: Model, prompt: list[int]) -> None:
    """A row's bits depend on no mate and on no slot (POL-7)."""
    session = model.session(WIDTH)
    lanes = [session.open(f"conformance {number}", ROOM) for number in range(WIDTH)]
    for number, lane in enumerate(lanes):
        session.select(session.prepare([Prefill(lane, prompt[number % 2 :])]))
    together = session.select(session.prepare([Decode(lane, prompt[-1]) for lane in lanes]))
    for lane in lanes:
        session.release(lane)
    _require(len(together) == WIDTH, f"a call of {WIDTH} rows gives as many", len(together))
    for number in range(WIDTH):
        with _lane(session) as (_, lane):
            session.select(session.prepare([Prefill(lane, prompt[number % 2 :])]))
            alone = session.select(session.prepare([Decode(lane, prompt[-1])]))
        _same(together[number : number + 1], alone, f"row {number} has the same bits with mates and without")


def _kept_rows(model: Model, prompt: list[int]) -> None:
    """Rows that were taken out and put back give the same scores as those that stayed."""
    with _lane(model.session(1)) as (session, lane):
        if (cache := session.cache) is None:
            return
        session.select(session.prepare([Prefill(lane, prompt)]))
        rows = cache.rows(lane, 0, len(prompt))
        stayed = session.select(session.prepare([Decode(lane, prompt[0])]))
    with _lane(model.session(1)) as (session, lane):
        if (cache := session.cache) is not None:
            cache.restore(lane, [rows])
        _require(lane.length == len(prompt), f"restored rows leave a length of {len(prompt)}", lane.length)
        back = session.select(session.prepare([Decode(lane, prompt[0])]))
    _same(back, stayed, "restored rows give the same bits")


@contextmanager
def _lane(session: ModelSession, room: int = ROOM) -> Iterator[tuple[ModelSession, Lane]]:
    lane = session.open("conformance", room)
    yield session, lane
    with suppress(ForeignLane):  # one that was released before
        session.release(lane)


def _scored(session: ModelSession, lane: Lane, prompt: list[int]) -> Tensor:
    """The scores after a prefill of the first token, and a decode of each other."""
    scores = session.select(session.prepare([Prefill(lane, prompt[:1])]))
    for token in prompt[1:]:
        scores = session.select(session.prepare([Decode(lane, token)]))
    return scores.clone()


def _near(found: Tensor, wanted: Tensor, rule: str) -> None:
    """Equal up to the rounding of another shape of call."""
    far = f"scores that differ by up to {(found - wanted).abs().max()}"
    _require(torch.allclose(found, wanted, rtol=1e-3, atol=1e-3), rule, far)


def _same(found: Tensor, wanted: Tensor, rule: str) -> None:
    _require(torch.equal(found, wanted), rule, f"scores that differ by up to {(found - wanted).abs().max()}")


def _refused(call: Callable[[], object], kind: type[Problem], rule: str) -> None:
    try:
        call()
    except kind:
        return
    except Exception as raised:
        raise ModelNotConforming(f"{rule}, as {kind.__name__}", f"{type(raised).__name__}: {raised}") from raised
    raise ModelNotConforming(f"{rule}, as {kind.__name__}", "no error")
