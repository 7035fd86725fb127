"""Kept caches: a resume computes nothing again, and files that are wrong cost time and never a wrong row."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cranks import (
    LEASE_MS,
    WORKER,
    admit,
    assert_audited,
    claim,
    engine,
    finish,
    model,
    result,
    run,
    state_of,
    turn,
)
from databases import AnyStore, wall_clock_ms
from test_known_faults import CONFIG, decoding, selections

from decodelog.fsm.errors import ForeignLane, PrefillNeedsEmptyLane, PromptTooLong, SessionMismatch
from decodelog.fsm.limits import TENURES_STALLED_MAX
from decodelog.fsm.machine.events import Event, LanesRebuilt
from decodelog.runtime.families.decoder.model import seeded_decoder
from decodelog.runtime.families.scripted.model import ScriptedModel
from decodelog.runtime.families.session import Decode, Prefill, Session
from decodelog.runtime.loop import segments as segments_module
from decodelog.runtime.loop.context import Context
from decodelog.runtime.loop.engine import Engine
from decodelog.runtime.loop.segments import Chain, Segments
from decodelog.runtime.loop.worker import Worker
from decodelog.runtime.model.port import Model
from decodelog.service.jobs.cancel import cancel
from decodelog.service.jobs.compose import check_job
from decodelog.service.retention.erase import erase

pytestmark = pytest.mark.contract("RES-2", "RES-4")

EVERY = 4
AHEAD = 2  # steps on which the crank may be ahead of the log
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 9, "ignore_eos": True, "max_new_tokens": 23, "logprobs": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


@pytest.fixture
def of() -> ScriptedModel:
    return decoding(lanes=8)


@pytest.fixture(autouse=True)
def no_row_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model here is faster than a disk; so that the files do not depend on it, each turn's rows are handed over."""
    monkeypatch.setattr(segments_module, "WAITING_MAX", 1_000)


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.safetensors"))


def rebuilds(store: AnyStore, job: str) -> list[tuple[str, int]]:
    events: list[Event] = [event for record in store.read(job) for event in record.events]
    return [(event.form, event.tokens) for event in events if isinstance(event, LanesRebuilt)]


def begun(store: AnyStore, of: Model, folder: Path, turns: int, **draft: Any) -> tuple[str, Engine, Segments]:
    """A job after so many turns, with a cache that is kept."""
    job, segments = admit(store, of, **{**SAMPLED, **draft}), Segments(folder, EVERY)
    made = engine(store, of, job, segments=segments)
    turn(made, turns)
    return job, made, segments


def killed(store: AnyStore, of: Model, folder: Path, turns: int, **draft: Any) -> str:
    """The same, with nothing kept but what was on its way to the disk."""
    job, _, segments = begun(store, of, folder, turns, **draft)
    segments.close()
    return job


def resumed(store: AnyStore, of: Model, folder: Path, job: str, worker: str = "second") -> dict[str, Any]:
    segments = Segments(folder, EVERY)
    made = engine(store, of, job, worker=worker, segments=segments)
    finish(made)
    made.close()
    segments.close()
    assert_audited(store)
    return result(store, job)


# ---- the job goes on to the same bits --------------------------------------------------------------------------------


@pytest.mark.contract("RES-3", "LOG-10")
@pytest.mark.parametrize("turns", [1, 2, 4, 5, 12, 22])
def test_a_killed_job_computes_nothing_again_and_ends_with_the_same_bits(
    store: AnyStore, of: Model, folder: Path, turns: int
) -> None:
    whole = run(store, of, **SAMPLED)
    job = killed(store, of, folder, turns)
    done = resumed(store, of, folder, job)
    assert selections(store, job) == selections(store, whole["job"])  # draws, margins, log-probabilities: every bit
    assert done["text"] == whole["text"]
    assert rebuilds(store, job) == [("tensors", 0)]
    assert done["usage"]["recomputed_tokens"] == 0


@pytest.mark.parametrize("turns", [1, 2, 3, 4, 9])
def test_a_worker_that_is_stopped_leaves_nothing_to_compute_again(
    store: AnyStore, of: Model, folder: Path, turns: int
) -> None:
    whole = run(store, of, **SAMPLED)
    job, made, segments = begun(store, of, folder, turns)
    made.close()
    segments.close()
    done = resumed(store, of, folder, job)
    assert rebuilds(store, job) == [("tensors", 0)]
    assert done["usage"]["recomputed_tokens"] == 0
    assert selections(store, job) == selections(store, whole["job"])


