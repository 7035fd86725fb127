"""Export: logs as one file, which is there whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from errno import EISDIR
from pathlib import Path
from typing import BinaryIO

from ...fsm.errors import UnwritableOutput
from ...runtime import private
from ...store.archive.bundle import Signature, Written, write
from ...store.log.chain import StoredLog
from ...store.log.erased import erased
from ...store.reading.audit import ShowsRows
from ..files import sync_folder


def export(
    store: ShowsRows,
    jobs: Sequence[str] | None,
    out: Path,
    force: bool = False,
    redact: bool = False,
    sign: Callable[[bytes], Signature] | None = None,
) -> Written:
    """Write a bundle of these jobs' logs, or of all, each as it stands at one read of it.

    `redact`: their content is left out as if it were erased, so are idempotency keys, and the heads are the same.
    `sign` makes the signature of the file's digest.
    Errors: UnknownJob, UnwritableOutput, and those of the store.
    """
    logs = _logs(store, jobs)
    return write_whole(out, force, lambda file: write(file, map(redacted, logs) if redact else logs, sign=sign))


def write_whole(out: Path, force: bool, write_to: Callable[[BinaryIO], Written]) -> Written:
    """Have a file written beside `out`, sync it, and move it there; `force` replaces what is there.

    Errors: UnwritableOutput, and what `write_to` raises, which leaves nothing.
    """
    with _beside(out, force) as (file, new):
        written = write_to(file)
        file.flush()
        os.fsync(file.fileno())
        if force:
            new.replace(out)
        else:
            os.link(new, out)  # which refuses what another process has put there meanwhile
        sync_folder(out.parent)
    return written


def check_writable(out: Path, force: bool) -> None:
    """Whether `write_whole` could begin, for whoever has more to do before it. Errors: UnwritableOutput."""
    with _beside(out, force):
        if out.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))


@contextmanager
def _beside(out: Path, force: bool) -> Iterator[tuple[BinaryIO, Path]]:
    """A new file beside `out`, and its path; it is gone afterwards. Errors: UnwritableOutput."""
    new = out.parent / f".export-{secrets.token_hex(4)}.new"
    try:
        if out.exists() and not force:
            raise FileExistsError
        with open(new, "xb", opener=private.opened) as file:
            yield file, new
    except FileExistsError as error:
        raise UnwritableOutput(str(out), "it is there already, and --force is not given") from error
    except OSError as error:
        raise UnwritableOutput(str(out), error.strerror or str(error)) from error
    finally:
        with suppress(OSError):
            new.unlink()


def redacted(log: StoredLog) -> StoredLog:
    """A log without its content, the key that somebody chose for it, and how long it is to stay."""
    row = None if log.row is None else replace(log.row, idempotency_key=None, retain_ms=None)
    return log._replace(rows=erased(log.job, list(log.rows)), row=row)


def _logs(store: ShowsRows, jobs: Sequence[str] | None) -> Iterator[StoredLog]:
    if jobs is None:
        yield from store.logs()
        return
    for job in jobs:
        yield from store.logs(job)
