"""The policy in jobs: what is masked, penalised and drawn, over the real log, and after a worker's death."""

from __future__ import annotations

import math
from typing import Any

import pytest
from cranks import admit, assert_audited, claim, engine, finish, model, result, run, transcript
from databases import AnyStore

from decodelog.fsm.errors import NotAdmissible, SchemaViolation
from decodelog.fsm.evidence.receipt import Selection
from decodelog.fsm.machine.events import DecisionMade
from decodelog.runtime.families.scripted.script import EOS
from decodelog.runtime.policy.edits import MinNewTokens

SEEDED: dict[str, Any] = {"seed": 11, "spread": 2.0, "period": 64}
SHAPED: dict[str, Any] = {
    "temperature": 0.9,
    "top_k": 60,
    "min_p": 0.01,
    "repetition_penalty": 1.2,
    "frequency_penalty": 0.4,
    "presence_penalty": 0.3,
    "no_repeat_ngram_size": 2,
    "logit_bias": [{"token_id": 65, "bias": 3.0}],
    "banned_token_ids": [66, 67],
    "min_new_tokens": 6,
    "seed": 7,
    "ignore_eos": True,
}


def selections(store: AnyStore, job: str) -> list[Selection]:
    events = (event for record in store.read(job) for event in record.events)
    return [event.receipt.selection for event in events if isinstance(event, DecisionMade)]


@pytest.mark.contract("POL-2", "OUT-3")
def test_every_end_token_and_stop_id_is_masked_until_the_minimum(store: AnyStore) -> None:
    """The model wants a secondary end token, and a stop id, before the minimum."""
    hello = model("ab")
    job = admit(store, hello, min_new_tokens=4)
    finish(engine(store, hello, job))
    ended = result(store, job)
    assert EOS not in ended["token_ids"][:4]
    assert ended["token_ids"][:2] == [*b"ab"]
    assert len(ended["token_ids"]) >= 4
    for step, selection in enumerate(selections(store, job)):
        assert selection.support == hello.facts.vocabulary_size - (len(hello.facts.eos_ids) if step < 4 else 0)
    stopped = run(store, model("abcdefgh"), min_new_tokens=4, stop_token_ids=[ord("b"), ord("f")], include_stop=True)
    assert (stopped["finish_reason"], stopped["token_ids"][-1]) == ("stop_token", ord("f"))
    assert ord("b") not in stopped["token_ids"][:4]
    by_text = run(store, model("abcdefgh"), min_new_tokens=4, stop=["b", "ef"])
    assert (by_text["finish_reason"], by_text["text"]) == ("stop_string", "abcd")
    assert_audited(store)


@pytest.mark.contract("OUT-3", "FSM-7")
def test_a_minimum_equal_to_the_maximum_ends_by_length(store: AnyStore) -> None:
    ended = run(store, model("a"), min_new_tokens=3, max_new_tokens=3)
    assert (ended["finish_reason"], ended["usage"]["completion_tokens"]) == ("length", 3)


@pytest.mark.contract("POL-2")
def test_an_ignored_end_token_is_an_ordinary_one_before_the_minimum_too(store: AnyStore) -> None:
    ended = run(store, model("a"), min_new_tokens=3, max_new_tokens=4, ignore_eos=True)
    assert EOS in ended["token_ids"][:3]


@pytest.mark.contract("POL-2")
def test_a_minimum_without_end_tokens_holds_nothing_back(store: AnyStore) -> None:
    """A minimum with no token that ends the output holds nothing back at any step."""
    for draft, held_back in (({"ignore_eos": True}, 0), ({"ignore_eos": True, "stop_token_ids": [66]}, 1), ({}, 1)):
        plan = claim(store, admit(store, model("ab"), min_new_tokens=4, **draft)).plan
        assert len([each for each in plan.transforms if isinstance(each, MinNewTokens)]) == held_back, draft


