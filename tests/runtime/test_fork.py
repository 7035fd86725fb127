"""A fork: a prefix of a job goes on as a job of its own, and the job that it comes from is only read."""

from __future__ import annotations

from typing import Any

import pytest
from cranks import admit, assert_audited, engine, finish, model, result, run
from databases import AnyStore

from decodelog.fsm.errors import IdempotencyConflict, NoSuchStep, NotAdmissible, SchemaViolation
from decodelog.fsm.machine.events import Parent, RequestAdmitted
from decodelog.fsm.request.draft import Draft
from decodelog.fsm.request.envelope import Envelope
from decodelog.service.jobs.fork import FIELDS, fork
from decodelog.service.streams.reading import transcript_of

OF = model(seed=11, period=64)
SAMPLED: dict[str, Any] = {"temperature": 1.0, "top_k": 40, "seed": 5, "max_new_tokens": 12, "stop": ["zzz"]}
PROMPT_ONLY = {"prompt", "messages", "token_ids", "n", "trust_messages"}


def bytes_of(store: AnyStore, job: str) -> list[bytes]:
    return [record.chain for record in store.read(job)]


def envelope_of(store: AnyStore, job: str) -> Envelope:
    state = transcript_of(store, job).state
    assert state is not None
    return state.spec.envelope


@pytest.mark.contract("ENV-7", "POL-7")
def test_every_field_of_a_draft_has_a_plane_in_which_a_fork_takes_it() -> None:
    assert {field for fields in FIELDS.values() for field in fields} == set(Draft.model_fields) - PROMPT_ONLY


@pytest.mark.contract("ENV-8")
@pytest.mark.parametrize("step", [0, 1, 7, 12])
def test_a_fork_goes_on_from_the_prefix_and_the_parent_is_untouched(store: AnyStore, step: int) -> None:
    parent = run(store, OF, **SAMPLED)
    before = bytes_of(store, parent["job"])
    made = fork(store, OF, parent["job"], step, {"seed": 6}, 0)
    finish(engine(store, OF, made.job))
    done, origin = result(store, made.job), envelope_of(store, parent["job"])
    assert made.envelope.prompt.token_ids == (*origin.prompt.token_ids, *parent["token_ids"][:step])
    assert done["parent"] == {"job": parent["job"], "step": step}
    assert done["usage"]["completion_tokens"] == 12
    assert bytes_of(store, parent["job"]) == before
    assert result(store, parent["job"]) == parent
    admitted = next(iter(store.read(made.job))).events[0]
    assert isinstance(admitted, RequestAdmitted)
    assert admitted.parent == Parent(parent["job"], step)
    assert_audited(store)


@pytest.mark.contract("ENV-5")
def test_what_no_flag_speaks_of_is_as_it_was_and_what_one_does_is_new(store: AnyStore) -> None:
    parent = run(store, OF, **SAMPLED, alignment="span", retry_budget=9)
    origin = envelope_of(store, parent["job"])

    def forked(**flags: Any) -> Envelope:
        return fork(store, OF, parent["job"], 3, flags, 0).envelope

    plain = forked()
    assert (plain.policy, plain.termination, plain.output, plain.runtime) == (
        *(origin.policy, origin.termination, origin.output, origin.runtime),
    )
    assert plain.rng.seed != origin.rng.seed  # a fork's noise is its own
    cold = forked(temperature=0)
    assert (cold.policy.family, cold.policy.transforms, cold.rng.seed) == ("greedy", (), 0)
    assert cold.termination == origin.termination
    longer = forked(max_new_tokens=99)
    assert (longer.termination.max_new_tokens, longer.termination.stop_strings) == (99, ())
    assert longer.policy == origin.policy
    assert forked(seed=8).rng.seed == 8
    told = forked(temperature=1, logprobs=3)
    assert (told.policy.logprobs_top, told.output) == (3, origin.output)


@pytest.mark.contract("ENV-8")
def test_one_key_is_one_fork(store: AnyStore) -> None:
    parent = run(store, OF, **SAMPLED)
    first = fork(store, OF, parent["job"], 3, {}, 0, "key")
    again = fork(store, OF, parent["job"], 3, {}, 0, "key")
    assert (again.job, again.created) == (first.job, False)
    with pytest.raises(IdempotencyConflict, match="prompt"):
        fork(store, OF, parent["job"], 4, {}, 0, "key")


@pytest.mark.contract("ENV-6", "ENV-9")
def test_a_fork_with_another_model_is_refused_and_not_admitted(store: AnyStore) -> None:
    """A model that is not the parent's is refused and nothing is admitted."""
    parent = run(store, OF, **SAMPLED)
    for other in (model("Another text."), model(seed=12, period=64)):
        for flags in ({}, {"temperature": 0}, {"batch_width": 2}):
            with pytest.raises(NotAdmissible) as refused:
                fork(store, other, parent["job"], 3, flags, 0)
            assert refused.value.check.startswith("artifact.")
    assert [row.job for row in store.rows()] == [parent["job"]]
    made = fork(store, OF, parent["job"], 3, {"temperature": 0}, 0).envelope
    origin = envelope_of(store, parent["job"])
    assert (made.artifact, made.text_interface) == (origin.artifact, origin.text_interface)


def test_a_fork_of_a_running_job_keeps_what_is_committed(store: AnyStore) -> None:
    job = admit(store, OF, **SAMPLED)
    made = engine(store, OF, job)
    for _ in range(5):
        made.turn()
    made.flush()
    forked = fork(store, OF, job, 5, {}, 0)
    with pytest.raises(NoSuchStep):
        fork(store, OF, job, 6, {}, 0)
    finish(made)
    finish(engine(store, OF, forked.job, worker="second"))
    assert forked.envelope.prompt.token_ids[-5:] == tuple(result(store, job)["token_ids"][:5])
    assert_audited(store)


@pytest.mark.contract("OUT-5", "ENV-6")
def test_a_grammar_is_not_begun_anew_behind_a_prefix(store: AnyStore) -> None:
    of = model("2024!")
    parent = run(store, of, regex="[0-9]{4}", max_new_tokens=9)
    with pytest.raises(NotAdmissible, match="grammar"):
        fork(store, of, parent["job"], 2, {}, 0)
    assert fork(store, of, parent["job"], 0, {}, 0).created
    assert fork(store, of, parent["job"], 2, {"temperature": 0}, 0).created
    with pytest.raises(SchemaViolation):
        fork(store, of, parent["job"], 2, {"temperature": -1}, 0)
