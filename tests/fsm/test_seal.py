"""Sealing: a draft, the facts of a model and a process, and nothing else, make one envelope."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from counting import calls
from envelope_examples import FACTS, PLAIN_FACTS, RUNTIME, full
from hypothesis import given
from hypothesis import strategies as st

from decodelog.fsm.errors import LimitExceeded, NotAdmissible, SchemaViolation
from decodelog.fsm.limits import CONTEXT_TOKENS_MAX
from decodelog.fsm.request.admission import check
from decodelog.fsm.request.artifact import ArtifactFacts
from decodelog.fsm.request.draft import draft_from
from decodelog.fsm.request.envelope import Envelope, admit, admitted, first_difference
from decodelog.fsm.request.seal import seal
from decodelog.fsm.request.transforms import SEALED_ORDER, ForcedTokens, Grammar
from decodelog.fsm.request.transforms.edits import LogitBias


class ByteText:
    """One id a byte, 1 before every plain text; a template of angle brackets."""

    def __init__(self, bos: tuple[int, ...] = (1,)) -> None:
        self.bos = bos

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [*(self.bos if add_special_tokens else ()), *text.encode()]

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], *, now_ms: int | None = None, literal: bool = True
    ) -> list[int]:
        turns = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        return [*f"{turns}<assistant>{'' if now_ms is None else now_ms}{'' if literal else '!'}".encode()]


def sealed(
    draft: dict[str, Any],
    facts: ArtifactFacts = FACTS,
    fresh_seed: int = 99,
    text: ByteText | None = None,
) -> Envelope:
    return seal(draft_from(draft), facts, RUNTIME, text or ByteText(), fresh_seed)


# flags | family and transforms
MEANINGS = """
{}                                               | greedy
{"temperature": 0}                               | greedy
{"temperature": 0.0}                             | greedy
{"temperature": -0.0}                            | greedy
{"temperature": 0, "top_k": 5, "top_p": 0.5}     | greedy
{"top_k": 0}                                     | greedy
{"top_p": 1}                                     | greedy
{"top_k": 0, "top_p": 1.0}                       | greedy
{"seed": 3}                                      | greedy
{"temperature": 1}                               | sample temperature=1.0
{"temperature": 5e-324}                          | sample temperature=5e-324
{"temperature": 0.7}                             | sample temperature=0.7
{"temperature": 0.7, "top_k": 0, "top_p": 1}     | sample temperature=0.7
{"temperature": 0.7, "top_p": 0}                 | sample temperature=0.7 top_p=0.0
{"temperature": 0.7, "top_k": 1}                 | sample temperature=0.7 top_k=1
{"temperature": 0.7, "top_k": 2097152}           | sample temperature=0.7 top_k=2097152
{"top_k": 40}                                    | sample temperature=1.0 top_k=40
{"top_p": 0.9}                                   | sample temperature=1.0 top_p=0.9
{"top_p": 0.9, "top_k": 40, "temperature": 2}    | sample temperature=2.0 top_k=40 top_p=0.9
{"min_p": 0}                                     | greedy
{"min_p": 0.1}                                   | sample temperature=1.0 min_p=0.1
{"min_p": 1}                                     | sample temperature=1.0 min_p=1.0
{"typical_p": 1}                                 | greedy
{"typical_p": 0}                                 | sample temperature=1.0 typical_p=0.0
{"temperature": 0, "min_p": 0.1, "typical_p": 0} | greedy
{"repetition_penalty": 1}                        | greedy
{"repetition_penalty": 1.3}                      | greedy repetition_penalty=1.3,both
{"frequency_penalty": 0, "presence_penalty": -0.0} | greedy
{"frequency_penalty": -2}                        | greedy frequency_penalty=-2.0,output
{"presence_penalty": 5e-324}                     | greedy presence_penalty=5e-324,output
{"no_repeat_ngram_size": 0}                      | greedy
{"no_repeat_ngram_size": 1}                      | greedy no_repeat_ngram=1,both
{"banned_token_ids": [9, 3]}                     | greedy banned_tokens=(3, 9)
{"allowed_token_ids": [9, 3]}                    | greedy allowed_tokens=(3, 9)
{"xtc_probability": 0, "xtc_threshold": 0.3}     | greedy
{"xtc_threshold": 0.3}                           | sample temperature=1.0 xtc=0.5,0.3
{"xtc_probability": 1, "top_k": 9}               | sample temperature=1.0 top_k=9 xtc=1.0,0.1
{"temperature": 0, "xtc_probability": 1}         | greedy
{"dry_multiplier": 0, "dry_base": 3}             | greedy
{"dry_base": 3}                                  | greedy dry=0.8,3.0,2,2048,(10, 34, 42, 58)
{"dry_multiplier": 2, "dry_range": 9, "dry_sequence_breakers": ["xy", "zy"]} | greedy dry=2.0,1.75,2,9,(121,)
"""


@pytest.mark.contract("ENV-7", "POL-3")
@pytest.mark.parametrize("row", MEANINGS.strip().splitlines())
def test_sampling_flags_have_one_declared_meaning(row: str) -> None:
    flags, meaning = (part.strip() for part in row.split("|"))
    policy = sealed({"prompt": "ab", **eval(flags)}).policy
    values = [[*map(str, entry.model_dump().values())] for entry in policy.transforms]
    assert " ".join([policy.family, *(f"{kind}={','.join(value)}" for kind, *value in values)]) == meaning


@pytest.mark.contract("ENV-7", "POL-2")
def test_the_transforms_of_a_draft_are_sealed_in_the_declared_order() -> None:
    flags: dict[str, Any] = {
        "xtc_threshold": 0.2,
        "typical_p": 0.9,
        "min_p": 0.1,
        "top_p": 0.9,
        "top_k": 9,
        "temperature": 0.7,
        "own_transforms": [{"name": "mine", "version": 1, "sha256": "ab" * 32}],
        "forced_tokens": [{"step": 3, "token_id": 8}, {"step": 1, "token_id": 9}],
        "allowed_token_ids": [9, 8],
        "banned_token_ids": [7],
        "no_repeat_ngram_size": 3,
        "dry_multiplier": 0.5,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.1,
        "logit_bias": [{"token_id": 9, "bias": 2}, {"token_id": 8, "bias": -1}],
    }
    policy = sealed({"prompt": "ab", "max_new_tokens": 9, **flags}).policy
    assert tuple(map(type, policy.transforms)) == SEALED_ORDER[1:]
    bias, forced = policy.transforms[0], policy.transforms[8]
    assert isinstance(bias, LogitBias)
    assert isinstance(forced, ForcedTokens)
    assert [(each.token_id, each.bias) for each in bias.biases] == [(8, -1), (9, 2)]
    assert [(each.step, each.token_id) for each in forced.tokens] == [(1, 9), (3, 8)]
    cold = sealed({"prompt": "ab", "max_new_tokens": 9, **flags, "temperature": 0}).policy
    assert (cold.family, cold.transforms) == ("greedy", policy.transforms[:10])


@pytest.mark.contract("ENV-7", "POL-5")
def test_a_seed_is_drawn_only_where_none_is_given_and_the_policy_samples() -> None:
    assert sealed({"prompt": "a"}, fresh_seed=5).identity == sealed({"prompt": "a"}, fresh_seed=6).identity
    assert sealed({"prompt": "a"}).rng.seed == 0
    assert sealed({"prompt": "a", "temperature": 1}, fresh_seed=5).rng.seed == 5
    assert sealed({"prompt": "a", "temperature": 1, "seed": 0}, fresh_seed=5).rng.seed == 0
    assert sealed({"prompt": "a", "temperature": 1, "seed": 7}, fresh_seed=5).rng.seed == 7
    assert sealed({"prompt": "a", "seed": 7}, fresh_seed=5).rng.seed == 7


@pytest.mark.contract("ENV-7")
def test_prompts_and_chats_get_special_tokens_each_from_its_source() -> None:
    """A prompt gets the tokenizer's special tokens and a chat those of its template."""
    text = sealed({"prompt": "hi"}).prompt
    assert (text.token_ids, text.source.kind) == ((1, *b"hi"), "text")
    chat = sealed({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}).prompt
    assert (bytes(chat.token_ids), chat.source.kind) == (b"<system>s<user>u<assistant>", "chat")
    ids = sealed({"token_ids": [7, 8]}).prompt
    assert (ids.token_ids, ids.attention_mask, ids.source.kind) == ((7, 8), (1, 1), "tokens")


