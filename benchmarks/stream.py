"""(a), (b) One real stream: beside transformers' own loop, and beside itself on a log that nothing is synced for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from databases import MEMORY, folder, sqlite_url, store_at
from jobs import seconds
from measuring import Figures, median_ratio, medians, take_turns
from transformers import AutoModelForCausalLM, GenerationConfig

from decodelog.fsm.draft import Draft
from decodelog.fsm.ports import Store
from decodelog.fsm.transcript import Transcript
from decodelog.runtime.artifacts import find_model
from decodelog.runtime.worker import Pace
from decodelog.service.compose import new_worker
from decodelog.service.database import now_ms
from decodelog.service.models import Models, home
from decodelog.service.submit import submit

MODEL = "smollm2-135m-instruct"
PROMPT_TOKENS, NEW_TOKENS, WARM_TOKENS = 64, 128, 16
TEXT = (
    "The harbour wakes before the town does. Nets are carried over wet stone, gulls argue above the roofs, and the "
    "first boats leave while the lamps are still lit. An old pilot stands at the end of the mole and counts them out, "
    "as he has done every morning since his own boat was sold. Today one of them turns back at the buoy, and he says:"
)


def stream(rounds: int, note: Callable[[str], None]) -> Figures:
    """Tokens a second of whole generations, prompt included: greedy, fp32, one number of threads, the same ids.

    Ours is the path of a submitted job: submission, a worker's claim, its loop, a reader, the job's end.
    """
    note(f"loading {MODEL} twice")
    ours, theirs = Ours(), Theirs(find_model(MODEL, home()))
    with folder() as directory, store_at(sqlite_url(directory, "stream")) as durable, store_at(MEMORY) as memory:
        ids = ours.prompt()
        note("warming up, and comparing tokens")
        same = ours.generate(durable, ids, NEW_TOKENS) == theirs.generate(ids, NEW_TOKENS)
        ours.generate(memory, ids, WARM_TOKENS)
        note(f"{rounds} rounds of {NEW_TOKENS} tokens: SQLite, generate, memory")
        turns = take_turns(
            {
                "stream_sqlite": lambda: rate(lambda: ours.generate(durable, ids, NEW_TOKENS)),
                "stream_generate": lambda: rate(lambda: theirs.generate(ids, NEW_TOKENS)),
                "stream_memory": lambda: rate(lambda: ours.generate(memory, ids, NEW_TOKENS)),
            },
            rounds,
        )
    return medians(turns) | {
        "generate_ratio": median_ratio(turns["stream_sqlite"], turns["stream_generate"]),
        "durability_tax": 1 - median_ratio(turns["stream_sqlite"], turns["stream_memory"]),
        "stream_same_tokens": float(same),
    }


def rate(generation: Callable[[], object]) -> float:
    return NEW_TOKENS / seconds(generation)


class Ours:
    """The product: a store, a worker, the native decoder."""

    def __init__(self) -> None:
        self._models = Models(home(), Pace().lanes_max)

    def prompt(self) -> list[int]:
        return list(self._models.load(MODEL).text.encode(TEXT, add_special_tokens=True))[:PROMPT_TOKENS]

    def generate(self, store: Store, ids: list[int], tokens: int) -> list[int]:
        """Submit one job, run it to its end, and return the token ids that its reader saw."""
        seen: list[int] = []
        draft = Draft(token_ids=tuple(ids), max_new_tokens=tokens, ignore_eos=True)
        job = submit(store, self._models.load(MODEL), MODEL, draft, now_ms()).job
        worker = new_worker(
            store,
            self._models,
            sink=lambda job, emissions, state: seen.extend(item.token for item in emissions if item.token is not None),
        )
        worker.run(jobs=[job], drain=True)
        if len(seen) != tokens:
            raise RuntimeError(f"job {job} gave {len(seen)} of {tokens} tokens: {outcome(store, job)}")
        return seen


def outcome(store: Store, job: str) -> object:
    transcript = Transcript()
    for record in store.read(job):
        for event in record.events:
            transcript.take(event)
    return transcript.result()


class Theirs:
    """transformers on the same directory: its own attention, its own cache, greedy, no end but the length."""

    def __init__(self, directory: Path) -> None:
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
