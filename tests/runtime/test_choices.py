"""The choices of one request: noise of their own under one seed, and each what it would be alone."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from cranks import admit, assert_audited, engine, finish, model, result, run, turn
from databases import AnyStore, wall_clock_ms

from decodelog.fsm.request.draft import draft_from
from decodelog.fsm.request.finish import FinishReason
from decodelog.runtime.families.scripted.model import ScriptedModel
from decodelog.service.jobs.family import submit_choices
from decodelog.service.streams.turns import Turns
from decodelog.store.memory.log import MemoryStore

FLAT = model(rows=((0.0,) * 256,), then="repeat")  # every byte is as likely as any other
SAME = ("identity", "token_ids", "text", "finish_reason")


def family(store: AnyStore, of: ScriptedModel, **draft: Any) -> list[str]:
    """Submit several choices; their jobs."""
    asked = draft_from({"prompt": "say ", "temperature": 1.0, "seed": 7, "max_new_tokens": 40, **draft})
    return submit_choices(store, of, "scripted", asked, wall_clock_ms()).found.jobs


def alone(of: ScriptedModel, choice: int, **draft: Any) -> dict[str, Any]:
    """What that choice becomes as a request of its own, in another log."""
    asked = {"temperature": 1.0, "seed": 7, "max_new_tokens": 40, "choice": choice, **draft}
    found = run(MemoryStore(), of, **asked)
    return {name: found[name] for name in SAME}


@pytest.mark.contract("POL-7", "POL-5", "ENV-5")
@pytest.mark.parametrize("algorithm", ["philox4x32-10", "splitmix64"])
def test_four_choices_of_one_seed_differ_and_are_the_same_alone(store: AnyStore, algorithm: str) -> None:
    """Four choices of one seed are four texts and each is what it is alone."""
    shape = {"batch_width": 4, "rng_algorithm": algorithm}
    jobs = family(store, FLAT, n=4, **shape)
    mate = admit(store, FLAT, temperature=1.0, seed=8, **shape)
    finish(engine(store, FLAT, mate, *jobs))
    results = [result(store, job) for job in jobs]
    assert len({tuple(each["token_ids"]) for each in results}) == 4
    assert len({each["identity"] for each in results}) == 4
    for choice, each in enumerate(results):
        assert {name: each[name] for name in SAME} == alone(FLAT, choice, **shape)
    assert_audited(store)


@pytest.mark.contract("POL-7", "FSM-7")
def test_each_choice_ends_where_it_would_alone(store: AnyStore) -> None:
    ending = {"allowed_token_ids": [97, 98, 99, 100, 101], "stop_token_ids": [97]}
    jobs = family(store, FLAT, n=6, batch_width=6, **ending)
    finish(engine(store, FLAT, *jobs))
    results = [result(store, job) for job in jobs]
    assert len({len(each["token_ids"]) for each in results}) > 2
    for choice, each in enumerate(results):
        assert {name: each[name] for name in SAME} == alone(FLAT, choice, batch_width=6, **ending)


@pytest.mark.contract("POL-7", "FSM-9")
def test_a_choice_that_is_cancelled_leaves_the_others_as_they_were(store: AnyStore) -> None:
    jobs = family(store, FLAT, n=3, batch_width=3)
    crank = engine(store, FLAT, *jobs)
    turn(crank, 5)
    crank.turn(lambda: {jobs[1]: [FinishReason.CANCELLED]})
    finish(crank)
    results = [result(store, job) for job in jobs]
    assert [each["finish_reason"] for each in results] == ["length", "cancelled", "length"]
    wholes = [alone(FLAT, choice, batch_width=3)["token_ids"] for choice in range(3)]
    assert [results[0]["token_ids"], results[2]["token_ids"]] == [wholes[0], wholes[2]]
    committed = results[1]["token_ids"]
    assert committed == wholes[1][: len(committed)]
    assert 0 < len(committed) == store.row(jobs[1]).output < 40
    assert_audited(store)


@pytest.mark.contract("OUT-7")
def test_choices_are_read_in_order_however_they_are_made(store: AnyStore) -> None:
    """Choices are read one after another in whatever order they are made."""
    jobs = family(store, FLAT, n=4)
    read: list[tuple[str, str]] = []
    turns = Turns(store, jobs, lambda job, emission: read.append((job, emission.text)))

    def make(choice: int) -> list[str]:
        """Bring one choice to its end; of which jobs all has been read since."""
        crank = engine(store, FLAT, jobs[choice], sink=lambda job, emissions, state: turns.take(job, emissions))
        finish(crank)
        crank.close()  # an ended job may still be on its way to the reader
        return [job for job, _ in groupby(job for job, _ in read)]

    assert [make(2), make(1)] == [[], []]
    assert make(0) == jobs[:3]
    assert make(3) == jobs
    assert ["".join(text for of, text in read if of == job) for job in jobs] == [
        result(store, job)["text"] for job in jobs
    ]
