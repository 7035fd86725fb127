"""(e) What a token costs in the database file."""

from __future__ import annotations

from collections.abc import Callable

from databases import file_bytes, folder, sqlite_url, store_at
from jobs import admit, engine_of, run_out
from measuring import Figures
from scripted import one_thread, scripted_model

TOKENS = 4096
MANY = 64


def size(rounds: int, note: Callable[[str], None]) -> Figures:
    """Bytes a token of sampled jobs: one of 4,096 tokens, and 64 side by side of 64 each. Nothing here is timed."""
    note(f"writing {TOKENS} tokens of one job, and of {MANY} jobs side by side")
    with one_thread():
        alone, together = bytes_per_token(1), bytes_per_token(MANY)
    return {"bytes_per_token": max(alone, together), "bytes_per_token_1": alone, "bytes_per_token_64": together}


def bytes_per_token(jobs: int) -> float:
    """Growth of the file, log merged, from jobs that are claimed to jobs that are finished."""
    model = scripted_model()
    with folder() as directory:
        url = sqlite_url(directory, "size")
        with store_at(url) as store:
            names = admit(store, model, jobs, TOKENS // jobs, sampled=True)
            with engine_of(store, model, names) as engine:
                before = file_bytes(url)
                run_out(engine)
            return (file_bytes(url) - before) / TOKENS
