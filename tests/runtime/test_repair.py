"""A final cache with every token: one more call, whose scores nobody uses, between the last commit and the end."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from cranks import admit, assert_audited, engine, finish, model, result, run, state_of, turn
from databases import AnyStore
from test_text_faults import says

from decodelog.fsm.machine.events import CallCompleted, Event, RequestClosed
from decodelog.fsm.machine.states import Suffix
from decodelog.fsm.request.finish import FinishReason
from decodelog.runtime.families.scripted.model import ScriptedModel
from decodelog.runtime.families.scripted.script import Fault, Script, ScriptedConfig

pytestmark = pytest.mark.contract("FSM-8", "RES-1")

REPAIRED: dict[str, Any] = {"final_cache": "repaired"}
DRAFTS: list[dict[str, Any]] = [
    {},
    {"max_new_tokens": 3},
    {"max_new_tokens": 1},
    {"stop": [", w"]},
    {"temperature": 1.0},
]


def events(store: AnyStore, job: str) -> list[Event]:
    return [event for record in store.read(job) for event in record.events]


@pytest.mark.parametrize("draft", DRAFTS, ids=str)
def test_every_token_is_processed_and_nothing_else_is_different(store: AnyStore, draft: dict[str, Any]) -> None:
    draft = {"seed": 5, **draft} if "temperature" in draft else draft
    plain, whole = (run(store, model(), **draft, **also) for also in ({}, REPAIRED))
    for name in ("text", "token_ids", "tokens", "finish_reason", "usage"):
        assert whole[name] == plain[name]
    for done, unprocessed in ((plain, 1), (whole, 0)):
        frontier = state_of(store, done["job"]).frontier
        assert frontier.processed + unprocessed == frontier.prompt + frontier.output
        assert frontier.suffix is (Suffix.CLOSED_UNPROCESSED if unprocessed else Suffix.EMPTY)
    tags = [event.tag for event in events(store, whole["job"])]
    assert tags[-3:] == ["output.committed", "call.completed", "request.closed"]
    # The two last are one append: no crash leaves a score row that nobody may use.
    assert [event.tag for event in list(store.read(whole["job"]))[-1].events] == tags[-2:]
    assert_audited(store)


@pytest.mark.contract("RES-4", "LOG-10")
@pytest.mark.parametrize("turns", range(1, 6))
@pytest.mark.parametrize("form", ["prefill", "reexecute"])
def test_a_worker_that_dies_before_the_repair_leaves_it_to_the_next(store: AnyStore, turns: int, form: str) -> None:
    of = model("Hey")
    job = admit(store, of, **REPAIRED)
    turn(engine(store, of, job), turns)
    if not store.row(job).status.terminal:
        finish(engine(store, of, job, worker="second", form=form))
    done, state = result(store, job), state_of(store, job)
    assert (done["text"], done["finish_reason"]) == ("Hey", "eos")
    assert state.frontier.processed == state.frontier.prompt + state.frontier.output == 5 + 4
    assert sum(isinstance(event, CallCompleted) for event in events(store, job)) == 5
    assert_audited(store)


@pytest.mark.contract("FSM-10")
@pytest.mark.parametrize(("times", "state"), [(2, "CLOSED"), (None, "FAILED")])
def test_a_failed_repair_is_retried_and_in_the_end_fails_the_job(
    store: AnyStore, times: int | None, state: str
) -> None:
    """A repair that fails is tried again and a promise that cannot be kept fails the job."""
    of = model("Hey", faults=(Fault(step=4, kind="raise", times=times),))
    done = run(store, of, **REPAIRED)
    assert (done["state"], done["text"]) == (state, "Hey")
    assert done["usage"]["completion_tokens"] == 4
    assert done.get("error", {}).get("code") == (None if times else "call_failed")
    assert_audited(store)


@pytest.mark.contract("FSM-9", "FSM-7")
def test_a_cancel_before_the_repair_keeps_all_text(store: AnyStore) -> None:
    """A cancel before the repair ends the job as cancelled with all of its text."""
    of = model("Hey")
    job = admit(store, of, **REPAIRED)
    made = engine(store, of, job)
    turn(made, 4)
    assert store.row(job).output == 4
    made.turn(lambda: {job: [FinishReason.CANCELLED]})
    made.close()
    done = result(store, job)
    assert (done["text"], done["finish_reason"], done["usage"]["completion_tokens"]) == ("Hey", "cancelled", 4)
    assert state_of(store, job).frontier.suffix is Suffix.CLOSED_UNPROCESSED
    assert_audited(store)


@pytest.mark.contract("CALL-4")
def test_a_repaired_last_token_has_a_row_in_a_full_context(
    store: AnyStore,
) -> None:
    """As long as the context allows: the repair takes the last position, so the output is one token shorter."""
    of = ScriptedModel(ScriptedConfig(script=Script(text="abcdefgh", then="repeat"), context=6))
    for draft, tokens, unprocessed in ((REPAIRED, 5, 0), ({}, 6, 1)):
        prompt = {"token_ids": [257], "max_new_tokens": "until_context"}
        job = admit(store, of, ignore_eos=True, **prompt, **draft)
        finish(engine(store, of, job))
        done, state = result(store, job), state_of(store, job)
        assert state is not None
        assert (done["text"], done["finish_reason"]) == ("abcdefgh"[:tokens], "context_limit")
        assert (state.frontier.processed, state.frontier.unprocessed) == (6, unprocessed)
        assert state.spec.rows == 6
    assert_audited(store)


@pytest.mark.contract("CALL-4")
@pytest.mark.parametrize(("draft", "prompt"), [({}, 6), (REPAIRED, 5)])
def test_a_prompt_may_fill_the_context_but_for_a_processed_token(
    store: AnyStore, draft: dict[str, Any], prompt: int
) -> None:
    """A prompt may fill the context but for the row of a token that is processed."""
    of = ScriptedModel(ScriptedConfig(script=Script(text="abcdefgh", then="repeat"), context=6))
    job = admit(store, of, ignore_eos=True, token_ids=[257] * prompt, max_new_tokens=1, **draft)
    finish(engine(store, of, job))
    assert len(result(store, job)["token_ids"]) == 1
    assert state_of(store, job).spec.rows == 6


def test_the_last_token_has_a_row_in_a_batch(store: AnyStore) -> None:
    of = model("Hello, world.")
    jobs = [admit(store, of, token_ids=[257], max_new_tokens=most, batch_width=2, **REPAIRED) for most in (2, 5, 9)]
    finish(engine(store, of, *jobs))
    assert [result(store, job)["text"] for job in jobs] == ["He", "Hello", "Hello, wo"]
    assert [state_of(store, job).frontier.unprocessed for job in jobs] == [0, 0, 0]


def test_without_output_there_is_nothing_to_repair(store: AnyStore) -> None:
    done = run(store, model(), max_new_tokens=0, zero_token_choice="prefill_only", **REPAIRED)
    frontier = state_of(store, done["job"]).frontier
    assert (done["finish_reason"], frontier.processed, frontier.output) == ("length", frontier.prompt, 0)


# ---- ends that were reached before the repair ----------------------------------------------------------------------


@pytest.mark.contract("FSM-7", "FSM-9")
@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.TIMEOUT])
def test_triggers_before_the_repair_are_recorded_with_an_outside_end(store: AnyStore, reason: FinishReason) -> None:
    """What held before the repair is recorded beside an end from outside."""
    of = model("Hey you")
    job = admit(store, of, max_new_tokens=2, **REPAIRED)
    made = engine(store, of, job)
    turn(made, 2)
    made.turn(lambda: {job: [reason]})
    made.close()
    last = events(store, job)[-1]
    assert isinstance(last, RequestClosed)
    assert (last.reason, last.triggers) == (reason, (reason, FinishReason.LENGTH))
    assert_audited(store)


@pytest.mark.contract("OUT-5", "RES-4", "LOG-10")
@pytest.mark.parametrize("turns", [1, 10, 19, 20, 21])
def test_a_structure_that_cannot_go_on_is_repaired_by_whoever_comes_next(store: AnyStore, turns: int) -> None:
    schema = {"type": "object", "patternProperties": {"^[ab]$": {"type": "null"}}, "additionalProperties": False}
    draft = {"json_schema": schema, **REPAIRED}
    of = model('{"a":null,"b":null,"a')
    expected = run(store, of, **draft)
    assert expected["finish_reason"] == "structured_error"
    job = admit(store, of, **draft)
    turn(engine(store, of, job), turns)
    if not store.row(job).status.terminal:
        finish(engine(store, of, job, worker="second"))
    done = result(store, job)
    for name in ("text", "finish_reason", "structure_complete", "token_ids"):
        assert done[name] == expected[name]
    assert state_of(store, job).frontier.unprocessed == 0
    assert_audited(store)


@pytest.mark.contract("OUT-5", "FSM-9")
def test_a_structure_cut_by_a_stop_is_incomplete(store: AnyStore) -> None:
    """A structure whose end a stop cut off is incomplete however the job ends."""
    of = says([b'{"a":', b"1", b"}"])
    job = admit(store, of, stop=["}"], stop_on_json=True, **REPAIRED)
    made = engine(store, of, job)
    turn(made, 3)
    made.turn(lambda: {job: [FinishReason.CANCELLED]})
    made.close()
    done = result(store, job)
    assert (done["text"], done["finish_reason"], done["structure_complete"]) == ('{"a":1', "cancelled", False)


@pytest.mark.contract("FSM-10")
@pytest.mark.parametrize("kind", ["nan", "infinity"])
@pytest.mark.parametrize(
    ("draft", "step", "text"),
    [(REPAIRED, 4, "Hey"), ({"max_new_tokens": 0, "zero_token_choice": "prefill_only"}, 0, "")],
)
def test_a_row_that_is_not_finite_is_a_fault_also_where_nobody_uses_it(
    store: AnyStore, kind: Literal["raise", "nan", "infinity"], draft: dict[str, Any], step: int, text: str
) -> None:
    done = run(store, model("Hey", faults=(Fault(step=step, kind=kind),)), **draft)
    assert (done["state"], done["text"], done["error"]["code"]) == ("FAILED", text, "non_finite_scores")
    assert_audited(store)
