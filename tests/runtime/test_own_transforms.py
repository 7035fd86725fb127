"""A program's own transforms: bound by their source, run for their job alone, and left to whoever has them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from hashlib import sha256
from inspect import getsource
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from cranks import admit, assert_audited, engine, finish, model, result, run, state_of
from databases import AnyStore
from score_rows import one
from torch import Tensor
from workers import worker

from decodelog.fsm.errors import OwnTransformMissing, Problem, SchemaViolation
from decodelog.runtime.policy import registry
from decodelog.runtime.policy.cuts import Temperature
from decodelog.runtime.policy.edits import Own
from decodelog.runtime.policy.history import Text
from decodelog.runtime.policy.plan import Plan
from decodelog.runtime.policy.registry import TextSoFar, register_transform, sealed_names


def no_repeat_of_the_last(scores: Tensor, context: TextSoFar) -> Tensor:
    """The newest token does not come again at once, and every seventh is a q."""
    if len(context.output):
        scores[int(context.output[-1])] = -torch.inf
    if len(context.output) % 7 == 6:
        scores[ord("q")] += 100
    return scores


def of_both(scores: Tensor, context: TextSoFar) -> Tensor:
    """What was removed comes back, were it not kept away; and the sum of all tokens so far is the best."""
    scores = scores.nan_to_num(neginf=50.0)
    scores[(int(context.prompt.sum()) + int(context.output.sum())) % 128] = 60.0
    return scores


def of_another_shape(scores: Tensor, context: TextSoFar) -> Tensor:
    return scores[:-1]


def of_another_type(scores: Tensor, context: TextSoFar) -> Tensor:
    return scores.double()


def no_tensor(scores: Tensor, context: TextSoFar) -> Any:
    return scores.tolist()


def not_a_number(scores: Tensor, context: TextSoFar) -> Tensor:
    return scores * (float("nan") if len(context.output) == 3 else 1)


def too_large(scores: Tensor, context: TextSoFar) -> Tensor:
    return scores + torch.inf


def raises(scores: Tensor, context: TextSoFar) -> Tensor:
    raise LookupError("no such thing")


def writes(scores: Tensor, context: TextSoFar) -> Tensor:
    context.output[:] = 0
    return scores


def removes_all(scores: Tensor, context: TextSoFar) -> Tensor:
    return scores - torch.inf


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has registered nothing."""
    monkeypatch.setattr(registry, "_registered", {})


LONG: dict[str, Any] = {"max_new_tokens": 16, "ignore_eos": True, "temperature": 0.8, "seed": 3}
SEEDED: dict[str, Any] = {"seed": 11, "spread": 2.0, "period": 4}


def own(*functions: Callable[..., Any]) -> dict[str, Any]:
    return {"own_transforms": sealed_names([register_transform(each.__name__, 1, each) for each in functions])}


@pytest.mark.contract("POL-2", "RES-4")
@pytest.mark.parametrize("turns", [1, 8])
def test_it_sees_the_tokens_so_far_after_a_takeover_too(store: AnyStore, turns: int) -> None:
    of = model(**SEEDED)
    draft = {**LONG, **own(no_repeat_of_the_last)}
    whole = run(store, of, **draft)["token_ids"]
    assert whole[6] == whole[13] == ord("q")
    assert all(one != other for one, other in pairwise(whole))
    job = admit(store, of, **draft)
    first = engine(store, of, job)
    for _ in range(turns):
        first.turn()
    mate = admit(store, of, **LONG)
    finish(engine(store, of, job, mate, worker="next"))
    assert result(store, job)["token_ids"] == whole
    assert result(store, mate)["token_ids"] == run(store, of, **LONG)["token_ids"]
    assert_audited(store)


@pytest.mark.contract("POL-2")
def test_removed_tokens_stay_removed_and_prompt_and_output_are_there(store: AnyStore) -> None:
    """The sums are 25, 50 and 100, and the last of these is banned."""
    banned = [*range(100, 128)]
    ended = run(store, model(**SEEDED), **own(of_both), token_ids=[20, 5], banned_token_ids=banned, max_new_tokens=3)
    assert ended["token_ids"][:2] == [25, 50]
    assert ended["token_ids"][2] not in banned


@pytest.mark.contract("FSM-10", "POL-1", "POL-7")
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (of_another_shape, "and is ["),
        (of_another_type, "torch.float64"),
        (no_tensor, "list"),
        (not_a_number, "a NaN"),
        (too_large, "an infinity above 0"),
        (raises, "LookupError: no such thing"),
        (writes, "ValueError"),
    ],
)
def test_what_is_no_row_of_scores_ends_that_job_alone(
    store: AnyStore, function: Callable[..., Any], words: str
) -> None:
    of = model(**SEEDED)
    mate, faulty = admit(store, of, **LONG), admit(store, of, **LONG, **own(function))
    finish(engine(store, of, mate, faulty))
    ended = result(store, faulty)
    assert (ended["state"], ended["error"]["code"]) == ("FAILED", "own_transform_fault")
    assert words in ended["error"]["message"]
    assert len(ended["token_ids"]) == (3 if function is not_a_number else 0)
    assert result(store, mate)["token_ids"] == run(store, of, **LONG)["token_ids"]
    assert_audited(store)


