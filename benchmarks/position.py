"""(f) Whether a token costs more the later it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import mean, median

from databases import MEMORY, folder, sqlite_url, store_at
from jobs import PROMPT, admit, engine_of, seconds
from measuring import Figures, median_ratio, medians
from scripted import one_thread, scripted_model

EARLY, LATE, WINDOW = 100, 8000, 160


def position(rounds: int, note: Callable[[str], None]) -> Figures:
    """Time of a turn around position 8,000 over that around 100, of sampled jobs that take turns.

    The memory log leaves no sync in the figure; the same on SQLite is reported beside it.
    """
    figures: Figures = {}
    for kind in ("memory", "sqlite"):
        note(f"a job of {LATE} tokens on {kind}, then {rounds} rounds of {WINDOW} more beside the first of another job")
        with one_thread(), folder() as directory:
            pairs = list(turn_times(MEMORY if kind == "memory" else sqlite_url(directory, "position"), rounds))
        early, late = [[median(side) * 1e6 for side in sides] for sides in zip(*pairs, strict=True)]
        figures |= medians({f"early_{kind}_us": early, f"late_{kind}_us": late})
        figures[f"late_over_early_{kind}"] = median_ratio(late, early)
        means = [mean(late) / mean(early) for early, late in pairs]
        figures[f"late_over_early_{kind}_mean"] = median(means)
    figures["late_over_early"] = figures.pop("late_over_early_memory")
    return figures


def turn_times(url: str, rounds: int) -> Iterator[tuple[list[float], list[float]]]:
    """For each round the seconds of a young job's turns around EARLY, and of an old one's around LATE between them."""
    model = scripted_model()
    half = WINDOW // 2
    with store_at(url) as store:
        old_names = admit(store, model, 1, LATE + rounds * half - len(PROMPT), sampled=True)
        with engine_of(store, model, old_names) as old:
            for _ in range(LATE - rounds * half - len(PROMPT)):
                old.turn()
            for _ in range(rounds):
                young_names = admit(store, model, 1, EARLY + half - len(PROMPT), sampled=True)
                with engine_of(store, model, young_names) as young:
                    for _ in range(EARLY - half - len(PROMPT)):
                        young.turn()
                    times = [(seconds(young.turn), seconds(old.turn)) for _ in range(WINDOW)]
                yield [early for early, _ in times], [late for _, late in times]
