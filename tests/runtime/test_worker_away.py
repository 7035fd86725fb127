"""The worker loop while its database is locked, away, or does not come back."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from cranks import admit, assert_audited, model, result
from databases import AnyStore
from workers import worker

from decodelog.fsm.errors import DatabaseLocked, DatabaseUnavailable, Problem
from decodelog.fsm.ports import Claim, Command
from decodelog.runtime.loop import retry as patience
from decodelog.runtime.loop.context import untold
from decodelog.runtime.loop.pace import Pace


class Locked:
    """A store whose calls fail once each with what may succeed later."""

    def __init__(self, store: AnyStore) -> None:
        self._store = store
        self.failed = set[str]()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        if name == "bell":
            return call  # which never fails; it only does not ring

        def once(*arguments: Any, **options: Any) -> Any:
            if name not in self.failed:
                self.failed.add(name)
                raise DatabaseLocked("test", "another process writes")
            return call(*arguments, **options)

        return once


@pytest.mark.contract("LOG-2")
def test_a_locked_database_is_waited_for_wherever_the_worker_meets_it(store: AnyStore) -> None:
    of = model("Hello, world.")
    job = admit(store, of)
    cancelled = admit(store, of)
    store.post(Command("e" * 32, cancelled, "cancel"))
    locked = Locked(store)
    worker(locked, of).run(drain=True)
    assert result(store, job)["text"] == "Hello, world."
    assert result(store, cancelled)["finish_reason"] == "cancelled"
    assert {"owners", "claim", "read", "append", "pending", "row", "settle", "waiting", "release"} <= locked.failed
    assert_audited(store)


@pytest.mark.contract("LOG-7")
def test_a_job_whose_claim_was_not_answered_is_claimed_again(store: AnyStore) -> None:
    """A job whose claim was never answered is claimed again by the same worker."""

    class Unanswered(Locked):
        def claim(self, *arguments: Any, **options: Any) -> list[Claim]:
            claims = self._store.claim(*arguments, **options)
            if claims and "claim" not in self.failed:
                self.failed.add("claim")
                raise DatabaseUnavailable("test", "the answer is lost")
            return claims

    job = admit(store, model("Hello"))
    worker(Unanswered(store), model("Hello")).run(drain=True)
    done = result(store, job)
    assert (done["text"], done["usage"]["attempts"]) == ("Hello", 1)
    assert store.row(job).fence == 2
    assert_audited(store)


@pytest.mark.contract("LOG-2", "LOG-7")
def test_a_worker_waits_for_its_database_and_says_so_once(store: AnyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is away for longer than a lease is waited for and that is said once."""

    class Away(Locked):
        """Every call of every thread fails, from the third append on, for longer than its lease."""

        appends, until = 0, None  # and until it was said, which a busy machine may do late

        def __getattr__(self, name: str) -> Any:
            call = getattr(self._store, name)

            def reached(*arguments: Any, **options: Any) -> Any:
                self.appends += name in ("append", "begin")
                if self.appends == 3 and self.until is None:
                    self.until = time.monotonic() + 0.9
                if self.until is not None and (time.monotonic() < self.until or not said):
                    raise DatabaseUnavailable("test", "it is away")
                return call(*arguments, **options)

            return reached

    monkeypatch.setattr(patience, "NOTICED_S", 0.3)
    said: list[Problem | None] = []
    jobs = [admit(store, model("Hello, world.")) for _ in range(2)]
    pace = Pace(lease_ms=300, claim_ms=1, inbox_ms=0, idle_ms=5)
    worker(Away(store), model("Hello, world."), pace=pace, told=said.append).run(drain=True)
    assert [type(problem) for problem in said] == [DatabaseUnavailable, type(None)]
    assert {result(store, job)["text"] for job in jobs} == {"Hello, world."}
    assert {result(store, job)["usage"]["attempts"] for job in jobs} == {1}
    assert_audited(store)


@pytest.mark.contract("LOG-2")
@pytest.mark.parametrize("stopped", [False, True])
def test_a_database_that_stays_away_is_a_typed_error_in_time(store: AnyStore, stopped: bool) -> None:
    """A database that does not come back is a typed error after the stated time."""

    class Gone(Locked):
        def __getattr__(self, name: str) -> Any:
            if stopped and name in ("append", "begin"):
                made.stop()
            self.failed.add(name)
            if {"append", "begin"} & self.failed:
                raise DatabaseUnavailable("test", "it is gone")
            return getattr(self._store, name)

    job = admit(store, model("Hello"))
    pace = Pace(lease_ms=60_000, claim_ms=1, patience_ms=600_000 if stopped else 400)
    made = worker(Gone(store), model("Hello"), pace=pace)
    begin = time.monotonic()
    with pytest.raises(DatabaseUnavailable):
        made.run(drain=True)
    assert time.monotonic() - begin < 300
    worker(store, model("Hello"), made.name).run(drain=True)
    assert result(store, job)["text"] == "Hello"


class Still:
    """A host whose time passes by sleeping only."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic_s(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def lock(self) -> Any:
        return threading.Lock()


@pytest.mark.contract("LOG-2")
def test_a_wait_that_ran_out_makes_the_next_ones_short() -> None:
    """A wait that ran out makes the next ones short until something succeeds."""
    host, back_at = Still(), [0.0]

    def answer() -> str:
        if host.now < back_at[0]:
            raise DatabaseUnavailable("test", "it is away")
        return "answered"

    stand_in: Any = host
    patient = patience.Patience(60.0, untold, stand_in)

    def waited(away_s: float) -> tuple[float, str]:
        begin = host.now
        back_at[0] = begin + away_s
        try:
            patient(answer)
        except DatabaseUnavailable:
            return round(host.now - begin, 3), "gone"
        return round(host.now - begin, 3), "answered"

    assert waited(90.0) == (60.0, "gone")
    assert waited(90.0) == (patience.SHORT_S, "gone")
    host.now = back_at[0]
    assert waited(0.0) == (0.0, "answered")
    seconds, outcome = waited(30.0)
    assert (outcome, 30.0 <= seconds <= 31.0) == ("answered", True)
    patient.hurry()
    assert waited(0.0) == (0.0, "answered")
    assert waited(30.0) == (patience.SHORT_S, "gone")