@pytest.mark.contract("FSM-10")
def test_one_that_removes_all_leaves_no_token(store: AnyStore) -> None:
    ended = run(store, model(**SEEDED), **own(removes_all))
    assert ended["error"]["code"] == "no_token_left"


def noted(scores: Tensor, context: TextSoFar) -> Tensor:
    SEEN.append(float(scores.max()))
    return scores


SEEN: list[float] = []


@pytest.mark.contract("POL-3")
def test_one_after_a_temperature_sees_scores_that_are_divided() -> None:
    kind = Own("noted", 1, register_transform("noted", 1, noted).sha256)
    row, cold = [1.0, 4.0], Temperature(0.5)
    found = one(row, Plan("sample", (cold, kind)), 0.3)
    assert SEEN == [8.0]
    assert found.logprob == pytest.approx(one(row, Plan("sample", (cold,)), 0.3).logprob, abs=1e-6)


@pytest.mark.contract("ENV-9")
@pytest.mark.parametrize("other", [None, of_both])
def test_a_worker_without_that_very_function_leaves_the_job_to_others(
    store: AnyStore, other: Callable[..., Any] | None
) -> None:
    of = model(**SEEDED)
    job, mate = admit(store, of, **LONG, **own(no_repeat_of_the_last)), admit(store, of, **LONG)
    registry._registered.clear()
    if other is not None:
        register_transform("no_repeat_of_the_last", 1, other)
    told: dict[str, Problem] = {}
    worker(store, of, notice=told.__setitem__).run(drain=True)
    assert result(store, mate)["state"] == "CLOSED"
    missing = told[job]
    assert isinstance(missing, OwnTransformMissing)
    assert ("source" if other else "none of that name") in missing.found
    assert store.row(job).owner is None
    registry._registered.clear()
    register_transform("no_repeat_of_the_last", 1, no_repeat_of_the_last)
    worker(store, of, name="worker-2").run(drain=True)
    assert result(store, job)["state"] == "CLOSED"


def wrapped(scores: Tensor, context: TextSoFar) -> Tensor:
    return scores


@pytest.mark.contract("ENV-9", "ENV-2")
def test_a_function_whose_source_does_not_say_what_it_does_is_refused() -> None:
    amount = 3.0

    def closes(scores: Tensor, context: TextSoFar) -> Tensor:
        return scores + amount

    def has_a_default(scores: Tensor, context: TextSoFar, more: float = amount) -> Tensor:
        return scores + more

    beside, its_mate = (lambda scores, context: scores), (lambda scores, context: 2 * scores)
    made = eval("lambda scores, context: scores")
    hidden = functools.wraps(wrapped)(lambda scores, context: scores)
    refused: list[Any] = [
        closes,
        has_a_default,
        beside,
        its_mate,
        made,
        len,
        functools.partial(wrapped),
        hidden,
        TextSoFar,
    ]
    for function in (*refused, TextSoFar):
        with pytest.raises(SchemaViolation) as caught:
            register_transform("x", 1, function)
        assert caught.value.path == "function"
    for name, version, path in (("", 1, "name"), ("\n", 1, "name"), ("x", 0, "version"), ("x", True, "version")):
        with pytest.raises(SchemaViolation) as caught:
            register_transform(name, version, wrapped)
        assert caught.value.path == path


@pytest.mark.contract("ENV-9")
def test_a_name_and_version_are_one_function_and_a_name_means_its_newest() -> None:
    first = register_transform("x", 1, wrapped)
    assert first.sha256 == sha256(getsource(wrapped).encode()).hexdigest()
    assert register_transform("x", 1, wrapped) == first
    with pytest.raises(SchemaViolation, match="another source"):
        register_transform("x", 1, raises)
    second = register_transform("x", 2, raises)
    (newest,), (named,) = sealed_names(["x"]), sealed_names((first,))
    assert newest == {"name": "x", "version": 2, "sha256": second.sha256}
    assert named["version"] == 1
    with pytest.raises(SchemaViolation, match="registered in this process") as caught:
        sealed_names(["x", "y"])
    assert caught.value.path == "own_transforms[1]"


def test_one_transform_is_asked_for_once_and_two_in_their_order(store: AnyStore) -> None:
    of = model(**SEEDED)
    job = admit(store, of, **own(wrapped, no_repeat_of_the_last), max_new_tokens=1)
    finish(engine(store, of, job))
    assert [each.name for each in _own(store, job)] == ["wrapped", "no_repeat_of_the_last"]
    with pytest.raises(Problem, match="own wrapped is written twice"):
        admit(store, of, **own(wrapped, wrapped))


def _own(store: AnyStore, job: str) -> list[Any]:
    return list(state_of(store, job).spec.envelope.policy.transforms)


def test_the_tokens_are_handed_on_without_a_copy_that_grows() -> None:
    text = Text()
    text.take(list(range(1000)), "output")
    text.take((7,), "output")
    view = text.now("output")
    assert view.tolist() == [*range(1000), 7]
    assert np.shares_memory(view, text.now("output"))
    assert text.now("prompt").tolist() == []
