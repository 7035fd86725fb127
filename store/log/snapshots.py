"""Logical snapshots in a database: rows that let a load begin at a recent state of a job.

A job's rows are a chain. Each adds the token ids since the one before it, so a token is written once; the newest few
also hold the state there. A row's link is a digest of the link before it and of what it adds, a state is bound to the
link of its row. What does not fit is not used: a load then begins elsewhere, or at the log's start.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from msgpack import packb
from sqlalchemy import delete, insert, select, update
from sqlalchemy.engine import Connection

from ...fsm.errors import Problem
from ...fsm.ports import Head
from ..database.connection import Database
from ..database.tables import jobs
from ..database.tables import snapshots as table
from .chain import WRONG_TYPE
from .unpacking import unpacked

if TYPE_CHECKING:
    from ...fsm.reading.snapshot import Keep, Snapshot

DOMAIN = b"decodelog.snapshot.v1"
VERSION = 1
_PLACE = struct.Struct(">QQ")
_PROOF = 32
STATES_KEPT = 2
"""How many of a job's snapshots keep their state: should the newest be damaged, there is one before it."""


class Row(NamedTuple):
    """A snapshot as it is stored.

    output   committed tokens there
    ids      those since the row before it, four bytes each
    link     digest of the link before and of all of these
    state    the state there with its proof, while it is kept
    """

    sequence: int
    chain: bytes
    output: int
    ids: bytes
    link: bytes
    state: bytes | None


def origin(job: str) -> bytes:
    """The link before a job's first row."""
    return sha256(DOMAIN + job.encode()).digest()


def link_of(before: bytes, sequence: int, chain: bytes, output: int, ids: bytes) -> bytes:
    return sha256(b"".join((before, _PLACE.pack(sequence, output), chain, ids))).digest()


def row_of(snapshot: Snapshot, before: int, link: bytes) -> Row:
    """The row of a snapshot after one of `before` tokens, whose link is `link`."""
    from ...fsm.reading.snapshot import plain

    (sequence, chain), output, fresh = snapshot.head, len(snapshot.token_ids), snapshot.token_ids[before:]
    ids = struct.pack(f"<{len(fresh)}I", *fresh)
    link = link_of(link, sequence, chain, output, ids)
    body: bytes = packb((VERSION, snapshot.state.spec.envelope.canonical_bytes(), plain(snapshot)))
    return Row(sequence, chain, output, ids, link, sha256(link + body).digest() + body)


class KeptSnapshot(NamedTuple):
    """What a job's rows hold: the newest snapshot that is whole, and why another is not, if one is not."""

    snapshot: Snapshot | None
    damage: str = ""


def kept_in(job: str, rows: Iterable[Row]) -> KeptSnapshot:
    """What these rows, oldest first, hold."""
    link, ids, found, damage = origin(job), list[int](), None, ""
    for row in rows:
        try:
            link = link_of(link, *row[:4])
            if link != row.link:
                return KeptSnapshot(found, f"the snapshot at event {row.sequence} is not what was written there")
            ids += struct.unpack(f"<{len(row.ids) // 4}I", row.ids)
            if row.state is not None:
                snapshot = _read(job, row, ids)
                damage = damage if snapshot else f"the state of the snapshot at event {row.sequence} cannot be read"
                found = snapshot or found
        except (*WRONG_TYPE, struct.error) as problem:
            return KeptSnapshot(found, f"a snapshot's row holds a value of another type ({problem})")
    return KeptSnapshot(found, damage)


def _read(job: str, row: Row, ids: Sequence[int]) -> Snapshot | None:
    """The snapshot of a row; None where its state is not what was written there, or is of another release."""
    if row.state is None or sha256(row.link + row.state[_PROOF:]).digest() != row.state[:_PROOF]:
        return None
    from ...fsm.machine.spec import Spec
    from ...fsm.reading.snapshot import snapshot_of

    try:
        version, envelope, fields = unpacked(row.state[_PROOF:])
        return snapshot_of(Spec.seal(job, envelope), Head(*row[:2]), ids, fields) if version == VERSION else None
    except (*WRONG_TYPE, LookupError, Problem):
        return None


def forget(connection: Connection, job_id: int) -> None:
    """Remove a job's snapshots: it has ended, and nobody will load it to go on."""
    connection.execute(delete(table).where(table.c.job_id == job_id))


class DatabaseSnapshots:
    """Snapshots over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, batch: Sequence[Keep]) -> None:
        kept = {keep.snapshot.state.spec.job: keep for keep in batch}
        found = select(jobs.c.id, jobs.c.job, jobs.c.fence).where(jobs.c.job.in_(kept), jobs.c.finish.is_(None))
        with self._database.transaction("snapshot") as connection:
            for row in connection.execute(found.order_by(jobs.c.id).with_for_update()).all():
                fence, after, snapshot = kept[row.job]
                if row.fence == fence:  # else whoever was replaced is late
                    self._add(connection, row.id, after, snapshot)

    def _add(self, connection: Connection, job_id: int, after: int, snapshot: Snapshot) -> None:
        mine = table.c.job_id == job_id
        last = connection.execute(select(table.c.link, table.c.output).where(mine, table.c.sequence == after)).first()
        link, before = (origin(snapshot.state.spec.job), 0) if last is None else (last.link, last.output)
        # Rows beyond the one that this tenure began from were of no use to it.
        connection.execute(delete(table).where(mine, table.c.sequence > (0 if last is None else after)))
        connection.execute(insert(table).values(job_id=job_id, **row_of(snapshot, before, link)._asdict()))
        past = select(table.c.id).where(mine, table.c.state.is_not(None)).order_by(table.c.sequence.desc())
        connection.execute(
            update(table).where(table.c.id.in_(past.offset(STATES_KEPT).limit(STATES_KEPT))).values(state=None)
        )

    def snapshot(self, job: str) -> Snapshot | None:
        return self._kept(job).snapshot

    def snapshot_damage(self, job: str) -> str:
        """What is wrong with the job's snapshots by themselves, empty where nothing is."""
        return self._kept(job).damage

    def _kept(self, job: str) -> KeptSnapshot:
        columns = [table.c[name] for name in Row._fields]
        query = select(*columns).join_from(table, jobs, table.c.job_id == jobs.c.id).where(jobs.c.job == job)
        with self._database.lenient() as connection:
            return kept_in(job, [Row._make(row) for row in connection.execute(query.order_by(table.c.sequence))])
