"""(g) What a grammar costs: the mask of a step, and a parser brought back after a crash."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from measuring import Figures
from stream import MODEL

from decodelog.fsm.request.canonical import ordered_json
from decodelog.fsm.request.transforms import Grammar
from decodelog.runtime.grammar.parser import Parser, grammars_of
from decodelog.service.jobs.models import Models, home

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "born": {"type": "integer"},
        "works": {"type": "array", "items": {"type": "object", "additionalProperties": {"type": ["string", "number"]}}},
    },
    "required": ["name", "born", "works"],
    "additionalProperties": False,
}
WORK = {
    "title": "Notes on the engine, with a table of its steps",
    "year": 1843,
    "pages_in_all": 65.5,
    "kept at": "Oxford",
}
DOCUMENT = {"name": "Ada Lovelace", "born": 1815, "works": [WORK] * 6}


def structure(rounds: int, note: Callable[[str], None]) -> Figures:
    """Microseconds of one step's mask under a JSON schema, guards included, over SmolLM2's 49,152 tokens; and of one
    token where a lost parser is brought back, its compilation included.

    A step is timed from the token before it to the mask: the parser's move, the library's mask, the guards. Each step
    counts with the least of the rounds, since what disturbs one only adds to it.
    """
    note(f"loading {MODEL}")
    model = Models(home(), 1).load(MODEL)
    grammars = grammars_of(model)
    grammar = Grammar(kind="grammar", language="json_schema", source=ordered_json(SCHEMA))
    tokens = model.text.encode(json.dumps(DOCUMENT, indent=2), add_special_tokens=False)
    note(f"{rounds} rounds of a document of {len(tokens)} tokens")
    steps = (
        np.min([list(step_times(grammars.parser(grammar, model.facts.eos_ids), tokens)) for _ in range(rounds)], axis=0)
        * 1e6
    )

    def rebuild() -> float:
        begin = time.perf_counter()
        grammars.parser(grammar, model.facts.eos_ids).stand_after(tokens)
        return (time.perf_counter() - begin) / len(tokens) * 1e6

    return {
        "mask_p50_us": float(np.percentile(steps, 50)),
        "mask_p99_us": float(np.percentile(steps, 99)),
        "mask_max_us": float(steps.max()),
        "grammar_rebuild_us": median(rebuild() for _ in range(rounds)),
    }


def step_times(parser: Parser, tokens: Sequence[int]) -> list[float]:
    """Seconds from each token to the mask of the next step; the first step's is part of compiling."""
    times = []
    for token in tokens[:-1]:
        begin = time.perf_counter()
        parser.take(token)
        allowed = parser.allowed()
        times.append(time.perf_counter() - begin)
        if not allowed.any():
            raise RuntimeError("the document is not of the schema")
    return times
