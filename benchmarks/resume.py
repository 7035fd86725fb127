"""(h) How soon a lost job goes on: its cache from kept rows, or by one prefill, beside that prefill alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from databases import folder, sqlite_url, store_at
from jobs import LEASE_MS
from measuring import Figures, median_ratio, medians, take_turns

from decodelog.fsm.ports import Store
from decodelog.fsm.request.draft import Draft
from decodelog.runtime.families.session import Prefill
from decodelog.runtime.loop.context import Context
from decodelog.runtime.loop.engine import Engine
from decodelog.runtime.loop.job import Job
from decodelog.runtime.loop.segments import Segments
from decodelog.runtime.model.native import NativeModel
from decodelog.runtime.model.releases import find_model
from decodelog.service.database import now_ms
from decodelog.service.jobs.models import home
from decodelog.service.jobs.submit import submit

MODEL = "smollm2-135m-instruct"
TOKENS, OUTPUT = 2000, 64


def resume(rounds: int, note: Callable[[str], None]) -> Figures:
    """A job of 2,000 tokens of SmolLM2, lost and taken over: from its claim until its cache is back, and durably so.

    Its last 64 tokens were generated. `resume_tensors_ms` reads kept rows from the page cache and computes nothing;
    `resume_prefill_ratio` is the same by one prefill, over a prefill of as many tokens by the session alone.
    """
    model = NativeModel(find_model(MODEL, home()), lanes=1)
    with folder() as directory, store_at(sqlite_url(directory, "resume")) as store:
        note(f"a job of {TOKENS} tokens, then {rounds} rounds of taking it over")
        prompt = tuple(place * 37 % 40_000 + 20 for place in range(TOKENS - OUTPUT + 1))
        draft = Draft(token_ids=prompt, max_new_tokens=2 * OUTPUT, ignore_eos=True)
        job = submit(store, model, MODEL, draft, now_ms()).job
        cache_dir = directory / "cache_dir"
        take_over(store, model, job, cache_dir, turns=OUTPUT)
        turns = take_turns(
            {
                "resume_tensors_ms": lambda: take_over(store, model, job, cache_dir),
                "resume_prefill_ms": lambda: take_over(store, model, job, None),
                "prefill_ms": lambda: prefill_ms(model, TOKENS),
            },
            rounds,
        )
    ratio = median_ratio(turns["resume_prefill_ms"], turns["prefill_ms"])
    return medians(turns) | {"resume_prefill_ratio": ratio}


def take_over(store: Store, model: NativeModel, job: str, cache_dir: Path | None, turns: int = 1) -> float:
    """Claim the job as a new worker does, and turn; milliseconds. It then gives the job back."""
    segments = None if cache_dir is None else Segments(cache_dir)
    worker = f"worker {time.monotonic_ns()}"
    begin = time.perf_counter()
    (claim,) = store.claim(worker, LEASE_MS, 1, [job])
    engine = Engine(store, model, Context(segments=segments))
    held = Job.load(store, claim)
    engine.adopt(held, worker)
    for _ in range(turns):
        engine.turn()
    engine.flush()
    taken = time.perf_counter() - begin
    state = held.durable.transcript.state
    if turns == 1 and (state is None or state.frontier.processed != TOKENS):
        raise RuntimeError(f"the job stands at {state and state.frontier}")
    engine.close()
    if segments is not None:
        segments.close()
    store.release(worker)
    return taken * 1e3


def prefill_ms(model: NativeModel, tokens: int) -> float:
    """Milliseconds of one prefill of so many tokens, by the session alone."""
    session = model.session(1)
    lane = session.open("alone", tokens)
    begin = time.perf_counter()
    session.select(session.prepare([Prefill(lane, [place * 41 % 40_000 + 20 for place in range(tokens)])]))
    taken = time.perf_counter() - begin
    session.release(lane)
    return taken * 1e3
