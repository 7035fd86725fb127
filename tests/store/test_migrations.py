"""Migrations on both databases: from nothing to the tables that the code sees, once, whole, and one at a time."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from databases import database_store
from sqlalchemy import CursorResult, inspect, text
from steps import admit, write

from decodelog.fsm.errors import SchemaMissing, SchemaNewer, SchemaOutdated
from decodelog.store.database import schema
from decodelog.store.database.connection import connected
from decodelog.store.database.tables import metadata
from decodelog.store.engine import open_store


def script_directory() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", schema.scripts())
    return ScriptDirectory.from_config(config)


def execute(url: str, statement: str, **parameters: object) -> CursorResult[Any]:
    with connected(url) as database, database.transaction() as connection:
        return connection.execute(text(statement), parameters)


def tables(url: str) -> set[str]:
    with connected(url, create=True) as database, database.single() as connection:
        return set(inspect(connection).get_table_names())


@pytest.mark.contract("LOG-6")
def test_the_revisions_that_the_code_knows_are_the_migrations() -> None:
    revisions = [script.revision for script in script_directory().walk_revisions()]
    assert list(reversed(revisions)) == list(schema.REVISIONS)
    assert script_directory().get_current_head() == schema.HEAD


@pytest.mark.contract("LOG-6")
def test_from_empty_to_head_equals_the_metadata(empty_url: str) -> None:
    assert schema.upgrade(empty_url) == schema.HEAD
    assert schema.current(empty_url) == schema.check(empty_url) == schema.HEAD
    with connected(empty_url) as database, database.single() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
        found = inspect(connection)
        checks = {check["name"] for check in found.get_check_constraints("jobs")}
        indexes = {index["name"] for table in ("jobs", "inbox") for index in found.get_indexes(table)}
    assert checks == {"ck_jobs_finish"}
    assert {"ix_jobs_live", "ix_jobs_owned", "ix_jobs_suspects", "ix_inbox_unsettled"} <= indexes


@pytest.mark.contract("LOG-6")
def test_upgrading_again_changes_nothing_and_keeps_jobs_resumable(database_url: str) -> None:
    store = database_store(database_url)
    writer = write(store, admit(store), 3)
    kept = store.row("job-1"), list(store.read("job-1"))
    assert schema.upgrade(database_url) == schema.HEAD
    assert (store.row("job-1"), list(store.read("job-1"))) == kept
    write(store, writer, 1)
    store.close()


@pytest.mark.contract("LOG-6")
def test_a_failed_upgrade_leaves_nothing_behind(empty_url: str) -> None:
    """A table is in the way of the last one that the migration makes."""
    with connected(empty_url, create=True) as database, database.transaction() as connection:
        connection.execute(text("CREATE TABLE inbox (other INTEGER)"))
    with pytest.raises(Exception, match="inbox"):
        schema.upgrade(empty_url)
    assert schema.current(empty_url) is None
    assert tables(empty_url) == {"inbox"}
    execute(empty_url, "DROP TABLE inbox")
    assert schema.upgrade(empty_url) == schema.HEAD


@pytest.mark.contract("LOG-6")
def test_a_failed_upgrade_of_a_filled_database_leaves_its_version_and_jobs(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a second migration dropped a table and then failed."""
    store = database_store(database_url)
    write(store, admit(store), 2)
    store.close()

    def fail(config: Config, revision: str) -> None:
        connection = config.attributes["connection"]
        connection.execute(text("UPDATE alembic_version SET version_num = '0002'"))
        connection.execute(text("DROP TABLE inbox"))
        raise RuntimeError("half way")

    with monkeypatch.context() as patch:
        patch.setattr(command, "upgrade", fail)
        with pytest.raises(RuntimeError):
            schema.upgrade(database_url)
    assert schema.check(database_url) == schema.HEAD
    store = database_store(database_url)
    assert len(list(store.read("job-1"))) == 3
    assert store.pending(["job-1"]) == []
    store.close()


@pytest.mark.contract("LOG-6")
def test_processes_that_upgrade_at_once_all_find_it_done(empty_url: str) -> None:
    code = "import sys; from decodelog.store.database import schema; print(schema.upgrade(sys.argv[1]))"
    command = [sys.executable, "-c", code, empty_url]
    racing = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    ended = [(*process.communicate(timeout=600), process.returncode) for process in racing]
    assert ended == [(f"{schema.HEAD}\n", "", 0)] * 3
    assert schema.check(empty_url) == schema.HEAD


@pytest.mark.contract("LOG-6")
def test_a_database_without_a_schema_says_how_to_get_one(empty_url: str) -> None:
    for ask in (schema.check, open_store):
        with pytest.raises(SchemaMissing, match="make it with an upgrade"):
            ask(empty_url)
    if empty_url.startswith("postgres"):
        assert schema.current(empty_url) is None
        assert tables(empty_url) == set()


@pytest.mark.contract("LOG-6")
def test_an_older_schema_says_how_to_upgrade_it(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = schema.HEAD
    monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, "9999"))
    monkeypatch.setattr(schema, "HEAD", "9999")
    for ask in (schema.check, open_store):
        with pytest.raises(SchemaOutdated, match="upgrade the database") as problem:
            ask(database_url)
        assert (problem.value.found, problem.value.needed) == (newest, "9999")


@pytest.mark.contract("LOG-6")
def test_a_newer_schema_is_left_alone(empty_url: str) -> None:
    schema.upgrade(empty_url)
    execute(empty_url, "UPDATE alembic_version SET version_num = '0999'")
    for ask in (schema.check, open_store, schema.upgrade):
        with pytest.raises(SchemaNewer, match="install the decodelog") as problem:
            ask(empty_url)
        assert (problem.value.found, problem.value.needed) == ("0999", schema.HEAD)
    assert schema.current(empty_url) == "0999"


@pytest.mark.contract("LOG-6")
def test_opening_a_store_loads_no_migrations(sqlite_url: str) -> None:
    code = (
        "import sys; from decodelog.store.engine import open_store; open_store(sys.argv[1]).close();"
        "print([name for name in sys.modules if name.startswith(('alembic', 'decodelog.migrations'))])"
    )
    done = subprocess.run([sys.executable, "-c", code, sqlite_url], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
