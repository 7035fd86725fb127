"""Snapshots as files: whole, proven before anything changes, and continued elsewhere to the same bytes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commandline import decodelog, script
from databases import database_store, wall_clock_ms
from msgpack import packb, unpackb

from decodelog.fsm.errors import BrokenSnapshot, JobBusy, NotAnExport, RestoreConflict
from decodelog.fsm.machine.events import CallCompleted, LanesRebuilt
from decodelog.fsm.machine.state import State
from decodelog.fsm.reading.emission import Emission
from decodelog.fsm.request.draft import draft_from
from decodelog.runtime.loop.worker import Worker
from decodelog.service.archive.restore import restore
from decodelog.service.archive.snapshot import REPAIRED, How, take
from decodelog.service.inspect.audit import audit
from decodelog.service.inspect.compare import against_reexecution
from decodelog.service.jobs.compose import new_worker
from decodelog.service.jobs.incarnation import new_worker_name
from decodelog.service.jobs.models import Models, home
from decodelog.service.jobs.submit import submit
from decodelog.service.streams.reading import events_of, transcript_of
from decodelog.store.archive.bundle import ROWS, SNAPSHOT
from decodelog.store.archive.frames import FrameWriter, frames
from decodelog.store.database import schema
from decodelog.store.engine import DatabaseStore

pytestmark = pytest.mark.contract("RES-1", "RES-2", "RES-4")

MODEL = "smollm2-135m-instruct"
DRAFT = {"prompt": "The river", "max_new_tokens": 16, "temperature": 1.0, "seed": 4, "ignore_eos": True}
STOP_AT = 7


@pytest.fixture
def store(database_url: str) -> Iterator[DatabaseStore]:
    opened = database_store(database_url)
    yield opened
    opened.close()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[DatabaseStore]:
    """Another database, with nothing in it."""
    url = f"sqlite:///{tmp_path / 'other.db'}"
    schema.upgrade(url)
    opened = database_store(url)
    yield opened
    opened.close()


class Stage:
    """A database, one model, and what is done to a job there."""

    def __init__(self, store: DatabaseStore, model: str, draft: dict[str, Any], folder: Path | None = None) -> None:
        self.store, self.model, self.draft, self.folder = store, model, draft, folder
        self.models = Models(home(), lanes=1)

    def submit(self, key: str | None = None) -> str:
        made = submit(
            self.store, self.models.load(self.model), self.model, draft_from(self.draft), wall_clock_ms(), key
        )
        return made.job

    def run(self, job: str, until: int | None = None) -> None:
        """Run the job to its end, or stop the worker after so many tokens."""
        workers: list[Worker] = []

        def watch(name: str, emissions: Sequence[Emission], state: State) -> None:
            if until is not None and state.frontier.output >= until:
                workers[0].stop()

        workers.append(new_worker(self.store, self.models, watch, cache_dir=self.folder))
        workers[0].run([job], drain=True)

    def take(self, job: str, out: Path, **how: Any) -> Any:
        return take(self.store, self.models.load(self.model), job, out, new_worker_name(), How(**how))

    def elsewhere(self, store: DatabaseStore, folder: Path | None = None) -> Stage:
        return Stage(store, self.model, self.draft, folder)

    def result(self, job: str) -> dict[str, Any]:
        return transcript_of(self.store, job).result()

    def events(self, job: str) -> list[Any]:
        return [numbered.event for numbered in events_of(self.store, job)]


def output(result: dict[str, Any]) -> Any:
    return [(each["token"], each["logprob"]) for each in result["tokens"]], result["text"], result["finish_reason"]


# ---- the real model -------------------------------------------------------------------------------------------------


@pytest.fixture
def river(store: DatabaseStore, tmp_path: Path) -> Stage:
    return Stage(store, MODEL, DRAFT, tmp_path / "caches")


@pytest.mark.contract("RES-3")
@pytest.mark.parametrize("rebuild", ["prefill", "reexecute"])
def test_a_job_resumed_from_a_files_rows_is_run_again_to_the_same_bits(
    river: Stage, other: DatabaseStore, tmp_path: Path, rebuild: str
) -> None:
    """Also where the file's rows are not those that its log's calls made: they say of which calls they are."""
    job, file = river.submit(), tmp_path / "job.dlog"
    river.elsewhere(river.store).run(job, until=STOP_AT)  # without a cache
    assert river.take(job, file, rebuild=rebuild).recomputed
    there = river.elsewhere(other, tmp_path / "other caches")
    restore(other, file, there.folder)
    there.run(job)
    assert [(event.form, event.tokens) for event in there.events(job) if isinstance(event, LanesRebuilt)] == [
        ("tensors", 0)
    ]
    assert against_reexecution(other, there.models.load(MODEL), job).found is None


@pytest.mark.contract("RES-3")
def test_a_job_resumes_in_another_database_to_the_same_bits(river: Stage, other: DatabaseStore, tmp_path: Path) -> None:
    """A job goes on in another database to the same bits and computes nothing again."""
    job, whole = river.submit(), river.submit()
    river.run(job, until=STOP_AT)
    file, again = tmp_path / "job.dlog", tmp_path / "again.dlog"
    taken = river.take(job, file, kept=river.folder)
    state = transcript_of(river.store, job).state
    assert (taken.state, taken.unprocessed, taken.recomputed) == ("PENDING", 1, 0)
    assert state is not None
    assert taken.rows == taken.processed == state.frontier.processed
    by_calls = river.take(job, again, rebuild="reexecute")
    assert (by_calls.recomputed, by_calls.digest) == (taken.rows, taken.digest)
    assert file.read_bytes() == again.read_bytes(), "rows that were kept are the rows that their calls give"
    assert decodelog("verify", file).code == 0

    there = river.elsewhere(other, tmp_path / "other caches")
    (back,) = restore(other, file, there.folder)
    assert (back.job, back.outcome, back.rows) == (job, "created", taken.rows)
    assert list(other.read(job)) == list(river.store.read(job))
    (held,) = restore(other, file, there.folder)
    assert (held.outcome, held.appends) == ("held", 0)
    there.run(job)
    river.run(whole)
    assert output(there.result(job)) == output(river.result(whole))
    assert there.result(job)["usage"]["recomputed_tokens"] == 0
    assert [event.form for event in there.events(job) if isinstance(event, LanesRebuilt)] == ["tensors"]
    assert audit(other).ok


def test_a_repaired_snapshot_is_the_jobs_next_call_and_goes_on_from_there(
    river: Stage, other: DatabaseStore, tmp_path: Path
) -> None:
    job, whole = river.submit(), river.submit()
    river.run(job, until=STOP_AT)
    before = transcript_of(river.store, job).state
    taken = river.take(job, tmp_path / "job.dlog", form=REPAIRED, kept=river.folder)
    after = transcript_of(river.store, job).state
    assert before is not None
    assert after is not None
    assert (taken.state, taken.processed, taken.unprocessed) == ("PREFILLED", before.frontier.processed + 1, 0)
    assert (taken.rows, taken.recomputed) == (taken.processed, 0)
    assert after.frontier.output == before.frontier.output
    assert isinstance(river.events(job)[-1], CallCompleted), "the append of the suffix is a call that the log has"
    assert river.store.row(job).owner is None
    there = river.elsewhere(other, tmp_path / "other caches")
    (back,) = restore(other, tmp_path / "job.dlog", there.folder)
    assert back.state == "PREFILLED"
    river.run(whole)
    for stage in (there, river):
        stage.run(job)
        assert output(stage.result(job)) == output(river.result(whole))
    assert there.result(job)["usage"]["recomputed_tokens"] == 1, "the last row's scores are still to be consumed"


def test_beside_an_ended_log_the_repair_is_the_files_alone(river: Stage, other: DatabaseStore, tmp_path: Path) -> None:
    job = river.submit()
    river.run(job)
    head = river.store.row(job).head
    plain = river.take(job, tmp_path / "plain.dlog")
    taken = river.take(job, tmp_path / "job.dlog", form=REPAIRED)
    assert (taken.state, taken.unprocessed) == ("CLOSED", 1)
    assert (plain.rows, taken.rows) == (taken.processed, taken.processed + 1)
    assert river.store.row(job).head == head
    (back,) = restore(other, tmp_path / "job.dlog", tmp_path / "caches there")
    assert (back.outcome, back.state, back.rows) == ("created", "CLOSED", 0), "nobody would take its rows away"
    assert not (tmp_path / "caches there").exists()
    assert river.elsewhere(other).result(job) == river.result(job)


def with_facts(facts: object, kind: int, body: Any) -> Any:
    """A snapshot that says this of its state; every other frame as it is."""
    return (body[0], facts, *body[2:]) if kind == SNAPSHOT else body


def rewritten(file: Path, change: Callable[[int, Any], Any]) -> None:
    """The file with the bodies of its frames changed, every digest of the file right again."""
    out = io.BytesIO()
    writer = FrameWriter(out)
    with file.open("rb") as opened:
        for frame in frames(opened):
            body = unpackb(frame.body, use_list=False, unicode_errors="surrogateescape")
            changed = change(frame.kind, body)
            writer.write(frame.kind, frame.body if changed is body else packb(changed))
    file.write_bytes(out.getvalue())


def test_rows_of_other_tokens_are_refused_and_nothing_is_restored(
    river: Stage, other: DatabaseStore, tmp_path: Path
) -> None:
    """Rows that are not of the job's tokens are refused and nothing is restored."""
    job = river.submit()
    river.run(job, until=STOP_AT)
    file, folder = tmp_path / "job.dlog", tmp_path / "caches there"
    sound = river.take(job, file, kept=river.folder) and file.read_bytes()

    def flipped(body: tuple[Any, ...]) -> tuple[Any, ...]:
        start, stop, link, content = body
        return start, stop, link, content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]

    changes: list[Callable[[int, Any], Any]] = [
        lambda kind, body: flipped(body) if kind == ROWS else body,
        lambda kind, body: (body[0], body[1] + 1, *body[2:]) if kind == ROWS else body,
        lambda kind, body: (*body[:3], b"no tensor") if kind == ROWS else body,
        lambda kind, body: (*body[:2], bytes(32), body[3]) if kind == ROWS else body,
        lambda kind, body: (
            (*body[:2], body[2].replace("layers=30", "layers=31"), body[3]) if kind == SNAPSHOT else body
        ),
        lambda kind, body: (*body[:3], body[3] - 1) if kind == SNAPSHOT else body,
    ]
    for change in changes:
        file.write_bytes(sound)
        rewritten(file, change)
        assert decodelog("verify", file).code == 0, "the file holds together, and its log is sound"
        with pytest.raises(BrokenSnapshot):
            restore(other, file, folder)
        assert (other.rows(), folder.exists()) == ([], False)
    file.write_bytes(sound)
    assert restore(other, file, folder)[0].outcome == "created"