@pytest.mark.contract("ENV-7")
def test_hashes_special_ids_and_runtime_come_from_the_facts() -> None:
    envelope = sealed({"prompt": "a"})
    assert envelope.artifact.checkpoint_sha256 == FACTS.checkpoint_sha256
    assert envelope.text_interface.eos_ids == envelope.termination.eos_ids == (2, 7)
    assert envelope.position_visibility.context_tokens_max == FACTS.context_tokens_max
    assert envelope.runtime.cache.abi == FACTS.cache_abi
    assert sealed({"prompt": "a"}, PLAIN_FACTS).text_interface.bos_id is None
    endless = dataclasses.replace(FACTS, context_tokens_max=10 * CONTEXT_TOKENS_MAX)
    assert sealed({"prompt": "a"}, endless).position_visibility.context_tokens_max == CONTEXT_TOKENS_MAX


@pytest.mark.contract("ENV-7", "ENV-9")
@pytest.mark.parametrize(
    ("compatibility", "device", "revision"),
    [("exact", "cpu", "torch 2.13.0"), ("any_revision", "cpu", None), ("any_device", None, None)],
)
def test_facts_left_open_by_the_class_are_not_in_the_identity(
    compatibility: str, device: str | None, revision: str | None
) -> None:
    """Facts that the compatibility class leaves open are not in the identity."""
    draft = draft_from({"prompt": "a", "compatibility": compatibility})
    here = seal(draft, FACTS, RUNTIME, ByteText(), 0)
    assert (here.runtime.device_class, here.runtime.framework_revision) == (device, revision)
    upgraded = seal(draft, FACTS, dataclasses.replace(RUNTIME, framework_revision="torch 3"), ByteText(), 0)
    assert (here.identity == upgraded.identity) == (revision is None)
    moved = seal(draft, FACTS, dataclasses.replace(RUNTIME, device_class="cuda"), ByteText(), 0)
    assert (here.identity == moved.identity) == (device is None)


