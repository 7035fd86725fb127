"""Which models' jobs a claim leaves alone, and which models nobody finds."""

from __future__ import annotations

import pytest
from databases import AnyStore
from steps import admit

from decodelog.fsm.ports import ModelRef

HOUR_MS = 3_600_000


@pytest.mark.contract("LOG-7", "ENV-9")
def test_a_model_is_barred_by_its_name_and_its_artifact_together(store: AnyStore) -> None:
    """Another model may lie under the same name by now, and one model under several."""
    of = [ModelRef("a", "1"), ModelRef("a", "2"), ModelRef("b", "1")]
    for number, wanted in enumerate(of):
        admit(store, f"job-{number}", model=wanted.name, artifact=wanted.artifact)
        assert store.row(f"job-{number}").wanted == wanted
    assert store.waiting(None, ["job-1"], [of[0]])
    assert not store.waiting(None, ["job-1", "job-2"], [of[0]])
    assert not store.waiting(None, [], of)
    assert [claim.wanted for claim in store.claim("worker-1", HOUR_MS, 9, barred=[of[0]])] == of[1:]


@pytest.mark.contract("ENV-9")
def test_a_missing_model_is_noted_until_it_is_found(store: AnyStore) -> None:
    one, other = ModelRef("a", "1"), ModelRef("a", "2")
    for worker in ("worker-1", "worker-2", "worker-2"):
        store.note_missing(one, worker)
    store.note_missing(other, "worker-1")
    assert store.missing() == {one: "worker-2", other: "worker-1"}
    for _ in range(2):
        store.note_missing(one, None)
    assert store.missing() == {other: "worker-1"}
