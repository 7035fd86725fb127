"""model: the models on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ...jobs.models import home
from .. import terminal
from . import options

app = typer.Typer(no_args_is_help=True, help="Fetch and list models.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="See `decodelog model ls`.", show_default=False)]


@app.command()
def fetch(name: Name, json: options.Json = False) -> None:
    """Download a model, check its hash, convert it, and print its directory; what is there already is kept."""
    from ....runtime.model.artifacts import fetch_model

    directory = fetch_model(name, home(), report=terminal.say)
    if json:
        terminal.write_json({"name": name, "directory": str(directory)})
    else:
        terminal.write(f"{directory}\n")


@app.command("ls")
def list_all(json: options.Json = False) -> None:
    """List the models that can be fetched, and where those that are here lie."""
    from ....runtime.model.releases import list_models

    listings = list_models(home())
    if json:
        terminal.write_json([asdict(listing) for listing in listings])
        return
    rows = [
        (each.name, f"{each.size_bytes / 1e6:.0f} MB" if each.fetched else "not fetched", each.directory)
        for each in listings
    ]
    terminal.write_table(("NAME", "SIZE", "DIRECTORY"), rows)
