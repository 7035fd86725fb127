"""The inbox in a database: commands to the owner of a job, each posted and settled once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any, Final

from sqlalchemy import CompoundSelect, func, insert, literal, null, select, union_all, update
from sqlalchemy.exc import IntegrityError

from ...fsm.errors import UnknownJob
from ...fsm.ports import Command, refused
from ..database.connection import Database
from ..database.tables import inbox, jobs
from .bells import ring

LEFT_MS: Final = 10_000
"""How old a command to a job that has ended must be before whoever comes by answers it: others may be about to."""

LEFT_MAX: Final = 256
"""How many of those are answered at a time."""


class DatabaseInbox:
    """The inbox over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @cached_property
    def _unsettled(self) -> CompoundSelect[Any]:
        """Commands to live jobs; and of some that were left by themselves nothing but the row's id."""
        unsettled = select(inbox.c.id, inbox.c.command_id, jobs.c.job, inbox.c.kind).join_from(inbox, jobs)
        unsettled = unsettled.where(inbox.c.outcome.is_(None))
        left = unsettled.with_only_columns(inbox.c.id, null(), null(), null())
        left = left.where(jobs.c.finish.is_not(None), inbox.c.posted_ms <= self._database.now_ms() - literal(LEFT_MS))
        return union_all(
            unsettled.where(jobs.c.finish.is_(None)),
            select(left.order_by(inbox.c.id).limit(LEFT_MAX).subquery()),
        ).order_by("id")

    def post(self, command: Command) -> bool:
        with self._database.transaction("post") as connection:
            job = connection.execute(select(jobs.c.id, jobs.c.finish).where(jobs.c.job == command.job)).one_or_none()
            if job is None:
                raise UnknownJob(command.job)
            values = {"command_id": command.command_id, "job_id": job.id, "kind": command.kind}
            values |= {"posted_ms": self._database.now_ms()}
            if job.finish is not None:
                values |= {"outcome": refused(job.finish), "settled_ms": self._database.now_ms()}
            try:
                with connection.begin_nested():
                    connection.execute(insert(inbox).values(values))
            except IntegrityError:
                return False
            ring(connection)
        return True

    def pending(self, jobs: Collection[str]) -> list[Command]:
        # Unsettled commands are few and asked for at every step: one statement for any number of jobs.
        with self._database.single() as connection:
            found = connection.execute(self._unsettled).all()
        if left := [row.id for row in found if row.command_id is None]:
            self._answer(left)
        return [Command(*row[1:]) for row in found if row.command_id is not None and row.job in jobs]

    def _answer(self, ids: Sequence[int]) -> None:
        """Settle commands that were not answered before their jobs ended, with how the jobs ended.

        Otherwise every poll would find them again, for as long as the database is used.
        """
        finish = select(jobs.c.finish).where(jobs.c.id == inbox.c.job_id).scalar_subquery()
        mine = select(inbox.c.id).where(inbox.c.id.in_(ids), inbox.c.outcome.is_(None))
        mine = mine.order_by(inbox.c.id).with_for_update(skip_locked=True)
        settled = update(inbox).where(inbox.c.id.in_(mine))
        with self._database.transaction("answer") as connection:
            connection.execute(settled.values(outcome=finish, settled_ms=self._database.now_ms()))

    def settle(self, command_id: str, outcome: str) -> None:
        settled = update(inbox).where(inbox.c.command_id == command_id, inbox.c.outcome.is_(None))
        with self._database.transaction("answer") as connection:
            connection.execute(settled.values(outcome=outcome, settled_ms=self._database.now_ms()))

    def outcome(self, command_id: str) -> str | None:
        with self._database.single() as connection:
            answer = select(func.coalesce(inbox.c.outcome, jobs.c.finish)).join_from(inbox, jobs)
            found: str | None = connection.scalar(answer.where(inbox.c.command_id == command_id))
        return found
