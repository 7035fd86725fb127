"""What is submitted in a simulation: short jobs of many shapes, and what becomes of each where nothing happens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from ....fsm.machine.events import CallFailed, Event
from ....fsm.machine.fold import fold
from ....fsm.machine.state import State
from ....fsm.ports import Record
from ....fsm.reading.load import load
from ....fsm.reading.transcript import Transcript
from ....fsm.request.draft import draft_from
from ....fsm.request.envelope import Envelope
from ....fsm.request.seal import seal
from ....runtime.families.scripted.model import ScriptedModel
from ....runtime.families.scripted.script import Script, ScriptedConfig
from ....runtime.loop.context import SEQUENTIAL
from ....runtime.loop.engine import Engine
from ....runtime.loop.job import Job
from ....store.memory.log import MemoryStore
from ...inspect.facts import TENURE, answer
from ...jobs.submit import admit_job

MODEL, OTHER_MODEL = "scripted", "another name of it"
TEXT = 'Hi {"a":[1]} bye'
DEADLINE_MS = 120
ENDLESS_TOKENS = 60
PASSING = (*TENURE, CallFailed)
"""Events that say who worked on a job and what failed there, and nothing of what the job is."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of job; `cancelled`: somebody always asks for its end, and early."""

    name: str
    draft: Mapping[str, Any]
    cancelled: bool = False

    @property
    def envelope(self) -> Envelope:
        """What it is sealed to; made once."""
        return _sealed(self.name)


SAMPLED: Mapping[str, Any] = {"temperature": 12.0, "seed": 7, "ignore_eos": True}

SHAPES = (
    Shape("greedy", {}),
    Shape("long", {"prompt": "A prompt of several tokens. ", "alignment": "token", "stop": ["ye"]}),
    Shape("sampled", {**SAMPLED, "max_new_tokens": 8, "logprobs": 2, "repetition_penalty": 1.2}),
    Shape("split", {**SAMPLED, "max_new_tokens": 6, "rng_algorithm": "splitmix64", "top_p": 0.9}),
    Shape("stopped", {"stop": ['i {"b', "]}"], "include_stop": True}),
    Shape("detected", {"stop_on_json": True, "alignment": "span"}),
    Shape("wide", {"batch_width": 2, "max_new_tokens": 7}),
    Shape("wider", {**SAMPLED, "batch_width": 2, "max_new_tokens": 7}),
    Shape("repaired", {"final_cache": "repaired", "echo_prompt": True, "prompt_logprobs": 1, "max_new_tokens": 5}),
    Shape("echoed", {"echo_prompt": True, "logprobs": 0, "max_new_tokens": 4}),
    Shape("nothing", {"max_new_tokens": 0}),
    Shape("patient", {"retry_budget": 0, "max_new_tokens": 5}),
    Shape("followed", {"consumer_policy": "cancel", "max_new_tokens": 9}),
    Shape("late", {"deadline_ms": DEADLINE_MS, "ignore_eos": True, "max_new_tokens": ENDLESS_TOKENS}),
    Shape("endless", {**SAMPLED, "max_new_tokens": ENDLESS_TOKENS}, cancelled=True),
)
BY_NAME = {shape.name: shape for shape in SHAPES}


@cache
def model() -> ScriptedModel:
    """The one model; its sessions hold nothing but the lanes that somebody has open."""
    return ScriptedModel(ScriptedConfig(script=Script(text=TEXT)))


@cache
def _sealed(name: str) -> Envelope:
    of = model()
    draft = {"prompt": "say ", "max_new_tokens": 40, **BY_NAME[name].draft}
    return seal(draft_from(draft), of.facts, of.runtime, of.text, 1)


class Course(NamedTuple):
    """What happened to a job, without who worked on it.

    events   in order
    cuts     how many of them there are after each append
    result   as callers see it, without what counts tenures
    """

    events: tuple[Event, ...]
    cuts: frozenset[int]
    result: Mapping[str, Any]


def course(records: Iterable[Record], result: Mapping[str, Any]) -> Course:
    """A log, read as what happened to its job."""
    events: list[Event] = []
    cuts = set()
    for record in records:
        events += [event for event in record.events if not isinstance(event, PASSING)]
        cuts.add(len(events))
    return Course(tuple(events), frozenset(cuts), answer(result))


@cache
def _admitted(event: Event) -> State:
    return fold(None, event)


def transcript_of(records: Sequence[Record]) -> Transcript:
    """What the log says, with what follows from its admission alone worked out once."""
    (admitted,), *_ = (record.events for record in records)
    transcript = Transcript(_admitted(admitted), 1)
    load(transcript, records[1:])
    return transcript


@cache
def undisturbed(shape: str, job: str) -> Course:
    """The course of a job of this shape and name to which nothing happens."""
    store = MemoryStore()
    admit_job(store, MODEL, job, BY_NAME[shape].envelope, None)
    (claim,) = store.claim("undisturbed", 1, 1)
    engine = Engine(store, model(), SEQUENTIAL)
    engine.adopt(Job.load(store, claim), "undisturbed")
    while engine.jobs:
        engine.turn()
    engine.close()
    records = list(store.read(job))
    return course(records, transcript_of(records).result())
