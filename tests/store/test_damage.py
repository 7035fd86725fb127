"""Damaged logs: every changed byte and every lost, doubled, moved or invented append is found and named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from databases import database_store
from shown import Shown, faults, rows_of
from sqlalchemy import text
from steps import Writer, admit, digest, write

from decodelog.fsm.errors import CorruptRecord, Problem, UnknownWireTag
from decodelog.fsm.ports import Head, Outcome, Record
from decodelog.store.database import schema
from decodelog.store.engine import DatabaseStore, open_store
from decodelog.store.log.chain import StoredLog, records
from decodelog.store.log.chain import digest as chain_digest
from decodelog.store.log.stored import CHECK_BYTES, Stored
from decodelog.store.memory.log import MemoryStore
from decodelog.store.reading.audit import audit_rows

Damaged = tuple[DatabaseStore, Callable[..., None]]


@pytest.fixture(scope="module")
def log() -> StoredLog:
    """A sound log of 47 appends, three of them anchors, and under two fences."""
    store = MemoryStore()
    writer = write(store, admit(store), 25)
    store.claim("worker-1", 1, 1)
    writer = write(store, Writer("job-1", writer.head, 1, writer.output), 21)
    (whole,) = store.logs("job-1")
    assert [row.first for row in whole.rows if row.anchor] == [1, 62, 128]
    return whole


def changed(log: StoredLog, index: int, **fields: Any) -> StoredLog:
    rows = list(log.rows)
    rows[index] = rows[index]._replace(**fields)
    return log._replace(rows=rows)


def flips(value: bytes, bit: int = 1) -> Iterator[bytes]:
    for position in range(len(value)):
        yield value[:position] + bytes([value[position] ^ bit]) + value[position + 1 :]


@pytest.mark.contract("LOG-3")
def test_a_sound_log_has_no_faults(log: StoredLog) -> None:
    result = audit_rows(Shown(log))
    assert (result.ok, result.jobs, result.appends, result.events) == (True, 1, 47, 139)


@pytest.mark.contract("LOG-3")
@pytest.mark.parametrize("index", [0, 1, 20, 21, 22, 46])
@pytest.mark.parametrize("field", ["key", "chain", "payload"])
def test_every_flipped_byte_is_found_by_reading_and_named_by_the_audit(log: StoredLog, index: int, field: str) -> None:
    """Also where it is an anchor's (rows 0 and 21): what follows it is still sound, and is not reported."""
    first = rows_of(log)[index].first
    for value in flips(getattr(rows_of(log)[index], field)):
        damaged = changed(log, index, **{field: value})
        with pytest.raises((CorruptRecord, UnknownWireTag)) as problem:
            list(records("job-1", damaged.rows, 0))
        assert isinstance(problem.value, CorruptRecord | UnknownWireTag)
        assert (problem.value.job, problem.value.sequence) == ("job-1", first)
        assert {sequence for sequence, _ in faults(damaged)} <= {first, first + 1, first + 2, first + 3}
        assert (first, "chain") in faults(damaged)


@pytest.mark.contract("LOG-3")
def test_two_damaged_appends_with_an_anchor_between_them_are_two_faults(log: StoredLog) -> None:
    damaged = changed(changed(log, 3, key=digest("one")), 30, key=digest("two"))
    assert faults(damaged) == [(rows_of(log)[3].first, "chain"), (rows_of(log)[30].first, "chain")]


@pytest.mark.contract("LOG-3")
@pytest.mark.parametrize("index", [0, 1, 21, 30])
def test_a_dropped_append_is_a_gap_where_it_was(log: StoredLog, index: int) -> None:
    rows = [*rows_of(log)[:index], *rows_of(log)[index + 1 :]]
    assert faults(log._replace(rows=rows)) == [(rows_of(log)[index].first, "gap")]


@pytest.mark.contract("LOG-3")
def test_a_truncated_log_does_not_reach_its_head(log: StoredLog) -> None:
    assert faults(log._replace(rows=rows_of(log)[:-1])) == [(139, "head")]
    assert faults(log._replace(rows=[])) == [(139, "head")]


@pytest.mark.contract("LOG-3")
def test_a_doubled_append_is_a_duplicate(log: StoredLog) -> None:
    rows = sorted([*rows_of(log), rows_of(log)[5]])
    assert faults(log._replace(rows=rows)) == [(rows_of(log)[5].first, "duplicate")]


