"""The file of a SQLite database: whose it is, under which names, and that nothing counts once it is gone."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from databases import database_store
from steps import admit

from decodelog.fsm.errors import (
    DatabaseFull,
    DatabaseLocked,
    DatabaseMoved,
    DatabaseUnavailable,
    FileReadOnly,
    FolderMissing,
    LogLeftBehind,
    Problem,
    UnsupportedDatabase,
)
from decodelog.fsm.ports import Command, Outcome
from decodelog.service.database import open_database
from decodelog.store.database import schema
from decodelog.store.engine import open_store

NOBODY = 65534


def take_all(file: Path) -> None:
    for part in file.parent.glob(f"{file.name}*"):
        part.unlink()


def take_main(file: Path) -> None:
    file.unlink()


def take_log(file: Path) -> None:
    file.with_name(f"{file.name}-wal").unlink()


def rename(file: Path) -> None:
    file.rename(file.with_name("elsewhere.db"))


def rename_folder(file: Path) -> None:
    file.parent.rename(file.parent.with_name("elsewhere"))


def replace(file: Path) -> None:
    other = file.with_name("other.db")
    schema.upgrade(f"sqlite:///{other}")
    other.replace(file)


def replace_all(file: Path) -> None:
    take_all(file)
    schema.upgrade(f"sqlite:///{file}")


TAKEN = [take_all, take_main, take_log, rename, rename_folder, replace, replace_all]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder" / "decodelog.db"


@pytest.fixture
def url(file: Path) -> str:
    schema.upgrade(f"sqlite:///{file}")
    return f"sqlite:///{file}"


@pytest.mark.contract("LOG-2", "OUT-7")
@pytest.mark.parametrize("take", TAKEN)
def test_no_append_is_acknowledged_into_a_file_that_others_do_not_find(
    url: str, file: Path, take: Callable[[Path], None]
) -> None:
    """Whatever is done with the file, the append that comes after it is an error, and so is all that follows."""
    with closing(database_store(url)) as store:
        writer = admit(store)
        (result,) = store.append([writer.step()])
        assert result.outcome is Outcome.APPENDED
        writer = writer.at(result.head)
        take(file)
        for _ in range(2):
            with pytest.raises(DatabaseMoved, match="restore a backup"):
                store.append([writer.step()])


@pytest.mark.contract("LOG-2", "LOG-7")
@pytest.mark.parametrize("take", TAKEN)
def test_a_heartbeat_and_every_other_acknowledgement_find_out(
    url: str, file: Path, take: Callable[[Path], None]
) -> None:
    with closing(database_store(url)) as store:
        admit(store)
        store.claim("worker-1", 60_000, 1)
        take(file)
        for ask in (
            lambda: store.heartbeat("worker-1", 60_000),
            lambda: admit(store, "job-2"),
            lambda: store.post(Command("c", "job-1", "cancel")),
            lambda: store.release("worker-1"),
            lambda: store.row("job-1"),
        ):
            with pytest.raises(DatabaseMoved):
                ask()


@pytest.mark.contract("LOG-2")
@pytest.mark.parametrize("take", [take_all, take_main, rename])
def test_no_connection_and_no_bell_makes_an_empty_file_where_one_was(
    url: str, file: Path, take: Callable[[Path], None]
) -> None:
    with closing(database_store(url)) as store, closing(store.bell()) as bell:
        admit(store)
        take(file)
        bell.close()
        assert not bell.wait(0.01)
        store._database.close()  # the next use connects anew
        for ask in (lambda: admit(store, "job-2"), lambda: store.row("job-1")):
            with pytest.raises(DatabaseMoved, match="it is gone"):
                ask()
        assert not file.exists()


@pytest.mark.contract("LOG-2")
def test_a_log_that_goes_with_the_last_connection_is_not_missed(url: str, file: Path) -> None:
    """SQLite removes it then, and makes another for the next connection: that is nobody's doing."""
    with closing(database_store(url)) as store:
        writer = admit(store)
        store._database.close()
        assert not file.with_name(f"{file.name}-wal").exists()
        file.with_name("another").touch()  # takes the number in the file system that has become free
        (result,) = store.append([writer.step()])
        assert result.outcome is Outcome.APPENDED


@pytest.mark.contract("LOG-2")
def test_a_file_with_several_names_or_a_growing_one_has_not_moved(url: str, file: Path) -> None:
    """A file under several names and one that only grows are still there."""
    link = file.with_name("link.db")
    link.symlink_to(file)
    with closing(database_store(f"sqlite:///{link}")) as store, closing(database_store(url)) as other:
        writer = admit(store)
        for _ in range(3):
            (result,) = store.append([writer.step()])
            writer = writer.at(result.head)
            with other._database.single() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        store._database.close()  # and the last one to go takes the write-ahead log along
        other._database.close()
        (result,) = store.append([writer.step()])
        assert result.outcome is Outcome.APPENDED


