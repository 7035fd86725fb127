"""A fault in the work for one job ends that job, by a typed failure with its cause: never its mates, nor the worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from cranks import admit, assert_audited, model, result, transcript
from databases import AnyStore
from workers import FAST, worker

from decodelog.fsm.errors import JobFault, Problem
from decodelog.fsm.machine.events import TokenStep
from decodelog.fsm.machine.transition import Command, Proposal
from decodelog.fsm.ports import Claim
from decodelog.fsm.reading.transcript import Transcript
from decodelog.runtime.faults import WORDS_MAX, fault_of, is_fault, told
from decodelog.runtime.grammar.parser import Parser
from decodelog.runtime.loop import decisions
from decodelog.runtime.loop import engine as engine_module
from decodelog.runtime.loop.durable_job import DurableJob
from decodelog.runtime.loop.engine import Engine
from decodelog.runtime.loop.job import Job
from decodelog.runtime.loop.writer import Writer
from decodelog.runtime.policy.decide import decide
from decodelog.runtime.policy.history import History
from decodelog.runtime.policy.plan import Plan

TEXT = "Hello, world."
BAD: dict[str, Any] = {"repetition_penalty": 1.5, "regex": r"(?s).*"}


class PanicException(BaseException):
    """As a library in Rust raises it."""


class Trap:
    """Raises where something is done for the one job, after so many times that are well; once, or from then on."""

    def __init__(self, raised: BaseException | type[BaseException], after: int, once: bool = False) -> None:
        self.job, self.left, self.raised, self.once = "", after, raised, once

    def __call__(self, job: str) -> None:
        if job == self.job:
            self.left -= 1
            if self.left == -1 or (self.left < 0 and not self.once):
                raise self.raised


def in_decisions(patch: pytest.MonkeyPatch, trap: Trap) -> None:

    def trapped(scores: Any, plans: Sequence[Plan], *others: Any) -> Any:
        if any(plan.looks_back for plan in plans):
            trap(trap.job)
        return decide(scores, plans, *others)

    patch.setattr(decisions, "decide", trapped)


def in_a_receipt(patch: pytest.MonkeyPatch, trap: Trap) -> None:
    decided = decisions._decided

    def trapped(result: Any, *others: Any) -> Any:
        trap(result.job.name)
        return decided(result, *others)

    patch.setattr(decisions, "_decided", trapped)


def in_a_method(of: Any, name: str, job_of: Callable[..., str]) -> Callable[[pytest.MonkeyPatch, Trap], None]:
    def spring(patch: pytest.MonkeyPatch, trap: Trap) -> None:
        method = getattr(of, name)

        def trapped(self: Any, *arguments: Any) -> Any:
            trap(job_of(trap, self, *arguments))
            return method(self, *arguments)

        patch.setattr(of, name, trapped)

    return spring


def only_one(trap: Trap, *_: object) -> str:
    return trap.job  # no other job has such a thing


PLACES = {
    "its decision": (in_decisions, 3),
    "its parser's mask": (in_a_method(Parser, "allowed", only_one), 4),
    "its parser's step": (in_a_method(Parser, "take", only_one), 2),
    "its receipt": (in_a_receipt, 2),
    "its history": (in_a_method(History, "follow", only_one), 2),
    "its report": (in_a_method(DurableJob, "append_of", lambda trap, job, *_: job.name), 2),
    "its text": (
        in_a_method(
            Transcript, "follow", lambda trap, each, *_: each.state.spec.job if each.state is not None else ""
        ),
        4,
    ),
    "its publication": (in_a_method(Writer, "_publish", lambda trap, writer, job, _: job.name), 2),
    "its compiler": (in_a_method(Engine, "parser_of", lambda trap, engine, job: job.name), 0),
}  # fmt: skip

BEHIND = {"its report", "its text", "its publication"}
"""Behind the crank: there the job is ended from its log, which does the same once more."""


@pytest.mark.contract("POL-7", "LOG-4")
@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("raised", [IndexError("out of range"), PanicException("a panic")], ids=repr)
@pytest.mark.parametrize("place", PLACES)
def test_a_fault_of_one_job_is_its_own(
    store: AnyStore, monkeypatch: pytest.MonkeyPatch, place: str, raised: BaseException, beside: bool
) -> None:
    of = model(TEXT)
    heard: dict[str, Problem] = {}
    spring, after = PLACES[place]
    trap = Trap(raised, after, once=place in BEHIND)
    mates = [admit(store, of), admit(store, of)]
    bad = admit(store, of, **BAD)
    mates.append(admit(store, of, temperature=1.0, seed=3))
    with monkeypatch.context() as patch:
        spring(patch, trap)
        trap.job = bad
        worker(store, of, pace=replace(FAST, beside=beside), notice=heard.__setitem__).run(drain=True)
    assert trap.left < 0
    assert [result(store, job)["text"] for job in mates[:2]] == [TEXT] * 2
    assert result(store, mates[2])["finish_reason"] == "eos"
    assert {result(store, job)["usage"]["attempts"] for job in mates} == {1}
    if place == "its compiler":
        # What cannot be made ready here may be elsewhere: it is left to others, with its reason.
        assert heard[bad].code == "not_runnable_here"
        assert type(raised).__name__ in str(heard[bad])
        assert store.row(bad).owner is None
    else:
        ended = transcript(store, bad)
        error = ended.result()["error"]["message"]
        assert ended.state is not None
        assert ended.state.ending is not None
        assert ended.state.ending.cause == "job_fault"
        assert type(raised).__name__ in error
        assert str(raised) in error
    assert_audited(store)


@pytest.mark.contract("POL-7")
def test_an_unwritable_event_of_one_job_stops_no_other_job(store: AnyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written of one job keeps nobody else's from the log."""
    of = model(TEXT)
    bad, good = admit(store, of), admit(store, of)
    propose = Job.propose

    def unwritable(job: Job, *commands: Command) -> Proposal:
        proposal = propose(job, *commands)
        if job.name == bad and isinstance(step := proposal.entries[0], TokenStep) and job.state.frontier.output == 2:
            token: Any = "\ud800"
            broken = step.selection._replace(token=token)
            return proposal._replace(entries=(step._replace(selection=broken),))
        return proposal

    monkeypatch.setattr(Job, "propose", unwritable)
    worker(store, of).run(drain=True)
    assert result(store, good)["text"] == TEXT
    assert (store.row(bad).finish, store.row(bad).output) == ("misformed_append", 2)
    assert_audited(store)


