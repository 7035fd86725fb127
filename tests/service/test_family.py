"""A family's submission: all of it or, for as long as it was cut off, some of it; never another, and never twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from databases import AnyStore, wall_clock_ms

from decodelog.fsm.errors import (
    AmbiguousJob,
    FamilyMeant,
    IdempotencyConflict,
    LimitExceeded,
    Rejected,
    SchemaViolation,
    UnknownJob,
)
from decodelog.fsm.limits import IDEMPOTENCY_KEY_BYTES_MAX
from decodelog.fsm.ports import Admission
from decodelog.fsm.request.draft import draft_from
from decodelog.fsm.request.seal import seal
from decodelog.runtime.families.scripted.model import ScriptedModel
from decodelog.runtime.families.scripted.script import Script, ScriptedConfig
from decodelog.service.inspect.audit import audit
from decodelog.service.jobs.family import Submission, submit_choices
from decodelog.service.jobs.naming import NamedJobs, find, find_job
from decodelog.service.jobs.submit import admit_job, submit
from decodelog.service.streams.reading import transcript_of
from decodelog.store.memory.log import MemoryStore

MODEL = ScriptedModel(ScriptedConfig(script=Script(text="Hello")))
KEY = "k" * IDEMPOTENCY_KEY_BYTES_MAX


class Killed(Exception):
    """Stands for the end of the process."""


class Dying:
    """A store whose process is killed after so many admissions."""

    def __init__(self, store: AnyStore, admissions: int) -> None:
        self._store = store
        self._left = admissions

    def admit(self, *facts: Any) -> Admission:
        if not self._left:
            raise Killed
        self._left -= 1
        return self._store.admit(*facts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def ask(store: Any, key: str | None = None, **draft: Any) -> Submission:
    value = {"prompt": "say ", "temperature": 1.0, "n": 3, **draft}
    return submit_choices(store, MODEL, "scripted", draft_from(value), wall_clock_ms(), key)


def choices_in(store: AnyStore) -> list[int]:
    """The choice of every job's request, ascending."""
    states = [transcript_of(store, row.job).state for row in store.rows()]
    return sorted(state.spec.envelope.rng.choice for state in states if state is not None)


@pytest.mark.contract("POL-7", "ENV-7", "ENV-8")
@pytest.mark.parametrize("key", [KEY, None])
def test_a_family_is_one_request_in_every_field_but_the_choice(store: AnyStore, key: str | None) -> None:
    (name, jobs), created = ask(store, key)
    assert created
    assert jobs == [f"{name}.{choice}" for choice in range(3)]
    states = [transcript_of(store, job).state for job in jobs]
    values = [state.spec.envelope.model_dump() for state in states if state is not None]
    assert [value["rng"].pop("choice") for value in values] == [0, 1, 2]
    assert values[0] == values[1] == values[2]
    assert [store.row(job).idempotency_key for job in jobs] == [None, None, key]
    assert audit(store).ok


@pytest.mark.contract("ENV-8")
@pytest.mark.parametrize("admissions", [1, 2, 3])
def test_a_retry_completes_a_submission_killed_between_admissions(store: AnyStore, admissions: int) -> None:
    """A submission killed between two admissions is completed by its retry."""
    with pytest.raises(Killed):
        ask(Dying(store, admissions), KEY, n=4)
    assert len(choices_in(store)) == admissions
    partial = find(store, store.rows()[0].job.partition(".")[0])
    assert (len(partial.jobs), partial.missing) == (admissions, 4 - admissions)

    for _ in range(2):
        again = ask(store, KEY, n=4)
        assert again == (find(store, partial.name), False)
        assert (again.found.name, again.found.missing) == (partial.name, 0)
        assert choices_in(store) == [0, 1, 2, 3]
    assert audit(store).ok


@pytest.mark.contract("ENV-8")
def test_two_submissions_of_one_key_at_a_time_are_one_family(store: AnyStore) -> None:
    together = Barrier(2)

    def both(_: int) -> Submission:
        together.wait()
        return ask(store, KEY, n=8)

    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(both, range(2))
    assert one.found == other.found
    assert sorted((one.created, other.created)) == [False, True]
    assert choices_in(store) == list(range(8))


@pytest.mark.contract("ENV-8")
@pytest.mark.parametrize(
    ("held", "offered", "field"),
    [
        ({"n": 3}, {"n": 2}, "n"),
        ({"n": 3}, {"n": 4}, "n"),
        ({"n": 3}, {"n": 1}, "n"),
        ({"n": 1}, {"n": 3}, "n"),
        ({"n": 3}, {"n": 1, "choice": 2}, "n"),
        ({"n": 1, "choice": 2}, {"n": 3}, "n"),
        ({"n": 1, "choice": 2}, {"n": 1, "choice": 1}, "rng.choice"),
        ({"n": 3}, {"n": 3, "prompt": "other"}, "prompt.token_ids"),
        ({"n": 3}, {"n": 3, "seed": 1}, "rng.seed"),
        ({"n": 3}, {"n": 2, "temperature": 0.5}, "policy.transforms[0].value"),
    ],
)
def test_another_request_under_the_key_is_refused_and_not_written(
    store: AnyStore, held: dict[str, Any], offered: dict[str, Any], field: str
) -> None:
    """Another request under the key is refused before anything is written."""
    ask(store, KEY, **held)
    before = store.rows()
    with pytest.raises(IdempotencyConflict) as caught:
        ask(store, KEY, **offered)
    assert (caught.value.field, caught.value.key) == (field, KEY)
    assert store.row(caught.value.job).idempotency_key == KEY
    assert store.rows() == before


