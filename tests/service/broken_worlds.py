"""Worlds in which one thing is broken, for the simulation to find: each breaks a promise of the store or the worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import patch

import numpy as np

from decodelog.fsm.errors import LostTenure
from decodelog.fsm.ports import Append, AppendResult, Claim, Outcome
from decodelog.runtime.loop import decisions
from decodelog.runtime.loop.worker import Worker
from decodelog.runtime.loop.writer import Pending, Writer
from decodelog.service.lab.simulation import world
from decodelog.service.lab.simulation.world import VirtualStore, World
from decodelog.store.appending.offer import offer


class Unfenced(VirtualStore):
    """Appends are taken whatever tenure they come from."""

    def append(self, batch: Sequence[Append]) -> list[AppendResult]:
        return super().append([append._replace(fence=self.row(append.job).fence) for append in batch])


class Repeating(VirtualStore):
    """An append whose answer was lost is appended once more."""

    def append(self, batch: Sequence[Append]) -> list[AppendResult]:
        results = super().append(batch)
        again = [
            append._replace(expected=self.row(append.job).head)
            for append, result in zip(batch, results, strict=True)
            if result.outcome is Outcome.DUPLICATE and append.finish is None
        ]
        super().append(again)
        return results


class Halving(VirtualStore):
    """Of a turn of several jobs, the last one is said to be appended and is not."""

    def append(self, batch: Sequence[Append]) -> list[AppendResult]:
        if len(batch) == 1:
            return super().append(batch)
        return [*super().append(batch[:-1]), offer(batch[-1]).done(Outcome.APPENDED)]


class Forgetting(VirtualStore):
    """Now and then an append is said to be durable and is lost."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__(clock)
        self._appends = count(1)

    def append(self, batch: Sequence[Append]) -> list[AppendResult]:
        if next(self._appends) % 7:
            return super().append(batch)
        jobs = {}
        for append in batch:
            held = self._jobs[append.job]
            jobs[append.job] = replace(held, log=list(held.log), lasts=list(held.lasts), digests=list(held.digests))
        results = super().append(batch)
        self._jobs.update(jobs)
        return results


class Keyless(VirtualStore):
    """Idempotency keys are ignored."""

    def admit(self, job: str, identity: str, model: str, prompt: int, event: Any, *keys: Any) -> Any:
        return super().admit(job, identity, model, prompt, event, None)


class Unraised(VirtualStore):
    """A claim of a job that has an owner leaves the fence as it is."""

    def claim(self, worker: str, *arguments: Any, **options: Any) -> list[Claim]:
        owned = {name: job.fence for name, job in self._jobs.items() if job.owner is not None}
        claims = super().claim(worker, *arguments, **options)
        for claim in claims:
            if claim.job in owned:
                self._jobs[claim.job].fence = owned[claim.job]
        return [claim._replace(fence=owned.get(claim.job, claim.fence)) for claim in claims]


class Overcautious(VirtualStore):
    """A worker that has not heard of its own claim never gets the job again."""

    def claim(self, worker: str, *arguments: Any) -> list[Claim]:
        lease_ms, limit, jobs, dead, *others = arguments
        return super().claim(worker, lease_ms, limit, jobs, set(dead) - {worker}, *others)


class Careless(VirtualStore):
    """Jobs that stall are claimed as any other, all at once and at once."""

    def claim(self, *arguments: Any, **options: Any) -> list[Claim]:
        return super().claim(*arguments[:6], **options)


class Patient(VirtualStore):
    """Tenures that stall are not counted."""

    def claim(self, *arguments: Any, **options: Any) -> list[Claim]:
        return [claim._replace(stalled=0) for claim in super().claim(*arguments[:6], **options)]


class Endless(VirtualStore):
    """A lease never ends, and nobody is known to be dead."""

    def claim(self, worker: str, lease_ms: int, limit: int, jobs: Any = None, *others: Any, **options: Any) -> Any:
        return super().claim(worker, 10**9, limit, jobs, [worker], *others[1:])

    def heartbeat(self, worker: str, lease_ms: int) -> frozenset[str]:
        return super().heartbeat(worker, 10**9)


def early(self: Writer, pending: Pending) -> list[LostTenure]:
    """Publishes a turn, and then waits until it is durable."""
    steps, durable = pending
    for job, proposal, _ in steps:
        for entry, state in zip(proposal.entries, proposal.states, strict=True):
            job.transcript.follow(entry, state)
        self._publish(job, proposal.state)
    lost = []
    for (job, _, _), result in zip(steps, durable(), strict=True):
        job.head = result.head
        if result.outcome is not Outcome.APPENDED:
            job.lost = result.outcome.value
            lost.append(LostTenure(job=job.name, outcome=result.outcome.value, detail=""))
    return lost


def deaf(self: Worker, model: str, engine: Any) -> dict[str, Any]:
    """Neither commands nor deadlines end anything."""
    return {}


def twice(self: Writer, job: Any, state: Any) -> None:
    """Shows what is new twice."""
    if self._sink is not None and not job.detached and (emissions := job.transcript.hand_over()):
        try:
            self._sink(job.name, emissions, state)
            self._sink(job.name, emissions, state)
        except Exception:
            job.detached = True


class Drawn:
    """Noise that is drawn in turn, instead of being a function of its step."""

    def __init__(self) -> None:
        self._turns = Counter[str]()

    def __call__(self, algorithm: str, seeds: Any, choices: Any, branch: Any, steps: Any, domain: Any = 0) -> Any:
        self._turns[algorithm] += 1
        return np.modf(np.asarray(steps) * 0.37 + self._turns[algorithm] * 0.61)[0]


def with_store(store: Callable[[Callable[[], int]], VirtualStore]) -> Any:
    @contextmanager
    def broken() -> Iterator[Callable[[int], World]]:
        yield lambda seed: World(seed, store)

    return broken


def with_patch(target: Any, name: str, instead: Any) -> Any:
    @contextmanager
    def broken() -> Iterator[Callable[[int], World]]:
        with patch.object(target, name, instead):
            yield World

    return broken


@contextmanager
def together() -> Iterator[Callable[[int], World]]:
    """In each world there is a job that kills, and nobody keeps it apart from others."""
    with patch.object(world, "DEADLY", 1.0):
        yield lambda seed: World(seed, Careless)


BROKEN = {
    "the fence is not checked": with_store(Unfenced),
    "the fence does not grow": with_store(Unraised),
    "a duplicate is appended again": with_store(Repeating),
    "half of a turn is appended": with_store(Halving),
    "an append is lost": with_store(Forgetting),
    "a key is ignored": with_store(Keyless),
    "a claim that was not heard of is kept": with_store(Overcautious),
    "jobs that stall are claimed together": together,
    "tenures that stall are not counted": with_store(Patient),
    "a lease never ends": with_store(Endless),
    "text is shown before it is durable": with_patch(Writer, "_finish", early),
    "text is shown twice": with_patch(Writer, "_publish", twice),
    "commands and deadlines are ignored": with_patch(Worker, "_interruptions", deaf),
    "noise is drawn in turn": with_patch(decisions, "unit_draws", Drawn()),
}