@pytest.mark.contract("POL-2")
def test_masks_biases_and_forced_tokens_change_a_greedy_choice(store: AnyStore) -> None:
    hello = model("Hello")
    assert ord("l") not in run(store, hello, banned_token_ids=[ord("l")])["token_ids"]
    assert set(run(store, hello, allowed_token_ids=[*b"xyz", EOS])["text"]) <= set("xyz")
    biased = run(store, hello, logit_bias=[{"token_id": ord("q"), "bias": 10_000}], max_new_tokens=3)
    assert biased["text"] == "qqq"
    forced = run(store, hello, forced_tokens=[{"step": 1, "token_id": ord("u")}])
    assert forced["text"] == "Hullo"


@pytest.mark.contract("POL-2")
def test_penalties_look_back_on_what_was_committed(store: AnyStore) -> None:
    loop = model(seed=3, spread=2.0, period=1)
    plain = run(store, loop, max_new_tokens=6, ignore_eos=True)["token_ids"]
    assert len(set(plain)) == 1
    once = run(store, loop, max_new_tokens=6, ignore_eos=True, no_repeat_ngram_size=1)["token_ids"]
    assert len(set(once)) == 6
    strong = run(store, loop, max_new_tokens=6, ignore_eos=True, presence_penalty=10_000)["token_ids"]
    assert strong == once


@pytest.mark.contract("POL-7", "RES-4", "POL-2")
@pytest.mark.parametrize("form", ["prefill", "reexecute"])
@pytest.mark.parametrize("turns", [1, 5, 13])
def test_a_job_with_penalties_may_be_taken_over_after_any_turn(store: AnyStore, form: str, turns: int) -> None:
    """A job with penalties taken over after any turn ends as if nothing had happened."""
    of = model(**SEEDED)
    whole = run(store, of, **SHAPED)
    job = admit(store, of, **SHAPED)
    first = engine(store, of, job)
    for _ in range(turns):
        first.turn()
    finish(engine(store, model(**SEEDED), job, worker="next", form=form))
    assert result(store, job)["token_ids"] == whole["token_ids"]
    assert_audited(store)


@pytest.mark.contract("POL-7", "POL-2")
@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_seeded_job_is_the_same_among_mates_without_a_seed(store: AnyStore, width: int) -> None:
    """Four times in one batch with others, at several widths, with penalties and without."""
    of = model(**SEEDED)
    for draft in ({"temperature": 1.0, "seed": 42, "ignore_eos": True}, {**SHAPED, "seed": 42}):
        draft = {**draft, "max_new_tokens": 20, "batch_width": width}
        alone = admit(store, of, **draft)
        finish(engine(store, of, alone))
        same = [admit(store, of, **draft) for _ in range(4)]
        others = [admit(store, of, temperature=0.7, batch_width=width) for _ in range(2)]
        finish(engine(store, of, same[0], others[0], *same[1:], others[1]))
        expected = selections(store, alone)
        assert len(expected) == 20
        assert all(selections(store, job) == expected for job in same)


@pytest.mark.contract("POL-7", "POL-5")
def test_four_choices_of_one_seed_are_distinct_and_each_replays_alone(store: AnyStore) -> None:
    of = model(**SEEDED)
    draft = {"temperature": 1.0, "seed": 7, "ignore_eos": True, "max_new_tokens": 20}
    together = [admit(store, of, **draft, choice=choice) for choice in range(4)]
    finish(engine(store, of, *together))
    texts = [result(store, job)["token_ids"] for job in together]
    assert len({tuple(text) for text in texts}) == 4
    for choice, text in enumerate(texts):
        assert run(store, of, **draft, choice=choice)["token_ids"] == text
    draws = [{selection.unit_draw for selection in selections(store, job)} for job in together]
    assert sum(map(len, draws)) == len(set.union(*draws)) == 80