@pytest.mark.contract("ENV-7", "FSM-8")
def test_budgets_are_sealed_as_declared() -> None:
    assert sealed({"prompt": "a"}).termination.max_new_tokens == 256
    unbounded = sealed({"prompt": "a", "max_new_tokens": "until_context"}).termination
    assert unbounded.max_new_tokens > FACTS.context_tokens_max
    assert unbounded.zero_token_choice is None
    assert sealed({"prompt": "a", "max_new_tokens": 0}).termination.zero_token_choice == "no_call"
    prefill = {"prompt": "a", "max_new_tokens": 0, "zero_token_choice": "prefill_only", "prompt_logprobs": 1}
    envelope = sealed(prefill)
    assert envelope.termination.zero_token_choice == "prefill_only"
    assert [extra.top for extra in envelope.output.extras] == [1]


@pytest.mark.contract("ENV-7")
def test_every_flag_reaches_its_field() -> None:
    flags = {
        "max_new_tokens": 9,
        "min_new_tokens": 3,
        "temperature": 0.5,
        "seed": 11,
        "choice": 2,
        "rng_algorithm": "splitmix64",
        "logprobs": 4,
        "stop": ["b", "a"],
        "stop_token_ids": [9, 4],
        "ignore_eos": True,
        "deadline_ms": 1000,
        "include_stop": True,
        "skip_special_tokens": False,
        "echo_prompt": True,
        "alignment": "span",
        "final_cache": "repaired",
        "consumer_policy": "cancel",
        "batch_width": 4,
        "retry_budget": 0,
    }
    envelope = sealed({"prompt": "a", **flags})
    end, out = envelope.termination, envelope.output
    assert (end.max_new_tokens, end.min_new_tokens, end.ignore_eos, end.deadline_ms) == (9, 3, True, 1000)
    assert (end.stop_strings, end.stop_token_ids) == (("b", "a"), (4, 9))
    assert (envelope.rng.seed, envelope.rng.choice, envelope.rng.algorithm) == (11, 2, "splitmix64")
    assert (out.include_stop, out.skip_special_tokens, out.echo_prompt) == (True, False, True)
    assert (out.alignment, out.final_cache, out.consumer_policy) == ("span", "repaired", "cancel")
    assert (envelope.policy.logprobs_top, envelope.runtime.batch_width, envelope.runtime.retry_budget) == (4, 4, 0)
    default = sealed({"prompt": "a"})
    for name, value in flags.items():
        needed = {"seed": 1, "temperature": 1} if name in ("seed", "temperature") else {}
        assert first_difference(default, sealed({"prompt": "a", **needed, name: value})), name


