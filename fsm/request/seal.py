"""Sealing: from a draft and the facts of a model and a process to the envelope that runs.

Pure: the tokenizer is a port, and the seed that a sampling draft may need was drawn by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..errors import SchemaViolation
from ..limits import CONTEXT_TOKENS_MAX
from .admission import RuntimeFacts, check
from .artifact import ArtifactFacts
from .canonical import ordered_json
from .draft import UNTIL_CONTEXT, Draft
from .envelope import SCHEMA_NAME, Envelope, admitted
from .finish import DEFAULT_ORDER
from .transforms import CUTS, EDITS, Temperature


class TextPort(Protocol):
    """The tokenizer and chat template of one artifact."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text; with special tokens, also those that the tokenizer puts around every text."""

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], *, now_ms: int | None = None, literal: bool = True
    ) -> list[int]:
        """Token ids of a chat, by its template, with the opening of the answer; where the last message is the
        assistant's own, up to the end of that one, which is to go on.

        messages  `role` and `content` of each
        now_ms    ms since 1970, of the date that a template may ask for; None: it may not
        literal   control tokens that a user's or a tool's message spells are the text that they are
        Errors: TemplateFailed where the template refuses it.
        """


def seal(
    draft: Draft,
    facts: ArtifactFacts,
    runtime: RuntimeFacts,
    text: TextPort,
    fresh_seed: int,
    now_ms: int | None = None,
) -> Envelope:
    """The envelope of a draft for this artifact and process, checked by `admission.check`.

    fresh_seed: in [0, SEED_MAX]; used only where the draft gives none and its policy samples.
    now_ms: ms since 1970, of the date that a chat template may write; None: a template that asks for it is refused.
    Deterministic in its arguments. Raises SchemaViolation, LimitExceeded or NotAdmissible.
    """
    if draft.n > 1:
        raise SchemaViolation("n", "an envelope is one choice; seal each choice by itself")
    context = min(facts.context_tokens_max, CONTEXT_TOKENS_MAX)
    policy = _policy(draft, text)
    ids, source = _prompt(draft, facts, text, now_ms)
    envelope = admitted(
        {
            "schema": SCHEMA_NAME,
            "artifact": _artifact(facts),
            "text_interface": _text_interface(draft, facts),
            "prompt": {
                "token_ids": ids,
                "attention_mask": [1] * len(ids),
                "source": {"kind": source},
                "start_state": None,
            },
            "position_visibility": {
                "mode": "causal",
                "position_rule": "valid_token_cumsum",
                "cache_position_start": 0,
                "context_tokens_max": context,
            },
            "policy": policy,
            "rng": _rng(draft, fresh_seed if policy["family"] == "sample" else 0),
            "runtime": _runtime(draft, facts, runtime),
            "termination": _termination(draft, facts, context),
            "output": _output(draft),
        }
    )
    check(envelope, facts)
    return envelope


def _prompt(draft: Draft, facts: ArtifactFacts, text: TextPort, now_ms: int | None) -> tuple[list[int], str]:
    """The prompt's ids, and what they were made from."""
    if draft.token_ids is not None:
        return list(draft.token_ids), "tokens"
    if draft.messages is not None:
        if not facts.has_chat_template:
            raise SchemaViolation(path="messages", reason="this model has no chat template; give prompt or token_ids")
        messages = [{"role": message.role, "content": message.content} for message in draft.messages]
        return text.encode_chat(messages, now_ms=now_ms, literal=not draft.trust_messages), "chat"
    return text.encode(draft.prompt or "", add_special_tokens=True), "text"


def _artifact(facts: ArtifactFacts) -> dict[str, Any]:
    return {
        "release_id": facts.release_id,
        "architecture": facts.architecture,
        "checkpoint_sha256": facts.checkpoint_sha256,
        "config_sha256": facts.config_sha256,
        "weight_dtype": facts.weight_dtype,
        "adapters": [],
    }


def _text_interface(draft: Draft, facts: ArtifactFacts) -> dict[str, Any]:
    return {
        "tokenizer_sha256": facts.tokenizer_sha256,
        "template_sha256": facts.template_sha256,
        "bos_id": facts.bos_id,
        "eos_ids": _declared_ends(draft, facts),
        "pad_id": facts.pad_id,
        "vocabulary_size": facts.vocabulary_size,
    }


def _declared_ends(draft: Draft, facts: ArtifactFacts) -> tuple[int, ...]:
    """What ends an output of this model; the end of a turn does only where there are turns."""
    return facts.eos_ids if draft.messages is None else facts.end_ids


