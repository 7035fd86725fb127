"""Cancel: a durable command, carried out by the job's owner, or by the caller where there is no live owner."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ..fsm.errors import LostTenure
from ..fsm.finish import FinishReason
from ..fsm.ports import Command, Store
from ..fsm.transition import CloseRequest
from .incarnation import dead_workers

if TYPE_CHECKING:
    from ..runtime.job import Job

POLL_S = 0.02
LEASE_MS = 10_000


class Cancelled(NamedTuple):
    """What became of a cancel: how the job ended (a finish reason or a cause), and whether the cancel ended it."""

    job: str
    outcome: str
    effective: bool


def cancel(
    store: Store, job: str, worker: str, timeout_s: float = 30.0, clock: Callable[[], float] = time.monotonic
) -> Cancelled | None:
    """End `job` with exactly the tokens committed before; None where its owner has not answered within the time.

    A job that has ended stays as it is: the command is settled with how it ended.
    Errors: UnknownJob, and those of the store.
    """
    row = store.row(job)
    command = Command(secrets.token_hex(16), job, "cancel")
    store.post(command)
    if row.status.terminal:
        store.settle(command.command_id, f"refused: terminal ({row.finish})")
        return Cancelled(job, str(row.finish), False)
    until = clock() + timeout_s
    while clock() < until:
        if (outcome := store.outcome(command.command_id)) is not None:
            return Cancelled(job, outcome, outcome == FinishReason.CANCELLED)
        for claim in store.claim(worker, LEASE_MS, 1, [job], dead=dead_workers(store.owners())):
            from ..runtime.job import Job  # with torch, which only a job without a live owner needs here

            ended = _close(store, Job.load(store, claim), worker)
            store.settle(command.command_id, ended.outcome)
            return ended
        row = store.row(job)
        if row.status.terminal:
            store.settle(command.command_id, str(row.finish))
            return Cancelled(job, str(row.finish), row.finish == FinishReason.CANCELLED)
        time.sleep(POLL_S)
    return None


def _close(store: Store, job: Job, worker: str) -> Cancelled:
    try:
        job.record(store, CloseRequest(FinishReason.CANCELLED))
    except LostTenure:
        row = store.row(job.name)
        return Cancelled(job.name, str(row.finish), False)
    finally:
        store.release(worker, [job.name])
    return Cancelled(job.name, FinishReason.CANCELLED, True)
