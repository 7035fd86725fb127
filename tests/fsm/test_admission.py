"""The ladder of admission: every rung refuses its fault, in the declared order, and nothing else."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from typing import Any

import pytest
from envelope_examples import FACTS, RUNTIME, changed, full

from decodelog.fsm.errors import NotAdmissible
from decodelog.fsm.request import admission, policy_checks
from decodelog.fsm.request.admission import ADMISSION, check, check_runtime
from decodelog.fsm.request.artifact import ArtifactFacts
from decodelog.fsm.request.envelope import admitted

GRAMMAR = {"kind": "grammar", "language": "regex", "source": "a+"}
GREEDY: dict[str, Any] = {"policy.family": "greedy", "policy.transforms": []}

# For each rung, in the order of the ladder: changes that make the envelope fail it, the artifact staying as it is.
ZERO = {
    "termination.max_new_tokens": 0,
    "termination.min_new_tokens": 0,
    "termination.zero_token_choice": "no_call",
}
FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("artifact.release_id", {"artifact.release_id": "tiny-2"}),
    ("artifact.architecture", {"artifact.architecture": "qwen2"}),
    ("artifact.checkpoint_sha256", {"artifact.checkpoint_sha256": "0" * 64}),
    ("artifact.config_sha256", {"artifact.config_sha256": "0" * 64}),
    ("artifact.weight_dtype", {"artifact.weight_dtype": "float16"}),
    ("text_interface.tokenizer_sha256", {"text_interface.tokenizer_sha256": "0" * 64}),
    ("text_interface.template_sha256", {"text_interface.template_sha256": None}),
    ("text_interface.vocabulary_size", {"text_interface.vocabulary_size": 301}),
    ("prompt_mask_length", {"prompt.attention_mask": [1, 1, 1]}),
    ("prompt_mask_hides", {"prompt.attention_mask": [0, 1, 1, 1]}),
    ("prompt_empty", {"prompt.token_ids": [], "prompt.attention_mask": []}),
    ("prompt_beyond_context", {"position_visibility.context_tokens_max": 3}),
    ("prompt_ids_in_vocabulary", {"prompt.token_ids": [1, 2, 3, 300]}),
    ("stop_ids_in_vocabulary", {"termination.stop_token_ids": [5, 300]}),
    ("text_interface.bos_id", {"text_interface.bos_id": None}),
    ("text_interface.eos_ids", {"text_interface.eos_ids": [2, 7, 9]}),
    ("text_interface.pad_id", {"text_interface.pad_id": 1}),
    ("termination.eos_ids", {"termination.eos_ids": [2, 9]}),
    ("special_ids_in_vocabulary", {}),
    ("policy_transform_repeated", {"policy.transforms": [{"kind": "temperature", "value": 1}] * 2}),
    ("policy_greedy_reshapes", {"policy.family": "greedy"}),
    ("policy_temperature_missing", {"policy.transforms": [{"kind": "top_k", "k": 5}]}),
    ("policy_grammar", {"policy.transforms": [{"kind": "temperature", "value": 1}, GRAMMAR]}),
    ("policy_logprobs_top", {}),
    ("policy_ids_in_vocabulary", {"policy.transforms[1]": {"kind": "banned_tokens", "token_ids": [3, 300]}}),
    (
        "policy_no_token_left",
        {
            "policy.transforms[1]": {"kind": "allowed_tokens", "token_ids": [3, 4]},
            "policy.transforms[2]": {"kind": "banned_tokens", "token_ids": [3, 4, 5]},
        },
    ),
    (
        "policy_forced_token_conflict",
        {"policy.transforms[1]": {"kind": "forced_tokens", "tokens": [{"step": 16, "token_id": 40}]}},
    ),
    ("runtime.cache.abi", {"runtime.cache.abi": "3 layers"}),
    ("context_of_model", {"position_visibility.context_tokens_max": 65}),
    ("cache_position_start", {"position_visibility.cache_position_start": 1}),
    ("output.final_cache", {"output.final_cache": "repaired", **ZERO, "output.extras": []}),
    ("output_extra_repeated", {"output.extras": [{"kind": "prompt_logprobs", "top": 1}] * 2}),
    ("output_prompt_logprobs", ZERO),
]


def failing(changes: dict[str, Any], facts: ArtifactFacts = FACTS) -> str | None:
    try:
        check(admitted(changed(full(), changes)), facts)
    except NotAdmissible as error:
        return error.check
    return None


@pytest.mark.contract("ENV-6")
def test_the_ladder_is_the_contracts_order() -> None:
    names = [name for name, _ in ADMISSION]
    assert names == [name for name, _ in FAULTS]
    assert len(set(names)) == len(names)


@pytest.mark.contract("ENV-6")
def test_a_sound_envelope_is_admitted() -> None:
    check(admitted(full()), FACTS)
    plain: dict[str, Any] = {"output.extras": []}
    check(admitted(changed(full(), {**GREEDY, **plain})), FACTS)
    check(admitted(changed(full(), {"position_visibility.context_tokens_max": 4, **plain})), FACTS)


@pytest.mark.contract("ENV-6")
@pytest.mark.parametrize(("name", "changes"), FAULTS, ids=[name for name, _ in FAULTS])
def test_each_rung_refuses_its_fault(name: str, changes: dict[str, Any]) -> None:
    if name == "policy_logprobs_top":
        tiny = {"text_interface.vocabulary_size": 10, "prompt.token_ids": [1] * 4, "policy.logprobs_top": 11}
        assert failing(tiny, dataclasses.replace(FACTS, vocabulary_size=10)) == name
        assert failing({**tiny, "policy.logprobs_top": 10}, dataclasses.replace(FACTS, vocabulary_size=10)) is None
    elif name == "special_ids_in_vocabulary":
        for kind in ("eos_ids", "bos_id", "pad_id"):
            of_kind: Any = {"eos_ids": [2, 300], "bos_id": 300, "pad_id": 300}[kind]
            stated = {f"text_interface.{kind}": of_kind}
            if kind == "eos_ids":
                stated["termination.eos_ids"] = of_kind
            known: dict[str, Any] = {kind: tuple(of_kind) if isinstance(of_kind, list) else of_kind}
            facts = dataclasses.replace(FACTS, **known)
            assert failing(stated, facts) == name
            assert failing(stated, dataclasses.replace(facts, vocabulary_size=301)) == "text_interface.vocabulary_size"
    else:
        assert failing(changes) == name


@pytest.mark.contract("ENV-6")
@pytest.mark.parametrize(("top", "refused"), [(9, None), (10, None), (11, "output_prompt_logprobs")])
def test_alternatives_of_a_prompt_may_be_the_whole_vocabulary_and_no_more(top: int, refused: str | None) -> None:
    tiny = {
        "text_interface.vocabulary_size": 10,
        "prompt.token_ids": [1] * 4,
        "output.extras": [{"kind": "prompt_logprobs", "top": top}],
        **GREEDY,
    }
    assert failing(tiny, dataclasses.replace(FACTS, vocabulary_size=10)) == refused


@pytest.mark.contract("ENV-6")
@pytest.mark.parametrize("index", range(len(FAULTS)))
def test_of_two_faults_the_earlier_rung_is_reported(index: int) -> None:
    name, changes = FAULTS[index]
    for _, later in FAULTS[index + 1 :]:
        if changes and not set(changes) & set(later):
            assert failing({**later, **changes}) == name


@pytest.mark.contract("ENV-6")
def test_the_ladder_touches_nothing_that_runs() -> None:
    imported = {
        node.module
        for module in (admission, policy_checks)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.ImportFrom) and node.module is not None
    }
    allowed = {"artifact", "envelope", "errors", "transforms", "limits", "__future__", "collections.abc", "dataclasses"}
    allowed |= {"operator", "typing"}
    assert imported <= allowed


@pytest.mark.contract("ENV-9")
@pytest.mark.parametrize(
    ("compatibility", "fact", "other", "refused"),
    [
        ("exact", "framework_revision", "torch 3", "runtime.framework_revision"),
        ("exact", "device_class", "cuda", "runtime.device_class"),
        ("any_revision", "framework_revision", "torch 3", None),
        ("any_revision", "device_class", "cuda", "runtime.device_class"),
        ("any_device", "framework_revision", "torch 3", None),
        ("any_device", "device_class", "cuda", None),
        ("any_device", "compute_dtype", "bfloat16", "runtime.compute_dtype"),
        ("any_device", "logit_dtype", "bfloat16", "runtime.logit_dtype"),
        ("any_device", "cache_kind", "paged", "runtime.cache.kind"),
    ],
)
def test_a_process_with_other_facts_refuses_unless_the_class_admits_it(
    compatibility: str, fact: str, other: str, refused: str | None
) -> None:
    bound: dict[str, Any] = {"runtime.compatibility": compatibility}
    if compatibility != "exact":
        bound["runtime.framework_revision"] = None
    if compatibility == "any_device":
        bound["runtime.device_class"] = None
    envelope = admitted(changed(full(), bound))
    check_runtime(envelope, RUNTIME)
    elsewhere = dataclasses.replace(RUNTIME, **{fact: other})
    if refused is None:
        check_runtime(envelope, elsewhere)
    else:
        with pytest.raises(NotAdmissible, match=other) as caught:
            check_runtime(envelope, elsewhere)
        assert caught.value.check == refused


@pytest.mark.contract("ENV-9")
@pytest.mark.parametrize("fact", ["checkpoint_sha256", "config_sha256", "tokenizer_sha256", "template_sha256"])
def test_a_worker_with_another_artifact_refuses(fact: str) -> None:
    other: dict[str, Any] = {fact: "9" * 64}
    with pytest.raises(NotAdmissible) as caught:
        check(admitted(full()), dataclasses.replace(FACTS, **other))
    assert caught.value.check.endswith(fact)


@pytest.mark.contract("OUT-5", "OUT-3")
@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, None),
        ({"termination.ignore_eos": True}, "ignore_eos"),
        ({"termination.min_new_tokens": 1}, "min_new_tokens"),
        ({"termination.detectors": [{"kind": "json_value"}]}, "detectors"),
        ({"policy.transforms": [{"kind": "temperature", "value": 1}, GRAMMAR]}, "first"),
    ],
)
def test_what_a_grammar_does_not_go_with_is_refused(changes: dict[str, Any], word: str | None) -> None:
    base = {"policy.transforms": [GRAMMAR, {"kind": "temperature", "value": 1}], "termination.min_new_tokens": 0}
    envelope = admitted(changed(full(), {**base, **changes}))
    if word is None:
        check(envelope, FACTS)
    else:
        with pytest.raises(NotAdmissible, match=word):
            check(envelope, FACTS)
