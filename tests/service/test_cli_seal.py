"""Sealing from the command line: what a caller can see stays byte for byte the same, and the rest says what is gone."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from commandline import decodelog, jobs, script
from databases import database_store
from sqlalchemy import event

from decodelog.fsm.errors import ContentErased
from decodelog.fsm.machine.events import DecisionMade, RequestClosed
from decodelog.fsm.machine.states import Status
from decodelog.fsm.ports import Append, Head, Outcome
from decodelog.fsm.reading.snapshot import Snapshot
from decodelog.fsm.request.finish import FinishReason
from decodelog.service.database import opened
from decodelog.service.inspect import audit as auditing
from decodelog.service.retention import seal as sealing
from decodelog.service.streams.reading import Follower
from decodelog.store.memory.log import MemoryStore

pytestmark = pytest.mark.contract("LOG-9")

TEXT = "Rivers carry the mountains to the sea, slowly: é 日本 \U0001f600. "
SAMPLED = ("--temperature", 0.8, "--seed", 7, "--ignore-eos", "--max-new-tokens", 24)
REQUESTS: dict[str, tuple[Any, ...]] = {
    "greedy": (),
    "sampled": SAMPLED,
    "alternatives": (*SAMPLED, "--logprobs", 3, "--top-k", 5, "--banned-token-id", 65),
    "held_back": ("--stop", "the sea, quickly", "--stop", "\U0001f600"),
    "token_aligned": ("--stop", "ly: é", "--alignment", "token", "--include-stop"),
    "span_aligned": ("--stop", "ly: é", "--alignment", "span"),
    "echoed": (*SAMPLED, "--echo", "--prompt-logprobs", 2),
    "structured": ("--json-schema", "SCHEMA", "--max-new-tokens", 9),
    "nothing": ("--max-new-tokens", 0, "--prompt-logprobs", 1),
    "one": ("--max-new-tokens", 1),
    "family": (*SAMPLED, "--n", 2),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "schema.json").write_text('{"type": "array", "items": {"type": "integer"}, "maxItems": 3}')
    return script(tmp_path / "model", script={"text": TEXT})


def run(model: Path, db: str, request: str, *more: Any) -> None:
    flags = [model.parent / "schema.json" if flag == "SCHEMA" else flag for flag in REQUESTS[request]]
    assert decodelog("run", "--model", model, "--prompt", "Say ", *flags, *more, db=db).code == 0


def seen(db: str) -> list[str]:
    """All that callers can read of all jobs: results, texts and streams from any number."""
    shown: list[str] = []
    for row in jobs(db):
        shown += [decodelog("show", row.job, *json, db=db).stdout for json in ((), ("--json",))]
        starts = {1, 2, row.head.sequence // 2, row.head.sequence - 1, row.head.sequence}
        for start in sorted(starts - {0}):
            shown.append(decodelog("tail", row.job, "--no-follow", "--from", start, "--json", db=db).stdout)
    return shown


def events(db: str, job: str) -> list[Any]:
    return decodelog("events", job, "--json", db=db).lines


@pytest.mark.contract("OUT-7", "LOG-3")
@pytest.mark.parametrize("request_name", REQUESTS)
def test_what_a_caller_sees_of_a_sealed_job_is_what_it_was(request_name: str, model: Path, sqlite_url: str) -> None:
    run(model, sqlite_url, request_name)
    before, listed = seen(sqlite_url), jobs(sqlite_url)
    events_before = [events(sqlite_url, row.job) for row in listed]
    sealed = decodelog("seal", "--all", "--json", db=sqlite_url)
    assert (sealed.code, [each["sealed"] for each in sealed.json["jobs"]]) == (0, [True] * len(listed))
    assert seen(sqlite_url) == before
    assert [row.head for row in jobs(sqlite_url)] == [row.head for row in listed]
    for row, old in zip(listed, events_before, strict=True):
        new = events(sqlite_url, row.job)
        assert [(each["sequence"], each["event"]) for each in new] == [
            (each["sequence"], each["event"]) for each in old
        ]
        kept = [pair for pair in zip(new, old, strict=True) if "thinned" not in pair[0]]
        assert all(one == other for one, other in kept)
        assert len(kept) == len(old) or request_name != "structured"
    audited = decodelog("audit", "--json", db=sqlite_url).json
    assert (audited["ok"], audited["sealed"], audited["erased"]) == (True, len(listed), 0)
    assert "receipts and digests of thinned steps are not kept" in decodelog("audit", db=sqlite_url).stdout


def test_the_same_on_both_databases_and_what_is_exported_is_proven(
    model: Path, database_url: str, tmp_path: Path
) -> None:
    run(model, database_url, "alternatives")
    before = seen(database_url)
    assert decodelog("seal", "--all", db=database_url).code == 0
    assert seen(database_url) == before
    file = tmp_path / "sealed.dlog"
    assert decodelog("export", "--all", "--out", file, db=database_url).code == 0
    proven, audited = decodelog("verify", file, "--json").json, decodelog("audit", "--json", db=database_url).json
    assert proven | {"digest": ""} == audited | {"digest": ""}
    assert (proven["ok"], proven["sealed"]) == (True, 1)


def test_sealing_again_does_nothing_and_says_so(model: Path, sqlite_url: str) -> None:
    run(model, sqlite_url, "sampled")
    (row,) = jobs(sqlite_url)
    assert "is sealed: 24 tokens" in decodelog("seal", row.job, db=sqlite_url).stdout
    assert decodelog("seal", row.job, db=sqlite_url).stdout == f"{row.job} was sealed already\n"
    assert decodelog("seal", "--all", "--json", db=sqlite_url).json == {"jobs": [], "scrubbed": True}


def test_only_what_has_ended_long_enough_is_sealed(model: Path, sqlite_url: str) -> None:
    run(model, sqlite_url, "one")
    assert decodelog("submit", "--model", model, "--prompt", "Say ", db=sqlite_url).code == 0
    done, waiting = jobs(sqlite_url)
    assert decodelog("seal", "--all", "--older-than", "1d", "--json", db=sqlite_url).json["jobs"] == []
    refused = decodelog("seal", done.job, waiting.job, "--json", db=sqlite_url)
    assert (refused.code, refused.error["code"]) == (2, "job_not_ended")
    assert [row.sealed_ms for row in jobs(sqlite_url)] == [None, None]
    assert [each["job"] for each in decodelog("seal", "--all", "--json", db=sqlite_url).json["jobs"]] == [done.job]


@pytest.mark.parametrize(
    "arguments", [(), ("x", "--all"), ("x", "--older-than", "1d"), ("--all", "--older-than", "1w")]
)
def test_wrong_use_is_refused(arguments: tuple[str, ...], sqlite_url: str) -> None:
    refused = decodelog("seal", *arguments, "--json", db=sqlite_url)
    assert (refused.code, refused.error["code"]) == (2, "wrong_use")


@pytest.mark.contract("RES-3")
def test_what_is_sealed_away_is_named_and_never_taken_for_the_same(model: Path, sqlite_url: str) -> None:
    """A fork needs tokens, which are there; comparing and explaining need evidence, which is not."""
    run(model, sqlite_url, "sampled")
    run(model, sqlite_url, "sampled")
    one, two = (row.job for row in jobs(sqlite_url))
    assert decodelog("compare", one, two, "--json", db=sqlite_url).json["same"] is True
    assert decodelog("seal", one, db=sqlite_url).code == 0
    for command in (("compare", one, two), ("compare", two, one), ("compare", one, "--reexecute")):
        refused = decodelog(*command, "--json", db=sqlite_url)
        assert (refused.code, refused.error["code"], refused.error["job"]) == (2, "evidence_sealed", one)
        assert "no longer has the score digest, receipt, state digest, margin and draw" in refused.error["message"]
    for command in (("compare", one, two), ("compare", two, one), ("compare", one, "--reexecute")):
        shown = decodelog(*command, "--level", "sequence", db=sqlite_url)
        assert (shown.code, shown.stdout) == (0, "the same at the last 2 levels, from sequence on, 24 steps\n")
    run(model, sqlite_url, "greedy")
    other = decodelog("compare", one, jobs(sqlite_url)[2].job, "--level", "sequence", "--json", db=sqlite_url)
    assert (other.code, other.json["level"]) == (1, "sequence")
    fork = decodelog("fork", one, "--at", 12, "--json", db=sqlite_url)
    assert (fork.code, fork.json["parent"]) == (0, {"job": one, "step": 12})
    assert decodelog("resume", one, db=sqlite_url).stdout == decodelog("resume", two, db=sqlite_url).stdout


@pytest.mark.contract("FSM-5")
@pytest.mark.parametrize("request_name", ["sampled", "greedy", "alternatives", "one", "structured"])
def test_each_step_of_a_sealed_log_is_explained_with_what_is_kept(
    request_name: str, model: Path, sqlite_url: str
) -> None:
    run(model, sqlite_url, request_name)
    (row,) = jobs(sqlite_url)

    def explained(*step: object) -> dict[str, Any]:
        told: dict[str, Any] = decodelog("explain", row.job, *step, "--json", db=sqlite_url).json
        return told

    asked: list[tuple[object, ...]] = [("--step", step) for step in range(row.output)]
    before = [explained(*each) for each in [*asked, ()]]
    assert decodelog("seal", row.job, db=sqlite_url).code == 0
    after = [explained(*each) for each in [*asked, ()]]
    lost = [new["not_kept"] for new in after]
    for old, new in zip(before, after, strict=True):
        gone = dict.fromkeys(new["not_kept"])
        assert new == old | gone | {"not_kept": new["not_kept"]}
        assert set(gone) in (set(), {"receipt", "scores", "margin", "draw"})
    assert any(lost) is (row.output > 5 and request_name != "structured")
    assert (lost[0], lost[-1]) == ([], [])
    words = decodelog("explain", row.job, "--step", row.output // 2, db=sqlite_url).stdout
    assert ("not kept  receipt, scores, margin, draw" in words) is bool(lost[row.output // 2])
    refused = decodelog("explain", row.job, "--step", row.output, "--json", db=sqlite_url)
    assert (refused.code, refused.error["code"], refused.error["count"]) == (2, "no_such_step", row.output)


@pytest.mark.contract("LOG-3")
def test_a_log_with_a_fault_is_not_sealed_and_stays_as_it_was(model: Path, sqlite_url: str) -> None:
    run(model, sqlite_url, "sampled")
    run(model, sqlite_url, "greedy")
    bad, good = jobs(sqlite_url)
    with closing(database_store(sqlite_url)) as store, store._database.transaction() as connection:
        connection.exec_driver_sql(
            "UPDATE appends SET payload = CAST(payload || x'00' AS BLOB) WHERE job_id = 1 AND first = 30"
        )
    with closing(database_store(sqlite_url)) as store:
        before = [list(log.rows) for log in store.logs(bad.job)]
    refused = decodelog("seal", "--all", "--json", db=sqlite_url)
    assert refused.code == 1
    first, second = refused.json["jobs"]
    assert (first["job"], first["refused"]["code"]) == (bad.job, "seal_refused")
    assert "[chain]" in first["refused"]["message"]
    assert (second["job"], second["sealed"]) == (good.job, True)
    with closing(database_store(sqlite_url)) as store:
        assert [list(log.rows) for log in store.logs(bad.job)] == before


@pytest.mark.contract("LOG-3")
@pytest.mark.parametrize(
    ("before", "change"),
    [
        (("seal",), "sealed_ms = NULL"),
        (("erase",), "erased_ms = NULL"),
        (("seal", "erase"), "erased_ms = NULL, sealed_ms = NULL"),
    ],
    ids=["sealed", "erased", "both"],
)
def test_a_log_that_its_row_contradicts_is_refused_in_a_sweep(
    before: tuple[str, ...], change: str, model: Path, sqlite_url: str
) -> None:
    """A log that its row says otherwise of is refused and the sweep goes on."""
    for _ in range(2):
        run(model, sqlite_url, "sampled")
    odd, good = jobs(sqlite_url)
    for command in before:
        assert decodelog(command, odd.job, db=sqlite_url).code == 0
    with closing(database_store(sqlite_url)) as store, store._database.transaction() as connection:
        connection.exec_driver_sql(f"UPDATE jobs SET {change} WHERE id = 1")
    swept = decodelog("sweep", "--seal-after", "0s", "--json", db=sqlite_url)
    first, second = swept.json["jobs"]
    assert (swept.code, first["job"], first["refused"]["code"]) == (1, odd.job, "seal_refused")
    assert "the job's row does not say so" in first["refused"]["message"]
    assert (second["job"], second["sealed"]) == (good.job, True)
    assert decodelog("audit", "--json", db=sqlite_url).json["faults"][0]["kind"] == "listing"


@pytest.mark.contract("LOG-3")
def test_a_row_that_only_claims_a_sealed_log_is_not_believed(model: Path, sqlite_url: str) -> None:
    """A log that its row says is sealed and is not is no log that was sealed already."""
    run(model, sqlite_url, "sampled")
    (row,) = jobs(sqlite_url)
    with closing(database_store(sqlite_url)) as store, store._database.transaction() as connection:
        connection.exec_driver_sql("UPDATE jobs SET sealed_ms = 1")
    refused = decodelog("seal", row.job, "--json", db=sqlite_url)
    assert (refused.code, refused.json["jobs"][0]["refused"]["code"]) == (1, "seal_refused")


@pytest.mark.contract("FSM-9", "LOG-1")
def test_a_late_append_to_a_sealed_log_is_terminal(model: Path, database_url: str) -> None:
    """A late append to a sealed log is refused as terminal also the last one again."""
    run(model, database_url, "one")
    (row,) = jobs(database_url)
    with opened(database_url) as store:
        *_, before, last = store.read(row.job)
        reason = FinishReason(row.finish or "")
        again = Append(
            row.job, head_of(before), row.fence, last.key, last.events, Status.CLOSED, row.output, row.finish
        )
        assert store.append([again])[0].outcome is Outcome.DUPLICATE
        assert decodelog("seal", row.job, db=database_url).code == 0
        (result,) = store.append([again])
        assert (result.outcome, result.head) == (Outcome.TERMINAL, row.head)
        late = Append(
            row.job, row.head, row.fence, bytes(32), (RequestClosed(reason, (reason,)),), Status.CLOSED, 1, "x"
        )
        assert store.append([late])[0].outcome is Outcome.TERMINAL
        assert [refusal.outcome for refusal in store.refusals(row.job)] == [Outcome.TERMINAL] * 2


def head_of(record: Any) -> Head:
    return Head(record.last, record.chain)


@pytest.mark.contract("OUT-7")
@pytest.mark.parametrize("known", range(1, 14))
def test_a_reader_inside_a_run_goes_on_when_it_is_sealed(known: int, model: Path, sqlite_url: str) -> None:
    """A reader in the middle of a run goes on from there when it is sealed."""
    run(model, sqlite_url, "sampled")
    (row,) = jobs(sqlite_url)
    with opened(sqlite_url) as store:
        records = list(store.read(row.job))
        reader = Follower(store, row.job)
        reader._log = part = MemoryStore()  # what the log was when the reader last looked
        part.read = lambda job, after=0: iter(records[:known])  # type: ignore[method-assign]
        reader.poll()
        reader._log = store
        assert decodelog("seal", row.job, db=sqlite_url).code == 0
        reader.poll()
        whole = Follower(store, row.job)
        whole.poll()
        assert json.dumps(reader.transcript.result()) == json.dumps(whole.transcript.result())
        assert reader.ended


def test_only_the_middle_of_runs_is_thinned(model: Path, sqlite_url: str) -> None:
    run(model, sqlite_url, "sampled")
    (row,) = jobs(sqlite_url)
    assert decodelog("seal", row.job, db=sqlite_url).code == 0
    with opened(sqlite_url) as store:
        decided = [event.tag for record in store.read(row.job) for event in record.events]
        whole = [e.receipt.step for r in store.read(row.job) for e in r.events if isinstance(e, DecisionMade)]
    assert decided.count("decision.made") == row.output == 24
    assert whole == [0, 1, 21, 22, 23]


@pytest.mark.parametrize("moment", ["before it is read", "before it is audited", "before it is replaced"])
@pytest.mark.parametrize("change", ["seal", "erase"])
def test_who_seals_what_is_sealed_or_erased_meanwhile_is_told_so(
    change: str, moment: str, model: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(model, database_url, "sampled")
    (row,) = jobs(database_url)
    with opened(database_url) as store, opened(database_url) as other:
        of, name = {
            "before it is read": (store, "whole"),
            "before it is audited": (sealing, "audit"),
            "before it is replaced": (store, "seal"),
        }[moment]
        real = getattr(of, name)

        def first(*given: Any) -> Any:
            assert sealing.seal(other, row.job).done if change == "seal" else other.erase(row.job)
            return real(*given)

        def later(*given: Any) -> Any:
            monkeypatch.setattr(of, name, real)
            return first(*given)

        monkeypatch.setattr(of, name, later)
        if change == "seal":
            assert not sealing.seal(store, row.job).done
        else:
            with pytest.raises(ContentErased):
                sealing.seal(store, row.job)


def test_sealing_reads_the_jobs_own_appends_and_no_others(model: Path, sqlite_url: str) -> None:
    run(model, sqlite_url, "sampled")
    (row,) = jobs(sqlite_url)
    with closing(database_store(sqlite_url)) as store:
        plans: list[str] = []

        def executed(connection: Any, cursor: Any, statement: str, given: Any, _: Any, many: bool) -> None:
            if "appends" in statement:
                parameters = given[0] if many else given
                found = connection.connection.dbapi_connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
                plans.extend(plan[3] for plan in found)

        for engine in (store._database._single, store._database._transactions):
            event.listen(engine, "after_cursor_execute", executed)
        assert sealing.seal(store, row.job).done
    assert any(plan.startswith("SEARCH") for plan in plans)
    assert not [plan for plan in plans if plan.split()[:2] in (["SCAN", "appends"], ["SCAN", "a"])]


@pytest.mark.contract("LOG-3")
@pytest.mark.parametrize("moment", ["audit_rows", "row", "snapshot"])
@pytest.mark.parametrize("changes", [("seal",), ("erase",), ("seal", "erase")], ids="-".join)
def test_what_is_sealed_or_erased_during_an_audit_is_no_fault(
    changes: tuple[str, ...], moment: str, model: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change comes right after another call of the same reading."""
    run(model, sqlite_url, "sampled")
    (row,) = jobs(sqlite_url)
    with closing(database_store(sqlite_url)) as store, opened(sqlite_url) as other:
        of: Any = auditing if moment == "audit_rows" else store
        real, coming = getattr(of, moment), list(changes)

        def then_changed(*given: Any) -> Any:
            found = real(*given)
            monkeypatch.setattr(of, moment, real)
            for _ in list(coming) if moment == "audit_rows" else coming[:1]:
                if coming.pop(0) == "seal":
                    assert sealing.seal(other, row.job).done
                else:
                    assert other.erase(row.job)
            monkeypatch.setattr(of, moment, then_changed)
            return found

        *_, last = records = list(store.read(row.job))[:12]
        snapshot = Snapshot.of(sealing.transcript(records), head_of(last))
        assert snapshot is not None
        with store._database.transaction() as connection:  # `keep` takes none of a job that has ended
            store._add(connection, 1, 0, snapshot)
        assert store.snapshot(row.job) is not None
        monkeypatch.setattr(of, moment, then_changed)
        report = auditing.audit(store)
        assert report.faults == []
        assert report.erased or "seal" in changes
