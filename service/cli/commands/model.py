"""model: the models on this machine, and those that are registered in a database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ....fsm.errors import ModelNotFetched, Problem, UnknownModel
from ...database import database_url, opened, sqlite_file
from ...jobs.models import Models, home, lasting_name
from .. import terminal
from ..edge import FAILED
from . import options

if TYPE_CHECKING:
    from ...database import AnyStore

app = typer.Typer(no_args_is_help=True, help="Fetch, register, list and show models.")

DIGITS_SHOWN = 12

Name = Annotated[str, typer.Argument(metavar="NAME", help="See `decodelog model ls`.", show_default=False)]
Checkpoint = Annotated[
    str, typer.Argument(metavar="DIR|NAME", help="A checkpoint, or a fetched model's name.", show_default=False)
]
Alias = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="What requests may call it from now on.", show_default=False),
]
Which = Annotated[
    str,
    typer.Argument(
        metavar="NAME|DIGEST|DIR", help="A directory, or a fetched or registered model.", show_default=False
    ),
]
Folders = Annotated[
    list[Path] | None,
    typer.Argument(metavar="DIR", help="Also what lies there: a checkpoint, or checkpoints.", show_default=False),
]


@app.command()
def fetch(name: Name, json: options.Json = False) -> None:
    """Download a model, check its hash, convert it, and print its directory; what is there already is kept."""
    from ....runtime.model.artifacts import fetch_model

    directory = fetch_model(name, home(), report=terminal.say)
    if json:
        terminal.write_json({"name": name, "directory": str(directory)})
    else:
        terminal.write(f"{directory}\n")


@app.command()
def register(model: Checkpoint, name: Alias = None, db: options.Database = None, json: options.Json = False) -> None:
    """Keep in the database what clients need to submit for a model that they do not have, and print its digest.

    That is what it is, by its hashes, and its tokenizer. The weights stay where they are. A name that meant another
    model means this one from now on; jobs keep theirs.
    """
    from ...inspect.checkpoint import registered
    from ...jobs.registering import register

    with opened(db, create=True) as store, terminal.progress(f"reading {model}"):
        known = register(store, Models(home(), lanes=1), model, name)
    if known.replaced is not None:
        terminal.say(f"{name or model} meant {known.replaced} before", style="yellow")
    if json:
        terminal.write_json(registered(known.registered) | {"replaced": known.replaced})
    else:
        terminal.write(f"{known.registered.registration.artifact}\n")


@app.command("ls")
def list_all(folders: Folders = None, db: options.Database = None, json: options.Json = False) -> None:
    """List the models that can be fetched, those that are registered, and what lies in the given directories."""
    listings = [*_fetchable(), *_registered(db), *_lying(folders or [])]
    if json:
        terminal.write_json(listings)
        return
    rows = [
        (each["name"], each["kind"], _size(each), (each["artifact"] or "")[:DIGITS_SHOWN], _where(each))
        for each in listings
    ]
    terminal.write_table(("NAME", "KIND", "SIZE", "DIGEST", "WHERE"), rows)


@app.command()
def show(model: Which, db: options.Database = None, json: options.Json = False) -> None:
    """Say what a model is, and whether it loads here and if not, why. Exits with 1 where it does not.

    Its weights are read for that. What its generation_config.json says of sampling is shown, and followed by no
    request; the end tokens in it are.
    """
    from ...inspect import checkpoint

    with _registry(db) as store:
        directory, found = None, None
        try:
            directory = _directory(model)
        except (UnknownModel, ModelNotFetched):
            if store is None or (found := store.registered(model)) is None:
                raise
        if found is not None:
            with terminal.progress("looking for it on this machine"):
                directory = Models(home(), lanes=1).place(found.registration.artifact)
        with terminal.progress(f"reading {model}"):
            told = {} if found is None else checkpoint.registered(found)
            told |= {"loads": False, "error": None} if directory is None else checkpoint.at(directory)
            if found is None and store is not None and (artifact := told.get("artifact")):
                found = store.registered(artifact)
            told["registered_as"] = None if found is None else list(found.names)
    terminal.write_json(told) if json else terminal.write(_shown(told))
    if directory is not None and not told["loads"]:
        raise typer.Exit(FAILED)


def _directory(model: str) -> Path:
    """Where a model lies by its name or directory. Errors: UnknownModel, ModelNotFetched."""
    from ....runtime.model.releases import find_model
    from ...jobs.shelf import is_script

    given = lasting_name(model)
    return Path(given) if is_script(given) else find_model(given, home())


@contextmanager
def _registry(db: str | None) -> Iterator[AnyStore | None]:
    """The database; None where nobody has made a SQLite file, and none was named."""
    file = sqlite_file(database_url(db))
    if db is None and file is not None and not file.exists():
        yield None
        return
    with opened(db) as store:
        yield store


def _fetchable() -> Iterator[dict[str, Any]]:
    from ....runtime.model.releases import list_models

    for each in list_models(home()):
        yield asdict(each) | {"kind": "fetched" if each.fetched else "not fetched", "artifact": None, "error": None}


def _registered(db: str | None) -> Iterator[dict[str, Any]]:
    with _registry(db) as store:
        for registration, names, since_ms in [] if store is None else store.registrations():
            facts = {"artifact": registration.artifact, "registered_ms": since_ms, "error": None}
            for name in names or (registration.facts.release_id,):
                yield {"name": name, "kind": "registered", "directory": None, "size_bytes": 0} | facts


def _lying(folders: list[Path]) -> Iterator[dict[str, Any]]:
    from ...jobs.shelf import checkpoints, facts_at

    for directory in checkpoints(folders):
        size = sum(path.stat().st_size for path in directory.iterdir() if path.is_file())
        listing = {"name": directory.name, "kind": "checkpoint", "directory": directory, "size_bytes": size}
        try:
            yield listing | {"artifact": facts_at(directory).artifact, "error": None}
        except Problem as problem:
            yield listing | {"artifact": None, "error": problem.facts()}


def _size(listing: dict[str, Any]) -> str:
    return f"{listing['size_bytes'] / 1e6:.0f} MB" if listing["size_bytes"] else ""


def _where(listing: dict[str, Any]) -> str:
    if listing["error"] is not None:
        return f"{listing['directory']}: {listing['error']['message']}"
    if (since_ms := listing.get("registered_ms")) is not None:
        return f"since {datetime.fromtimestamp(since_ms / 1000).isoformat(' ', 'seconds')}"
    return str(listing["directory"])


def _shown(told: dict[str, Any]) -> str:
    """The facts in words, a line each."""
    lines = {name: value for name, value in told.items() if name not in ("files", "network", "defaults", "error")}
    lines |= told.get("network", {})
    stated = told.get("defaults") or {}
    ignored = ", ".join(f"{name} {value}" for name, value in stated.items())
    lines["defaults_followed"] = f"no: {ignored}; give them with the request" if stated else "none are stated"
    lines["loads"] = "yes" if told["loads"] else "no"
    if told.get("directory") is None:
        lines["loads"] = "it is not on this machine, as far as its folders are known here"
    elif told["error"] is not None:
        lines["loads"] = f"no: {told['error']['message']}"
    files = "".join(
        f"  {each['sha256']}  {each['name']} ({each['size_bytes']} bytes)\n" for each in told.get("files", ())
    )
    width = max(map(len, lines))
    head = "".join(f"{name:<{width}}  {_plain(value)}\n" for name, value in lines.items() if value is not None)
    return head + (f"files\n{files}" if files else "")


def _plain(value: Any) -> str:
    return " ".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)