@pytest.mark.contract("LOG-3")
def test_swapped_appends_are_found_where_the_first_of_them_was(log: StoredLog) -> None:
    one, two = rows_of(log)[5], rows_of(log)[9]
    swapped = changed(changed(log, 5, **content(two)), 9, **content(one))
    assert faults(swapped)[0] == (one.first, "chain")


def content(row: Stored) -> dict[str, bytes]:
    return {"key": row.key, "chain": row.chain, "payload": row.payload}


@pytest.mark.contract("LOG-3")
def test_an_append_invented_at_the_end_does_not_match_the_head(log: StoredLog) -> None:
    """The forger knows how to take digests, and cannot reach the job's row."""
    row = rows_of(log)[-1]
    (*_, last) = records("job-1", log.rows, 0)
    forged = chain_digest(last.chain, 140, row.key, row.payload)[:CHECK_BYTES]
    rows = [*log.rows, row._replace(first=140, last=142, chain=forged)]
    assert faults(log._replace(rows=rows)) == [(139, "head")]
    assert faults(log._replace(rows=log.rows, head=Head(139, digest("forged")))) == [(139, "head")]


@pytest.mark.contract("LOG-3")
def test_sequences_and_fences_that_cannot_be_are_named(log: StoredLog) -> None:
    row = rows_of(log)[7]
    assert (row.first, "payload") in faults(changed(log, 7, last=row.last + 1))
    assert faults(changed(log, 7, fence=1)) == [(rows_of(log)[8].first, "fence")]
    assert faults(changed(log, 46, fence=9)) == [(139, "fence")]
    assert faults(changed(log, 46, fence=0)) == [(rows_of(log)[46].first, "fence")]


@pytest.mark.contract("LOG-3")
def test_a_first_append_other_than_an_admission_is_named(log: StoredLog) -> None:
    """A first append of more than the admission or of a tenure is named as that."""
    for fields, said in (({"last": 2}, "admitted by one event alone"), ({"fence": 1}, "admitted under fence 0")):
        told = [fault.detail for fault in audit_rows(Shown(changed(log, 0, **fields))).faults if fault.sequence == 1]
        assert any(said in detail for detail in told), told


# ---- in databases ----


@pytest.fixture
def damaged(database_url: str) -> Iterator[Damaged]:
    """(an open store with a job of 30 steps, a function that damages its tables)."""
    store = database_store(database_url)
    write(store, admit(store), 30)
    write(store, admit(store, "job-2"), 2)

    def damage(statement: str, **parameters: object) -> None:
        with store._database.transaction() as connection:
            connection.execute(text(statement), parameters)

    yield store, damage
    store.close()


DAMAGE = [
    ("UPDATE appends SET payload = :bytes WHERE job_id = 1 AND first = 20", 20, {"chain", "payload"}),
    ("UPDATE appends SET key = :bytes WHERE job_id = 1 AND first = 20", 20, {"chain"}),
    ("UPDATE appends SET chain = :bytes WHERE job_id = 1 AND first = 20", 20, {"chain"}),
    ("DELETE FROM appends WHERE job_id = 1 AND first = 20", 22, {"gap"}),
    ("DELETE FROM appends WHERE job_id = 1 AND first = 1", 1, {"gap"}),
    ("DELETE FROM appends WHERE job_id = 1 AND first = 89", 91, {"head"}),
    ("UPDATE appends SET first = 21 WHERE job_id = 1 AND first = 20", 20, {"gap", "payload", "duplicate"}),
    ("UPDATE appends SET last = 23 WHERE job_id = 1 AND first = 20", 20, {"payload"}),
    ("UPDATE appends SET prev = NULL WHERE job_id = 1 AND first = 20", 19, set()),
    ("UPDATE appends SET prev = 1000000 WHERE job_id = 1 AND first = 20", 19, set()),
    ("UPDATE jobs SET chain = :bytes WHERE id = 1", 91, {"head"}),
    ("UPDATE jobs SET sequence = 94 WHERE id = 1", 91, {"head"}),
    ("UPDATE jobs SET tail = 1000000 WHERE id = 1", 91, set()),
]


