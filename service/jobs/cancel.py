"""Cancel: a durable command, carried out by the job's owner, or by the caller where there is no live owner."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from typing import NamedTuple

from ...fsm.errors import LostTenure
from ...fsm.machine.transition import CloseRequest
from ...fsm.ports import CANCEL, Bell, Command, Store, refused
from ...fsm.request.finish import FinishReason
from ...runtime.host import THREADS, Host
from .incarnation import dead_workers

POLL_S = 0.2
LEASE_MS = 10_000

Dead = Callable[[Collection[str]], Collection[str]]
"""Which of these workers are known to be gone."""


class Cancelled(NamedTuple):
    """What became of a cancel: how the job ended (a finish reason or a cause), and whether the cancel ended it."""

    job: str
    outcome: str
    effective: bool


def cancel(
    store: Store,
    job: str,
    worker: str,
    timeout_s: float = 30.0,
    dead: Dead = dead_workers,
    host: Host = THREADS,
) -> Cancelled | None:
    """`cancel_all` of one job."""
    return cancel_all(store, [job], worker, timeout_s, dead, host)[0]


def cancel_all(
    store: Store,
    jobs: Sequence[str],
    worker: str,
    timeout_s: float = 30.0,
    dead: Dead = dead_workers,
    host: Host = THREADS,
) -> list[Cancelled | None]:
    """End each job with exactly the tokens committed before; None where its owner has not answered within the time.

    All are asked to end before the first is waited for. A job that has ended stays as it is: the command is refused,
    and how it ended is recorded with that. A command that is not answered in time stays in the inbox, and the job's
    owner, or its next one, carries it out.
    Errors: UnknownJob, and those of the store.
    """
    asked = [ask_to_end(store, job) for job in jobs]
    until_s = host.monotonic_s() + timeout_s
    with closing(store.bell()) as bell:
        return [_await(store, command, worker, until_s, dead, host, bell) for command in asked]


def ask_to_end(store: Store, job: str) -> Command:
    """The command to cancel `job`, durable; its owner, or its next one, carries it out."""
    command = Command(secrets.token_hex(16), job, CANCEL)
    store.post(command)
    return command


def _await(
    store: Store, command: Command, worker: str, until_s: float, dead: Dead, host: Host, bell: Bell
) -> Cancelled | None:
    job = command.job
    while True:
        if (finish := store.row(job).finish) is not None:
            store.settle(command.command_id, finish)  # if nobody has; one that came after the end was refused by then
            late = store.outcome(command.command_id) == refused(finish)
            return Cancelled(job, finish, finish == FinishReason.CANCELLED and not late)
        if _close_without_owner(store, job, worker, dead):
            continue
        if host.monotonic_s() >= until_s:
            return None
        bell.wait(POLL_S)


def _close_without_owner(store: Store, job: str, worker: str, dead: Dead) -> bool:
    """Close a job that nobody alive holds, under a tenure of the caller's own; False where somebody holds it."""
    claims = store.claim(worker, LEASE_MS, 1, [job], dead=dead(store.owners()))
    for claim in claims:
        from ...runtime.loop.job import Job  # with torch, which only a job without a live owner needs here

        try:
            Job.load(store, claim).record(store, CloseRequest(FinishReason.CANCELLED))
        except LostTenure:
            return False  # It took too long and somebody else has the job now: the command is theirs.
        finally:
            store.release(worker, [job])
    return bool(claims)
