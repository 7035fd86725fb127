"""(i) What the Python API costs: the same jobs through `Log.map`, beside an engine over jobs that are there already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from databases import folder, sqlite_url, store_at
from jobs import engine_of, run_out, seconds
from measuring import Figures, median_ratio, medians, take_turns
from resume import MODEL

import decodelog
from decodelog.fsm.request.draft import draft_from
from decodelog.runtime.model.native import NativeModel
from decodelog.runtime.model.releases import find_model
from decodelog.service.database import now_ms
from decodelog.service.jobs.models import home
from decodelog.service.jobs.submit import submit

JOBS, TOKENS = 4, 160


def api(rounds: int, note: Callable[[str], None]) -> Figures:
    """Seconds for the jobs from the first submission to the last result, each side in a new database each round.

    `api_overhead` is the share of `Log.map`'s time that is not the crank's own.
    """
    model, numbers = NativeModel(find_model(MODEL, home()), lanes=JOBS), count()
    _ = model.decoder
    with folder() as directory:
        note(f"{rounds} rounds of {JOBS} jobs of {TOKENS} tokens, through the API and by an engine alone")

        def by_map() -> None:
            url = sqlite_url(directory, f"api_{next(numbers)}")
            with decodelog.open(url, models={MODEL: model}, lanes=JOBS) as log:
                ended = [result.usage.completion_tokens for _, result in log.map(MODEL, requests())]
            if ended != [TOKENS] * JOBS:
                raise RuntimeError(f"the jobs made {ended} tokens")

        def by_crank() -> None:
            with store_at(sqlite_url(directory, f"api_{next(numbers)}")) as store:
                drafts = [draft_from({key: each[key] for key in each if key != "custom_id"}) for each in requests()]
                names = [submit(store, model, MODEL, draft, now_ms()).job for draft in drafts]
                with engine_of(store, model, names) as engine:
                    run_out(engine)

        turns = take_turns({"api_map_s": lambda: seconds(by_map), "api_crank_s": lambda: seconds(by_crank)}, rounds)
    return medians(turns) | {"api_overhead": 1 - median_ratio(turns["api_crank_s"], turns["api_map_s"])}


def requests() -> Iterator[dict[str, Any]]:
    for number in range(JOBS):
        prompt = [place * (37 + number) % 40_000 + 20 for place in range(32)]
        yield {"custom_id": str(number), "token_ids": prompt, "max_new_tokens": TOKENS, "ignore_eos": True}
