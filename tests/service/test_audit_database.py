"""Damage of the database itself: pages, indexes, tables; each is named, and no job hides behind another one's."""

from __future__ import annotations

import io
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from commandline import decodelog, script
from sqlalchemy import text

from decodelog.service.database import opened, sqlite_file
from decodelog.service.inspect.audit import Report, audit
from decodelog.store.archive.bundle import Bundle, write
from decodelog.store.database import schema
from decodelog.store.engine import DatabaseStore

pytestmark = [pytest.mark.contract("LOG-3"), pytest.mark.timeout(600)]  # of jobs to be damaged, on a busy machine

JOBS = 24


def filled(url: str, folder: Path, count: int = JOBS) -> list[str]:
    """The names of jobs that have ended, with some pages of appends."""
    model = script(folder / "model", script={"text": "Hi"})
    for _ in range(count):
        assert decodelog("submit", "--model", model, "--prompt", "G" * 200, db=url).code == 0
    assert decodelog("worker", "--drain", db=url).code == 0
    with opened(url) as store:
        return [row.job for row in store.rows()]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a database with `JOBS` jobs, to be copied."""
    folder = tmp_path_factory.mktemp("many")
    url = f"sqlite:///{folder / 'jobs.db'}"
    schema.upgrade(url)
    filled(url, folder)
    return written(url)


def copied(file: Path, folder: Path) -> tuple[str, Path, list[str]]:
    """A copy of that file, its URL and the names in it."""
    copy = folder / "copy.db"
    shutil.copy(file, copy)
    with opened(f"sqlite:///{copy}") as store:
        return f"sqlite:///{copy}", copy, [row.job for row in store.rows()]


def written(url: str) -> Path:
    """The file of a database, with everything in it and nothing beside it."""
    file = sqlite_file(url)
    assert file is not None
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return file


def pages(file: Path, name: str) -> list[int]:
    """The numbers of the leaf pages of a table or an index, as its root has them."""
    with closing(sqlite3.connect(file)) as connection:
        (root,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    data = file.read_bytes()

    def page(number: int) -> bytes:
        return data[(number - 1) * size : number * size]

    found, open_pages = [], [root]
    while open_pages:
        number = open_pages.pop()
        body = page(number)
        at = 100 if number == 1 else 0
        if body[at] in (10, 13):  # leaves
            found.append(number)
            continue
        cells = int.from_bytes(body[at + 3 : at + 5])
        places = [int.from_bytes(body[at + 12 + 2 * each : at + 14 + 2 * each]) for each in range(cells)]
        open_pages += [int.from_bytes(body[each : each + 4]) for each in places]
        open_pages.append(int.from_bytes(body[at + 8 : at + 12]))
    return sorted(found)


def spoil(file: Path, page: int, size: int = 4096) -> None:
    """Overwrite the header of a page, as a disk does that has written something else there."""
    data = bytearray(file.read_bytes())
    data[(page - 1) * size : (page - 1) * size + 64] = b"\xa5" * 64
    file.write_bytes(data)


def audited(url: str) -> Report:
    with opened(url) as store:
        assert isinstance(store, DatabaseStore)
        return audit(store)


def test_a_damaged_page_of_appends_hides_no_other_job(many: Path, tmp_path: Path) -> None:
    """A damaged page of appends costs the jobs that lie on it and hides no other."""
    url, file, names = copied(many, tmp_path)
    whole = audited(url)
    spoil(file, pages(file, "appends")[2])
    report = audited(url)
    named = {fault.job for fault in report.faults}
    assert report.jobs == JOBS
    assert "" in named  # the page itself
    assert 1 <= len(named - {""}) < JOBS
    assert named - {""} <= set(names)
    each = whole.events // JOBS
    assert report.events >= each * (JOBS - len(named - {""}))  # the others are judged
    damaged = decodelog("audit", "--all", db=url)
    assert (damaged.code, "Traceback" in damaged.stderr) == (1, False)


def test_a_damaged_page_of_jobs_is_reported_by_names_in_an_index(many: Path, tmp_path: Path) -> None:
    """A damaged page of jobs is told by the names that an index still has."""
    url, file, names = copied(many, tmp_path)
    leaves = pages(file, "jobs")
    assert len(leaves) > 1
    spoil(file, leaves[0])
    report = audited(url)
    named = {fault.job for fault in report.faults} - {""}
    assert 1 <= len(named) < JOBS
    assert named <= set(names)
    assert report.jobs == JOBS


@pytest.mark.parametrize("index", ["sqlite_autoindex_jobs_1", "ix_jobs_live", "sqlite_autoindex_jobs_2"])
def test_a_damaged_index_is_named(sqlite_url: str, tmp_path: Path, index: str) -> None:
    filled(sqlite_url, tmp_path, 3)
    decodelog("submit", "--model", tmp_path / "model", "--prompt", "G", "--idempotency-key", "k", db=sqlite_url)
    file = written(sqlite_url)
    (leaf,) = pages(file, index)
    data = bytearray(file.read_bytes())
    data[leaf * 4096 - 2] ^= 0x55  # of a key, which SQLite reads as any other
    file.write_bytes(data)
    report = audited(sqlite_url)
    assert {fault.kind for fault in report.faults} >= {"database"}
    assert index in " ".join(fault.detail for fault in report.faults)
    assert report.jobs == 4


def test_any_byte_of_the_first_page_is_named_or_refused_or_changes_nothing(sqlite_url: str, tmp_path: Path) -> None:
    """The tables' own text is there. Where a file opens all the same, its jobs are judged as before."""
    filled(sqlite_url, tmp_path, 2)
    whole, file = audited(sqlite_url), written(sqlite_url)
    sound, ends = file.read_bytes(), set()
    for place in [*range(0, 112, 3), *range(112, 4096, 211)]:
        data = bytearray(sound)
        data[place] ^= 0x21
        for beside in ("-wal", "-shm"):
            file.with_name(file.name + beside).unlink(missing_ok=True)
        file.write_bytes(data)
        told = decodelog("audit", "--all", "--json", db=sqlite_url)
        assert told.code in (0, 1, 2), place
        assert "unexpected" not in told.stdout + told.stderr, place
        ends.add(told.code)
        if told.code == 0:
            assert told.json["events"] == whole.events, place
    assert ends >= {0, 2}


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("DROP INDEX ix_jobs_live", "there is no index ix_jobs_live"),
        ("DROP TABLE refusals", "there is no table refusals"),
        ("ALTER TABLE jobs DROP COLUMN retain_ms", "column retain_ms of table jobs"),
    ],
)
def test_a_table_that_is_not_what_was_made_is_named(database_url: str, statement: str, told: str) -> None:
    with opened(database_url) as store:
        assert isinstance(store, DatabaseStore)
        assert audit(store).ok
        with store._database.transaction() as connection:
            connection.execute(text(statement))
        try:
            assert any(told in fault.detail for fault in audit(store).faults)
        finally:
            if "DROP" in statement and not store._database.sqlite:
                restore(store)


