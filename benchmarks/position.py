"""(f) Whether a token costs more the later it comes."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import mean, median

from databases import MEMORY, folder, sqlite_url, store_at
from jobs import PROMPT, admit, engine_of
from measuring import Figures, median_ratio, medians
from scripted import one_thread, scripted_model

EARLY, LATE, WINDOW = 100, 8000, 200


def position(rounds: int, note: Callable[[str], None]) -> Figures:
    """Time of a turn around position 8,000 over that around 100, in one sampled job of the scripted model.

    The memory log leaves no sync in the figure; the SQLite one is reported beside it.
    """
    turns: dict[str, list[float]] = {}
    for number in range(rounds):
        note(f"round {number + 1} of {rounds}: {LATE + WINDOW // 2} tokens in memory, and as many in SQLite")
        with one_thread(), folder() as directory:
            for kind, url in (("memory", MEMORY), ("sqlite", sqlite_url(directory, "position"))):
                times = turn_times(url)
                for place, name in ((EARLY, "early"), (LATE, "late")):
                    window = times[place - WINDOW // 2 : place + WINDOW // 2]
                    turns.setdefault(f"{name}_{kind}_us", []).append(median(window) * 1e6)
                    turns.setdefault(f"{name}_{kind}_mean_us", []).append(mean(window) * 1e6)
    return medians(turns) | {
        "late_over_early": median_ratio(turns["late_memory_us"], turns["early_memory_us"]),
        "late_over_early_sqlite": median_ratio(turns["late_sqlite_us"], turns["early_sqlite_us"]),
        "late_over_early_mean": median_ratio(turns["late_memory_mean_us"], turns["early_memory_mean_us"]),
    }


def turn_times(url: str) -> list[float]:
    """Seconds of each turn of one job, by the position of the token it commits; positions of the prompt have none."""
    times = [0.0] * len(PROMPT)
    model = scripted_model()
    with store_at(url) as store:
        names = admit(store, model, 1, LATE + WINDOW // 2 - len(PROMPT), sampled=True)
        with engine_of(store, model, names) as engine:
            while engine.jobs:
                begin = time.perf_counter()
                engine.turn()
                times.append(time.perf_counter() - begin)
    return times
