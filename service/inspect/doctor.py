"""What this machine has and lacks for running jobs, each check on its own: one that fails hides no other."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

from ...fsm.errors import Problem
from ...fsm.errors.redaction import redacted, redacted_url
from ..advice import advised
from ..database import sqlite_file

Grade = Literal["ok", "warn", "fail"]

OK: Grade = "ok"
WARN: Grade = "warn"
FAIL: Grade = "fail"

PYTHON_MIN = (3, 11)
WIDTHS = (*range(1, 9), 12, 16, 32, 64)  # tried by the check of rows
FREE_BYTES_MIN = 1 << 30  # a fetch needs about this much at once: the download, and the converted weights


class Check(NamedTuple):
    """One finding, and what to do about it where something is to be done."""

    name: str
    status: Grade
    found: str
    advice: str = ""


def examine(url: str, home: Path) -> Iterator[Check]:
    """Every check, in the order in which things are needed. Nothing is created, fetched or changed."""
    examinations: dict[str, Callable[[], Check]] = {
        "python": _python,
        "torch": _torch,
        "postgresql driver": _driver,
        "models": lambda: _models(home),
        "rows": lambda: _rows(home),
        "models folder": lambda: _folder("models folder", home, "set DECODELOG_HOME to a folder of yours"),
        "database": lambda: _database(url),
        "database folder": lambda: _database_folder(url),
    }
    for name, examination in examinations.items():
        try:
            yield examination()
        except Problem as problem:
            found, _, advice = advised(problem).partition("; ")
            yield Check(name, FAIL, found, advice)
        except Exception as error:
            yield Check(
                name,
                FAIL,
                redacted(f"{type(error).__name__}: {error}"),
                "install decodelog anew in a fresh environment",
            )


def _python() -> Check:
    found = sys.version.split()[0]
    if sys.version_info < PYTHON_MIN:
        return Check("python", FAIL, found, f"install Python {'.'.join(map(str, PYTHON_MIN))} or newer")
    return Check("python", OK, f"{found} at {sys.executable}")


def _torch() -> Check:
    import torch

    threads, cores = torch.get_num_threads(), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    found = f"{torch.__version__}, {threads} threads on {cores or os.cpu_count()} cores"
    if cores and threads > cores:
        return Check("torch", WARN, found, f"more threads than cores slow each other down: set OMP_NUM_THREADS={cores}")
    return Check("torch", OK, found)


def _driver() -> Check:
    try:
        return Check("postgresql driver", OK, f"psycopg {version('psycopg')}")
    except PackageNotFoundError:
        return Check("postgresql driver", WARN, "psycopg is missing", "pip install 'psycopg[binary]', or use SQLite")


def _models(home: Path) -> Check:
    from ...runtime.model.artifacts import load_facts
    from ...runtime.model.releases import list_models

    listings = list_models(home)
    here = [listing for listing in listings if listing.fetched]
    for listing in here:
        load_facts(listing.directory, verify=True)
    if not here:
        names = ", ".join(listing.name for listing in listings)
        return Check("models", WARN, f"none in {home}", f"run `decodelog model fetch {names.split(', ')[0]}`")
    return Check("models", OK, f"{', '.join(listing.name for listing in here)}: every file has its hash")


def _rows(home: Path) -> Check:
    """Which batch widths have calls of their own here, and which need calls of more or fewer rows (see `probe`)."""
    from ...runtime.families.decoder.model import load_decoder
    from ...runtime.families.decoder.probe import call_rows
    from ...runtime.model.releases import list_models

    found = []
    for listing in list_models(home):
        if listing.fetched:
            decoder = load_decoder(listing.directory)
            rows = {width: call_rows(decoder, width) for width in WIDTHS}
            others = ", ".join(f"{width} as {count}" for width, count in rows.items() if width != count)
            as_what = f"widths computed as others: {others}" if others else "every width as it is"
            found.append(f"{listing.name}: {as_what}")
    told = f"each row's bits are its own at widths {WIDTHS[0]} to {WIDTHS[-1]}"
    return Check("rows", OK, f"{told}; {'; '.join(found)}" if found else "no model to try them with")


def _database(url: str) -> Check:
    from ...store.database import schema
    from ...store.database.names import parsed
    from ...store.database.settings import standing

    parsed(url)  # refuses what is no URL
    file = sqlite_file(url)
    if file is not None and not file.exists():
        return Check(
            "database",
            WARN,
            f"{redacted_url(url)} is not there yet",
            "`decodelog run` makes it, or `decodelog db upgrade`",
        )
    revision = schema.check(url)
    seen = standing(url)
    settled = ", ".join(f"{name} {value}" for name, value in seen.settings.items())
    found = "; ".join([f"{seen.name}: schema {revision}, {settled}", *seen.notes])
    if seen.lacking:
        off = "turn that on, or nothing is written there"
        advice = "declared, so that it is used all the same" if seen.declared else off
        return Check("database", WARN if seen.declared else FAIL, found, f"{seen.lacking}: {advice}")
    return Check("database", OK, found)


def _database_folder(url: str) -> Check:
    file = sqlite_file(url)
    if file is None:
        return Check("database folder", OK, "the server's own")
    return _folder("database folder", file.parent, "name another file with --db or DECODELOG_DB")


def _folder(name: str, folder: Path, advice: str) -> Check:
    """Whether a file can be made in `folder`, or in the nearest folder above it that is there, and the space left."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        return Check(name, FAIL, f"{there} cannot be written: {error.strerror}", advice)
    free = shutil.disk_usage(there).free
    found = f"{there} is writable, {free / 1e9:.1f} GB free"
    return Check(name, OK, found) if free >= FREE_BYTES_MIN else Check(name, WARN, found, "free some space")
