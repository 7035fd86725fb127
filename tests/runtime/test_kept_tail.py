"""The tail of a kept cache: each step's rows as soon as they are there, torn anywhere, removed or written to by two."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from cranks import admit, assert_audited, engine, finish, run, state_of, turn
from databases import AnyStore
from test_known_faults import decoding, selections
from test_segments import SAMPLED, begun, kept, killed, rebuilds, resumed

from decodelog.fsm.errors import CacheInUse
from decodelog.runtime.caches.segment_files import discard, folder_of
from decodelog.runtime.families.scripted.model import ScriptedModel
from decodelog.runtime.loop import segments as segments_module
from decodelog.runtime.loop.segments import Chain, Segments
from decodelog.store.memory.log import MemoryStore

pytestmark = pytest.mark.contract("RES-2", "RES-4")

WRITES = 12
TURNS = 11


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "snapshots"


@pytest.fixture
def of() -> ScriptedModel:
    return decoding(lanes=8)


@pytest.fixture(autouse=True)
def no_row_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments_module, "WAITING_MAX", 1_000)


def tails(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.tail"))


def record_size(tail: Path, rows: int) -> int:
    size, left = divmod(tail.stat().st_size, rows)
    assert left == 0
    return size


@pytest.mark.contract("RES-3", "LOG-10")
@pytest.mark.parametrize("place", [0.0, 0.01, 0.3, 0.5, 0.77, 0.99])
@pytest.mark.parametrize("harm", ["cut", "flip", "insert", "append"])
def test_a_tail_torn_anywhere_costs_rows_and_gives_no_wrong_one(
    store: AnyStore, of: ScriptedModel, folder: Path, place: float, harm: str
) -> None:
    """A tail that is torn anywhere costs the rows behind and never a wrong one."""
    whole = run(store, of, **SAMPLED)
    job = killed(store, of, folder, TURNS)
    processed = state_of(store, job).frontier.processed
    (tail,) = tails(folder)
    start, data = int(tail.stem), tail.read_bytes()
    size, at = record_size(tail, processed - start), int(place * (len(data) - 1))
    tail.write_bytes(
        {
            "cut": data[:at],
            "flip": data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],
            "insert": data[:at] + bytes([data[at] ^ 1]) + data[at:],
            "append": data + data[:at],
        }[harm]
    )
    resumed(store, of, folder, job)
    intact = processed if harm == "append" else start + at // size
    assert rebuilds(store, job) == [("tensors", processed - intact)]
    assert selections(store, job) == selections(store, whole["job"])
    assert kept(folder) == []


@pytest.mark.contract("RES-3", "LOG-10")
@pytest.mark.parametrize("written", range(WRITES))
def test_a_kill_between_any_two_writes_costs_what_was_not_written(
    store: AnyStore, of: ScriptedModel, folder: Path, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write of the writer's, a segment or rows of the tail, is the last one in turn."""
    whole, left = run(store, of, **SAMPLED), iter(range(written))

    with monkeypatch.context() as patched:

        def until(name: str) -> None:
            write = getattr(Segments, name)
            patched.setattr(Segments, name, lambda *of_it: None if next(left, None) is None else write(*of_it))

        until("_segment")
        until("_append")
        job, _, segments = begun(store, of, folder, TURNS)
        segments.close()
    processed = state_of(store, job).frontier.processed
    resumed(store, of, folder, job)
    ((form, tokens),) = rebuilds(store, job)
    if form == "tensors":
        assert tokens < processed
        assert selections(store, job) == selections(store, whole["job"])
    assert (form == "tensors") is (written > 0)
    assert_audited(store)


@pytest.mark.contract("LOG-4", "LOG-10")
@pytest.mark.parametrize("turns", range(1, 13))
def test_rows_whose_step_was_not_durable_yet_are_in_nobodys_way(
    store: AnyStore, of: ScriptedModel, folder: Path, turns: int
) -> None:
    """A kill between a call and its append: the cache is ahead of the log, also where a segment was due."""
    whole = run(store, of, **SAMPLED)
    job, made, segments = begun(store, of, folder, turns)
    made.batcher.call([list(made.jobs.values())])
    segments.close()
    resumed(store, of, folder, job)
    assert rebuilds(store, job) == [("tensors", 0)]
    assert selections(store, job) == selections(store, whole["job"])


