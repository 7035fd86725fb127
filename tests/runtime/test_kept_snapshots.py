"""Snapshots that running jobs keep in the store: a load that begins at one finds what a load of the whole log does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from cranks import admit, claim, engine, finish, model, result, turn
from databases import AnyStore, database_store
from sqlalchemy import select, text, update

from decodelog.fsm.errors import CorruptRecord
from decodelog.fsm.machine.state import State
from decodelog.fsm.machine.transition import CloseRequest
from decodelog.fsm.ports import Head
from decodelog.fsm.reading.emission import Emission
from decodelog.fsm.reading.load import load
from decodelog.fsm.reading.snapshot import Keep, Snapshot
from decodelog.fsm.reading.transcript import Transcript
from decodelog.fsm.request.finish import FinishReason
from decodelog.runtime.loop.job import Job
from decodelog.service.inspect.audit import audit
from decodelog.service.retention.erase import erase
from decodelog.service.retention.seal import seal
from decodelog.store.database.connection import connected
from decodelog.store.database.tables import snapshots
from decodelog.store.engine import DatabaseStore, open_store
from decodelog.store.log.snapshots import STATES_KEPT

pytestmark = pytest.mark.contract("RES-2", "RES-4")

TEXT = "A long text of many words, so that there is something to keep."
EVERY = 12  # events: four tokens


def loaded(job: Job) -> tuple[object, ...]:
    """Everything of a loaded job that later turns depend on."""
    transcript = job.durable.transcript
    return (
        job.durable.head,
        job.state,
        job.token,
        transcript.token_ids,
        transcript.rebuilt,
        transcript.parent,
        transcript.echoed,
    )


def without_snapshots(store: AnyStore, job: str) -> Transcript:
    transcript = Transcript()
    load(transcript, store.read(job))
    return transcript


def begun(store: AnyStore, turns: int = 14, **draft: Any) -> str:
    """A job that has made so many turns, with snapshots, and whose worker is gone."""
    of = model(TEXT)
    job = admit(store, of, max_new_tokens=60, **draft)
    turn(engine(store, of, job, snapshot_events=EVERY), turns)
    return job


@pytest.mark.parametrize(
    "draft", [{}, {"temperature": 1.0, "seed": 3}, {"repetition_penalty": 1.2}, {"echo_prompt": True}]
)
def test_a_load_begins_at_the_newest_snapshot_and_finds_the_same(store: AnyStore, draft: dict[str, Any]) -> None:
    job = begun(store, **draft)
    kept = store.snapshot(job)
    assert kept is not None
    assert kept.head.sequence >= store.row(job).head.sequence - EVERY
    again = claim(store, job, dead=tuple(store.owners()))
    assert again.durable.kept == kept.head.sequence
    whole = without_snapshots(store, job)
    assert (again.state, again.durable.transcript.token_ids) == (whole.state, whole.token_ids)
    assert (again.durable.transcript.sequence, again.durable.transcript.rebuilt) == (whole.sequence, whole.rebuilt)
    assert audit(store).ok


def test_a_job_taken_over_at_each_snapshot_ends_the_same(store: AnyStore) -> None:
    """A job that is taken over at each snapshot ends like one that never was."""
    of = model(TEXT)
    shown: list[str] = []

    def show(_: str, emissions: Sequence[Emission], state: State) -> None:
        shown.extend(emission.text for emission in emissions)

    undisturbed = admit(store, of, max_new_tokens=60)
    finish(engine(store, of, undisturbed))
    job = admit(store, of, max_new_tokens=60)
    while store.row(job).finish is None:
        made = engine(
            store,
            of,
            job,
            snapshot_events=EVERY,
            sink=lambda _, emissions, state: shown.extend(e.text for e in emissions),
        )
        turn(made, 5)
    one, other = result(store, undisturbed), result(store, job)
    assert other["usage"]["attempts"] > 5
    for name in ("text", "token_ids", "finish_reason", "tokens"):
        assert one[name] == other[name]
    assert "".join(shown) == other["text"]
    assert store.snapshot(job) is None, "an ended job needs none"


def test_a_tenure_that_was_replaced_keeps_no_snapshot(store: AnyStore) -> None:
    job = begun(store)
    before = store.snapshot(job)
    late = claim(store, job, dead=tuple(store.owners()))
    claim(store, job, "other", dead=tuple(store.owners()))
    snapshot = Snapshot.of(late.durable.transcript, late.durable.head)
    assert snapshot is not None
    store.keep([Keep(late.durable.claim.fence, late.durable.kept, snapshot)])
    assert store.snapshot(job) == before
    store.keep([Keep(late.durable.claim.fence + 1, late.durable.kept, snapshot)])
    assert store.snapshot(job) == snapshot


def test_reading_on_from_a_head_gives_the_rest_and_no_other_head_is_taken(store: AnyStore) -> None:
    job = begun(store)
    records = list(store.read(job))
    for place, record in enumerate(records):
        assert list(store.follow(job, Head(record.last, record.chain))) == records[place + 1 :]
        with pytest.raises(CorruptRecord):
            list(store.follow(job, Head(record.last, bytes(32))))
    end = records[-1]
    with pytest.raises(CorruptRecord):
        list(store.follow(job, Head(end.last + 1, end.chain)))


@pytest.fixture
def database(database_url: str) -> Iterator[DatabaseStore]:
    opened = database_store(database_url)
    yield opened
    opened.close()


def snapshot_of(store: AnyStore, job: str) -> Snapshot:
    kept = store.snapshot(job)
    assert kept is not None
    return kept


def rows(url: str) -> list[Any]:
    with connected(url) as database, database.single() as connection:
        return list(connection.execute(select(snapshots).order_by(snapshots.c.sequence)))


def test_a_token_is_written_once_and_only_the_newest_states_are_kept(
    database: DatabaseStore, database_url: str
) -> None:
    job = begun(database, turns=40)
    held = rows(database_url)
    assert len(held) > 4
    assert [row.state is not None for row in held[-STATES_KEPT - 1 :]] == [False, *[True] * STATES_KEPT]
    assert not any(row.state for row in held[:-STATES_KEPT])
    assert sum(len(row.ids) for row in held) == 4 * held[-1].output == 4 * len(snapshot_of(database, job).token_ids)


@pytest.mark.parametrize("column", ["sequence", "chain", "output", "ids", "link", "state"])
def test_what_is_damaged_is_not_used_and_the_job_ends_the_same(
    database: DatabaseStore, database_url: str, column: str
) -> None:
    of = model(TEXT)
    undisturbed = admit(database, of, max_new_tokens=60)
    finish(engine(database, of, undisturbed))
    job = begun(database)
    newest = rows(database_url)[-1]
    value = getattr(newest, column)
    changed = value + 1 if isinstance(value, int) else bytes([value[0] ^ 1]) + value[1:]
    with connected(database_url) as opened, opened.transaction() as connection:
        connection.execute(update(snapshots).where(snapshots.c.id == newest.id).values({column: changed}))
    kept = database.snapshot(job)
    assert kept is None or kept.head.sequence < newest.sequence
    (fault,) = audit(database).faults
    assert (fault.job, fault.kind) == (job, "snapshot")
    made = engine(database, of, job, snapshot_events=EVERY)
    turn(made, 6)
    assert snapshot_of(database, job).head.sequence > newest.sequence, "a new one follows on the last that was whole"
    finish(made)
    assert result(database, job)["text"] == result(database, undisturbed)["text"]


def test_one_that_is_whole_and_not_of_this_log_is_not_used(database: DatabaseStore, database_url: str) -> None:
    """A log that was put back from an older copy, beside snapshots that were not."""
    job = begun(database)
    kept = snapshot_of(database, job)
    fence = database.row(job).fence
    for head in (Head(kept.head.sequence, bytes(32)), Head(10**6, kept.head.chain)):
        database.keep([Keep(fence, 0, kept._replace(head=head))])
        assert snapshot_of(database, job).head == head
        (fault,) = audit(database).faults
        assert (fault.job, fault.kind) == (job, "snapshot")
        again = claim(database, job, dead=tuple(database.owners()))
        fence = again.durable.claim.fence
        assert again.durable.kept == 0
        assert again.state == without_snapshots(database, job).state


def test_a_store_that_fails_to_keep_them_costs_nothing(sqlite_url: str) -> None:
    """Snapshots are no part of what a job promises."""
    refuse = "CREATE TRIGGER refuse BEFORE INSERT ON snapshots BEGIN SELECT RAISE(ABORT, 'no'); END"
    with connected(sqlite_url) as opened, opened.transaction() as connection:
        connection.execute(text(refuse))
    of, opened_store = model(TEXT), open_store(sqlite_url)
    job = admit(opened_store, of, max_new_tokens=60)
    finish(engine(opened_store, of, job, snapshot_events=EVERY))
    assert result(opened_store, job)["finish_reason"] == "length"
    opened_store.close()
    assert rows(sqlite_url) == []


@pytest.mark.contract("LOG-9")
def test_the_last_append_removes_snapshots_and_no_late_one_is_kept(store: AnyStore) -> None:
    """So whoever ends it, and is killed right after, leaves none."""
    job, other = begun(store), begun(store)
    kept = snapshot_of(store, job)
    ending = claim(store, job, dead=tuple(store.owners()))
    ending.record(store, CloseRequest(FinishReason.CANCELLED))
    store.keep([Keep(ending.durable.claim.fence, kept.head.sequence, kept)])
    assert store.snapshot(job) is None
    assert store.snapshot(other) is not None
    assert audit(store).ok


@pytest.mark.contract("LOG-9")
@pytest.mark.parametrize("end", [seal, erase])
def test_a_log_that_is_sealed_or_erased_leaves_no_snapshot(
    database: DatabaseStore, end: Callable[[Any, str], object]
) -> None:
    """A snapshot that is there all the same, as in a database that was edited."""
    job = begun(database)
    with database._database.transaction() as connection:
        kept = [dict(row) for row in connection.execute(select(snapshots)).mappings()]
    claim(database, job, dead=tuple(database.owners())).record(database, CloseRequest(FinishReason.CANCELLED))
    assert database.snapshot(job) is None
    with database._database.transaction() as connection:
        connection.execute(snapshots.insert(), kept)
    assert database.snapshot(job) is not None
    end(database, job)
    assert database.snapshot(job) is None
    assert audit(database).ok
