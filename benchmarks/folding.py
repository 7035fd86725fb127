"""(d) From stored bytes to a state: our load beside eventsourcing's."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import peer_eventsourcing
from databases import folder, sqlite_url, store_at
from eventsourcing.application import Application
from jobs import admit, engine_of, run_out, seconds
from measuring import Figures, median_ratio, medians, take_turns
from scripted import one_thread, scripted_model

from decodelog.fsm.ports import Store
from decodelog.fsm.reading.load import load
from decodelog.fsm.reading.transcript import Transcript

TOKENS = 2000
LOADS = 3


def folding(rounds: int, note: Callable[[str], None]) -> Figures:
    """Microseconds an event to load a sampled job of 2,000 tokens; beside aggregates of as many events.

    Our side reads the appends, verifies the hash chain over every one, decodes them, and builds state and transcript
    with every token's text and log-probabilities. As the job is one run of steps, its first and its last are folded
    with receipt and digest, and of those between the counts are checked (see `decodelog.fsm.reading.load`).
    `read_us` also makes the items of a stream of it, which a reader asks for. `audit_fold_us` is the same as `fold_us`
    with every event folded: each receipt is issued and each state digested again.
    Theirs is `repository.get`: read, decode, apply.
    """
    with one_thread(), folder() as directory, store_at(sqlite_url(directory, "fold")) as store:
        note(f"writing a job of {TOKENS} tokens, and aggregates with as many events")
        (job,) = admit(store, scripted_model(), 1, TOKENS, sampled=True)
        with engine_of(store, scripted_model(), [job]) as engine:
            run_out(engine)
        events = loaded(store, job)
        app = peer_eventsourcing.application(directory, "fold_es")
        generation = peer_eventsourcing.new_generation(app, (events - 1) // 3)
        counter = peer_eventsourcing.new_counter(app, events - 1)
        note(f"{rounds} rounds of loading {events} events, {LOADS} times each")
        turns = take_turns(
            {
                "fold_us": lambda: per_event(lambda: loaded(store, job), events),
                "read_us": lambda: per_event(lambda: read(store, job), events),
                "audit_fold_us": lambda: per_event(lambda: folded(store, job), events),
                "es_fold_us": lambda: per_event(lambda: get(app, generation), events),
                "es_fold_integer_us": lambda: per_event(lambda: get(app, counter), events),
            },
            rounds,
        )
        app.close()
    return medians(turns) | {
        "fold_ratio": median_ratio(turns["es_fold_us"], turns["fold_us"]),
        "fold_ratio_integer": median_ratio(turns["es_fold_integer_us"], turns["fold_us"]),
    }


def loaded(store: Store, job: str) -> int:
    """Load a job's whole log; its count of events."""
    transcript = Transcript()
    load(transcript, store.read(job))
    return transcript.sequence


def read(store: Store, job: str) -> int:
    """Load a job's whole log and make its stream; its count of events."""
    transcript = Transcript()
    load(transcript, store.read(job))
    if transcript.emissions[-1].finish is None:
        raise RuntimeError("the stream has no end")
    return transcript.sequence


def folded(store: Store, job: str) -> int:
    """Fold a job's whole log event by event; its count of events."""
    transcript = Transcript()
    for record in store.read(job):
        for event in record.events:
            transcript.take(event)
    return transcript.sequence


def get(app: Application[UUID], aggregate: UUID) -> int:
    """Rebuild an aggregate; its count of events."""
    return int(app.repository.get(aggregate).version)


def per_event(work: Callable[[], int], events: int) -> float:
    """Microseconds an event of the fastest of a few loads: what disturbs a load only ever adds to it."""
    return min(seconds(work) for _ in range(LOADS)) / events * 1e6