@pytest.mark.contract("POL-7", "ENV-9")
@pytest.mark.parametrize("place", ["admit", "echo"])
def test_a_fault_before_the_first_step_ends_the_job_with_its_cause(
    store: AnyStore, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    of = model(TEXT)
    bad, good = admit(store, of, echo_prompt=True), admit(store, of)

    def broken(*arguments: object) -> Any:
        raise ValueError("no such thing")

    made = worker(store, of)
    if place == "echo":
        monkeypatch.setattr(engine_module, "unscored", broken)
    else:
        made._admit = lambda job, model: broken() if job.name == bad else None
    made.run(drain=True)
    assert (store.row(bad).finish, result(store, good)["text"]) == ("job_fault", TEXT)
    assert "ValueError: no such thing" in result(store, bad)["error"]["message"]
    assert_audited(store)


@pytest.mark.contract("LOG-7")
def test_a_job_whose_log_cannot_even_be_ended_is_left_to_others(
    store: AnyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = model(TEXT)
    heard: dict[str, Problem] = {}
    bad, good = admit(store, of), admit(store, of)
    load = vars(Job)["load"].__func__

    def broken(kind: Any, log: Any, claim: Claim) -> Any:
        if claim.job == bad:
            raise ValueError("no such log")
        return load(kind, log, claim)

    monkeypatch.setattr(Job, "load", classmethod(broken))
    worker(store, of, notice=heard.__setitem__).run(drain=True)
    assert result(store, good)["text"] == TEXT
    assert (heard[bad].code, store.row(bad).owner, store.row(bad).finish) == ("job_fault", None, None)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_is_to_end_the_process_ends_it_and_no_job(
    store: AnyStore, monkeypatch: pytest.MonkeyPatch, raised: type[BaseException]
) -> None:
    of = model(TEXT)
    job = admit(store, of)
    trap = Trap(raised, 2)
    trap.job = job
    in_a_receipt(monkeypatch, trap)
    with pytest.raises(raised):
        worker(store, of).run(drain=True)
    assert store.row(job).finish is None
    assert not is_fault(raised())


def test_what_a_fault_says_is_bounded_and_can_be_written() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert told(ValueError("\ud800\0")) == "\\ud800\\0"
    assert len(told(ValueError("x" * 10**6))) == WORDS_MAX + 3
    assert told(Mute()) == "its message cannot be read"
    fault = fault_of("job-1", Mute())
    assert isinstance(fault, JobFault)
    assert fault.cause == "Mute"
    assert fault_of("job-1", fault) is fault