@pytest.mark.contract("LOG-3", "LOG-2")
@pytest.mark.parametrize(("statement", "sequence", "kinds"), DAMAGE)
def test_a_reader_stops_at_the_damage_and_the_audit_names_it(
    damaged: Damaged, statement: str, sequence: int, kinds: set[str]
) -> None:
    store, damage = damaged
    damage(statement, **({"bytes": bytes(32)} if ":bytes" in statement else {}))
    with pytest.raises(CorruptRecord) as problem:
        list(store.read("job-1"))
    assert problem.value.job == "job-1"
    assert problem.value.sequence == sequence
    result = audit_rows(store)
    assert {fault.kind for fault in result.faults} >= kinds
    assert {fault.job for fault in result.faults} <= {"job-1"}
    assert audit_rows(store, "job-2").ok
    assert len(list(store.read("job-2"))) == 3


@pytest.mark.contract("LOG-3")
def test_a_status_that_there_is_not_damages_one_listing_and_no_other(damaged: Damaged) -> None:
    store, damage = damaged
    damage("UPDATE jobs SET status = 'LOST' WHERE id = 1")
    assert [row.job for row in store.rows()] == ["job-2"]
    with pytest.raises(CorruptRecord, match="job-1 is damaged at event 91: the job's row has status 'LOST'"):
        store.row("job-1")
    result = audit_rows(store)
    assert [(fault.job, fault.kind, fault.detail) for fault in result.faults] == [
        ("job-1", "listing", "the job's row has status 'LOST'")
    ]
    assert (result.jobs, result.events) == (2, 91 + 7)
    assert audit_rows(store, "job-1").faults == result.faults
    assert len(list(store.read("job-1"))) == 31  # the log itself is sound


@pytest.mark.contract("LOG-3")
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("prompt = 'many'", "prompt 'many'"),
        ("output = 1.5", "output 1.5"),
        ("sequence = 'x'", "sequence 'x'"),
        ("chain = 'x'", "chain 'x'"),
        ("fence = 'x'", "fence 'x'"),
        ("created_ms = x'00'", r"created_ms b'\x00'"),
        ("lease_until_ms = 'soon'", "lease_until_ms 'soon'"),
        ("owner = x'01'", r"owner b'\x01'"),
        ("model = CAST(x'6dff' AS TEXT)", r"model 'm\udcff'"),
        ("identity = x'02'", r"identity b'\x02'"),
    ],
)
def test_a_value_of_another_type_damages_one_listing_and_no_other(sqlite_url: str, change: str, told: str) -> None:
    """SQLite keeps it in any column, also the ones that the log's head is read from."""
    store = database_store(sqlite_url)
    write(store, admit(store), 3)
    sound = write(store, admit(store, "job-2"), 2)
    with store._database.transaction() as connection:
        connection.exec_driver_sql(f"UPDATE jobs SET {change} WHERE id = 1")
    assert [row.job for row in store.rows()] == ["job-2"]
    with pytest.raises(CorruptRecord) as problem:
        store.row("job-1")
    assert (problem.value.job, problem.value.reason) == ("job-1", f"the job's row has {told}")
    for result in (audit_rows(store), audit_rows(store, "job-1")):
        assert ("job-1", 10, "listing", f"the job's row has {told}") in result.faults
        assert {fault.job for fault in result.faults} == {"job-1"}
    with suppress(CorruptRecord):
        list(store.read("job-1"))
    damaged = Writer("job-1", Head(1, digest("x")))
    assert [result.outcome for result in store.append([damaged.step(), sound.step()])][1] is Outcome.APPENDED
    store.close()


@pytest.mark.contract("LOG-3")
def test_a_name_that_is_no_text_is_told_as_far_as_it_can_be_read(sqlite_url: str) -> None:
    store = database_store(sqlite_url)
    admit(store)
    admit(store, "job-2")
    with store._database.transaction() as connection:
        connection.exec_driver_sql("UPDATE jobs SET job = CAST(x'6a6fff' AS TEXT) WHERE id = 1")
    assert [row.job for row in store.rows()] == ["job-2"]
    assert {(fault.job, fault.kind) for fault in audit_rows(store).faults} == {("jo\\udcff", "listing")}
    store.close()


