"""A chat template may write the date: it is the sealing's, and one key is one job on every day."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from decodelog.fsm.errors import IdempotencyConflict
from decodelog.fsm.request.draft import draft_from
from decodelog.runtime.model.native import NativeModel
from decodelog.runtime.model.releases import find_model
from decodelog.service.jobs.family import submit_choices
from decodelog.service.jobs.submit import named_ms, new_job_name
from decodelog.service.streams.reading import transcript_of
from decodelog.store.memory.log import MemoryStore

pytestmark = pytest.mark.contract("ENV-7", "ENV-8")

DAY_MS = 86_400_000
DATED = "Today is {{ strftime_now('%d %b %Y') }}. {{ messages[0].content }}"
DRAFT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 1}


@pytest.fixture
def model(tmp_path: Path) -> NativeModel:
    for path in find_model("smollm2-135m-instruct", Path.home() / ".cache/decodelog").iterdir():
        if path.name not in ("tokenizer_config.json", "decodelog.json"):
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": DATED}))
    return NativeModel(tmp_path, lanes=1)


@pytest.mark.parametrize("n", [1, 2])
def test_the_same_request_of_another_day_attaches_to_the_job_of_the_first(model: NativeModel, n: int) -> None:
    store = MemoryStore()

    def submit(day: int, key: str | None, **changes: Any) -> Any:
        draft = draft_from(DRAFT | {"n": n} | changes)
        return submit_choices(store, model, "model", draft, day * DAY_MS, key)

    first = submit(1, "k")
    again = submit(2, "k")
    assert (first.created, again.created, again.found) == (True, False, first.found)
    other = submit(2, None)
    prompts = []
    for asked in (first, other):
        state = transcript_of(store, asked.found.jobs[0]).state
        assert state is not None
        prompts.append(model.text.decode(state.spec.prompt))
    assert prompts == ["Today is 02 Jan 1970. Hi", "Today is 03 Jan 1970. Hi"]
    for changes in ({"messages": [{"role": "user", "content": "Ho"}]}, {"max_new_tokens": 3}):
        with pytest.raises(IdempotencyConflict) as caught:
            submit(2, "k", **changes)
        assert caught.value.job == first.found.jobs[-1]
        assert caught.value.field.startswith("prompt." if "messages" in changes else "termination.")
    assert len(store.rows()) == 2 * n


def test_a_name_says_when_its_request_was_sealed() -> None:
    name = new_job_name(1_700_000_000_123)
    assert named_ms(name) == named_ms(f"{name}.7") == 1_700_000_000_123
    assert named_ms("018bcfe5687bdeadbeef00") == 1_700_000_000_123  # as names were at first
    assert [named_ms(other) for other in ("job-1", "g" * 22, "u" * 17)] == [None] * 3


def test_two_characters_tell_most_names_apart() -> None:
    names = [new_job_name(1_700_000_000_123) for _ in range(20)]
    assert len({name[:3] for name in names}) > 15
    assert {name[8:] for name in names} == {new_job_name(1_700_000_000_123)[8:]}
