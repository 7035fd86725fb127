"""Erasing, retention and redacted exports from the command line: the content is gone, the chain still proves itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from commandline import decodelog, jobs, script
from databases import database_store
from sqlalchemy import Engine, event, text

from decodelog.fsm.machine.spec import binding_of
from decodelog.fsm.ports import Command
from decodelog.runtime.caches.segment_files import folder_of
from decodelog.service.database import opened
from decodelog.service.inspect.audit import verify
from decodelog.store.archive.bundle import Bundle
from decodelog.store.database.connection import BUSY_TIMEOUT_MS
from decodelog.store.retention import scrub

pytestmark = pytest.mark.contract("LOG-9")

PROMPT, TEXT = "A secret question of Ada's", "Answered in confidence, at length."
REQUEST = ("--prompt", PROMPT)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return script(tmp_path / "model", script={"text": TEXT})


def run(model: Path, db: str, *more: Any) -> str:
    """Run a job to its end; its name."""
    assert decodelog("run", "--model", model, *REQUEST, *more, db=db).code == 0
    return jobs(db)[-1].job


def files_of(url: str) -> bytes:
    file = Path(url.removeprefix("sqlite:///"))
    return b"".join(path.read_bytes() for path in file.parent.glob(f"{file.name}*"))


@pytest.mark.contract("LOG-3")
@pytest.mark.parametrize("sealed", [False, True])
def test_the_content_is_gone_and_the_chain_leads_to_the_same_head(sealed: bool, model: Path, database_url: str) -> None:
    kept, gone = run(model, database_url, "--seed", 1), run(model, database_url, "--idempotency-key", "k")
    if sealed:
        assert decodelog("seal", gone, db=database_url).code == 0
    before = jobs(database_url)[1]
    assert decodelog("erase", gone, db=database_url).stdout == f"{gone} is erased\n"
    after = jobs(database_url)[1]
    for name in ("head", "identity", "idempotency_key", "finish", "prompt", "output", "created_ms", "ended_ms"):
        assert getattr(after, name) == getattr(before, name)
    with opened(database_url) as store:
        rows = [row for log in store.logs(gone) for row in log.rows]
    assert sum(not row.erased for row in rows) == (0 if sealed else 1)  # the tenure's
    audited = decodelog("audit", "--json", db=database_url)
    assert (audited.code, audited.json["ok"], audited.json["erased"]) == (0, True, 1)
    assert "1 erased: their chain is proven" in decodelog("audit", gone, db=database_url).stdout
    assert decodelog("show", kept, "--json", db=database_url).json["text"] == TEXT


@pytest.fixture
def careless_sqlite() -> Iterator[None]:
    """SQLite as most builds of it are: what it gives up stays in the file as it was, unless a connection asks."""

    def connected(connection: sqlite3.Connection, record: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA secure_delete = OFF")

    event.listen(Engine, "connect", connected)
    yield
    event.remove(Engine, "connect", connected)


@pytest.mark.usefixtures("careless_sqlite")
@pytest.mark.parametrize("sealed", [False, True])
def test_no_byte_of_it_is_left_in_sqlites_files(sealed: bool, model: Path, sqlite_url: str) -> None:
    """Also where the log was sealed in between."""
    names = [run(model, sqlite_url) for _ in range(3)]
    if sealed:
        assert decodelog("seal", "--all", db=sqlite_url).code == 0
    wanted = [PROMPT.encode(), b"65,32,115,101,99,114,101,116"]  # as text, and as the ids of its bytes
    if not sealed:
        assert any(each in files_of(sqlite_url) for each in wanted)
    assert decodelog("erase", *names, db=sqlite_url).code == 0
    assert not any(each in files_of(sqlite_url) for each in wanted)


@pytest.mark.parametrize(
    "command",
    [
        ("show",), ("tail", "--no-follow"), ("events",), ("explain",), ("resume",), ("compare", "--reexecute"),
        ("fork", "--at", 1),
    ],
    ids=lambda command: command[0],
)  # fmt: skip
def test_whoever_wants_to_read_it_is_told_that_it_is_erased(
    command: tuple[Any, ...], model: Path, sqlite_url: str
) -> None:
    job = run(model, sqlite_url)
    assert decodelog("erase", job, db=sqlite_url).code == 0
    refused = decodelog(command[0], job, *command[1:], "--json", db=sqlite_url)
    assert (refused.code, refused.error["code"], refused.error["job"]) == (2, "content_erased", job)
    assert "`decodelog audit" in refused.error["message"]
    assert "Go on with" not in refused.stderr
    assert "CLOSED (erased)" in decodelog("jobs", db=sqlite_url).stdout
    assert decodelog("cancel", job, "--json", db=sqlite_url).error["code"] == "terminal"
    refused = decodelog("seal", job, "--json", db=sqlite_url)
    assert (refused.code, refused.error["code"]) == (2, "content_erased")


@pytest.mark.contract("ENV-8")
def test_a_submission_under_its_key_runs_nothing(model: Path, database_url: str) -> None:
    job = run(model, database_url, "--idempotency-key", "order-17")
    assert decodelog("erase", job, db=database_url).code == 0
    for command in ("run", "submit"):
        again = decodelog(
            command, "--model", model, *REQUEST, "--idempotency-key", "order-17", "--json", db=database_url
        )
        assert (again.code, again.error["code"]) == (2, "content_erased")
    other = decodelog(
        "run", "--model", model, "--prompt", "Else", "--idempotency-key", "order-17", "--json", db=database_url
    )
    assert (other.code, other.error["code"], other.error["field"]) == (2, "idempotency_conflict", "identity")
    assert len(jobs(database_url)) == 1


def test_erasing_is_idempotent_and_refuses_live_jobs_first(model: Path, sqlite_url: str) -> None:
    """Erasing again does nothing and a live job is refused before anything is erased."""
    done = run(model, sqlite_url)
    assert decodelog("submit", "--model", model, *REQUEST, db=sqlite_url).code == 0
    waiting = jobs(sqlite_url)[-1].job
    refused = decodelog("erase", done, waiting, "--json", db=sqlite_url)
    assert (refused.code, refused.error["code"]) == (2, "job_not_ended")
    assert f"decodelog cancel {waiting}" in refused.error["message"]
    assert jobs(sqlite_url)[0].erased_ms is None
    assert decodelog("erase", done, db=sqlite_url).code == 0
    assert decodelog("erase", done, db=sqlite_url).stdout == f"{done} was erased already\n"
    assert decodelog("erase", done, "--json", db=sqlite_url).json == {
        "jobs": [{"job": done, "erased": False}], "scrubbed": True,
    }  # fmt: skip


def test_a_familys_name_erases_all_of_it_and_kept_caches_go_too(model: Path, sqlite_url: str, tmp_path: Path) -> None:
    run(model, sqlite_url, "--n", 2, "--temperature", 1, "--seed", 2)
    other = run(model, sqlite_url)
    rows = jobs(sqlite_url)
    folders = [tmp_path / "kept" / binding_of(row.job, bytes.fromhex(row.identity)).hex() for row in rows]
    for folder in folders:
        folder.mkdir(parents=True)
    family = rows[0].job.rpartition(".")[0]
    erased = decodelog("erase", family, "--cache-dir", tmp_path / "kept", "--json", db=sqlite_url).json["jobs"]
    assert [each["erased"] for each in erased] == [True, True]
    assert [row.erased_ms is not None for row in jobs(sqlite_url)] == [True, True, False]
    assert [folder.exists() for folder in folders] == [False, False, True]
    assert jobs(sqlite_url)[-1].job == other


@pytest.mark.contract("LOG-3")
@pytest.mark.parametrize("sealed", [False, True])
def test_a_redacted_export_proves_the_same_head_and_shows_nothing(
    sealed: bool, model: Path, database_url: str, tmp_path: Path
) -> None:
    job = run(model, database_url)
    if sealed:
        assert decodelog("seal", job, db=database_url).code == 0
    full, redacted = tmp_path / "full.dlog", tmp_path / "redacted.dlog"
    assert decodelog("export", job, "--out", full, db=database_url).code == 0
    assert decodelog("export", job, "--redact", "--out", redacted, db=database_url).code == 0
    proven = decodelog("verify", redacted, "--json").json
    assert (proven["ok"], proven["erased"], proven["jobs"]) == (True, 1, 1)
    heads = []
    for file in (full, redacted):
        with file.open("rb") as opened_file:
            heads.append(Bundle(opened_file).row(job).head)
    assert heads[0] == heads[1] == jobs(database_url)[0].head
    data = redacted.read_bytes()
    assert PROMPT.encode() not in data
    assert b"secret" not in data
    assert len(data) < full.stat().st_size
    assert decodelog("show", job, "--json", db=database_url).json["text"] == TEXT  # the log itself is as it was


def test_a_sweep_erases_what_is_past_its_retention_and_seals_what_is_old(model: Path, database_url: str) -> None:
    gone = run(model, database_url, "--retain", "0s")
    later = run(model, database_url, "--retain", "7d")
    kept = run(model, database_url)
    assert decodelog("submit", "--model", model, *REQUEST, "--retain", "0s", db=database_url).code == 0
    assert [row.retain_ms for row in jobs(database_url)] == [0, 604_800_000, None, 0]
    planned = decodelog("sweep", "--seal-after", "0s", "--dry-run", "--json", db=database_url).json
    assert planned == {"due": {"erase": [gone], "seal": [later, kept], "uncache": []}}
    assert decodelog("sweep", "--dry-run", db=database_url).stdout == f"{gone} would be erased\n"
    assert all(row.erased_ms is row.sealed_ms is None for row in jobs(database_url))
    told = decodelog("sweep", "--seal-after", "0s", "--json", db=database_url).json["jobs"]
    assert [(each["job"], each.get("erased"), each.get("sealed")) for each in told] == [
        (gone, True, None), (later, None, True), (kept, None, True),
    ]  # fmt: skip
    assert decodelog("sweep", "--seal-after", "0s", "--json", db=database_url).json["jobs"] == []
    assert decodelog("audit", db=database_url).code == 0


def test_a_sweep_removes_the_caches_that_jobs_left_which_others_ended(
    model: Path, sqlite_url: str, tmp_path: Path
) -> None:
    ended = run(model, sqlite_url)
    assert decodelog("submit", "--model", model, *REQUEST, db=sqlite_url).code == 0
    folders = [folder_of(tmp_path, binding_of(row.job, bytes.fromhex(row.identity))) for row in jobs(sqlite_url)]
    for folder in (*folders, tmp_path / ("ab" * 32)):  # the last is another database's
        folder.mkdir()
        (folder / "rows").write_bytes(b"rows")
    sweep = ("sweep", "--cache-dir", tmp_path)
    assert decodelog(*sweep, "--dry-run", db=sqlite_url).stdout == f"{ended} would be rid of its cache\n"
    assert decodelog(*sweep, "--json", db=sqlite_url).json["jobs"] == [{"job": ended, "uncached": True}]
    assert [folder.exists() for folder in folders] == [False, True]
    assert (tmp_path / ("ab" * 32)).exists()
    assert decodelog(*sweep, db=sqlite_url).stdout == ""


def test_retention_is_in_no_identity_and_has_a_bound(model: Path, sqlite_url: str) -> None:
    run(model, sqlite_url, "--seed", 1, "--retain", "12h")
    run(model, sqlite_url, "--seed", 1)
    assert len({row.identity for row in jobs(sqlite_url)}) == 1
    for wrong in ("7", "-1d", "1w", "9999999d", "x"):
        refused = decodelog("submit", "--model", model, *REQUEST, f"--retain={wrong}", "--json", db=sqlite_url)
        assert (refused.code, refused.error["code"]) == (2, "wrong_use")


def test_a_reader_that_keeps_the_write_ahead_file_is_named(
    model: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is erased; its bytes go when the same command is run again without that reader."""
    monkeypatch.setattr(scrub, "PAUSE_S", 0)
    job = run(model, sqlite_url)
    reader = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM jobs").fetchall()
    done = decodelog("erase", job, "--json", db=sqlite_url)
    assert (done.code, done.json) == (1, {"jobs": [{"job": job, "erased": True}], "scrubbed": False})
    assert "run the same command again" in done.stderr
    swept = decodelog("sweep", "--json", db=sqlite_url)
    assert (swept.code, swept.json) == (1, {"jobs": [], "scrubbed": False})
    reader.close()
    again = decodelog("erase", job, "--json", db=sqlite_url)
    assert (again.code, again.json) == (0, {"jobs": [{"job": job, "erased": False}], "scrubbed": True})
    assert decodelog("sweep", "--json", db=sqlite_url).json == {"jobs": [], "scrubbed": True}