def _policy(draft: Draft, text: TextPort) -> dict[str, Any]:
    """Temperature 0 is the greedy family, which has no use for the cuts of sampling; what is off is not written."""
    asked = draft.asked

    def encode(breaker: str) -> list[int]:
        return text.encode(breaker, add_special_tokens=False)

    edits = [entry for kind in EDITS for entry in kind.entries(asked, encode)]
    cuts = [entry for kind in CUTS for entry in kind.entries(asked, encode)]
    if asked["temperature"] is None and cuts:
        cuts.insert(0, Temperature.entry(value=1.0))
    elif not asked["temperature"]:
        cuts = []
    return {
        "family": "sample" if cuts else "greedy",
        "transforms": [*_grammar(draft), *edits, *cuts],
        "tie_rule": "lowest_token_id",
        "score_kind": "logits",
        "logprobs_top": draft.logprobs,
    }


def _grammar(draft: Draft) -> list[dict[str, Any]]:
    """The grammar as the first transform, if any: the others cut what it leaves."""
    schema = None if draft.json_schema is None else ordered_json(draft.json_schema)
    sources = {"json_schema": schema, "regex": draft.regex, "lark": draft.grammar}
    return [
        {"kind": "grammar", "language": language, "source": source}
        for language, source in sources.items()
        if source is not None
    ]


def _detectors(draft: Draft) -> list[dict[str, Any]]:
    calls = [{"kind": "tool_call", "begin": each.begin, "end": each.end} for each in draft.stop_on_tool_calls]
    return [{"kind": "json_value"}, *calls] if draft.stop_on_json else calls


def _rng(draft: Draft, seed: int) -> dict[str, Any]:
    return {
        "algorithm": draft.rng_algorithm,
        "seed": seed if draft.seed is None else draft.seed,
        "choice": draft.choice,
        "stream_rule": "counter_v1",
    }


def _runtime(draft: Draft, facts: ArtifactFacts, runtime: RuntimeFacts) -> dict[str, Any]:
    """Facts that the compatibility class leaves open are null, so that they are not part of the identity."""
    return {
        "compute_dtype": runtime.compute_dtype,
        "logit_dtype": runtime.logit_dtype,
        "cache": {"kind": runtime.cache_kind, "abi": facts.cache_abi},
        "batch_width": draft.batch_width,
        "compatibility": draft.compatibility,
        "device_class": None if draft.compatibility == "any_device" else runtime.device_class,
        "framework_revision": runtime.framework_revision if draft.compatibility == "exact" else None,
        "retry_budget": draft.retry_budget,
        "modes": [],
    }


def _termination(draft: Draft, facts: ArtifactFacts, context: int) -> dict[str, Any]:
    # L >= 1 prompt tokens leave room for at most `context` outputs, so one more is a budget that never ends a run.
    budget = context + 1 if draft.max_new_tokens == UNTIL_CONTEXT else draft.max_new_tokens
    return {
        "max_new_tokens": budget,
        "zero_token_choice": (draft.zero_token_choice or _least_work(draft)) if budget == 0 else None,
        "min_new_tokens": draft.min_new_tokens,
        "stop_strings": draft.stop,
        "stop_token_ids": draft.stop_token_ids,
        "eos_ids": _declared_ends(draft, facts) if draft.eos_token_ids is None else draft.eos_token_ids,
        "ignore_eos": draft.ignore_eos,
        "deadline_ms": draft.deadline_ms,
        "finish_order": [reason.value for reason in DEFAULT_ORDER],
        "detectors": _detectors(draft),
    }


def _least_work(draft: Draft) -> str:
    """Where no output is asked for: a call only where the prompt is to be scored."""
    return "no_call" if _prompt_logprobs(draft) is None else "prefill_only"


def _prompt_logprobs(draft: Draft) -> int | None:
    """An echo shows the prompt as the output is shown, so alternatives to its tokens are asked for with those."""
    return (
        draft.logprobs
        if draft.echo_prompt and draft.logprobs and draft.prompt_logprobs is None
        else draft.prompt_logprobs
    )


def _output(draft: Draft) -> dict[str, Any]:
    asked = _prompt_logprobs(draft)
    return {
        "echo_prompt": draft.echo_prompt,
        "include_stop": draft.include_stop,
        "skip_special_tokens": draft.skip_special_tokens,
        "alignment": draft.alignment,
        "final_cache": draft.final_cache,
        "consumer_policy": draft.consumer_policy,
        "extras": [] if asked is None else [{"kind": "prompt_logprobs", "top": asked}],
    }