@pytest.mark.contract("LOG-2")
def test_a_working_folder_that_is_left_does_not_move_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    schema.upgrade("sqlite:///here.db")
    with closing(database_store("sqlite:///here.db")) as store:
        monkeypatch.chdir("/")
        admit(store)
        store._database.close()
        assert store.row("job-1").job == "job-1"


@pytest.mark.parametrize(("umask", "mode"), [(0o000, 0o600), (0o022, 0o600), (0o277, 0o400)])
def test_a_database_is_its_owners_alone_with_its_log_and_index(tmp_path: Path, umask: int, mode: int) -> None:
    file = tmp_path / "decodelog.db"
    before = os.umask(umask)
    try:
        schema.upgrade(f"sqlite:///{file}") if mode == 0o600 else _made(file)
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            modes = {stat.S_IMODE(part.stat().st_mode) for part in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {mode}


def _made(file: Path) -> None:
    from decodelog.store.database.sqlite_file import SqliteFile

    SqliteFile(str(file), "it", create=True).connect(1.0).close()


@pytest.mark.contract("LOG-2")
@pytest.mark.parametrize("name", ["50%.db", "a%20b.db", "%3F.db", "a b.db", "é.db", "a&b=c.db", "#1.db", "'.db"])
def test_a_file_has_the_name_that_the_url_writes(tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{tmp_path / name}"
    schema.upgrade(url)
    with closing(database_store(url)) as store, closing(store.bell()) as bell:
        admit(store)
        assert bell.wait(20.0)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with closing(database_store(f"sqlite+pysqlite:///{tmp_path / name}")) as store:
        assert store.row("job-1").job == "job-1"


@pytest.mark.contract("LOG-2")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("what?.db", "no ? in its name"),
        ("a.db?timeout=0", "has no options"),
        ("n" * 241, "longer than 240 bytes"),
        ("n" * 300, "longer than 240 bytes"),
        ("/".join(["n" * 200] * 3), "longer than 500 bytes"),
        ("a\0b.db", "has a NUL"),
    ],
)
def test_a_name_that_no_file_can_have_is_refused_and_nothing_is_made(tmp_path: Path, name: str, reason: str) -> None:
    for ask in (open_store, schema.upgrade, schema.current, schema.check):
        with pytest.raises(UnsupportedDatabase) as problem:
            ask(f"sqlite:///{tmp_path}/{name}")
        assert reason in problem.value.reason
    assert list(tmp_path.iterdir()) == []


@pytest.mark.contract("LOG-2")
def test_a_folder_that_is_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("text")
    with pytest.raises(FolderMissing):
        schema.upgrade(f"sqlite:///{tmp_path}/note/decodelog.db")


def make_with_a_first_job(url: str) -> None:
    open_database(url, create=True).close()


@pytest.mark.contract("LOG-2")
@pytest.mark.parametrize("make", [schema.upgrade, make_with_a_first_job])
@pytest.mark.parametrize("ending", ["-wal", "-journal"])
def test_no_file_is_made_beside_the_log_of_one_that_is_gone(
    tmp_path: Path, make: Callable[[str], object], ending: str
) -> None:
    """Which would be written into it. With its own file the log is whole again."""
    file, elsewhere, log = tmp_path / "decodelog.db", tmp_path / "elsewhere.db", tmp_path / f"decodelog.db{ending}"
    url = f"sqlite:///{file}"
    schema.upgrade(url)
    with closing(database_store(url)) as store:
        admit(store)
        shutil.copy(file, elsewhere)
        kept = (tmp_path / "decodelog.db-wal").read_bytes()
    take_all(file)
    log.write_bytes(kept)
    for _ in range(2):
        with pytest.raises(LogLeftBehind) as refused:
            make(url)
        assert refused.value.log == str(log)
        assert (file.exists(), log.read_bytes()) == (False, kept)
    if ending == "-wal":
        elsewhere.rename(file)
        with closing(database_store(url)) as store:
            assert [row.job for row in store.rows()] == ["job-1"]
        take_all(file)
    log.write_bytes(b"")  # as one is left that has been brought into its file
    make(url)
    assert schema.check(url) == schema.HEAD