# ---- the scripted model ---------------------------------------------------------------------------------------------


@pytest.fixture
def scripted(store: DatabaseStore, tmp_path: Path) -> Stage:
    """A model without K/V rows, which says its text for ever."""
    model = script(tmp_path / "model", script={"text": "Grain by grain. ", "then": "repeat"})
    return Stage(store, str(model), {"prompt": "say", "max_new_tokens": 30})


@pytest.mark.contract("LOG-1", "LOG-7")
def test_a_log_is_brought_up_to_a_later_snapshot_and_never_back(
    scripted: Stage, other: DatabaseStore, tmp_path: Path
) -> None:
    job = scripted.submit(key="order-17")
    files = []
    for until in (4, 9, 14):
        scripted.run(job, until=until)
        files.append(tmp_path / f"{until}.dlog")
        scripted.take(job, files[-1])
    outcomes = [restore(other, file)[0].outcome for file in (files[1], files[0], files[2], files[1], files[2])]
    assert outcomes == ["created", "held", "advanced", "held", "held"]
    row = other.row(job)
    assert row.head == scripted.store.row(job).head
    assert row.idempotency_key == "order-17"
    assert row.fence > scripted.store.row(job).fence, "whoever held it before stays kept out"
    assert list(other.read(job)) == list(scripted.store.read(job))
    there = scripted.elsewhere(other)
    there.run(job)
    scripted.run(job)
    scripted.take(job, tmp_path / "end.dlog")
    with pytest.raises(RestoreConflict, match="took another way"):
        restore(other, tmp_path / "end.dlog")
    assert audit(other).ok
    assert output(there.result(job)) == output(scripted.result(job))