@pytest.mark.contract("LOG-3")
@pytest.mark.parametrize("column", ["first", "last", "fence", "key", "chain", "payload"])
@pytest.mark.parametrize("payload", ["payload", "x'c1'"])
def test_a_value_of_another_type_does_not_end_the_audit(sqlite_url: str, column: str, payload: str) -> None:
    """Also where the payload does not tell what the column should."""
    store = database_store(sqlite_url)
    write(store, admit(store), 5)
    write(store, admit(store, "job-2"), 2)
    with store._database.transaction() as connection:
        connection.exec_driver_sql(f"UPDATE appends SET payload = {payload} WHERE job_id = 1 AND first = 5")
        connection.exec_driver_sql(f"UPDATE appends SET {column} = 'x' WHERE job_id = 1 AND first = 5")
    result = audit_rows(store)
    assert {fault.job for fault in result.faults} == {"job-1"}
    assert {fault.sequence for fault in result.faults} & {5, 6, 7, 8}
    assert result.jobs == 2
    assert 4 + 7 <= result.events <= 16 + 7
    store.close()


@pytest.mark.contract("LOG-3")
def test_a_broken_link_is_found_from_any_sequence_before_it(damaged: Damaged) -> None:
    store, damage = damaged
    damage("UPDATE appends SET prev = NULL WHERE job_id = 1 AND first = 86")
    for after in (0, 30, 70, 82, 84):
        with pytest.raises(CorruptRecord, match="the append there is missing") as problem:
            list(store.read("job-1", after))
        assert problem.value.sequence == 85


@pytest.mark.contract("LOG-5")
def test_a_sound_record_of_a_later_release_is_an_unknown_wire_tag(damaged: Damaged) -> None:
    """The chain is intact: this program is too old, and must say so instead of calling it damage."""
    store, damage = damaged
    row = store.row("job-2")
    (*_, before, last) = store.read("job-2")
    payload = b"\x91\x92\x63\x01"  # one event of wire code 99
    chain = chain_digest(before.chain, last.first, last.key, payload)
    shorter = {"payload": payload, "chain": chain[:CHECK_BYTES], "last": last.first}
    damage(
        "UPDATE appends SET payload = :payload, chain = :chain, last = :last WHERE job_id = 2 AND first = 5", **shorter
    )
    damage("UPDATE jobs SET chain = :chain, sequence = 5 WHERE id = 2", chain=chain)
    with pytest.raises(UnknownWireTag, match="event 5 of job job-2 has wire tag 99"):
        list(store.read("job-2"))
    assert row.head.sequence == 7
    assert [fault.kind for fault in audit_rows(store, "job-2").faults] == ["payload"]


@pytest.mark.contract("LOG-2", "LOG-3")
def test_any_changed_byte_of_a_file_gives_stored_data_or_a_typed_error(tmp_path: Path) -> None:
    """Bytes all over the file, most of which SQLite itself does not check."""
    file, copy = tmp_path / "sound.db", tmp_path / "damaged.db"
    url = f"sqlite:///{file}"
    schema.upgrade(url)
    store = database_store(url)
    for number in range(3):
        write(store, admit(store, f"job-{number}"), 20)
    store.close()
    sound = file.read_bytes()
    expected = {f"job-{number}": logged(url, f"job-{number}") for number in range(3)}
    found = 0
    for position in range(7, len(sound), len(sound) // 150):
        copy.write_bytes(sound[:position] + bytes([sound[position] ^ 0x55]) + sound[position + 1 :])
        for job, stored in expected.items():
            try:
                assert logged(f"sqlite:///{copy}", job) == stored
            except Problem:
                found += 1
        with suppress(Problem), closing(open_store(f"sqlite:///{copy}")) as damaged:
            damaged.rows()
            audit_rows(damaged)
            damaged.append([Writer(job, Head(1, digest("x"))).step() for job in expected])
    assert found > 25


def logged(url: str, job: str) -> list[Record]:
    with closing(database_store(url)) as store:
        return list(store.read(job))


@pytest.mark.contract("LOG-1", "LOG-3")
def test_a_damaged_log_does_not_keep_the_others_of_a_batch_from_growing(damaged: Damaged) -> None:
    store, damage = damaged
    records = list(store.read("job-1"))
    sound = Writer("job-2", store.row("job-2").head, 0, 2)
    late = Writer("job-1", Head(records[9].last, records[9].chain), 0, 9)
    damage("UPDATE appends SET key = :bytes WHERE job_id = 1 AND first = 29", bytes=bytes(32))
    results = store.append([late.step(), sound.step()])
    assert [result.outcome for result in results] == [Outcome.CONFLICT, Outcome.APPENDED]
    assert "is damaged at event 29" in results[0].detail
