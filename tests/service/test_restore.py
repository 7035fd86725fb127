"""What a restore meets in a database: content that is gone, a sealed log, a later state, another restore."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Thread
from time import sleep
from typing import Any

import psycopg
import pytest
from commandline import decodelog, script
from databases import database_store
from test_snapshot_files import MODEL, Stage

from decodelog.fsm.errors import BrokenSnapshot, ContentLeftOut, RestoreConflict, SealRefused
from decodelog.fsm.limits import RETAIN_MS_MAX, SAFE_INTEGER_MAX
from decodelog.fsm.machine.states import Status
from decodelog.fsm.ports import EMPTY_HEAD, JobRow
from decodelog.service.archive.export import export, redacted
from decodelog.service.archive.restore import _possible as possible
from decodelog.service.archive.restore import restore
from decodelog.service.inspect.audit import audit
from decodelog.service.retention.seal import seal
from decodelog.store.archive.bundle import write
from decodelog.store.archive.restore import DatabaseRestore
from decodelog.store.database import schema
from decodelog.store.database.tables import snapshots
from decodelog.store.engine import DatabaseStore, open_store
from decodelog.store.log import sealed

pytestmark = pytest.mark.contract("RES-2")

SAYS = {"text": "Grain by grain. ", "then": "repeat"}
DRAFT = {"prompt": "say", "max_new_tokens": 12}


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(script(tmp_path / "model", script=SAYS))


@pytest.fixture
def here(sqlite_url: str) -> Iterator[DatabaseStore]:
    opened = open_store(sqlite_url)
    assert isinstance(opened, DatabaseStore)
    yield opened
    opened.close()


@pytest.fixture
def stage(here: DatabaseStore, model: str) -> Stage:
    return Stage(here, model, DRAFT)


@pytest.fixture
def there(tmp_path: Path) -> Iterator[DatabaseStore]:
    """Another database, with nothing in it."""
    url = f"sqlite:///{tmp_path / 'there.db'}"
    schema.upgrade(url)
    opened = open_store(url)
    assert isinstance(opened, DatabaseStore)
    yield opened
    opened.close()


def contents(store: DatabaseStore) -> list[Any]:
    return [log._replace(rows=list(log.rows)) for log in store.logs()]


# ---- content that is gone -------------------------------------------------------------------------------------------


@pytest.mark.contract("LOG-9")
@pytest.mark.parametrize("until", [5, None])
def test_a_file_without_content_never_goes_over_a_job_that_has_it(
    stage: Stage, there: DatabaseStore, tmp_path: Path, until: int | None
) -> None:
    job, early, redacted = stage.submit(), tmp_path / "early", tmp_path / "redacted"
    export(stage.store, None, early)
    restore(there, early)
    stage.run(job, until=until)
    export(stage.store, None, redacted, redact=True)
    before = contents(there)
    with pytest.raises((RestoreConflict, ContentLeftOut)):
        restore(there, redacted)
    assert contents(there) == before
    stage.elsewhere(there).run(job)
    assert audit(there).ok


@pytest.mark.contract("LOG-9")
def test_nothing_comes_back_to_a_job_that_is_erased(stage: Stage, tmp_path: Path) -> None:
    job, early, whole = stage.submit(), tmp_path / "early", tmp_path / "whole"
    export(stage.store, None, early)
    stage.run(job)
    export(stage.store, None, whole)
    stage.store.erase(job)
    before = contents(stage.store)
    with pytest.raises(RestoreConflict, match="its content is erased here"):
        restore(stage.store, early)
    assert restore(stage.store, whole)[0].outcome == "held"
    assert contents(stage.store) == before


@pytest.mark.contract("LOG-9")
def test_of_redacted_jobs_only_ended_ones_are_restored(stage: Stage, there: DatabaseStore, tmp_path: Path) -> None:
    """A live job without its content is refused and an ended one comes back as erased."""
    live, ended = stage.submit(), stage.submit()
    stage.run(ended)
    export(stage.store, None, tmp_path / "both", redact=True)
    with pytest.raises(ContentLeftOut):
        restore(there, tmp_path / "both")
    assert there.rows() == []
    export(stage.store, [ended], tmp_path / "ended", redact=True)
    assert [each.state for each in restore(there, tmp_path / "ended")] == ["CLOSED"]
    assert there.row(ended).erased_ms is not None
    assert audit(there).ok
    assert stage.store.row(live).finish is None


@pytest.mark.contract("LOG-3", "LOG-9")
@pytest.mark.parametrize("index", [0, 2, 5, -1])
@pytest.mark.parametrize("gone", [True, False])
def test_a_file_that_has_content_of_some_appends_only_is_refused(
    index: int, gone: bool, stage: Stage, there: DatabaseStore, tmp_path: Path
) -> None:
    """Whoever makes one may have every digest right."""
    stage.run(stage.submit())
    (log,) = contents(stage.store)
    bare = redacted(log)
    rows, other = (list(log.rows), list(bare.rows)) if gone else (list(bare.rows), list(log.rows))
    rows[index] = other[index]
    with (tmp_path / "logs").open("wb") as out:
        write(out, [log._replace(rows=rows)])
    with pytest.raises(BrokenSnapshot, match="erasing takes all of a log"):
        restore(there, tmp_path / "logs")
    assert there.rows() == []


@pytest.mark.contract("LOG-3", "LOG-7")
def test_a_job_that_ended_comes_back_with_the_fence_of_its_end(
    stage: Stage, there: DatabaseStore, tmp_path: Path
) -> None:
    job = stage.submit()
    stage.run(job, until=3)
    export(stage.store, None, tmp_path / "live")
    live = stage.store.row(job).fence
    restore(there, tmp_path / "live")
    assert there.row(job).fence > live
    stage.run(job)
    export(stage.store, None, tmp_path / "ended")
    restore(there, tmp_path / "ended")
    assert there.row(job).fence == list(there.read(job))[-1].fence
    assert audit(there).ok


# ---- a later state --------------------------------------------------------------------------------------------------


def test_what_is_held_is_told_as_the_database_has_it(stage: Stage, tmp_path: Path) -> None:
    job, early = stage.submit(), tmp_path / "early"
    export(stage.store, None, early)
    stage.run(job)
    end = stage.store.row(job).head.sequence
    (held,) = restore(stage.store, early)
    assert (held.outcome, held.state, held.sequence) == ("held", "CLOSED", end)
    seal(stage.store, job)
    with pytest.raises(RestoreConflict, match="its log is sealed here"):
        restore(stage.store, early)


def test_a_sealed_file_does_not_go_over_a_log_that_ends_elsewhere(
    stage: Stage, there: DatabaseStore, tmp_path: Path
) -> None:
    job, early, sealed = stage.submit(), tmp_path / "early", tmp_path / "sealed"
    export(stage.store, None, early)
    restore(there, early)
    stage.run(job)
    seal(stage.store, job)
    export(stage.store, None, sealed)
    with pytest.raises(RestoreConflict, match="its log is sealed in the file"):
        restore(there, sealed)
    assert there.row(job).finish is None


@pytest.mark.contract("LOG-9")
def test_a_log_whose_sealed_form_nobody_would_read_stays_as_it_was(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = stage.submit()
    stage.run(job)
    before = contents(stage.store)
    monkeypatch.setattr(sealed, "SEALED_BYTES_MAX", 100)
    with pytest.raises(SealRefused, match="the maximum is 100"):
        seal(stage.store, job)
    assert contents(stage.store) == before


@pytest.mark.contract("LOG-9", "RES-4")
def test_cache_rows_are_restored_for_live_jobs_only(here: DatabaseStore, there: DatabaseStore, tmp_path: Path) -> None:
    """Caches' rows are put down for jobs that are live in the database only."""
    stage = Stage(here, MODEL, {"prompt": "The river", "max_new_tokens": 4})
    job, file, folder = stage.submit(), tmp_path / "job.dlog", tmp_path / "caches"
    stage.run(job, until=2)
    taken = stage.take(job, file)
    assert restore(there, file, tmp_path / "live")[0].rows == taken.rows > 0
    stage.run(job)
    assert [(back.outcome, back.rows) for back in restore(here, file, folder)] == [("held", 0)]
    stage.take(job, tmp_path / "ended.dlog")
    here.erase(job)
    assert [(back.outcome, back.rows) for back in restore(here, tmp_path / "ended.dlog", folder)] == [("held", 0)]
    assert not folder.exists()