def test_a_job_that_somebody_works_on_is_not_advanced_under_them(
    scripted: Stage, other: DatabaseStore, tmp_path: Path
) -> None:
    job = scripted.submit()
    scripted.run(job, until=4)
    scripted.take(job, tmp_path / "early")
    scripted.run(job, until=9)
    scripted.take(job, tmp_path / "late")
    restore(other, tmp_path / "early")
    other.claim("somebody", 60_000, 1, [job])
    before = other.row(job)
    with pytest.raises(JobBusy, match="somebody"):
        restore(other, tmp_path / "late")
    assert other.row(job) == before
    assert restore(other, tmp_path / "early")[0].outcome == "held"
    other.release("somebody")
    assert restore(other, tmp_path / "late")[0].outcome == "advanced"
    other.claim("somebody", 60_000, 1, [job])
    with pytest.raises(JobBusy):
        scripted.elsewhere(other).take(job, tmp_path / "repaired", form=REPAIRED)
    assert not (tmp_path / "repaired").exists()


@pytest.mark.contract("ENV-8")
def test_another_job_of_that_name_or_key_is_a_conflict(scripted: Stage, other: DatabaseStore, tmp_path: Path) -> None:
    """Another job of that name or key is a conflict and nothing is written."""
    job = scripted.submit(key="order-17")
    scripted.take(job, tmp_path / "job.dlog")
    there = scripted.elsewhere(other)
    there.draft = {"prompt": "other", "max_new_tokens": 3}
    holder = there.submit(key="order-17")
    with pytest.raises(RestoreConflict, match=f"its idempotency key is that of job {holder}"):
        restore(other, tmp_path / "job.dlog")
    assert [row.job for row in other.rows()] == [holder]


