"""A job beside its request run again: the same at every level, whatever became of its workers."""

from __future__ import annotations

from typing import Any

import pytest
from cranks import admit, assert_audited, engine, finish, model, run, turn
from databases import AnyStore
from test_known_faults import ENDLESS, decoding

from decodelog.fsm.reading.compare import compare
from decodelog.service.inspect.compare import against_reexecution, plain, reexecuted, run_in, told

pytestmark = pytest.mark.contract("RES-3", "RES-4", "LOG-3")

DRAFTS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 4, "logprobs": 2},
    {"stop": ["or"], "include_stop": True},
    {"echo_prompt": True, "prompt_logprobs": 1, "final_cache": "repaired"},
    {"regex": "[A-Z][a-z]+, [a-z]+[.]"},
]


@pytest.mark.parametrize("draft", DRAFTS, ids=str)
def test_a_killed_and_resumed_job_is_the_run_that_nobody_killed(store: AnyStore, draft: dict[str, Any]) -> None:
    of = model()
    job = admit(store, of, **draft)
    turn(engine(store, of, job), 4)
    finish(engine(store, of, job, worker="second", form="reexecute"))
    assert_audited(store)
    verdict, steps = against_reexecution(store, of, job), len(run_in(store, job).steps)
    assert tuple(verdict) == (None, steps, "state", (True, True))
    assert told(verdict) == f"the same at all 6 levels, {steps} steps"
    assert (plain(verdict)["same"], plain(verdict)["steps"]) == (True, steps)


@pytest.mark.parametrize("form", ["prefill", "reexecute"])
def test_on_a_real_decoder_a_second_run_makes_the_calls_that_the_log_has(store: AnyStore, form: str) -> None:
    """One prefill of what were many calls rounds otherwise, and so it does in the second run."""
    of = decoding(lanes=8)
    job = admit(store, of, **ENDLESS)
    turn(engine(store, of, job), 6)
    finish(engine(store, of, job, worker="second", form=form))
    assert compare(run_in(store, job), reexecuted(store, of, job)) is None


def test_a_job_that_goes_on_is_compared_as_far_as_it_has_come(store: AnyStore) -> None:
    of = model()
    job = admit(store, of)
    turn(engine(store, of, job), 5)
    assert compare(run_in(store, job), reexecuted(store, of, job)) is None


def test_another_model_is_found_out(store: AnyStore) -> None:
    done = run(store, model("Hello"))
    other = model("Jello")
    other.facts = model("Hello").facts  # it says that it is the same
    verdict = against_reexecution(store, other, done["job"])
    assert verdict.found is not None
    assert verdict.found[:3] == (0, "tensor", "scores")
    assert told(verdict).startswith("tensor: step 0 differs in scores")
    facts = plain(verdict)
    assert (facts["same"], facts["level"], len(facts["left"])) == (False, "tensor", 64)