@pytest.mark.contract("ENV-8")
@pytest.mark.parametrize("how", ["export", "snapshot"])
def test_a_restored_job_keeps_its_key_and_its_retention(how: str, model: Path, sqlite_url: str, tmp_path: Path) -> None:
    """A key attaches to the restored job and its content goes when it was to go."""
    file, other = tmp_path / "logs", f"sqlite:///{tmp_path / 'other.db'}"
    request = ("--model", model, "--prompt", "say", "--max-new-tokens", 3, "--idempotency-key", "k", "--json")
    assert decodelog("run", *request, "--retain", "0s", db=sqlite_url).code == 0
    (job,) = [each["job"] for each in decodelog("jobs", "--json", db=sqlite_url).json]
    chosen = ("--all",) if how == "export" else (job, "--no-tensors")
    assert decodelog(how, *chosen, "--out", file, db=sqlite_url).code == 0
    assert decodelog("restore", file, db=other).code == 0
    assert decodelog("submit", *request, db=other).json["job"] == job
    assert decodelog("sweep", db=other).code == 0
    with closing(open_store(other)) as store:
        (row,) = store.rows()
    assert (row.job, row.idempotency_key, row.erased_ms is not None) == (job, "k", True)


# ---- the file and the database --------------------------------------------------------------------------------------


