"""Appends for tests: deterministic events of a job, with no model and no state machine behind them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from decodelog.fsm.evidence.receipt import Receipt, Selection
from decodelog.fsm.machine.events import (
    STATE_BYTES,
    CallCompleted,
    DecisionMade,
    Event,
    OutputCommitted,
    RequestAdmitted,
    RequestClosed,
)
from decodelog.fsm.machine.states import Status
from decodelog.fsm.ports import Append, Head
from decodelog.fsm.request.finish import FinishReason

IDENTITY = "a" * 64


def digest(*parts: object) -> bytes:
    return sha256(repr(parts).encode()).digest()


def envelope(job: str) -> RequestAdmitted:
    return RequestAdmitted(job, b'{"prompt":"' + job.encode() + b'"}')


def step_events(job: str, step: int, text: str = "", drawn: bool = False) -> tuple[bytes, tuple[Event, ...]]:
    """The key and the events of an ordinary step; `text` makes it another one."""
    key = digest("receipt", job, step, text)
    draw = (0.25, 0.125, 0.5) if drawn else ()
    selection = Selection(step % 256, 1, -1 / 3, -0.1, 0.7, *draw)
    receipt = Receipt(step, 0, selection, f" {step}{text}".encode(), False, key)
    call = CallCompleted(1, 5 + step, digest("scores", job, step))
    return key, (call, DecisionMade(receipt), OutputCommitted(step + 1, digest("state", job, step, text)[:STATE_BYTES]))


@dataclass(frozen=True)
class Writer:
    """Who appends to a job: what it knows of the log, and its fence."""

    job: str
    head: Head
    fence: int = 0
    output: int = 0

    def step(self, text: str = "", drawn: bool = False, **changes: Any) -> Append:
        key, events = step_events(self.job, self.output, text, drawn)
        append = Append(self.job, self.head, self.fence, key, events, Status.PENDING, self.output + 1)
        return append._replace(**changes)

    def last_step(self, reason: FinishReason = FinishReason.LENGTH) -> Append:
        """An ordinary step that also ends the job."""
        append = self.step()
        events = (*append.events, RequestClosed(reason, (reason,)))
        return append._replace(entries=events, status=Status.CLOSED, finish=reason.value)

    def cancel(self) -> Append:
        reason = FinishReason.CANCELLED
        events = (RequestClosed(reason, (reason,)),)
        key = digest("cancel", self.job)
        return Append(self.job, self.head, self.fence, key, events, Status.CLOSED, self.output, reason.value)

    def at(self, head: Head) -> Writer:
        """The writer after its step was taken, or one that believes in another head."""
        return replace(self, head=head, output=self.output + 1)


def admit(
    store: Any,
    job: str = "job-1",
    idempotency_key: str | None = None,
    identity: str = IDENTITY,
    model: str = "scripted",
    artifact: str = "",
) -> Writer:
    """A writer for a job that was just admitted."""
    store.admit(job, identity, model, 5, envelope(job), idempotency_key, artifact=artifact)
    return Writer(job, store.row(job).head)


def write(store: Any, writer: Writer, steps: int, drawn: bool = False) -> Writer:
    """Append that many steps, one at a time."""
    for _ in range(steps):
        (result,) = store.append([writer.step(drawn=drawn)])
        if result.outcome != "appended":
            raise AssertionError(result)
        writer = writer.at(result.head)
    return writer


def events_of(store: Any, job: str, after: int = 0) -> list[Event]:
    return [event for record in store.read(job, after) for event in record.events]
