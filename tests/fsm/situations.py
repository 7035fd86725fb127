"""Where a job can stand, each as a job that was brought there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobs import Live, call, decision, prompt_tokens

from decodelog.fsm.machine.state import State
from decodelog.fsm.machine.transition import CloseRequest, FailCall, FailRequest, RecordPrompt
from decodelog.fsm.request.finish import FinishReason


def admitted() -> Live:
    live = Live.admit(retry_budget=1, stop_ids=[9])
    live.attempt()
    return live


def prefilled() -> Live:
    live = admitted()
    live.turn(50)
    live.do(call(live.state))
    return live


def decided(token: int = 51) -> Live:
    live = prefilled()
    live.do(decision(token))
    return live


def pending() -> Live:
    live = prefilled()
    live.turn(51)
    return live


def spent() -> Live:
    live = pending()
    live.do(FailCall("call_failed", "first"))
    return live


def closed() -> Live:
    live = prefilled()
    live.turn(9)
    return live


def cancelled() -> Live:
    live = decided()
    live.do(CloseRequest(FinishReason.CANCELLED))
    return live


def failed() -> Live:
    live = pending()
    live.do(FailRequest("non_finite_scores", "a row"))
    return live


def no_call() -> Live:
    return Live.admit(max_new=0, zero="no_call")


def prefill_only() -> Live:
    return Live.admit(max_new=0, zero="prefill_only")


def zero_prefilled() -> Live:
    live = prefill_only()
    live.do(call(live.state))
    return live


def echo(**options: Any) -> Live:
    return Live.admit(echo=True, **options)


def echoed() -> Live:
    live = echo()
    live.do(RecordPrompt(prompt_tokens(live.state)))
    return live


def unechoed() -> Live:
    live = echo()
    live.do(call(live.state))
    return live


def to_score(**options: Any) -> Live:
    return Live.admit(extras=[{"kind": "prompt_logprobs", "top": 2}], **options)


def scored(**options: Any) -> Live:
    live = to_score(**options)
    live.do(call(live.state))
    return live


def repair() -> Live:
    """The output has ended, and its last token is to be processed."""
    live = Live.admit(stop_ids=[9], final_cache="repaired")
    live.turn(50)
    live.turn(9)
    return live


def repaired() -> Live:
    live = repair()
    live.do(call(live.state))
    return live


def recorded() -> Live:
    live = scored()
    live.do(RecordPrompt(prompt_tokens(live.state)))
    return live


STATES: dict[str, Callable[[], Live]] = {
    "ADMITTED": admitted,
    "PREFILLED": prefilled,
    "DECIDED": decided,
    "PENDING": pending,
    "CLOSED": closed,
    "FAILED": failed,
}
SITUATIONS: dict[str, Callable[[], Live]] = {
    "FRESH": lambda: Live.admit(),
    "LAST": lambda: decided(9),
    "SPENT": spent,
    "CANCELLED": cancelled,
    "NO_CALL": no_call,
    "PREFILL_ONLY": prefill_only,
    "ZERO_PREFILLED": zero_prefilled,
    "ECHO": echo,
    "ECHOED": echoed,
    "UNECHOED": unechoed,
    "TO_SCORE": to_score,
    "SCORED": scored,
    "RECORDED": recorded,
    "REPAIR": repair,
    "REPAIRED": repaired,
    "ECHO_NO_CALL": lambda: echo(max_new=0, zero="no_call"),
    "SCORE_ONLY": lambda: scored(max_new=0, zero="prefill_only"),
}


def held(state: State) -> bytes:
    return state.receipt.receipt_id if state.receipt is not None else state.last_receipt