def test_a_scrub_that_waits_for_a_reader_keeps_no_writer_waiting(
    model: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite holds the write lock while it waits: only shortly, and then others have their turn."""
    pauses: list[float] = []
    job = run(model, sqlite_url)
    reader = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM jobs").fetchall()
    with closing(database_store(sqlite_url)) as store:
        assert store.erase(job)
        engine, timeouts = store._database._single, list[int]()

        def executed(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
            if "wal_checkpoint" in statement:
                timeouts.append(connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one())

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            assert store.post(Command(str(len(pauses)), job, "cancel"))

        event.listen(engine, "after_cursor_execute", executed)
        monkeypatch.setattr("time.sleep", pause)
        assert not store.scrub()
        with engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one() == BUSY_TIMEOUT_MS
    assert timeouts == [scrub.BUSY_MS] * scrub.TRIES
    assert len(pauses) == scrub.TRIES - 1
    reader.close()


@pytest.mark.parametrize("another_role", [False, True])
def test_a_transaction_that_still_sees_the_content_is_named_on_postgresql(
    another_role: bool, model: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "PAUSE_S", 0)
    job, query = run(model, postgres_url), "SELECT payload FROM appends ORDER BY id LIMIT 1"
    if another_role:
        monkeypatch.setattr(scrub, "OLDER", masked(scrub.OLDER))
    with psycopg.connect(postgres_url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        before = reader.execute(query).fetchone()
        done = decodelog("erase", job, "--json", db=postgres_url)
        assert (done.code, done.json) == (1, {"jobs": [{"job": job, "erased": True}], "scrubbed": False})
        assert reader.execute(query).fetchone() == before
        assert decodelog("sweep", "--json", db=postgres_url).json["scrubbed"] is False
    assert decodelog("sweep", "--json", db=postgres_url).json == {"jobs": [], "scrubbed": True}


def masked(query: Any) -> Any:
    """The query as a role without `pg_read_all_stats` runs it: of others' sessions there is no more than their name."""
    shown = "SELECT pid, datname, CAST(NULL AS XID) AS backend_xmin, '<insufficient privilege>' AS query"
    return text(str(query.text).replace("pg_stat_activity a", f"({shown} FROM pg_stat_activity) a"))


@pytest.mark.contract("LOG-3")
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("payload", "5"), ("payload", "'secret'"), ("payload", "CAST(x'ff736563726574' AS TEXT)"), ("key", "''"),
        ("key", "x''"), ("key", "x'736563726574'"), ("last", "'secret'"), ("last", "x'736563726574'"),
    ],
)  # fmt: skip
def test_a_damaged_log_is_erased_all_the_same_and_does_not_look_sound(
    column: str, value: str, model: Path, sqlite_url: str, tmp_path: Path
) -> None:
    """Nor does it keep the others from it, or from a redacted export."""
    bad, good = (run(model, sqlite_url, "--retain", "0s") for _ in range(2))
    with closing(database_store(sqlite_url)) as store, store._database.transaction() as connection:
        connection.exec_driver_sql(f"UPDATE appends SET {column} = {value} WHERE id = 3")
    assert decodelog("export", "--all", "--redact", "--out", tmp_path / "redacted", db=sqlite_url).code == 0
    swept = decodelog("sweep", "--json", db=sqlite_url)
    assert (swept.code, [(each["job"], each["erased"]) for each in swept.json["jobs"]]) == (
        0, [(bad, True), (good, True)],
    )  # fmt: skip
    audited = decodelog("audit", "--json", db=sqlite_url)
    assert (audited.code, {fault["job"] for fault in audited.json["faults"]}) == (1, {bad})
    for content in (files_of(sqlite_url), (tmp_path / "redacted").read_bytes()):
        assert PROMPT.encode() not in content
        assert b"65,32,115,101,99,114,101,116" not in content
        assert b"secret" not in content or column == "last"
    assert not verify(tmp_path / "redacted").ok


