"""A second run of a job makes the calls that its log records, so on one stack it comes to the same bits.

On the decoder here one prefill rounds otherwise than the calls that it stands for; so whatever a second run does in
another way than the log says shows in the digest of a score row.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cranks import admit, assert_audited, claim, engine, finish, state_of, turn
from databases import AnyStore
from test_known_faults import ENDLESS, decoding, selections

from decodelog.fsm.errors import CallFailed
from decodelog.fsm.machine.events import CallCompleted, LanesRebuilt
from decodelog.fsm.machine.events import CallFailed as CallHasFailed
from decodelog.fsm.reading.rebuilds import Rebuild, rebuilds
from decodelog.runtime.families.scripted.model import ScriptedModel
from decodelog.runtime.loop.batcher import Batcher
from decodelog.runtime.loop.context import Context
from decodelog.runtime.loop.segments import Segments
from decodelog.service.inspect import compare
from decodelog.service.inspect.audit import audit
from decodelog.service.inspect.compare import against_reexecution, reexecution_faults, told
from decodelog.service.retention.seal import seal
from decodelog.service.streams.reading import events_of
from decodelog.store.memory.log import MemoryStore

pytestmark = pytest.mark.contract("RES-3", "RES-4")

DRAFT: dict[str, Any] = {**ENDLESS, "max_new_tokens": 30, "prompt": "The river", "logprobs": 1}
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 11}


class Tenure(NamedTuple):
    """A worker that holds the job for some turns.

    form     how it brings lost lanes back, if no kept rows are there
    kept     whether it has a folder of caches, which all tenures share
    stopped  it is asked to stop (SIGTERM, Ctrl-C), and not killed
    scored   a snapshot was made repaired first: its call is in the log and its score row not consumed
    """

    turns: int
    form: str = "prefill"
    kept: bool = False
    stopped: bool = False
    scored: bool = False


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def of() -> ScriptedModel:
    return decoding(lanes=16)


def hold(store: AnyStore, of: ScriptedModel, folder: Path, jobs: list[str], tenure: Tenure, worker: str) -> None:
    segments = Segments(folder, every=4) if tenure.kept else None
    if tenure.scored:
        for job in jobs:
            leave_a_score_row(store, of, job, f"snapshot {worker}", segments)
    made = engine(store, of, *jobs, worker=worker, form=tenure.form, segments=segments)
    turn(made, tenure.turns)
    if tenure.stopped:
        made.close()
    if segments is not None:
        segments.close()


def leave_a_score_row(store: AnyStore, of: ScriptedModel, job: str, worker: str, segments: Segments | None) -> None:
    """The next call of the job, recorded without the decision on it, as a snapshot in its repaired form has it."""
    held = claim(store, job, worker, dead=tuple(store.owners()))
    engine(store, of).adopt(held, worker)
    batcher = Batcher(of, Context(segments=segments))
    for _ in range(2 if held.state.frontier.processed else 1):
        held.record(store, *batcher.call_alone(held).report)


def proven(store: AnyStore, of: ScriptedModel, *jobs: str) -> None:
    assert_audited(store)
    for job in jobs:
        verdict = against_reexecution(store, of, job)
        assert told(verdict).startswith("the same at all 6 levels"), told(verdict)
        assert reexecution_faults(store, of, job) == []


def lost(store: AnyStore, job: str) -> list[Rebuild]:
    return rebuilds(numbered.event for numbered in events_of(store, job))


LIVES = {
    "killed": [Tenure(5)],
    "stopped": [Tenure(5, stopped=True)],
    "killed in its prefill": [Tenure(0), Tenure(0)],
    "killed after its prefill": [Tenure(1)],
    "killed twice": [Tenure(3), Tenure(6)],
    "killed right after a rebuild, and again": [Tenure(6), Tenure(1), Tenure(1), Tenure(2)],
    "by calls": [Tenure(6, "reexecute"), Tenure(4, "reexecute")],
    "by calls, after a prefill, after calls": [Tenure(6), Tenure(3, "reexecute"), Tenure(3, "prefill"), Tenure(4)],
    "kept": [Tenure(6, kept=True), Tenure(5, kept=True)],
    "kept and stopped": [Tenure(6, kept=True, stopped=True), Tenure(5, kept=True, stopped=True)],
    "kept, then not": [Tenure(6, kept=True), Tenure(5)],
    "not kept, then kept": [Tenure(6), Tenure(5, kept=True), Tenure(5, kept=True)],
    "kept, not, and kept rows of the first again": [Tenure(9, kept=True), Tenure(3), Tenure(4, kept=True)],
    "kept from a rebuild on": [Tenure(7), Tenure(5, kept=True), Tenure(3, "reexecute"), Tenure(3, kept=True)],
    "with a score row": [Tenure(6), Tenure(3, scored=True), Tenure(2, scored=True)],
    "with a score row, by calls": [Tenure(6), Tenure(3, "reexecute", scored=True), Tenure(2)],
    "with a score row, kept": [Tenure(6, kept=True), Tenure(3, kept=True, scored=True), Tenure(2, kept=True)],
    "with a score row of the prompt": [Tenure(0), Tenure(3, scored=True)],
}


@pytest.mark.contract("LOG-7", "LOG-10")
@pytest.mark.parametrize("sampled", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("life", LIVES)
def test_a_job_is_run_again_to_the_same_bits_after_any_kills(
    store: AnyStore, of: ScriptedModel, tmp_path: Path, life: str, sampled: dict[str, Any]
) -> None:
    """A job is run again to the same bits whatever became of its workers."""
    job = admit(store, of, **DRAFT | sampled)
    for number, tenure in enumerate([*LIVES[life], Tenure(2)]):
        hold(store, of, tmp_path / "kept", [job], tenure, f"worker {number}")
        proven(store, of, job)  # also of a job that goes on
    finish(engine(store, of, job, worker="last"))
    proven(store, of, job)
    seal(store, job)
    assert reexecution_faults(store, of, job) == []


@pytest.mark.contract("POL-7", "LOG-10")
@pytest.mark.parametrize("seed", range(25))
def test_any_row_of_tenures_is_run_again_to_the_same_bits(tmp_path: Path, of: ScriptedModel, seed: int) -> None:
    store, draw = MemoryStore(), random.Random(seed)
    width = draw.choice([1, 1, 2, 3])
    drafts = [{**DRAFT, **draw.choice([{}, SAMPLED]), "batch_width": width, "prompt": "p" * draw.randint(1, 40)}] * 2
    jobs = [admit(store, of, **draft) for draft in drafts]
    for number in range(draw.randint(1, 5)):
        live = [job for job in jobs if not store.row(job).status.terminal]
        yes = [draw.random() < 0.5 for _ in range(3)]
        tenure = Tenure(draw.randint(0, 8), draw.choice(["prefill", "reexecute"]), *yes)
        hold(store, of, tmp_path / draw.choice(["kept", "others"]), live, tenure, f"worker {number}")
        if draw.random() < 0.2:
            shutil.rmtree(tmp_path / "kept", ignore_errors=True)
    proven(store, of, *jobs)
    for number, job in enumerate(job for job in jobs if not store.row(job).status.terminal):
        finish(engine(store, of, job, worker=f"last {number}"))
    proven(store, of, *jobs)


def test_what_the_log_says_of_its_lanes_is_what_decides(
    store: AnyStore, of: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above can fail: a second run that passes over the rebuilds has other bits."""
    job = admit(store, of, **DRAFT)
    hold(store, of, Path(), [job], Tenure(6), "first")
    hold(store, of, Path(), [job], Tenure(4), "second")
    frontier = len(state_of(store, job).spec.prompt) + 5
    assert lost(store, job) == [Rebuild(frontier, False, frontier)]
    proven(store, of, job)
    monkeypatch.setattr(compare, "rebuilds", lambda events: [])
    found = against_reexecution(store, of, job).found
    assert found is not None
    assert found[:3] == (6, "tensor", "scores")


