"""(e) What a token costs in the database file, live and sealed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from databases import file_bytes, folder, sqlite_url, store_at
from jobs import admit, engine_of, run_out
from measuring import Figures
from scripted import one_thread, scripted_model

from decodelog.service.retention.seal import seal

TOKENS = 4096
MANY = 64


class Bytes(NamedTuple):
    """Bytes a token: what the file grows by from claimed jobs to finished ones, and all of these jobs when sealed."""

    live: float
    sealed: float


def size(rounds: int, note: Callable[[str], None]) -> Figures:
    """Bytes a token of sampled jobs: one of 4,096 tokens, and 64 side by side of 64 each. Nothing here is timed."""
    note(f"writing and sealing {TOKENS} tokens of one job, and of {MANY} jobs side by side")
    with one_thread():
        alone, together = bytes_per_token(1), bytes_per_token(MANY)
    return {
        "bytes_per_token": max(alone.live, together.live),
        "bytes_per_token_1": alone.live,
        "bytes_per_token_64": together.live,
        "sealed_bytes_per_token": alone.sealed,
        "sealed_bytes_per_token_64": together.sealed,
    }


def bytes_per_token(jobs: int) -> Bytes:
    """Live: growth of the file, log merged. Sealed: of the vacuumed file from no jobs on, with all that is of them."""
    model = scripted_model()
    with folder() as directory:
        url = sqlite_url(directory, "size")
        with store_at(url) as store:
            empty = vacuumed(url)
            names = admit(store, model, jobs, TOKENS // jobs, sampled=True)
            with engine_of(store, model, names) as engine:
                before = file_bytes(url)
                run_out(engine)
            live = file_bytes(url) - before
            for name in names:
                seal(store, name)
        return Bytes(live / TOKENS, (vacuumed(url) - empty) / TOKENS)


def vacuumed(url: str) -> int:
    """Bytes of the file without free pages: those that sealing gives up stay in it until they are used again."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.execute("VACUUM")
    return file_bytes(url)