def test_two_restores_of_one_file_at_once_agree(
    stage: Stage, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, file = stage.submit(), tmp_path / "logs"
    export(stage.store, None, file)
    both, made, outcomes = Barrier(2), DatabaseRestore._made, []

    def together(self: DatabaseRestore, *given: Any) -> int | None:
        """Both have looked, and found no such job."""
        both.wait(10)
        return made(self, *given)

    def bring() -> None:
        with closing(database_store(postgres_url)) as store:
            outcomes.append(restore(store, file)[0].outcome)

    monkeypatch.setattr(DatabaseRestore, "_made", together)
    threads = [Thread(target=bring) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["created", "held"]
    with closing(database_store(postgres_url)) as store:
        assert list(store.read(job)) == list(stage.store.read(job))
        assert audit(store).ok


@pytest.mark.contract("LOG-2")
def test_rows_are_locked_in_the_order_of_their_ids_whatever_the_files(
    stage: Stage, postgres_url: str, tmp_path: Path
) -> None:
    """As by everything else that waits for several: else two could wait for each other."""
    stage.submit(), stage.submit()
    export(stage.store, None, tmp_path / "both")
    with closing(database_store(postgres_url)) as store, psycopg.connect(postgres_url) as holder:
        restore(store, tmp_path / "both")
        one, two = store.names()
        export(stage.store, [two, one], tmp_path / "turned")
        holder.execute("SELECT FROM jobs WHERE job = %s FOR UPDATE", (one,))
        thread = Thread(target=restore, args=(store, tmp_path / "turned"))
        thread.start()
        with psycopg.connect(postgres_url, autocommit=True) as other:
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            while other.execute(waiting).fetchone() == (0,):
                sleep(0.01)
            other.execute("SELECT FROM jobs WHERE job = %s FOR UPDATE NOWAIT", (two,))
        holder.rollback()
        thread.join()


def test_appends_come_after_those_that_are_there_and_are_linked_in_order(
    stage: Stage, database_url: str, tmp_path: Path
) -> None:
    """Where another job's lie between them, too."""
    first, second = stage.submit(), stage.submit()
    target = database_store(database_url)
    for until in (3, 6, None):
        for job in (first, second):
            stage.run(job, until=until)
            stage.take(job, tmp_path / "job", force=True)
            restore(target, tmp_path / "job")
    for job in (first, second):
        assert list(target.read(job)) == list(stage.store.read(job))
    assert audit(target).ok
    target.close()


def test_a_job_that_a_restore_brings_to_its_end_keeps_no_snapshot(
    stage: Stage, there: DatabaseStore, tmp_path: Path
) -> None:
    job = stage.submit()
    stage.run(job, until=3)
    stage.take(job, tmp_path / "live")
    restore(there, tmp_path / "live")
    with there._database.transaction() as connection:
        kept = {"job_id": 1, "sequence": 1, "chain": bytes(32), "output": 0, "ids": b"", "link": bytes(32)}
        connection.execute(snapshots.insert().values(kept))
    stage.run(job)
    stage.take(job, tmp_path / "ended")
    assert restore(there, tmp_path / "ended")[0].outcome == "advanced"
    with there._database.transaction() as connection:
        assert connection.execute(snapshots.select()).all() == []


def test_a_file_that_cannot_be_restored_makes_no_database(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("something else")
    stage.take(stage.submit(), tmp_path / "whole")
    data = bytearray((tmp_path / "whole").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    os.mkfifo(tmp_path / "pipe")  # which nobody waits for
    refusals = dict.fromkeys(("nowhere", "text", "pipe"), "not_an_export") | {"damaged": "broken_snapshot"}
    for name, code in refusals.items():
        refused = decodelog("restore", tmp_path / name, "--json", db=f"sqlite:///{tmp_path / 'made.db'}")
        assert (refused.code, refused.error["code"]) == (2, code)
    assert not (tmp_path / "made.db").exists()


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("fence", 2**63 - 1, "fence"),
        ("fence", 2**64 - 1, "fence"),
        ("created_ms", 2**63, "created_ms"),
        ("created_ms", -1, "created_ms"),
        ("retain_ms", 2**63, "retain_ms"),
        ("retain_ms", -1, "retain_ms"),
        ("idempotency_key", "k" * 256, "idempotency key"),
        ("idempotency_key", "", "idempotency key"),
    ],
)
def test_a_row_that_no_submission_made_is_refused(
    place: str, value: Any, said: str, stage: Stage, there: DatabaseStore, tmp_path: Path
) -> None:
    stage.submit()
    file = tmp_path / "logs"
    (log,) = contents(stage.store)
    log = log._replace(fence=value) if place == "fence" else log._replace(row=replace(log.row, **{place: value}))
    with file.open("wb") as out:
        write(out, [log])
    with pytest.raises(BrokenSnapshot, match=f"its {said} is"):
        restore(there, file)
    assert there.rows() == []


@pytest.mark.parametrize(
    ("place", "most"),
    [
        *((name, SAFE_INTEGER_MAX) for name in ("prompt", "output", "sequence", "fence", "created_ms")),
        ("retain_ms", RETAIN_MS_MAX),
    ],
)
def test_each_number_of_a_row_is_held_to_its_bounds(place: str, most: int) -> None:
    """Each number of a row may go from nothing to its bound and no further."""
    row = JobRow("job-1", "a" * 64, "model", Status.ADMITTED, None, 1, 0, EMPTY_HEAD, 0, None, None, None, 0)
    for value, sound in ((0, True), (most, True), (-1, False), (most + 1, False)):
        head = EMPTY_HEAD._replace(sequence=value)
        change: dict[str, Any] = {"head": head} if place == "sequence" else {place: value}
        changed = replace(row, **change)
        if sound:
            possible(changed)
        else:
            with pytest.raises(BrokenSnapshot, match=f"its {place} is {value}"):
                possible(changed)


def test_a_file_of_a_job_without_any_append_is_refused(stage: Stage, there: DatabaseStore, tmp_path: Path) -> None:
    stage.submit()
    (log,) = contents(stage.store)
    empty = log._replace(rows=[], head=EMPTY_HEAD, row=replace(log.row, head=EMPTY_HEAD))
    with (tmp_path / "logs").open("wb") as out:
        write(out, [empty])
    with pytest.raises(BrokenSnapshot):
        restore(there, tmp_path / "logs")
    assert there.rows() == []
