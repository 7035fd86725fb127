"""Model calls: the lanes, the caches and the sessions that they need, and how they end."""

from __future__ import annotations

from dataclasses import dataclass

from .problem import Rejected, Transient


@dataclass(eq=False)
class EmptyPrompt(Rejected):
    code = "empty_prompt"
    says = "request {request} has no prompt token; give it at least one"
    request: str


@dataclass(eq=False)
class PromptTooLong(Rejected):
    code = "prompt_too_long"
    says = "request {request} has {tokens} prompt tokens and room for {capacity}; shorten the prompt or reserve more"
    request: str
    tokens: int
    capacity: int


@dataclass(eq=False)
class TokenOutOfRange(Rejected):
    code = "token_out_of_range"
    says = "request {request}: token {token} at position {position} is not in [0, {vocabulary_size}); correct it"
    request: str
    position: int
    token: int
    vocabulary_size: int


@dataclass(eq=False)
class PrefillNeedsEmptyLane(Rejected):
    code = "prefill_needs_empty_lane"
    says = "request {request} already holds {length} positions; reset its lane before another prefill"
    request: str
    length: int


@dataclass(eq=False)
class DecodeNeedsPrefill(Rejected):
    code = "decode_needs_prefill"
    says = "request {request} has an empty lane; prefill its prompt before decoding"
    request: str


@dataclass(eq=False)
class LaneFull(Rejected):
    code = "lane_full"
    says = "request {request} has used all {capacity} positions of its lane; finish it, or reserve a larger lane"
    request: str
    capacity: int


@dataclass(eq=False)
class LaneTooLarge(Rejected):
    code = "lane_too_large"
    says = "request {request} asks for {positions} positions of {maximum}; ask for fewer"
    request: str
    positions: int
    maximum: int


@dataclass(eq=False)
class NoFreeSlot(Transient):
    code = "no_free_slot"
    says = "all {slots} slots of the cache are taken; release a lane, or wait for one"
    slots: int


@dataclass(eq=False)
class ForeignLane(Rejected):
    """The lane is closed, or another cache's, or named twice in one call."""

    code = "foreign_lane"
    says = "the lane of request {request} {reason}; reserve a lane for it in this session"
    request: str
    reason: str


@dataclass(eq=False)
class SessionMismatch(Rejected):
    """A cache and a model that do not belong together: `field` names what differs (CALL-3)."""

    code = "session_mismatch"
    says = "{field} differs: the cache has {cache}, the model has {model}; make a new cache for this model"
    field: str
    cache: str
    model: str


@dataclass(eq=False)
class SessionClosed(Rejected):
    code = "session_closed"
    says = "this session is closed; bind the model and the cache again"


@dataclass(eq=False)
class SessionOfAnotherThread(Rejected):
    """A session has one set of buffers; two threads in it would overwrite each other's numbers."""

    code = "session_of_another_thread"
    says = (
        "this session belongs to the thread {owner}, and {caller} called it; "
        "open a session of its own in each thread: they may share the model's weights"
    )
    owner: str
    caller: str


@dataclass(eq=False)
class UnequalRows(Rejected):
    """A probe of the running stack found that the bits of a row depend on its place in the call (POL-7)."""

    code = "unequal_rows"
    says = (
        "on this machine no call can serve a batch width of {width}: a request's bits depend on its slot; "
        "run the job elsewhere, or with another build of torch or number of threads"
    )
    width: int


@dataclass(eq=False)
class OptimizerStepRefused(Rejected):
    code = "optimizer_step_refused"
    says = "a session is reading these parameters, so nothing was updated; close the session before the optimizer steps"


@dataclass(eq=False)
class CallFailed(Transient):
    """ALL_OLD: the computation itself failed."""

    code = "call_failed"
    says = "the model call failed ({reason}) and nothing advanced; call again, within the request's retry budget"
    reason: str


@dataclass(eq=False)
class PreparedCacheChanged(Transient):
    """ALL_OLD: between prepare and select a lane's storage, length or model changed (CALL-2)."""

    code = "prepared_cache_changed"
    says = "the {what} of request {request} changed after the call was prepared; nothing advanced: prepare it again"
    request: str
    what: str


@dataclass(eq=False)
class RosterIncomplete(Transient):
    """ALL_OLD: a declared compute stage or state lane did not complete (CALL-1)."""

    code = "roster_incomplete"
    says = "the call ended without {missing}; nothing advanced: prepare the call again"
    missing: list[str]


@dataclass(eq=False)
class ScoreNotConsumable(Rejected):
    code = "score_not_consumable"
    says = "this call's scores are not consumable: the call is {state}; select the call first, and once"
    state: str
