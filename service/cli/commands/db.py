"""db: the schema of a database."""

from __future__ import annotations

from typing import Any

import typer

from ....fsm.errors import SchemaMissing
from ...database import database_url
from .. import terminal
from ..edge import FAILED
from . import options

app = typer.Typer(no_args_is_help=True, help="Make, upgrade and check a database's schema.")


@app.command()
def upgrade(db: options.Database = None, json: options.Json = False) -> None:
    """Make or upgrade the schema; doing it again changes nothing."""
    from ....store.database import schema

    url = database_url(db)
    _print(schema.upgrade(url), json)


@app.command()
def current(db: options.Database = None, json: options.Json = False) -> None:
    """Print the revision of the schema that is there."""
    from ....store.database import schema

    try:
        revision = schema.current(database_url(db))
    except SchemaMissing:  # a SQLite file that is not there
        revision = None
    _print(revision, json)


@app.command()
def check(db: options.Database = None, json: options.Json = False) -> None:
    """Say whether the schema is the one this program needs, and whether what is answered there survives a crash."""
    from ....store.database import schema
    from ....store.database.settings import standing

    url = database_url(db)
    revision = schema.check(url)
    found = standing(url)
    _print(revision, json, {"settings": found.settings, "lacking": found.lacking, "declared": found.declared})
    for note in found.notes:
        terminal.say(note)
    if found.lacking:
        kept = "this is declared, and what is written may be lost" if found.declared else "nothing is written there"
        terminal.say(f"{found.lacking}: a crash can take back what was answered; {kept}", style="yellow")
    if found.lacking and not found.declared:
        raise typer.Exit(FAILED)


def _print(revision: str | None, json: bool, more: dict[str, Any] | None = None) -> None:
    from ....store.database import schema

    if json:
        terminal.write_json({"revision": revision, "needed": schema.HEAD} | (more or {}))
    else:
        terminal.write(f"{revision or 'none'}\n")