@pytest.mark.parametrize("command", [("erase",), ("sweep",)])
def test_a_job_that_cannot_be_erased_is_named_and_the_others_are(
    command: tuple[str], model: Path, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, free = (run(model, sqlite_url, "--retain", "0s") for _ in range(2))
    row = jobs(sqlite_url)[0]
    folder = tmp_path / "kept" / binding_of(row.job, bytes.fromhex(row.identity)).hex()
    folder.mkdir(parents=True)
    (folder / "rows").write_bytes(b"rows")

    def refuse(path: Any, *_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    names = (stuck, free) if command == ("erase",) else ()
    with monkeypatch.context() as patched:
        patched.setattr("os.unlink", refuse)
        told = decodelog(*command, *names, "--cache-dir", tmp_path / "kept", "--json", db=sqlite_url)
    first, second = told.json["jobs"]
    assert (told.code, first["job"], first["refused"]["code"]) == (1, stuck, "cache_in_use")
    assert second == {"job": free, "erased": True}
    assert [each.erased_ms is None for each in jobs(sqlite_url)] == [True, False]
    assert decodelog(*command, *names, "--cache-dir", tmp_path / "kept", db=sqlite_url).code == 0
    assert not folder.exists()
    refused = decodelog(*command, *names, "--cache-dir", tmp_path / "nothing", "--json", db=sqlite_url)
    assert (refused.code, refused.error["code"]) == (2, "wrong_use")


@pytest.mark.parametrize("sealed", [False, True])
def test_forks_keep_what_they_began_with_and_are_named(sealed: bool, model: Path, database_url: str) -> None:
    """Also forks of forks; not one that is erased itself, nor one of another job."""
    job, other = run(model, database_url, "--seed", 1), run(model, database_url, "--seed", 2)

    def fork(parent: str) -> str:
        return str(decodelog("fork", parent, "--at", 3, "--json", db=database_url).json["job"])

    fork(other)
    forks = [fork(job), fork(job)]
    assert decodelog("resume", "--all", db=database_url).code == 0
    forks.append(fork(forks[0]))
    if sealed:
        assert decodelog("seal", "--all", db=database_url).code == 0
    erased = decodelog("erase", job, forks[1], "--json", db=database_url)
    assert erased.json["jobs"] == [
        {"job": job, "erased": True, "forks": [forks[0], forks[2]]}, {"job": forks[1], "erased": True},
    ]  # fmt: skip
    told = decodelog("erase", job, db=database_url).stdout.splitlines()
    assert told[0] == f"{job} was erased already"
    assert told[1].startswith(f"{forks[0]} is a fork of it, and keeps its prompt")
    assert len(told) == 3
    kept = decodelog("show", forks[0], "--json", db=database_url)
    assert kept.code == 0


def test_a_damaged_admission_is_no_fork(model: Path, sqlite_url: str) -> None:
    job = run(model, sqlite_url)
    assert decodelog("fork", job, "--at", 3, db=sqlite_url).code == 0
    with closing(database_store(sqlite_url)) as store, store._database.transaction() as connection:
        connection.exec_driver_sql("UPDATE appends SET payload = 5 WHERE first = 1 AND job_id = 2")
    assert decodelog("erase", job, "--json", db=sqlite_url).json["jobs"] == [{"job": job, "erased": True}]
