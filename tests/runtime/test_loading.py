"""A model that cannot be made ready here, or not in time, is a reason to leave its jobs to others, and no more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from cranks import LEASE_MS, assert_audited, model, result
from databases import AnyStore, wall_clock_ms
from workers import ENDLESS, FAST, running, wait_for

from decodelog.fsm.errors import BrokenArtifact, NotRunnableHere, Problem
from decodelog.fsm.ports import ModelRef
from decodelog.fsm.request.draft import draft_from
from decodelog.runtime.families.scripted.model import ScriptedModel
from decodelog.runtime.host import THREADS
from decodelog.runtime.loop.context import Context
from decodelog.runtime.loop.loading import Loading
from decodelog.runtime.loop.worker import Worker
from decodelog.service.jobs.compose import check_job
from decodelog.service.jobs.submit import submit


class PanicException(BaseException):
    """As a library in Rust raises it."""


def admitted(store: AnyStore, name: str, of: ScriptedModel, **draft: Any) -> str:
    return submit(store, of, name, draft_from({"prompt": "a", **draft}), 0).job


def lease_of(store: AnyStore, job: str) -> int:
    until_ms = store.row(job).lease_until_ms
    assert until_ms is not None
    return until_ms


def worker(
    store: AnyStore, load: Callable[[ModelRef], Any], heard: dict[str, Problem], name: str = "worker-1", **pace: Any
) -> Worker:
    context = Context(notice=heard.__setitem__, pace=replace(FAST, **pace))
    return Worker(name, store, load, check_job, wall_clock_ms, context)


@pytest.mark.contract("LOG-7", "CALL-9")
def test_a_load_that_hangs_holds_nobody_up_and_gives_its_jobs_back(store: AnyStore) -> None:
    """The other model's job is claimed while the first one hangs, and runs to its end."""
    go_on, of = threading.Event(), model("Hello")
    heard: dict[str, Problem] = {}

    def load(wanted: ModelRef) -> Any:
        if wanted.name == "stuck":
            go_on.wait()
        return of

    stuck = [admitted(store, "stuck", of) for _ in range(3)]
    good = admitted(store, "good", of)
    try:
        worker(store, load, heard, load_ms=400).run(drain=True)
        assert result(store, good)["text"] == "Hello"
        assert {heard[job].code for job in stuck} == {"not_runnable_here"}
        assert "the model stuck" in str(heard[stuck[0]])
        assert "more than 0.4 s" in str(heard[stuck[0]])
        assert {(store.row(job).owner, store.row(job).finish, store.row(job).stalled) for job in stuck} == {
            (None, None, 0)
        }
    finally:
        go_on.set()
    worker(store, lambda name: of, heard, "worker-2").run(drain=True)
    assert {result(store, job)["text"] for job in stuck} == {"Hello"}
    assert_audited(store)


@pytest.mark.contract("LOG-7")
def test_a_load_longer_than_a_lease_keeps_its_job(store: AnyStore) -> None:
    """A load that takes longer than a lease keeps its job and others their turns."""
    go_on = threading.Event()
    heard: dict[str, Problem] = {}
    models = {"slow": model("Hello"), "endless": model(**ENDLESS)}

    def load(wanted: ModelRef) -> Any:
        if wanted.name == "slow":
            go_on.wait()
        return models[wanted.name]

    endless = admitted(store, "endless", models["endless"], max_new_tokens=100_000, ignore_eos=True)
    with running(worker(store, load, heard, lease_ms=300)):
        wait_for(lambda: store.row(endless).output > 0)
        slow = admitted(store, "slow", models["slow"])
        wait_for(lambda: store.row(slow).owner is not None)
        until = lease_of(store, slow)
        wait_for(lambda: lease_of(store, slow) > until + 600)
        output = store.row(endless).output
        wait_for(lambda: store.row(endless).output > output)
        go_on.set()
        wait_for(lambda: store.row(slow).finish == "eos")
    assert (result(store, slow)["usage"]["attempts"], heard) == (1, {})


@pytest.mark.contract("LOG-7")
def test_a_model_that_is_ready_too_late_serves_the_next_job(store: AnyStore) -> None:
    go_on, of = threading.Event(), model("Hello")
    heard: dict[str, Problem] = {}
    late = admitted(store, "late", of)
    with running(worker(store, lambda name: (go_on.wait(), of)[1], heard, load_ms=1)):
        wait_for(lambda: late in heard)
        go_on.set()

        def settled(job: str) -> bool:
            return store.row(job).finish is not None or job in heard

        following = admitted(store, "late", of)
        wait_for(partial(settled, following))
        while following in heard:  # the thread that has loaded it had no time yet
            following = admitted(store, "late", of)
            wait_for(partial(settled, following))
    assert result(store, following)["text"] == "Hello"


@pytest.mark.contract("LOG-7", "ENV-9")
@pytest.mark.parametrize(
    "raised",
    [ImportError("no such library"), PanicException("a slice is too short"), MemoryError(), RecursionError("too deep")],
    ids=lambda raised: type(raised).__name__,
)
@pytest.mark.parametrize("place", ["load", "weights"])
def test_whatever_a_library_raises_is_a_typed_reason_and_ends_nobody(
    store: AnyStore, raised: BaseException, place: str
) -> None:
    of = model("Hello")
    heard: dict[str, Problem] = {}

    class Heavy:
        def __getattr__(self, name: str) -> Any:
            if name == "recorded":
                raise raised
            return getattr(of, name)

    def load(wanted: ModelRef) -> Any:
        if wanted.name == "bad" and place == "load":
            raise raised
        return Heavy() if wanted.name == "bad" else of

    bad, good = admitted(store, "bad", of), admitted(store, "good", of)
    worker(store, load, heard).run(drain=True)
    assert result(store, good)["text"] == "Hello"
    assert (heard[bad].code, store.row(bad).owner) == ("not_runnable_here", None)
    assert type(raised).__name__ in str(heard[bad])
    assert str(raised) in str(heard[bad])
    assert not store.claim("next", LEASE_MS, 9, [bad])[0].stalled


@pytest.mark.contract("LOG-7")
def test_a_model_that_failed_once_is_tried_again_for_the_next_job(store: AnyStore) -> None:
    of, loads = model("Hello"), list[str]()
    heard: dict[str, Problem] = {}

    def load(wanted: ModelRef) -> Any:
        loads.append(wanted.name)
        if len(loads) == 1:
            raise BrokenArtifact(wanted.name, "is being copied")
        return of

    first, second = admitted(store, "of", of), admitted(store, "of", of)
    worker(store, load, heard, claims_max=1).run(drain=True)
    assert (heard[first].code, len(loads)) == ("broken_artifact", 2)
    assert result(store, second)["text"] == "Hello"


def test_what_is_to_end_the_process_is_no_result_of_a_load() -> None:
    ended: list[str] = []

    class Host:
        monotonic_s = THREADS.monotonic_s
        flag = THREADS.flag

        def start(self, run: Callable[[], object], name: str) -> None:
            with pytest.raises(SystemExit):
                run()
            ended.append(name)

    def leave() -> None:
        raise SystemExit

    host: Any = Host()
    loading = Loading("it", leave, 0.0, host)
    assert ended == ["loading it"]
    with pytest.raises(NotRunnableHere):
        loading.result()