@pytest.mark.contract("POL-3", "POL-7")
def test_extreme_numbers_of_one_job_neither_fail_it_nor_touch_its_mates(store: AnyStore) -> None:
    """Temperatures and cuts of almost nothing, and penalties at their bounds, among good jobs: as greedy, or finite."""
    of = model(**SEEDED)
    draft: dict[str, Any] = {"max_new_tokens": 8, "ignore_eos": True, "seed": 5}
    greedy = run(store, of, **draft)["token_ids"]
    tiny: list[dict[str, Any]] = [
        {"temperature": 1e-4},
        {"temperature": 5e-324},
        {"top_p": 1e-4},
        {"top_p": 0},
        {"min_p": 1},
        {"top_k": 1},
    ]
    huge: list[dict[str, Any]] = [
        {"repetition_penalty": 1000},
        {"presence_penalty": 10_000},
        {"frequency_penalty": -10_000},
    ]
    jobs = [admit(store, of, **draft, **flags) for flags in (*tiny, *huge, {})]
    finish(engine(store, of, *jobs))
    texts = [result(store, job) for job in jobs]
    assert all(text["token_ids"] == greedy for text in (*texts[: len(tiny)], texts[-1]))
    assert all((text["state"], text["finish_reason"]) == ("CLOSED", "length") for text in texts)
    for job in jobs:
        for selection in selections(store, job):
            assert all(map(math.isfinite, (selection.logprob, selection.logprob_raw, selection.margin)))


@pytest.mark.contract("FSM-10", "POL-2")
def test_a_job_without_a_token_left_fails_alone_with_its_cause(store: AnyStore) -> None:
    """Two tokens allowed and none of them twice: the third step has nothing to choose."""
    of = model(**SEEDED)
    empty = admit(store, of, allowed_token_ids=[65, 66], no_repeat_ngram_size=1, ignore_eos=True)
    mate = admit(store, of, max_new_tokens=9, ignore_eos=True)
    finish(engine(store, of, empty, mate))
    failed = result(store, empty)
    assert (failed["state"], failed["error"]["code"]) == ("FAILED", "no_token_left")
    assert sorted(failed["token_ids"]) == [65, 66]
    assert result(store, mate)["token_ids"] == run(store, of, max_new_tokens=9, ignore_eos=True)["token_ids"]
    assert_audited(store)


@pytest.mark.contract("ENV-6", "POL-2")
@pytest.mark.parametrize(
    ("flags", "check"),
    [
        ({"banned_token_ids": [100_000]}, "policy_ids_in_vocabulary"),
        ({"allowed_token_ids": [EOS], "min_new_tokens": 1}, "policy_no_token_left"),
        ({"forced_tokens": [{"step": 40, "token_id": 1}]}, "policy_forced_token_conflict"),
    ],
)
def test_a_policy_that_cannot_be_kept_is_refused_at_admission(
    store: AnyStore, flags: dict[str, Any], check: str
) -> None:
    with pytest.raises(NotAdmissible) as caught:
        admit(store, model(), **flags)
    assert caught.value.check == check
    with pytest.raises(SchemaViolation):
        admit(store, model(), allowed_token_ids=[1], banned_token_ids=[1])
    assert not list(store.rows())


@pytest.mark.contract("POL-6")
def test_reported_log_probabilities_do_not_move_with_the_temperature(store: AnyStore) -> None:
    """One row, forced to one token: raw values are the model's own at any temperature, cut and penalty."""
    of = model("Hello")
    forced = [{"step": step, "token_id": token} for step, token in enumerate(b"Hello")]
    settings: tuple[dict[str, Any], ...] = (
        {},
        {"temperature": 0.5, "top_p": 0.9},
        {"temperature": 3.0, "seed": 1},
        {"presence_penalty": 2.0},
    )
    told: list[Any] = []
    for flags in settings:
        job = admit(store, of, max_new_tokens=5, logprobs=3, forced_tokens=forced, **flags)
        finish(engine(store, of, job))
        chosen = selections(store, job)
        assert all(selection.logprob == 0.0 for selection in chosen)
        told.append(
            [(each.logprob_raw, [(a.token, a.logprob_raw) for a in each.alternatives], each.margin) for each in chosen]
        )
        emitted = [token for emission in transcript(store, job).emissions for token in emission.tokens]
        assert [token.logprob_raw for token in emitted] == [each.logprob_raw for each in chosen]
        assert [token.alternatives for token in emitted] == [each.alternatives for each in chosen]
    assert all(each == told[0] for each in told)
