"""Models in a database: what clients seal requests for, by its digest, and which of them workers do not find."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from sqlalchemy import Column, ColumnElement, and_, delete, func, insert, or_, select, tuple_, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from ...fsm.errors import AmbiguousModel, DatabaseLocked
from ...fsm.limits import TOKENIZER_BYTES_MAX
from ...fsm.ports import ModelRef
from ...fsm.request.registration import (
    DIGEST_BEGINNING,
    Registered,
    Registration,
    TextFiles,
    record_digest,
    registration_of,
    text_files_of,
)
from ..database.connection import Database
from ..database.tables import jobs, missing_models, model_files, model_names, models

TRIES = 3


class DatabaseModels:
    """`Registry` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(self, model: Registration, files: TextFiles, name: str | None = None) -> str | None:
        artifact, record = model.artifact, model.record()
        with self._database.transaction("register") as connection:
            for sha256, content in files.hashed().items():
                self._keep(connection, model_files.c.sha256, sha256, {"content": content})
            kept = {"record": record, "digest": record_digest(record)}
            self._keep(connection, models.c.artifact, artifact, kept, registered_ms=self._database.now_ms())
            if name is None:
                return None
            before = connection.scalar(select(model_names.c.artifact).where(model_names.c.name == name))
            self._keep(connection, model_names.c.name, name, {"artifact": artifact})
            return before if before != artifact else None

    def _keep(self, connection: Connection, key: Column[Any], of: str, values: dict[str, Any], **made: object) -> None:
        """Have the row of that key hold these values; `made` as well where it is a new one."""
        table = key.table
        same = and_(*(table.c[name] == value for name, value in values.items()))
        for _ in range(TRIES):
            there = connection.execute(select(same).where(key == of)).first()
            if there is not None:
                if not there[0]:  # it is damaged, or is to be another
                    connection.execute(update(table).where(key == of).values(values))
                return
            try:
                with connection.begin_nested():
                    connection.execute(insert(table).values({key.name: of} | values | made))
                return
            except IntegrityError:
                continue  # another process has just made it
        raise DatabaseLocked(self._database.name, f"others register {of} at the same time")

    def note_missing(self, model: ModelRef, worker: str | None) -> None:
        of = tuple_(missing_models.c.model, missing_models.c.artifact).in_([model])
        with self._database.single() as connection:
            if connection.scalar(select(missing_models.c.worker).where(of)) == worker:
                return
        with self._database.transaction() as connection:
            connection.execute(delete(missing_models).where(of))
            if worker is not None:
                with suppress(IntegrityError), connection.begin_nested():  # else another one has just noted it
                    values = {"model": model.name, "artifact": model.artifact, "worker": worker}
                    connection.execute(insert(missing_models).values(values))

    def missing(self) -> dict[ModelRef, str]:
        found, of = jobs.c, missing_models.c
        held = select(found.id).where(found.finish.is_(None), found.owner.is_not(None))
        held = held.where(found.model == of.model, found.artifact == of.artifact)
        with self._database.single() as connection:
            rows = connection.execute(select(missing_models).where(~held.exists())).all()
        return {ModelRef(row.model, row.artifact): row.worker for row in rows}

    def registered(self, wanted: str) -> Registered | None:
        named = select(model_names.c.artifact).where(model_names.c.name == wanted).scalar_subquery()
        with self._database.single() as connection:
            found = _read(connection, models.c.artifact == named)
            if not found and DIGEST_BEGINNING.fullmatch(wanted):
                found = _read(connection, func.substr(models.c.artifact, 1, len(wanted)) == wanted)
        if len(found) > 1:
            raise AmbiguousModel(wanted, [each.registration.artifact for each in found])
        return found[0] if found else None

    def registrations(self) -> list[Registered]:
        with self._database.single() as connection:
            return _read(connection)

    def text_files(self, model: Registration) -> TextFiles:
        sha256, content = model_files.c.sha256, model_files.c.content
        wanted = or_(sha256 == model.facts.tokenizer_sha256, sha256 == model.facts.template_sha256)
        query = select(sha256, content).where(wanted, func.length(content) <= TOKENIZER_BYTES_MAX)
        with self._database.single() as connection:
            return text_files_of(model, {row.sha256: bytes(row.content) for row in connection.execute(query)})


def _read(connection: Connection, *conditions: ColumnElement[bool]) -> list[Registered]:
    """The registrations of which these hold, oldest first."""
    rows = connection.execute(select(models).where(*conditions).order_by(models.c.registered_ms, models.c.artifact))
    found = [(registration_of(row.artifact, row.record, row.digest), row.registered_ms) for row in rows.all()]
    names: dict[str, list[str]] = {}
    for name, artifact in connection.execute(select(model_names).order_by(model_names.c.name)):
        names.setdefault(artifact, []).append(name)
    return [Registered(each, tuple(names.get(each.artifact, ())), since) for each, since in found]