def test_an_export_of_many_jobs_comes_back_whole_or_not_at_all(
    scripted: Stage, other: DatabaseStore, tmp_path: Path
) -> None:
    jobs = [scripted.submit() for _ in range(3)]
    scripted.run(jobs[1])
    file = tmp_path / "logs.dlog"
    assert (
        decodelog("export", "--all", "--out", file, db=scripted.store._database.url.render_as_string(False)).code == 0
    )
    restore(other, file)
    assert [row.job for row in other.rows()] == jobs
    for job in jobs:
        assert list(other.read(job)) == list(scripted.store.read(job))
    assert [each.outcome for each in restore(other, file)] == ["held"] * 3


def test_any_damage_to_the_file_is_refused_and_nothing_is_restored(
    scripted: Stage, other: DatabaseStore, tmp_path: Path
) -> None:
    job = scripted.submit()
    scripted.run(job, until=3)
    file = tmp_path / "job.dlog"
    scripted.take(job, file)
    sound = file.read_bytes()
    damaged = [sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :] for at in range(0, len(sound), 97)]
    damaged += [sound[:size] for size in range(0, len(sound), 501)]
    for each in damaged:
        file.write_bytes(each)
        with pytest.raises((BrokenSnapshot, NotAnExport)):
            restore(other, file)
    assert other.rows() == []