def test_a_job_may_be_killed_again_and_again(store: AnyStore, of: Model, folder: Path) -> None:
    whole = run(store, of, **SAMPLED)
    job = killed(store, of, folder, 3)
    for round in range(4):
        segments = Segments(folder, EVERY)
        turn(engine(store, of, job, worker=f"worker {round}", segments=segments), 4)
        segments.close()
        starts = [path.name[:8] for path in kept(folder)]
        assert len(starts) == len(set(starts))  # one chain, and nothing beside it
    resumed(store, of, folder, job, "last")
    assert selections(store, job) == selections(store, whole["job"])
    assert rebuilds(store, job) == [("tensors", 0)] * 5


def test_many_rows_at_once_are_several_segments(
    store: AnyStore, of: Model, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments_module, "ROWS_MAX", 3)
    whole = run(store, of, **SAMPLED)
    job = killed(store, of, folder, 6)
    sizes = [int(path.name[9:17]) - int(path.name[:8]) for path in kept(folder)]
    assert max(sizes) == 3
    resumed(store, of, folder, job)
    assert selections(store, job) == selections(store, whole["job"])
    assert [form for form, _ in rebuilds(store, job)] == ["tensors"]


def test_jobs_side_by_side_keep_their_own_rows(store: AnyStore, of: Model, folder: Path) -> None:
    drafts = [{**SAMPLED, "batch_width": 3, "seed": seed, "prompt": "p" * seed} for seed in (1, 2, 3)]
    alone = [run(store, of, **draft) for draft in drafts]
    jobs, segments = [admit(store, of, **draft) for draft in drafts], Segments(folder, EVERY)
    turn(engine(store, of, *jobs, segments=segments), 9)
    segments.close()
    again = Segments(folder, EVERY)
    finish(engine(store, of, *jobs, worker="second", segments=again))
    again.close()
    for job, one in zip(jobs, alone, strict=True):
        assert selections(store, job) == selections(store, one["job"])
        assert [form for form, _ in rebuilds(store, job)] == ["tensors"]
    assert kept(folder) == []


def test_a_job_that_has_ended_leaves_nothing_behind(store: AnyStore, of: Model, folder: Path) -> None:
    job, made, segments = begun(store, of, folder, 9)
    finish(made)
    made.close()
    segments.close()
    assert list(folder.iterdir()) == []
    assert store.row(job).finish == "length"


@pytest.mark.contract("LOG-9")
@pytest.mark.parametrize("turns", [4, 5, 6, 7, 8])
def test_a_worker_that_wakes_after_an_erasure_leaves_no_cache(
    store: AnyStore, of: Model, folder: Path, turns: int
) -> None:
    """A worker that wakes after its job was ended and erased leaves no cache."""
    job, made, segments = begun(store, of, folder, turns)
    cancel(store, job, "caller", dead=lambda owners: list(owners))
    assert erase(store, job, folder).done
    lost = []
    while made.jobs:
        lost += made.turn()
    lost += made.close()
    segments.close()
    assert [loss.outcome for loss in lost] == ["terminal"]
    assert kept(folder) == []


@pytest.mark.contract("LOG-9")
def test_a_job_that_is_given_up_keeps_no_cache(store: AnyStore, of: Model, folder: Path) -> None:
    job, segments = killed(store, of, folder, 9), Segments(folder, EVERY)
    assert kept(folder)
    (claim,) = store.claim("second", LEASE_MS, 1, [job], dead=store.owners())
    worker = Worker("second", store, lambda _: of, check_job, wall_clock_ms, Context(segments=segments))
    worker._take(claim._replace(stalled=TENURES_STALLED_MAX))
    segments.close()
    assert store.row(job).finish == "poison_job"
    assert kept(folder) == []


