"""Export and verify: from the command line, in an environment that has little else, and never half a file."""

from __future__ import annotations

import io
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from commandline import decodelog, script
from databases import database_store

from decodelog.fsm.errors import CorruptRecord, UnwritableOutput
from decodelog.fsm.ports import Head
from decodelog.fsm.reading.load import load
from decodelog.fsm.reading.transcript import Transcript
from decodelog.service.archive.export import export
from decodelog.service.database import opened
from decodelog.service.inspect.audit import audit, verify
from decodelog.store.archive.bundle import Bundle, write
from decodelog.store.log.chain import StoredLog
from decodelog.store.log.stored import Stored

pytestmark = pytest.mark.contract("LOG-3")

GOLDEN = Path(__file__).parent.parent / "golden" / "export"

# What the rest of the program is made of, and a proof does without.
ABSENT = (
    "alembic", "filelock", "gguf", "jinja2", "llguidance", "psycopg", "safetensors", "sqlalchemy", "sqlite3",
    "tokenizers", "torch", "transformers",
)  # fmt: skip
BARE = f"""
import sys
sys.modules.update(dict.fromkeys({ABSENT!r}))  # importing any of them now raises
from decodelog.service.cli.app import main
main()
"""


@pytest.fixture
def db(tmp_path: Path, database_url: str) -> str:
    """A database with a finished job, a family of three, and a job that waits."""
    model = script(tmp_path / "model", script={"text": "Hi"})
    for command in (("run",), ("run", "--n", 3, "--temperature", 1), ("submit",)):
        assert decodelog(*command, "--model", model, "--prompt", "G", db=database_url).code == 0
    return database_url


def names(db: str) -> list[str]:
    return [each["job"] for each in decodelog("jobs", "--json", db=db).json]


def test_what_is_exported_is_proven_like_the_database(db: str, tmp_path: Path) -> None:
    file = tmp_path / "logs.dlog"
    written = decodelog("export", "--all", "--out", file, "--json", db=db)
    assert (written.code, written.json["jobs"]) == (0, 5)
    audited, proven = decodelog("audit", "--json", db=db), decodelog("verify", file, "--json")
    assert (audited.code, proven.code) == (0, 0)
    assert proven.json == audited.json | {"digest": written.json["digest"]}
    told = decodelog("verify", file).stdout
    assert told == f"5 jobs, {proven.json['events']} events, digest {proven.json['digest']}: no fault\n"
    with file.open("rb") as opened_file, opened(db) as store:
        bundle = Bundle(opened_file)
        assert [row.job for row in bundle.rows()] == names(db)
        for name in names(db):
            assert list(bundle.read(name)) == list(store.read(name))


def test_one_job_or_one_family_is_exported_by_the_beginning_of_its_name(db: str, tmp_path: Path) -> None:
    job, family = names(db)[0], names(db)[1].partition(".")[0]
    for name, count in ((job, 1), (family, 3), (f"{family}.1", 1)):
        file = tmp_path / name
        told = decodelog("export", name, "--out", file, db=db)
        assert (told.code, told.stdout[: len("n jobs")]) == (0, f"{count} jobs")
        assert decodelog("verify", file, "--json").json["jobs"] == count


