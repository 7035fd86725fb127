"""(a), (b) One real stream: beside transformers' own loop, and beside itself on a log in memory and on one that is
written as ever but not synced."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

import torch
from databases import MEMORY, folder, sqlite_url, store_at, unsynced_store_at
from jobs import engine_of, seconds
from measuring import Figures, median_ratio, medians, take_turns
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging

from decodelog.fsm.machine.state import State
from decodelog.fsm.ports import Store
from decodelog.fsm.reading.emission import Emission
from decodelog.fsm.request.draft import Draft
from decodelog.runtime.loop.engine import Engine
from decodelog.runtime.loop.pace import Pace
from decodelog.runtime.model.releases import find_model
from decodelog.service.database import now_ms
from decodelog.service.jobs.compose import new_worker
from decodelog.service.jobs.models import Models, home
from decodelog.service.jobs.submit import submit

MODEL = "smollm2-135m-instruct"
PROMPT_TOKENS, NEW_TOKENS = 64, 128
TAX_TOKENS, BLOCK = 256, 64
TEXT = (
    "The harbour wakes before the town does. Nets are carried over wet stone, gulls argue above the roofs, and the "
    "first boats leave while the lamps are still lit. An old pilot stands at the end of the mole and counts them out, "
    "as he has done every morning since his own boat was sold. Today one of them turns back at the buoy, and he says:"
)


def stream(rounds: int, note: Callable[[str], None]) -> Figures:
    """Tokens a second of whole generations, prompt included: greedy, fp32, one number of threads, the same ids."""
    note(f"loading {MODEL} twice")
    ours, theirs = Ours(), Theirs(find_model(MODEL, home()))
    ids = ours.prompt()
    with ExitStack() as stores:
        directory = stores.enter_context(folder())
        durable = stores.enter_context(store_at(sqlite_url(directory, "stream")))
        memory = stores.enter_context(store_at(MEMORY))
        unsynced = stores.enter_context(unsynced_store_at(sqlite_url(directory, "unsynced")))
        note("warming up, and comparing tokens")
        same = ours.generate(durable, ids, NEW_TOKENS) == theirs.generate(ids, NEW_TOKENS)
        note(f"{rounds} rounds of {NEW_TOKENS} tokens: a durable stream and transformers' generate")
        turns = take_turns(
            {
                "stream_sqlite": lambda: rate(lambda: ours.generate(durable, ids, NEW_TOKENS)),
                "stream_generate": lambda: rate(lambda: theirs.generate(ids, NEW_TOKENS)),
            },
            rounds,
        )
        more = 2 * rounds - 1  # one round of it is about as uncertain as its bar is high
        note(f"{more} rounds of {TAX_TOKENS} tokens: a durable stream, one in memory and one without syncs, in turns")
        spent = [ours.side_by_side((durable, memory, unsynced), ids, TAX_TOKENS) for _ in range(more)]
    return medians(turns) | {
        "generate_ratio": median_ratio(turns["stream_sqlite"], turns["stream_generate"]),
        "durability_tax": median(tax(seconds_durable, seconds_memory) for seconds_durable, seconds_memory, _ in spent),
        "sync_share": median(tax(seconds_durable, seconds_unsynced) for seconds_durable, _, seconds_unsynced in spent),
        "stream_same_tokens": float(same),
    }


def rate(generation: Callable[[], object]) -> float:
    return NEW_TOKENS / seconds(generation)


def run_block(engine: Engine) -> None:
    for _ in range(BLOCK):
        engine.turn()
    engine.flush()


def tax(durable_seconds: float, other_seconds: float) -> float:
    """The part of its speed that a stream gives up: 1 - durable tokens/s over those of a stream that has it easier."""
    return 1 - other_seconds / durable_seconds


class Ours:
    """The product: a store, a worker, the native decoder."""

    def __init__(self) -> None:
        self._models = Models(home(), Pace().lanes_max)
        self._model = self._models.load(MODEL)

    def prompt(self) -> list[int]:
        return list(self._model.text.encode(TEXT, add_special_tokens=True))[:PROMPT_TOKENS]

    def generate(self, store: Store, ids: list[int], tokens: int) -> list[int]:
        """The token ids that the reader of a job saw: submission, a worker's claim, its loop, the job's end."""
        seen: list[int] = []

        def read(job: str, emissions: Sequence[Emission], state: State) -> None:
            seen.extend(token.token for item in emissions for token in item.tokens)

        job = self._submit(store, ids, tokens)
        new_worker(store, self._models, sink=read).run(jobs=[job], drain=True)
        if len(seen) != tokens:
            raise RuntimeError(f"job {job} gave {len(seen)} of {tokens} tokens, and is {store.row(job).status}")
        return seen

    def side_by_side(self, stores: Sequence[Store], ids: list[int], tokens: int) -> list[float]:
        """Seconds that the same stream takes in each store, where the streams take turns every few tokens.

        A block ends when its last token is durable: what runs beside the next call is that stream's own.
        """
        spent = [0.0] * len(stores)
        with ExitStack() as stack:
            engines = [
                stack.enter_context(engine_of(store, self._model, [self._submit(store, ids, tokens)]))
                for store in stores
            ]
            gc.collect()
            gc.freeze()
            for block in range(tokens // BLOCK):
                for place in range(len(stores)):
                    index = (block + place) % len(stores)
                    spent[index] += seconds(partial(run_block, engines[index]))
            if any(engine.jobs for engine in engines):
                raise RuntimeError("a stream is longer than it was asked to be")
        return spent

    def _submit(self, store: Store, ids: list[int], tokens: int) -> str:
        draft = Draft(token_ids=tuple(ids), max_new_tokens=tokens, ignore_eos=True)
        return submit(store, self._model, MODEL, draft, now_ms()).job


class Theirs:
    """transformers on the same directory: its own attention, its own cache, greedy, no end but the length."""

    def __init__(self, directory: Path) -> None:
        logging.disable_progress_bar()
        self._model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    @torch.inference_mode()
    def generate(self, ids: list[int], tokens: int) -> list[int]:
        config = GenerationConfig(
            max_new_tokens=tokens, do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=0
        )
        prompt = torch.tensor([ids])
        output = self._model.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), generation_config=config
        )
        return [int(token) for token in output[0, len(ids) :]]