def test_rows_that_are_put_back_say_of_which_calls_they_are(store: AnyStore, of: ScriptedModel, tmp_path: Path) -> None:
    """Rows that an earlier tenure kept are not those of the tenure before; both are what the log says."""
    job, folder = admit(store, of, **DRAFT), tmp_path / "kept"
    prompt = len(state_of(store, job).spec.prompt)
    for number, tenure in enumerate(LIVES["kept, not, and kept rows of the first again"]):
        hold(store, of, folder, [job], tenure, f"worker {number}")
    events = [numbered.event for numbered in events_of(store, job)]
    made = [event for event in events if isinstance(event, LanesRebuilt)]
    assert [(each.form, each.prefilled) for each in made] == [("prefill", prompt + 8), ("tensors", prompt)]
    assert lost(store, job) == [Rebuild(prompt + 8, False, prompt + 8), Rebuild(prompt + 10, False, prompt)]


def test_a_rebuild_by_calls_after_one_by_calls_is_the_lane_that_was_lost(store: AnyStore, of: ScriptedModel) -> None:
    whole = admit(store, of, **DRAFT)
    finish(engine(store, of, whole))
    job = admit(store, of, **DRAFT)
    for number in range(4):
        hold(store, of, Path(), [job], Tenure(5, "reexecute"), f"worker {number}")
    finish(engine(store, of, job, worker="last", form="reexecute"))
    assert selections(store, job) == selections(store, whole)
    assert lost(store, job) == []
    proven(store, of, job)


