"""(c) The control plane: tokens a second where the model costs next to nothing, beside DBOS and eventsourcing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import peer_dbos
import peer_eventsourcing
from databases import MEMORY, Postgres, folder, sqlite_url, store_at
from jobs import seconds, tokens_per_second
from measuring import Figures, median_ratio, medians, take_turns
from scripted import one_thread, scripted_model

ALONE = 1
MANY = 64
STEPS, EVENTS = 200, 400
TURNS_ALONE, TURNS_MANY = 400, 100
# Long enough for SQLite's write-ahead log to have come round: from then on it is written over and does not grow.
WARM_ALONE, WARM_MANY = 600, 120


def control(rounds: int, note: Callable[[str], None]) -> Figures:
    """Greedy jobs by the plain path, sampled ones beside them; every side in a new database each round."""
    with folder() as directory:
        note("starting PostgreSQL")
        postgres = Postgres(directory / "postgres")
        try:
            note(f"{rounds} rounds of our stores, DBOS and eventsourcing")
            with one_thread():
                turns = take_turns(sides(directory, postgres), rounds)
        finally:
            postgres.close()
    figures = medians(turns)
    figures["control_over_dbos_1"] = median_ratio(turns["control_sqlite_1"], turns["dbos_steps"])
    figures["control_over_dbos_64"] = median_ratio(turns["control_sqlite_64"], turns["dbos_steps"])
    return figures


def sides(directory: Path, postgres: Postgres) -> dict[str, Callable[[], float]]:
    """Every side of the comparison: its key and what runs it once."""
    numbers = count(1)

    def new_name() -> str:
        return f"control_{next(numbers)}"

    def ours(new_url: Callable[[], str], jobs: int, sampled: bool = False) -> Callable[[], float]:
        turns, warm = (TURNS_ALONE, WARM_ALONE) if jobs == ALONE else (TURNS_MANY, WARM_MANY)

        def run() -> float:
            with store_at(new_url()) as store:
                return tokens_per_second(store, scripted_model(), jobs, turns, warm, sampled)

        return run

    def new_sqlite() -> str:
        return sqlite_url(directory, new_name())

    def dbos() -> float:
        return peer_dbos.steps_per_second(directory, new_name(), STEPS)

    def eventsourcing() -> float:
        app = peer_eventsourcing.application(directory, new_name())
        counter = peer_eventsourcing.Counter()
        peer_eventsourcing.save_each(app, counter, WARM_ALONE)
        try:
            return EVENTS / seconds(lambda: peer_eventsourcing.save_each(app, counter, EVENTS))
        finally:
            app.close()

    return {
        "control_sqlite_1": ours(new_sqlite, ALONE),
        "dbos_steps": dbos,
        "control_sqlite_64": ours(new_sqlite, MANY),
        "es_events": eventsourcing,
        "control_postgres_1": ours(postgres.new_url, ALONE),
        "control_postgres_64": ours(postgres.new_url, MANY),
        "control_memory_64": ours(lambda: MEMORY, MANY),
        "control_sqlite_1_sampled": ours(new_sqlite, ALONE, sampled=True),
        "control_sqlite_64_sampled": ours(new_sqlite, MANY, sampled=True),
    }