def test_a_state_that_is_not_the_logs_in_any_field_is_refused(
    scripted: Stage, other: DatabaseStore, tmp_path: Path
) -> None:
    job = scripted.submit()
    scripted.run(job, until=3)
    file = tmp_path / "job.dlog"
    scripted.take(job, file)
    sound = file.read_bytes()
    facts = next(unpackb(frame.body, use_list=False)[1] for frame in _frames(file) if frame.kind == SNAPSHOT)
    for place in range(len(facts)):
        file.write_bytes(sound)
        changed = (*facts[:place], "other", *facts[place + 1 :])
        rewritten(file, partial(with_facts, changed))
        with pytest.raises(BrokenSnapshot, match="does not stand where its log leads to"):
            restore(other, file)
    assert other.rows() == []


def _frames(file: Path) -> list[Any]:
    with file.open("rb") as opened:
        return list(frames(opened))


# ---- the commands ---------------------------------------------------------------------------------------------------


def test_the_commands_say_what_they_did(scripted: Stage, tmp_path: Path, database_url: str) -> None:
    job = scripted.submit()
    scripted.run(job, until=3)
    file, there = tmp_path / "job.dlog", f"sqlite:///{tmp_path / 'new.db'}"
    told = decodelog("snapshot", job[:-1], "--out", file, db=database_url)
    assert told.code == 0
    assert told.stdout.startswith(f"{job}: pending-suffix, PENDING at event ")
    assert decodelog("snapshot", job, "--out", file, db=database_url).code == 2
    given = ("--out", file, "--force", "--no-tensors", "--json")
    assert decodelog("snapshot", job, *given, db=database_url).json["rows"] == 0
    assert decodelog("verify", file).code == 0
    appends, end = len(list(scripted.store.read(job))), scripted.store.row(job).head.sequence
    assert decodelog("restore", file, "--json", db=there).json == [
        {"job": job, "outcome": "created", "appends": appends, "state": "PENDING", "sequence": end, "rows": 0}
    ]
    told = decodelog("restore", file, db=there)
    assert told.stdout == f"{job}: held, PENDING at event {end}\n"
    assert decodelog("resume", job, db=there).code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("snapshot", "{job}", "--out", "{file}", "--form", "whole"), "pending-suffix, repaired"),
        (("snapshot", "{job}", "--out", "{file}", "--form", "repaired", "--no-tensors"), "has tensors"),
        (("snapshot", "{job}", "--out", "{file}", "--no-tensors", "--rebuild", "prefill"), "no row is brought back"),
        (("snapshot", "{job}", "--out", "{file}", "--no-tensors", "--cache-dir", "{file}.d"), "no row is brought back"),
        (("snapshot", "{job}", "--out", "{file}", "--rebuild", "whole"), "it is prefill or reexecute"),
        (("snapshot", "{job}", "--out", "{file}", "--rebuild", ""), "it is prefill or reexecute"),
        (("snapshot", "nobody", "--out", "{file}"), "there is no job"),
        (("snapshot", "{job}", "--out", "{file}/x"), "cannot be written"),
        (("restore", "{file}"), "cannot be read"),
    ],
)
def test_wrong_use_is_told_before_a_model_is_loaded_and_leaves_nothing(
    scripted: Stage,
    tmp_path: Path,
    database_url: str,
    arguments: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, file = scripted.submit(), tmp_path / "job.dlog"
    monkeypatch.setattr(Models, "_read", lambda models, name: pytest.fail("a model is loaded"))
    given = [each.format(job=job, file=file) for each in arguments]
    refused = decodelog(*given, db=database_url)
    assert refused.code == 2
    assert said in refused.stderr
    assert not file.exists()