def test_two_exports_of_the_same_logs_are_the_same_bytes(db: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        decodelog("export", "--all", "--out", tmp_path / name, db=db)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_file_that_is_there_is_kept_unless_it_is_to_be_replaced(db: str, tmp_path: Path) -> None:
    file = tmp_path / "kept"
    file.write_text("precious")
    refused = decodelog("export", "--all", "--out", file, "--json", db=db)
    assert (refused.code, refused.error["code"]) == (2, "unwritable_output")
    assert file.read_text() == "precious"
    assert decodelog("export", "--all", "--out", file, "--force", db=db).code == 0
    assert verify(file).ok
    assert list(tmp_path.glob(".export*")) == []


@pytest.mark.parametrize("force", [False, True])
def test_an_export_that_fails_leaves_no_trace(db: str, tmp_path: Path, force: bool) -> None:
    file = tmp_path / "kept"
    if force:
        file.write_text("precious")

    class Failing:
        def logs(self, job: str | None = None) -> Iterator[StoredLog]:
            with opened(db) as store:
                for log in store.logs():
                    yield log
                    raise CorruptRecord("job-2", 1, "it is not there")

    with pytest.raises(CorruptRecord):
        export(Failing(), None, file, force)
    assert list(tmp_path.glob(".export*")) == []
    assert file.exists() == force
    if force:
        assert file.read_text() == "precious"


def test_who_is_first_to_write_a_file_keeps_it(tmp_path: Path) -> None:
    file = tmp_path / "taken"

    class Slow:
        def logs(self, job: str | None = None) -> Iterator[StoredLog]:
            file.write_text("precious")  # by another process, while this one reads
            return iter(())

    with pytest.raises(UnwritableOutput, match="it is there already"):
        export(Slow(), None, file)
    assert file.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_file_is_proven_without_database_or_model_library(db: str, tmp_path: Path) -> None:
    """A file is proven where there is neither a database nor a model library."""
    file = tmp_path / "logs.dlog"
    decodelog("export", "--all", "--out", file, db=db)

    def bare(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", BARE, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=600, check=False)

    proven = bare("verify", file)
    assert (proven.returncode, proven.stderr) == (0, "")
    assert proven.stdout == decodelog("verify", file).stdout
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    proven = bare("verify", file)
    assert proven.returncode == 1
    assert proven.stdout == decodelog("verify", file).stdout
    assert "[container]" in proven.stdout
    # The same interpreter cannot open a database, so nothing above did.
    refused = bare("audit")
    assert (refused.returncode, "halted; None in sys.modules" in refused.stderr) == (1, True)


def test_damage_in_a_database_is_exported_as_it_is(sqlite_url: str, tmp_path: Path) -> None:
    model = script(tmp_path / "model", script={"text": "Hi"})
    for _ in range(2):
        decodelog("run", "--model", model, "--prompt", "G", db=sqlite_url)
    one, two = names(sqlite_url)
    with closing(database_store(sqlite_url)) as store:
        with store._database.transaction() as connection:
            connection.exec_driver_sql("UPDATE jobs SET model = CAST(x'6dff' AS TEXT) WHERE id = 1")
            connection.exec_driver_sql("UPDATE appends SET fence = CAST(x'ff' AS TEXT) WHERE job_id = 2 AND first = 2")
        file = tmp_path / "logs.dlog"
        export(store, None, file)
        expected = audit(store)
    assert {fault.job for fault in expected.faults} == {one, two}
    assert verify(file)._replace(digest="") == expected


def test_memory_does_not_grow_with_a_log(tmp_path: Path) -> None:
    def rows(count: int) -> Iterator[Stored]:
        for number in range(1, count + 1):
            yield Stored(number, number, 1, bytes(32), bytes(8), bytes(300))

    def peak(count: int) -> int:
        file = tmp_path / f"{count}.dlog"
        tracemalloc.start()
        with file.open("wb") as out:
            write(out, [StoredLog("job-1", Head(count, bytes(32)), 1, rows(count), "damaged")])
        with file.open("rb") as written:
            assert Bundle(written).faults == []
            assert sum(1 for log in Bundle(written).logs() for _ in log.rows) == count
        _, found = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return found

    peak(10)
    assert peak(4000) < peak(100) + 50_000


def test_a_file_of_no_jobs_is_sound(tmp_path: Path) -> None:
    file = tmp_path / "empty.dlog"
    with file.open("wb") as out:
        write(out, [])
    assert verify(file).ok


@pytest.mark.contract("LOG-5")
@pytest.mark.parametrize("file", sorted(GOLDEN.iterdir()), ids=lambda file: file.name)
def test_a_file_that_was_written_once_is_proven_for_ever(file: Path) -> None:
    report = verify(file)
    assert report.ok, report.faults
    assert report.events > 1


@pytest.mark.contract("LOG-5")
def test_a_file_is_written_as_it_ever_was() -> None:
    data = (GOLDEN / "v1.dlog").read_bytes()
    again = io.BytesIO()
    write(again, Bundle(io.BytesIO(data)).logs())
    assert again.getvalue() == data


@pytest.mark.contract("LOG-5", "LOG-9", "ENV-8")
def test_what_files_say_of_keys_and_retention_is_read_for_ever() -> None:
    with (GOLDEN / "v1.dlog").open("rb") as file:
        told = [(row.idempotency_key, row.retain_ms) for row in Bundle(file).rows()]
    assert told == [("order-17", 7 * 86_400_000), (None, 0), ("Grüße", None), (None, None), (None, None)]


@pytest.mark.contract("LOG-9")
def test_a_redacted_file_says_no_keys(sqlite_url: str, tmp_path: Path) -> None:
    model = script(tmp_path / "model", script={"text": "Hi"})
    given = ("--prompt", "G", "--idempotency-key", "of-a-customer", "--retain", "1234567s")
    decodelog("run", "--model", model, *given, db=sqlite_url)
    for flags, told in (((), ("of-a-customer", 1_234_567_000)), (("--redact",), (None, None))):
        file = tmp_path / f"logs{len(flags)}"
        decodelog("export", "--all", *flags, "--out", file, db=sqlite_url)
        with file.open("rb") as opened_file:
            (row,) = Bundle(opened_file).rows()
        assert (row.idempotency_key, row.retain_ms) == told
        assert (b"of-a-customer" in file.read_bytes()) == (not flags)


@pytest.mark.contract("LOG-5", "LOG-9")
def test_a_sealed_log_is_read_for_ever() -> None:
    with (GOLDEN / "v1.dlog").open("rb") as file:
        bundle = Bundle(file)
        report = audit(bundle)
        assert (report.ok, report.sealed, report.erased) == (True, 2, 2)
        sealed = bundle.rows()[2].job
        transcript = Transcript()
        load(transcript, bundle.read(sealed))
        result = transcript.result()
        assert (result["usage"]["completion_tokens"], len(result["tokens"][5]["alternatives"])) == (12, 2)
        (row,) = [row for log in bundle.logs(sealed) for row in log.rows]
        assert row.payload[:2] == b"\xc1\x01"
