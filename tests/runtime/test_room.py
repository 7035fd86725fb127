"""A lack of room is never a job's failure: what finds none waits, whole, for its turn here or elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cranks import admit, assert_audited, model, result
from databases import AnyStore
from tiny_model import fetched, reference, release, wheel
from workers import FAST, running, wait_for, worker

from decodelog.fsm.errors import NoFreeSlot, Problem
from decodelog.fsm.request.draft import draft_from
from decodelog.runtime.families.scripted.model import ScriptedModel
from decodelog.runtime.loop.context import Context
from decodelog.runtime.loop.engine import Engine
from decodelog.runtime.loop.worker import Worker
from decodelog.runtime.model.native import NativeModel
from decodelog.service.jobs.compose import check_job
from decodelog.service.jobs.submit import submit

__all__ = ["fetched", "reference", "release", "wheel"]


def crowding(of: ScriptedModel, slots: int) -> ScriptedModel:
    """A model that says nothing of its room, and has so much."""
    session = of.session(1)
    reserve = session.open

    def narrow(request: str, positions: int) -> Any:
        if len(session._origins) >= slots:
            raise NoFreeSlot(slots)
        return reserve(request, positions)

    vars(session)["open"] = narrow
    return of


@pytest.mark.contract("CALL-4", "LOG-7")
def test_more_jobs_than_a_model_has_lanes_all_end_well(
    store: AnyStore, fetched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, most = NativeModel(fetched, lanes=2), []
    jobs = [
        submit(
            store,
            of,
            "tiny",
            draft_from({"token_ids": [1, 5, 3], "max_new_tokens": 3, "batch_width": width, "ignore_eos": True}),
            0,
        ).job
        for width in (1, 2, 1, 2, 1, 2)
    ]
    adopt = Engine.adopt

    def counted(made: Engine, *each: Any) -> None:
        adopt(made, *each)
        most.append(len(made.jobs))

    monkeypatch.setattr(Engine, "adopt", counted)
    heard: dict[str, Problem] = {}
    worker(store, of, pace=replace(FAST, lanes_max=16), notice=heard.__setitem__).run(drain=True)
    done = [result(store, job) for job in jobs]
    assert [each["usage"]["completion_tokens"] for each in done] == [3] * 6
    assert {each["usage"]["attempts"] for each in done} == {1}  # no tenure in vain
    assert (heard, max(most)) == ({}, 2)
    assert {store.row(job).stalled for job in jobs} == {0}
    assert_audited(store)


@pytest.mark.contract("CALL-4", "LOG-7")
@pytest.mark.parametrize("beside", [True, False])
def test_a_job_that_finds_no_slot_is_given_back_as_it_is(store: AnyStore, beside: bool) -> None:
    of = crowding(model("Hello, world."), 2)
    heard: dict[str, Problem] = {}
    jobs = [admit(store, of, retry_budget=0) for _ in range(6)]
    pace = replace(FAST, lanes_max=16, beside=beside)
    worker(store, of, pace=pace, notice=heard.__setitem__).run(drain=True)
    assert [result(store, job)["text"] for job in jobs] == ["Hello, world."] * 6
    assert heard == {}
    assert_audited(store)


@pytest.mark.contract("LOG-7")
def test_a_model_without_any_slot_leaves_its_jobs_to_others(store: AnyStore) -> None:
    of = crowding(model("Hello"), 0)
    heard: dict[str, Problem] = {}
    job = admit(store, of)
    worker(store, of, notice=heard.__setitem__).run(drain=True)
    assert (heard[job].code, store.row(job).owner, store.row(job).finish) == ("no_free_slot", None, None)
    worker(store, model("Hello"), "worker-2").run(drain=True)
    assert result(store, job)["text"] == "Hello"


@pytest.mark.contract("LOG-7")
def test_a_full_model_is_left_to_others_and_another_model_s_jobs_are_taken(store: AnyStore) -> None:
    """Also where the jobs of the full one are older, and more than a claim takes."""
    models = {"narrow": model(seed=3, period=64), "wide": model("Hello")}
    models["narrow"].lanes = 1

    def admitted(name: str, **draft: Any) -> str:
        asked = draft_from({"prompt": "a", "max_new_tokens": 100_000, "ignore_eos": name == "narrow", **draft})
        return submit(store, models[name], name, asked, 0).job

    older = [admitted("narrow") for _ in range(6)]
    made = Worker(
        "worker-1",
        store,
        lambda wanted: models[wanted.name],
        check_job,
        lambda: 0,
        Context(pace=replace(FAST, claims_max=2)),
    )
    with running(made):
        wait_for(lambda: store.row(older[0]).output > 0)
        newer = admitted("wide")
        wait_for(lambda: store.row(newer).finish == "eos")
        assert {store.row(job).owner for job in older[1:]} == {None}
        assert max(store.row(job).fence for job in older) <= 2
    assert store.row(older[0]).finish is None