@pytest.mark.contract("ENV-6", "ENV-7")
@pytest.mark.parametrize(
    ("draft", "facts", "text", "check"),
    [
        ({"prompt": "a"}, FACTS, ByteText(()), None),
        ({"prompt": "x" * 64}, FACTS, ByteText(), "prompt_beyond_context"),
        ({"prompt": "x" * 63}, FACTS, ByteText(), None),
        ({"prompt": "a", "max_new_tokens": 100_000}, FACTS, ByteText(), None),
        ({"token_ids": [300]}, FACTS, ByteText(), "prompt_ids_in_vocabulary"),
        ({"prompt": "a", "stop_token_ids": [300]}, FACTS, ByteText(), "stop_ids_in_vocabulary"),
        ({"prompt": "a", "banned_token_ids": [300]}, FACTS, ByteText(), "policy_ids_in_vocabulary"),
        ({"prompt": "a", "allowed_token_ids": [1, 300]}, FACTS, ByteText(), "policy_ids_in_vocabulary"),
        ({"prompt": "a", "logit_bias": [{"token_id": 300, "bias": 1}]}, FACTS, ByteText(), "policy_ids_in_vocabulary"),
        ({"prompt": "a", "banned_token_ids": list(range(300))}, FACTS, ByteText(), "policy_no_token_left"),
        ({"prompt": "a", "banned_token_ids": list(range(299))}, FACTS, ByteText(), None),
        ({"prompt": "a", "allowed_token_ids": [2, 7], "min_new_tokens": 1}, FACTS, ByteText(), "policy_no_token_left"),
        ({"prompt": "a", "allowed_token_ids": [2, 7]}, FACTS, ByteText(), None),
        (
            {"prompt": "a", "allowed_token_ids": [2, 7], "min_new_tokens": 1, "ignore_eos": True},
            FACTS,
            ByteText(),
            None,
        ),
        *(
            (
                {"prompt": "a", "forced_tokens": [{"step": 3, "token_id": 7}], **flags},
                FACTS,
                ByteText(),
                check,
            )
            for flags, check in (
                ({}, None),
                ({"max_new_tokens": 3}, "policy_forced_token_conflict"),
                ({"banned_token_ids": [7]}, "policy_forced_token_conflict"),
                ({"allowed_token_ids": [8]}, "policy_forced_token_conflict"),
                ({"min_new_tokens": 4}, "policy_forced_token_conflict"),
                ({"min_new_tokens": 3}, None),
                ({"min_new_tokens": 4, "ignore_eos": True}, None),
                ({"min_new_tokens": 4, "ignore_eos": True, "stop_token_ids": [7]}, "policy_forced_token_conflict"),
            )
        ),
    ],
)
def test_only_what_can_run_is_sealed(
    draft: dict[str, Any], facts: ArtifactFacts, text: ByteText, check: str | None
) -> None:
    if check is None:
        assert sealed(draft, facts, text=text)
    else:
        with pytest.raises(NotAdmissible) as caught:
            sealed(draft, facts, text=text)
        assert caught.value.check == check