# ---- who may only read ---------------------------------------------------------------------------------------------


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody can reach, and a database in it with one job, all of it readable for everybody."""
    folder = Path(tempfile.mkdtemp(prefix="decodelog-shared-"))
    file = folder / "decodelog.db"
    schema.upgrade(f"sqlite:///{file}")
    with closing(open_store(f"sqlite:///{file}")) as store:
        admit(store)
    folder.chmod(0o755)
    file.chmod(0o644)
    yield file
    folder.chmod(0o755)
    shutil.rmtree(folder)


def as_reader(check: Callable[[], object], file: Path) -> None:
    """Run `check` in a process that may read the file and its folder and write neither; what it raises fails here."""
    if os.geteuid() != 0:
        file.chmod(0o444)
        file.parent.chmod(0o555)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            check()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.contract("LOG-2")
@pytest.mark.parametrize("beside_a_writer", [False, True])
def test_who_may_only_read_reads_and_is_told_what_writing_takes(shared: Path, beside_a_writer: bool) -> None:
    url = f"sqlite:///{shared}"

    def check() -> None:
        with closing(database_store(url)) as store:
            assert [row.job for row in store.rows()] == ["job-1"]
            assert len(list(store.read("job-1"))) == 1
            assert [log.job for log in store.logs()] == ["job-1"]
            for change in (lambda: admit(store, "job-2"), lambda: store.heartbeat("worker", 1000)):
                with pytest.raises(FileReadOnly, match="the right to write to the file and to its folder"):
                    change()
            assert schema.check(url) == schema.HEAD

    if beside_a_writer:
        with closing(database_store(url)) as store:
            store.row("job-1")
            as_reader(check, shared)
    else:
        as_reader(check, shared)
    assert [path.name for path in shared.parent.iterdir()] == [shared.name]


@pytest.mark.contract("LOG-2")
def test_a_reader_that_must_recover_a_log_is_told_which_right_it_lacks(shared: Path) -> None:
    """A killed process leaves its write-ahead log, which has committed work: reading without it would be wrong."""
    if (child := os.fork()) == 0:
        admit(open_store(f"sqlite:///{shared}"), "job-2")
        os._exit(0)
    os.waitpid(child, 0)
    shared.with_name(f"{shared.name}-shm").unlink()

    def check() -> None:
        with pytest.raises(FileReadOnly, match="no right to write to the file"):
            open_store(f"sqlite:///{shared}").rows()

    as_reader(check, shared)
    with closing(open_store(f"sqlite:///{shared}")) as store:
        assert [row.job for row in store.rows()] == ["job-1", "job-2"]


@pytest.mark.contract("LOG-2")
def test_an_unlocked_read_beside_a_new_writer_is_refused(shared: Path) -> None:
    """What is read as it lies while somebody begins to write is not believed."""
    url = f"sqlite:///{shared}"
    (asked, ask), (answered, answer) = os.pipe(), os.pipe()
    if (writer := os.fork()) == 0:
        os.read(asked, 1)
        admit(database_store(url), "job-2")
        os.write(answer, b"x")
        os._exit(0)

    def check() -> None:
        with (  # noqa: PT012
            closing(database_store(url)) as store,
            pytest.raises(DatabaseLocked, match="try again"),
            store._database.long_read() as connection,
        ):
            assert connection.exec_driver_sql("SELECT count(*) FROM jobs").scalar() == 1
            os.write(ask, b"x")
            os.read(answered, 1)

    as_reader(check, shared)
    os.waitpid(writer, 0)
    for end in (asked, ask, answered, answer):
        os.close(end)


UNMADE = {
    errno.EACCES: FileReadOnly,
    errno.EPERM: FileReadOnly,
    errno.EROFS: FileReadOnly,
    errno.ENOSPC: DatabaseFull,
    errno.EDQUOT: DatabaseFull,
    errno.EIO: DatabaseUnavailable,
    errno.ENOENT: FolderMissing,
    errno.ENOTDIR: FolderMissing,
}


@pytest.mark.parametrize("number", UNMADE, ids=errno.errorcode.get)
def test_why_no_file_can_be_made_is_told_by_its_class(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's own answer, given in its place: a disk that is full, or may not be written, is no test's to make."""
    file, made = tmp_path / "jobs.db", os.open

    def refused(path: str, flags: int, *further: Any, **named: Any) -> int:
        if path == str(file) and flags & os.O_CREAT:
            raise OSError(number, os.strerror(number))
        return made(path, flags, *further, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        with pytest.raises(Problem) as caught:
            schema.upgrade(f"sqlite:///{file}")
    assert type(caught.value) is UNMADE[number]
    assert not file.exists()