@pytest.mark.contract("ENV-6", "ENV-8", "POL-7")
@pytest.mark.parametrize(
    ("draft", "kind", "word"),
    [
        ({"temperature": 0}, SchemaViolation, "temperature above 0"),
        ({"temperature": 0, "top_p": 0.5}, SchemaViolation, "temperature above 0"),
        ({"temperature": None}, SchemaViolation, "temperature above 0"),
        ({"choice": 1}, SchemaViolation, "one choice"),
        ({"regex": "("}, Rejected, "regex cannot be followed"),
        ({"stop_token_ids": [100_000]}, Rejected, "100000"),
        ({"key": KEY + "k"}, LimitExceeded, "255"),
        ({"n": 129}, LimitExceeded, "128"),
    ],
)
def test_what_is_refused_leaves_no_job(draft: dict[str, Any], kind: type[Rejected], word: str) -> None:
    store = MemoryStore()
    with pytest.raises(kind, match=word):
        ask(store, **{"key": KEY, **draft})
    assert store.rows() == []


@pytest.mark.contract("POL-7")
def test_choices_are_refused_where_all_would_be_the_same_and_only_there(store: AnyStore) -> None:
    forced = [{"step": 0, "token_id": 65}]
    assert len(ask(store, temperature=None, top_k=2, forced_tokens=forced).found.jobs) == 3
    for alone in ({"top_k": 1}, {"top_p": 0}, {"temperature": 1e-9}, {"typical_p": 0}):
        with pytest.raises(SchemaViolation, match="leaves one token"):
            ask(store, **alone)


@pytest.mark.contract("POL-5", "ENV-7")
def test_a_family_without_a_seed_has_one_fresh_seed(store: AnyStore) -> None:
    families = [ask(store, key).found.jobs for key in ("a", "b", None, None)]
    states = [[transcript_of(store, job).state for job in jobs] for jobs in families]
    seeds = [{state.spec.envelope.rng.seed for state in each if state is not None} for each in states]
    assert [len(each) for each in seeds] == [1] * 4
    assert len(set.union(*seeds)) == 4


@pytest.mark.contract("ENV-7")
def test_one_job_is_never_made_of_several_choices() -> None:
    store = MemoryStore()
    draft = draft_from({"prompt": "a", "temperature": 1.0, "n": 2})
    with pytest.raises(SchemaViolation, match="one choice"):
        submit(store, MODEL, "scripted", draft, 0)
    assert store.rows() == []


NAMES = ["ab1.2", "ab1.0", "ab1.1", "ab2", *(f"cde.{choice}" for choice in (11, *range(11))), "ab", "f.1"]


@pytest.fixture
def named() -> MemoryStore:
    store = MemoryStore()
    envelope = seal(draft_from({"prompt": "a"}), MODEL.facts, MODEL.runtime, MODEL.text, 0)
    for name in NAMES:
        admit_job(store, "scripted", name, envelope, None)
    return store


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        ("ab1", NamedJobs("ab1", ["ab1.0", "ab1.1", "ab1.2"])),
        ("ab1.1", NamedJobs("ab1.1", ["ab1.1"])),
        ("ab", NamedJobs("ab", ["ab"])),
        ("ab2", NamedJobs("ab2", ["ab2"])),
        ("cd", NamedJobs("cde", [f"cde.{choice}" for choice in range(12)])),
        ("cde.1", NamedJobs("cde.1", ["cde.1"])),
        ("c.10", NamedJobs("cde.10", ["cde.10"])),
        ("f", NamedJobs("f", ["f.1"])),
        ("f.1", NamedJobs("f.1", ["f.1"])),
    ],
)
def test_a_beginning_finds_a_job_a_family_or_one_choice_of_it(
    named: MemoryStore, prefix: str, found: NamedJobs
) -> None:
    assert find(named, prefix) == found
    assert found.missing == (1 if prefix == "f" else 0)
    if found.is_family:
        with pytest.raises(FamilyMeant, match=rf"family of {len(found.jobs)} .* from {found.jobs[0]}") as caught:
            find_job(named, prefix)
        assert (caught.value.family, caught.value.jobs) == found
    else:
        assert find_job(named, prefix) == found.name


@pytest.mark.parametrize("prefix", ["", "x", "ab1.", "ab1.3", "ab2.0", "cde.12", ".1", "cde.x"])
def test_what_no_name_begins_with_is_unknown(named: MemoryStore, prefix: str) -> None:
    with pytest.raises(UnknownJob):
        find(named, prefix)


@pytest.mark.parametrize(("prefix", "names"), [("a", ["ab1", "ab2", "ab"])])
def test_a_beginning_of_several_is_ambiguous_and_a_family_counts_once(
    named: MemoryStore, prefix: str, names: list[str]
) -> None:
    with pytest.raises(AmbiguousJob) as caught:
        find(named, prefix)
    assert (caught.value.count, caught.value.candidates) == (len(names), names)