@pytest.mark.contract("ENV-6", "ENV-7")
def test_a_text_without_tokens_is_refused_for_that_request_alone() -> None:
    class Mute(ByteText):
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return []

    with pytest.raises(NotAdmissible) as caught:
        sealed({"prompt": " "}, text=Mute())
    assert caught.value.check == "prompt_empty"


@pytest.mark.contract("ENV-7")
def test_a_chat_for_a_model_without_template_is_refused() -> None:
    with pytest.raises(SchemaViolation, match="template") as caught:
        sealed({"messages": [{"role": "user", "content": "a"}]}, PLAIN_FACTS)
    assert caught.value.path == "messages"


@pytest.mark.contract("ENV-1", "ENV-7")
def test_a_prompt_is_never_cut() -> None:
    class Endless(ByteText):
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return [5] * (2**18 + 1)

    with pytest.raises(LimitExceeded, match=r"prompt\.token_ids"):
        sealed({"prompt": "a"}, text=Endless())


@pytest.mark.contract("ENV-6", "FSM-8")
def test_a_repaired_cache_is_sealed_where_a_call_and_a_row_exist() -> None:
    """A final cache of every token is sealed where there is a call and a row for it."""
    repaired = {"prompt": "a", "final_cache": "repaired"}
    assert sealed(repaired).output.final_cache == "repaired"
    assert sealed({**repaired, "max_new_tokens": 0, "zero_token_choice": "prefill_only"})
    with pytest.raises(NotAdmissible, match="prefill_only"):
        sealed({**repaired, "max_new_tokens": 0})
    full = {"token_ids": [5] * FACTS.context_tokens_max, "max_new_tokens": 1}
    assert sealed(full)
    with pytest.raises(NotAdmissible, match="no row"):
        sealed({**full, "final_cache": "repaired"})


@pytest.mark.contract("ENV-4", "ENV-7")
@given(
    prompt=st.text(min_size=1, max_size=12),
    seed=st.integers(0, 2**53 - 1),
    temperature=st.floats(0, 1000),
    stop=st.lists(st.text(min_size=1, max_size=5), max_size=4),
)
def test_equal_drafts_have_one_identity_and_their_bytes_are_admitted(
    prompt: str, seed: int, temperature: float, stop: list[str]
) -> None:
    draft = {"prompt": prompt, "seed": seed, "temperature": temperature, "stop": stop}
    envelope = sealed(draft, fresh_seed=1)
    assert envelope.identity == sealed(dict(reversed(draft.items())), fresh_seed=2).identity
    assert admit(envelope.canonical_bytes()) == envelope


@pytest.mark.contract("ENV-7")
def test_one_request_through_draft_or_envelope_has_one_identity() -> None:
    draft = {
        "token_ids": full()["prompt"]["token_ids"],
        "max_new_tokens": 16,
        "min_new_tokens": 2,
        "temperature": 0.8,
        "top_k": 50,
        "top_p": 0.95,
        "seed": 42,
        "choice": 1,
        "logprobs": 2,
        "prompt_logprobs": 3,
        "stop": full()["termination"]["stop_strings"],
        "stop_token_ids": [9, 5],
        "deadline_ms": 60000,
        "include_stop": True,
        "batch_width": 8,
        "compatibility": "exact",
    }
    assert first_difference(sealed(draft), admitted(full())) == "prompt.source.kind"


def test_sealing_and_identifying_takes_few_calls_a_prompt_token() -> None:
    """Each token of a prompt costs the same few calls to seal and identify."""
    facts = dataclasses.replace(FACTS, context_tokens_max=8192)

    def work(tokens: int) -> int:
        draft = draft_from({"token_ids": [index % 300 for index in range(tokens)]})
        return calls(lambda: seal(draft, facts, RUNTIME, ByteText(), 0).identity)

    work(1)  # what is done once is done
    small, medium, large = work(1024), work(2048), work(4096)
    assert large - medium <= 2 * (medium - small) + 100
    assert large <= 16 * 4096