def restore(store: DatabaseStore) -> None:
    """Put back what the next test of the same server needs."""
    from decodelog.store.database.tables import metadata

    with store._database.transaction() as connection:
        metadata.drop_all(connection)
        metadata.create_all(connection)


def test_an_index_of_postgresql_that_is_not_valid_is_named(postgres_url: str, tmp_path: Path) -> None:
    filled(postgres_url, tmp_path, 1)
    with opened(postgres_url) as store:
        assert isinstance(store, DatabaseStore)
        for valid in (False, True):
            with store._database.transaction() as connection:
                change = "UPDATE pg_index SET indisvalid = :valid WHERE indexrelid = CAST('uq_jobs_job' AS regclass)"
                connection.execute(text(change), {"valid": valid})
            faults = [(fault.kind, fault.detail) for fault in audit(store).faults]
            assert faults == ([] if valid else [("database", "index uq_jobs_job is not valid")])


def test_a_file_that_has_one_name_twice_is_named(sqlite_url: str, tmp_path: Path) -> None:
    one, _ = filled(sqlite_url, tmp_path, 2)
    with opened(sqlite_url) as store:
        logs = [log._replace(rows=list(log.rows)) for log in store.logs()]
    twice = logs[1]._replace(job=one, row=None, damage="")
    for chosen in ([logs[0], logs[0]], [logs[0], twice._replace(row=logs[1].row)]):
        file = io.BytesIO()
        write(file, chosen)
        bundle = Bundle(file)
        assert bundle.faults == []
        assert (one, "listing") in {(fault.job, fault.kind) for fault in audit(bundle).faults}


def test_a_name_that_two_rows_of_a_database_have_is_named(sqlite_url: str, tmp_path: Path) -> None:
    """In the table, whose index still has the other one."""
    one, two = filled(sqlite_url, tmp_path, 2)
    file = written(sqlite_url)
    data = bytearray(file.read_bytes())
    for page in pages(file, "jobs"):
        place = data.find(two.encode(), (page - 1) * 4096, page * 4096)
        if place >= 0:
            data[place : place + len(two)] = one.encode()
    file.write_bytes(data)
    assert (one, "listing") in {(fault.job, fault.kind) for fault in audited(sqlite_url).faults}
