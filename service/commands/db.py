"""db: the schema of a database."""

from __future__ import annotations

import typer

from ...fsm.errors import SchemaMissing
from .. import terminal
from ..database import database_url
from . import options

app = typer.Typer(no_args_is_help=True, help="Make, upgrade and check a database's schema.")


@app.command()
def upgrade(db: options.Database = None, json: options.Json = False) -> None:
    """Make or upgrade the schema; doing it again changes nothing."""
    from ...store import schema

    url = database_url(db)
    _print(schema.upgrade(url), json)


@app.command()
def current(db: options.Database = None, json: options.Json = False) -> None:
    """Print the revision of the schema that is there."""
    from ...store import schema

    try:
        revision = schema.current(database_url(db))
    except SchemaMissing:  # a SQLite file that is not there
        revision = None
    _print(revision, json)


@app.command()
def check(db: options.Database = None, json: options.Json = False) -> None:
    """Say whether the schema is the one this program needs."""
    from ...store import schema

    _print(schema.check(database_url(db)), json)


def _print(revision: str | None, json: bool) -> None:
    from ...store import schema

    if json:
        terminal.write_json({"revision": revision, "needed": schema.HEAD})
    else:
        terminal.write(f"{revision or 'none'}\n")
