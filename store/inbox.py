"""The inbox in a database: commands to the owner of a job, each posted and settled once."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import func, insert, select, update
from sqlalchemy.exc import IntegrityError

from ..fsm.errors import UnknownJob
from ..fsm.ports import Command
from .bells import ring
from .database import Database
from .tables import inbox, jobs


class DatabaseInbox:
    """The inbox over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def post(self, command: Command) -> bool:
        with self._database.transaction("post") as connection:
            job_id = connection.scalar(select(jobs.c.id).where(jobs.c.job == command.job))
            if job_id is None:
                raise UnknownJob(command.job)
            values = {"command_id": command.command_id, "job_id": job_id, "kind": command.kind}
            values |= {"posted_ms": self._database.now_ms()}
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
            commands = [Command(*row) for row in connection.execute(UNSETTLED)]
        return [command for command in commands if command.job in jobs]

    def settle(self, command_id: str, outcome: str) -> None:
        settled = update(inbox).where(inbox.c.command_id == command_id, inbox.c.outcome.is_(None))
        with self._database.transaction("answer") as connection:
            connection.execute(settled.values(outcome=outcome, settled_ms=self._database.now_ms()))

    def outcome(self, command_id: str) -> str | None:
        with self._database.single() as connection:
            answer = select(func.coalesce(inbox.c.outcome, jobs.c.finish)).join_from(inbox, jobs)
            found: str | None = connection.scalar(answer.where(inbox.c.command_id == command_id))
        return found


UNSETTLED = (
    select(inbox.c.command_id, jobs.c.job, inbox.c.kind)
    .join_from(inbox, jobs)
    .where(inbox.c.outcome.is_(None), jobs.c.finish.is_(None))
    .order_by(inbox.c.id)
)