def test_a_removed_cache_folder_costs_its_job_time_alone(
    store: AnyStore, of: Model, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that somebody removes meanwhile costs its job time and others nothing."""
    told: list[OSError] = []
    other, segments = admit(store, of, **SAMPLED), Segments(folder, EVERY, say=told.append)
    job = admit(store, of, **SAMPLED)
    made = engine(store, of, job, other, segments=segments)
    turn(made, 6)
    write = Segments._segment
    removed: list[Path] = []

    def save(self: Segments, chain: Chain, *rest: Any) -> None:
        write(self, chain, *rest)
        if not removed:
            removed.append(chain.folder)
            shutil.rmtree(chain.folder)

    monkeypatch.setattr(Segments, "_segment", save)
    turn(made, 12)
    made.close()
    segments.close()
    assert removed
    assert (told, segments.fault) == ([], None)
    for each in (job, other):
        resumed(store, of, folder, each)
        ((form, tokens),) = rebuilds(store, each)
        assert (form, tokens) == ("tensors", 0)


# ---- files that are wrong --------------------------------------------------------------------------------------------


def flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(place * (len(data) - 1))] ^= 1
    path.write_bytes(data)


def size(path: Path) -> int:
    return path.stat().st_size


def swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


DAMAGES: dict[str, Callable[[list[Path]], object]] = {
    "a bit of the rows": lambda files: flip(files[1], 0.9),
    "a bit of the header": lambda files: flip(files[1], files[1].read_bytes().index(b"rows") / size(files[1])),
    "cut short": lambda files: files[1].write_bytes(files[1].read_bytes()[:-7]),
    "empty": lambda files: files[1].write_bytes(b""),
    "gone": lambda files: files[1].unlink(),
    "two that are swapped": lambda files: swap(files[1], files[2]),
    "the first gone": lambda files: files[0].unlink(),
    "another link": lambda files: files[1].rename(files[1].with_name(files[1].name[:18] + "0" * 64 + ".safetensors")),
    "other rows than it says": lambda files: files[1].rename(
        files[1].with_name("00000009-00000014" + files[1].name[17:])
    ),
    "a stranger's": lambda files: files[1].with_name("notes.txt").write_text("hello"),
    "a longer one that does not join": lambda files: shutil.copy(
        files[2], files[1].with_name(files[1].name[:9] + "00000016-" + "f" * 64 + ".safetensors")
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_does_not_join_is_not_used_and_the_text_is_the_same(
    store: AnyStore, of: Model, folder: Path, damage: str
) -> None:
    whole = run(store, of, **SAMPLED)
    job = killed(store, of, folder, 18)
    DAMAGES[damage](kept(folder))
    done = resumed(store, of, folder, job)
    assert (done["text"], done["finish_reason"]) == (whole["text"], whole["finish_reason"])
    ((form, tokens),) = rebuilds(store, job)
    if damage == "a stranger's":
        assert (form, tokens) == ("tensors", 0)
    elif form == "tensors":
        assert tokens >= EVERY
        assert selections(store, job) == selections(store, whole["job"])
    assert kept(folder) == []


def test_rows_of_another_job_are_not_taken_for_ones_own(store: AnyStore, of: Model, folder: Path) -> None:
    mine, other = (killed(store, of, folder / name, 12, seed=seed) for name, seed in (("mine", 9), ("other", 10)))
    (own,) = (folder / "mine").iterdir()
    (stranger,) = (folder / "other").iterdir()
    shutil.rmtree(own)
    shutil.copytree(stranger, own)
    whole = run(store, of, **SAMPLED)
    assert resumed(store, of, folder / "mine", mine)["text"] == whole["text"]
    assert [form for form, _ in rebuilds(store, mine)] == ["prefill"]
    assert not store.row(other).status.terminal


def test_after_a_rebuild_by_prefill_the_chain_begins_anew(store: AnyStore, of: Model, folder: Path) -> None:
    """Rows that were computed in another way are not mixed with those that were kept before."""
    job = killed(store, of, folder, 14)
    kept(folder)[0].unlink()
    assert (left := kept(folder))
    segments = Segments(folder, EVERY)
    turn(engine(store, of, job, worker="second", segments=segments), 6)
    segments.close()
    assert kept(folder)[0].name.startswith("00000000-")
    assert not set(left) & set(kept(folder))
    resumed(store, of, folder, job, "third")
    assert [form for form, _ in rebuilds(store, job)] == ["prefill", "tensors"]


def test_whoever_only_reads_writes_nothing(store: AnyStore, of: Model, folder: Path) -> None:
    job = killed(store, of, folder, 6)
    before = {path: path.read_bytes() for path in folder.glob("*/*")}
    segments = Segments(folder, EVERY, reading=True)
    made = engine(store, of, job, worker="second", segments=segments)
    turn(made, 6)
    made.close()
    segments.close()
    assert rebuilds(store, job) == [("tensors", 0)]
    assert {path: path.read_bytes() for path in folder.glob("*/*")} == before


def test_a_disk_that_takes_nothing_stops_no_job(store: AnyStore, of: Model, folder: Path) -> None:
    blocked = folder
    blocked.write_text("no folder can be made here")
    said: list[OSError] = []
    job, segments = admit(store, of, **SAMPLED), Segments(blocked, EVERY, said.append)
    made = engine(store, of, job, segments=segments)
    finish(made)
    made.close()
    segments.close()
    assert isinstance(segments.fault, OSError)
    assert said == [segments.fault]
    assert result(store, job)["finish_reason"] == "length"


def test_a_prompt_that_is_still_to_be_scored_is_computed(store: AnyStore, of: Model, folder: Path) -> None:
    draft = {"prompt_logprobs": 1, "echo_prompt": True}
    whole = run(store, of, **SAMPLED | draft)
    job = killed(store, of, folder, 9, **draft)
    done = resumed(store, of, folder, job)
    assert (done["prompt"], done["text"]) == (whole["prompt"], whole["text"])
    assert [form for form, _ in rebuilds(store, job)] == ["tensors"]


def test_a_session_whose_rows_cannot_be_kept_is_rebuilt_by_calls(store: AnyStore, folder: Path) -> None:
    """As of a model that runs elsewhere: it is asked for calls, and for nothing else."""
    of = model("Hello, world.")
    job, segments = admit(store, of), Segments(folder, EVERY)
    turn(engine(store, of, job, segments=segments), 5)
    segments.close()
    assert kept(folder) == []
    assert resumed(store, of, folder, job)["text"] == "Hello, world."
    assert [form for form, _ in rebuilds(store, job)] == ["prefill"]


def test_a_worker_that_gets_a_job_back_begins_its_cache_anew(store: AnyStore, of: Model, folder: Path) -> None:
    """Another may have had it meanwhile, and its rows are then others than those that this worker kept."""
    whole = run(store, of, **SAMPLED)
    job, made, segments = begun(store, of, folder, 9)
    made.drop(job)
    store.release(WORKER, [job])
    assert not segments._chains
    second = Segments(folder, EVERY)
    turn(engine(store, of, job, worker="second", segments=second), 4)
    second.close()
    made.adopt(claim(store, job, WORKER, dead=("second",)), WORKER)
    finish(made)
    assert_audited(store)
    assert result(store, job)["text"] == whole["text"]
    segments.close()
    assert kept(folder) == []


# ---- the session -----------------------------------------------------------------------------------------------------


def test_rows_that_are_put_back_give_the_scores_that_they_gave() -> None:
    decoder = seeded_decoder(CONFIG, 5)
    with Session(decoder, decoder.new_arena(2, 64)) as session:
        lane = session.open("request", 32)
        session.select(session.prepare([Prefill(lane, [5, 6, 7, 8, 9])]))
        parts = [session.rows(lane, 0, 2), session.rows(lane, 2, 5)]
        expected = session.select(session.prepare([Decode(lane, 10)]))
        again = session.open("another", 32)
        session.restore(again, parts)
        assert again.length == 5
        assert torch.equal(session.select(session.prepare([Decode(again, 10)])), expected)


def test_rows_that_do_not_fit_change_nothing() -> None:
    decoder = seeded_decoder(CONFIG, 5)
    with Session(decoder, decoder.new_arena(2, 64)) as session:
        lane, small = session.open("request", 8), session.open("small", 3)
        session.select(session.prepare([Prefill(lane, [5, 6, 7, 8])]))
        part = session.rows(lane, 0, 4)
        with pytest.raises(PrefillNeedsEmptyLane):
            session.restore(lane, [part])
        for wrong in (part.double(), part[:1], part[:, :, :, :, :4]):
            with pytest.raises(SessionMismatch):
                session.restore(small, [wrong])
        with pytest.raises(PromptTooLong):
            session.restore(small, [part])
        assert small.length == 0
        for start, stop in ((0, 5), (3, 3), (-1, 2)):
            with pytest.raises(ValueError, match="rows"):
                session.rows(lane, start, stop)
        session.release(lane)
        with pytest.raises(ForeignLane):
            session.rows(lane, 0, 1)


def test_a_kept_row_is_of_its_job_and_its_lane_only(store: AnyStore, of: Model, folder: Path) -> None:
    job = killed(store, of, folder, 12)
    frontier = state_of(store, job).frontier
    stops = [int(path.name[9:17]) for path in kept(folder)]
    assert stops == sorted(stops)
    # A segment ends a row before the newest step that was durable when its rows were handed over.
    assert frontier.processed - EVERY - AHEAD - 1 < stops[-1] < frontier.processed
    (tail,) = folder.glob("*/*.tail")
    assert int(tail.stem) == stops[-1]
