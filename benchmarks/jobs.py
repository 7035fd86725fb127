"""Jobs of the scripted model under an engine of one's own: the whole path of a token but the model's arithmetic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from decodelog.fsm.ports import Store
from decodelog.fsm.request.draft import draft_from
from decodelog.runtime.loop.engine import Engine
from decodelog.runtime.loop.job import Job
from decodelog.runtime.model.port import Model
from decodelog.service.database import now_ms
from decodelog.service.jobs.submit import submit

WORKER = "benchmark"
LEASE_MS = 3_600_000
PROMPT = tuple(range(65, 81))


def admit(store: Store, model: Model, count: int, tokens: int, sampled: bool = False) -> list[str]:
    """Submit `count` jobs of exactly `tokens` output tokens each; their names."""
    names = []
    for number in range(count):
        noise = {"temperature": 0.8, "seed": number} if sampled else {}
        draft = draft_from({"token_ids": [*PROMPT], "max_new_tokens": tokens, "ignore_eos": True, **noise})
        names.append(submit(store, model, "scripted", draft, now_ms()).job)
    return names


@contextmanager
def engine_of(store: Store, model: Model, names: list[str]) -> Iterator[Engine]:
    """An engine that holds these jobs; what it still holds at the end is let go of."""
    engine = Engine(store, model)
    for claim in store.claim(WORKER, LEASE_MS, len(names), names):
        engine.adopt(Job.load(store, claim), WORKER)
    if len(engine.jobs) != len(names):
        raise RuntimeError(f"{len(engine.jobs)} of {len(names)} jobs were claimed")
    yield engine
    engine.close()
    store.release(WORKER)


def run_out(engine: Engine) -> None:
    """Turn until no job is left."""
    while engine.jobs:
        engine.turn()


def tokens_per_second(store: Store, model: Model, count: int, turns: int, warm: int, sampled: bool = False) -> float:
    """Committed tokens a second of `count` jobs side by side, over `turns` turns after `warm` others."""
    names = admit(store, model, count, warm + turns, sampled)
    with engine_of(store, model, names) as engine:
        for _ in range(warm):
            engine.turn()
        return count * turns / seconds(lambda: run_out(engine))


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