@pytest.mark.contract("CALL-9", "FSM-10")
def test_a_second_run_rebuilds_lanes_lost_to_failed_calls(
    store: AnyStore, of: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane that a failed call cost is made again in the second run too."""
    job = admit(store, of, **DRAFT)
    made, session = engine(store, of, job), of.session(1)
    turn(made, 5)
    with monkeypatch.context() as patched:
        patched.setattr(session, "select", failing)
        turn(made, 1)
    turn(made, 6)
    assert any(isinstance(numbered.event, CallHasFailed) for numbered in events_of(store, job))
    assert len(lost(store, job)) == 1
    proven(store, of, job)
    select, calls = session.select, iter(range(99))
    with monkeypatch.context() as patched:  # in the second run it says nothing about the first
        patched.setattr(session, "select", lambda ticket: select(ticket) if next(calls) != 7 else failing())
        proven(store, of, job)
        patched.setattr(session, "select", failing)
        with pytest.raises(CallFailed, match="no memory, in the second run"):
            reexecution_faults(store, of, job)


def failing(*_: object) -> None:
    raise RuntimeError("no memory")


def test_a_rebuild_counts_where_it_brings_rows_of_other_calls() -> None:
    digest, called = b"s" * 32, [CallCompleted(5, 5, b"s" * 32), CallCompleted(1, 6, b"s" * 32)]
    assert rebuilds(called) == []
    assert rebuilds([*called, LanesRebuilt("reexecute", 6, 5, b"")]) == []
    assert rebuilds([*called, LanesRebuilt("tensors", 0, 5, b"")]) == []
    assert rebuilds([*called, LanesRebuilt("prefill", 6, 6, b"")]) == [Rebuild(6, False, 6)]
    assert rebuilds([*called, LanesRebuilt("prefill", 6, 6, digest), LanesRebuilt("tensors", 1, 6, digest)]) == [
        Rebuild(6, True, 6)
    ]


def test_an_audit_of_resumed_jobs_has_no_fault(store: AnyStore, of: ScriptedModel, tmp_path: Path) -> None:
    jobs = [admit(store, of, **DRAFT | {"seed": seed, "temperature": 1.0, "batch_width": 2}) for seed in range(3)]
    for number, tenure in enumerate(LIVES["kept from a rebuild on"]):
        hold(store, of, tmp_path / "kept", jobs, tenure, f"worker {number}")
    assert audit(store).ok
    proven(store, of, *jobs)