@pytest.mark.parametrize("written", range(WRITES))
def test_a_removed_folder_is_kept_again_from_the_first_row(
    store: AnyStore, of: ScriptedModel, folder: Path, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the crank has handed over more rows meanwhile, and where nothing comes after it but the job's end."""
    count = iter(range(99))

    def counted(name: str) -> None:
        write = getattr(Segments, name)

        def removed_before(self: Segments, chain: Chain, *rest: Any) -> None:
            if next(count) == written:
                shutil.rmtree(chain.folder, ignore_errors=True)
            write(self, chain, *rest)

        monkeypatch.setattr(Segments, name, removed_before)

    counted("_segment")
    counted("_append")
    whole = run(store, of, **SAMPLED)
    job, made, segments = begun(store, of, folder, TURNS)
    made.close()
    segments.close()
    assert next(count) > written
    assert segments.fault is None
    resumed(store, of, folder, job)
    assert rebuilds(store, job) == [("tensors", 0)]
    assert selections(store, job) == selections(store, whole["job"])


def test_one_record_more_a_step_whatever_came_before(store: AnyStore, of: ScriptedModel, folder: Path) -> None:
    job, made, segments = begun(store, of, folder, 1)

    def sizes_by_file() -> dict[Path, int]:
        segments.follow([])
        for future in segments._waiting:
            future.result()
        return {path: path.stat().st_size for path in folder.glob("*/*")}

    written, sizes, before = [], [], sizes_by_file()
    for _ in range(20):
        turn(made)
        after = sizes_by_file()
        written.append(sum(max(0, size - before.get(path, 0)) for path, size in after.items()))
        sizes.append(len(after))
        before = after
    assert max(sizes) <= 20 // 4 + 2  # segments of four rows, the prompt's, and one tail
    assert max(written[10:]) <= max(written[:10])
    made.close()
    segments.close()
    assert job in {row.job for row in store.rows()}


def test_a_woken_worker_that_writes_to_a_new_tail_spoils_no_row(
    store: AnyStore, of: ScriptedModel, folder: Path
) -> None:
    """Whoever wakes and writes to the tail of its successor makes no row wrong."""
    whole = run(store, of, **SAMPLED)
    job, sleeping, first = begun(store, of, folder, 6)
    second = Segments(folder, 4)
    made = engine(store, of, job, worker="second", segments=second)
    turn(made, 3)
    assert [loss.outcome for loss in turn(sleeping, 1)] == ["fenced"]  # it has made a call, and kept its row
    sleeping.close()
    first.close()
    turn(made, 2)
    second.close()
    resumed(store, of, folder, job, "third")
    assert selections(store, job) == selections(store, whole["job"])
    assert [form for form, _ in rebuilds(store, job)] == ["tensors", "tensors"]


@pytest.mark.contract("LOG-9")
def test_a_cache_is_removed_under_a_writer_that_has_not_heard_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that comes when the others are gone and the folder is not."""
    binding, remove, late = b"b" * 32, os.rmdir, list[bool]()
    folder = folder_of(tmp_path, binding)
    folder.mkdir()
    (folder / "rows").write_bytes(b"rows")

    def write_first(*of_it: Any, **also: Any) -> None:
        try:
            (folder / "late").write_bytes(b"rows")
            late.append(True)
        except FileNotFoundError:
            late.append(False)
        remove(*of_it, **also)

    with monkeypatch.context() as patched:
        patched.setattr("os.rmdir", write_first)
        discard(tmp_path, binding)
    assert late == [False]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.contract("LOG-9")
def test_what_a_killed_removal_has_left_goes_with_the_next(tmp_path: Path) -> None:
    binding = b"b" * 32
    aside = folder_of(tmp_path, binding).with_suffix(".gone")
    for also in (False, True):
        aside.mkdir()
        (aside / "rows").write_bytes(b"rows")
        if also:
            folder_of(tmp_path, binding).mkdir()
        discard(tmp_path, binding)
        assert list(tmp_path.iterdir()) == []
    folder_of(tmp_path, binding).write_bytes(b"no folder")
    with pytest.raises(CacheInUse):
        discard(tmp_path, binding)
    assert folder_of(tmp_path, binding).read_bytes() == b"no folder"


def test_a_job_shorter_than_a_segment_is_kept_too(store: AnyStore, of: ScriptedModel, folder: Path) -> None:
    whole = run(store, of, **SAMPLED)
    job, segments = admit(store, of, **SAMPLED), Segments(folder)
    turn(engine(store, of, job, segments=segments), 9)
    segments.close()
    again = Segments(folder)
    made = engine(store, of, job, worker="second", segments=again)
    turn(made, 4)
    again.close()
    last = Segments(folder)
    finish(engine(store, of, job, worker="third", segments=last))
    last.close()
    assert rebuilds(store, job) == [("tensors", 0), ("tensors", 0)]
    assert selections(store, job) == selections(store, whole["job"])