@pytest.mark.contract("ENV-4", "ENV-7", "OUT-5")
def test_a_schema_is_sealed_in_one_form_that_keeps_the_order_of_its_keys() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"b": {"maximum": 1e2}, "a": {"const": "\u00e9"}}}
    envelope = sealed({"prompt": "a", "json_schema": schema, "temperature": 0.5})
    grammar, temperature = envelope.policy.transforms
    assert isinstance(grammar, Grammar)
    source = '{"type":"object","properties":{"b":{"maximum":100},"a":{"const":"\u00e9"}}}'
    assert (grammar.kind, grammar.language, grammar.source) == ("grammar", "json_schema", source)
    assert temperature.kind == "temperature"
    turned = {**schema, "properties": dict(reversed(schema["properties"].items()))}
    assert sealed({"prompt": "a", "json_schema": turned}).identity != envelope.identity
    (empty,) = sealed({"prompt": "a", "json_schema": {}}).policy.transforms
    assert isinstance(empty, Grammar)
    assert empty.source == "{}"


@pytest.mark.contract("ENV-7", "OUT-5", "OUT-6")
def test_grammars_and_detectors_are_sealed_as_they_are_asked_for() -> None:
    regex = sealed({"prompt": "a", "regex": "a+"}).policy
    assert (regex.family, [entry.model_dump() for entry in regex.transforms]) == (
        "greedy",
        [{"kind": "grammar", "language": "regex", "source": "a+"}],
    )
    (lark,) = sealed({"prompt": "a", "grammar": "start: /a/"}).policy.transforms
    assert isinstance(lark, Grammar)
    assert lark.language == "lark"
    calls = [{"begin": "<t>", "end": "</t>"}]
    asked = sealed({"prompt": "a", "stop_on_json": True, "stop_on_tool_calls": calls}).termination.detectors
    assert [entry.kind for entry in asked] == ["json_value", "tool_call"]
    with pytest.raises(NotAdmissible, match="ignore_eos"):
        sealed({"prompt": "a", "regex": "a+", "ignore_eos": True})


@pytest.mark.contract("ENV-7")
def test_a_chat_is_sealed_with_the_given_date_and_trust() -> None:
    """A chat is sealed with the date that is given and with messages that are trusted or not."""
    chat = {"messages": [{"role": "user", "content": "u"}]}
    at = seal(draft_from(chat), FACTS, RUNTIME, ByteText(), 0, 7_000)
    assert bytes(at.prompt.token_ids) == b"<user>u<assistant>7000"
    assert bytes(sealed(chat | {"trust_messages": True}).prompt.token_ids) == b"<user>u<assistant>!"


@pytest.mark.contract("ENV-6", "ENV-7", "OUT-3")
def test_the_end_of_a_turn_ends_an_answer_in_a_chat_and_no_other_text() -> None:
    facts = dataclasses.replace(FACTS, turn_end_ids=(9, 7))
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "u"}]}
    for draft, ends in (({"prompt": "a"}, (2, 7)), (chat, (2, 7, 9)), ({"token_ids": [1]}, (2, 7))):
        envelope = sealed(draft, facts)
        assert envelope.text_interface.eos_ids == envelope.termination.eos_ids == ends
    narrowed = sealed(chat | {"eos_token_ids": [9]}, facts)
    assert (narrowed.text_interface.eos_ids, narrowed.termination.eos_ids) == ((2, 7, 9), (9,))
    with pytest.raises(NotAdmissible) as caught:
        sealed({"prompt": "a", "eos_token_ids": [9]}, facts)
    assert caught.value.check == "termination.eos_ids"


@pytest.mark.contract("ENV-6")
def test_a_request_sealed_with_fewer_ends_still_runs() -> None:
    """A request that was sealed with fewer ends runs on an artifact of which more are known."""
    envelope = sealed({"prompt": "a"})
    more = dataclasses.replace(FACTS, eos_ids=(7, 2, 5), turn_end_ids=(9,))
    check(envelope, more)
    with pytest.raises(NotAdmissible, match="eos_ids"):
        check(envelope, dataclasses.replace(FACTS, eos_ids=(7,)))
