"""Whether an envelope can be run: by the loaded artifact (ENV-6), and by the process at hand (ENV-9).

ADMISSION is a ladder in the order of the contract: each rung tests one condition, and the first that fails is the one
reported. Nothing here touches a model, a policy, a generator, a cache or a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from ..errors import NotAdmissible
from ..limits import PROMPT_ENTRIES_MAX
from . import policy_checks
from .artifact import ArtifactFacts
from .envelope import Envelope
from .transforms import Grammar


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """What a process computes on.

    compute_dtype, logit_dtype   for example `float32`
    cache_kind                   the cache family's tag: `slot_arena`, or `none` for a model that keeps no rows
    device_class                 `cpu`, `cuda` or `mps`
    framework_revision           library and version that the results depend on, for example `torch 2.13.0`
    """

    compute_dtype: str
    logit_dtype: str
    cache_kind: str
    device_class: str
    framework_revision: str


class Situation(NamedTuple):
    """What a rung looks at."""

    envelope: Envelope
    facts: ArtifactFacts


Rung = tuple[str, Callable[[Situation], str | None]]
"""A stable name, and a function that says why the situation fails, or None; its docstring says what must hold."""


def check(envelope: Envelope, facts: ArtifactFacts) -> None:
    """Raise NotAdmissible for the first rung of ADMISSION that the envelope fails on this artifact."""
    situation = Situation(envelope, facts)
    for name, fault in ADMISSION:
        if reason := fault(situation):
            raise NotAdmissible(check=name, reason=reason)


def check_runtime(envelope: Envelope, runtime: RuntimeFacts) -> None:
    """Raise NotAdmissible for the first fact that the envelope binds and this process does not have.

    The compatibility class decides what is bound: a fact that it leaves open is null in the envelope.
    """
    plane = envelope.runtime
    for name, bound, found in (
        ("runtime.compute_dtype", plane.compute_dtype, runtime.compute_dtype),
        ("runtime.logit_dtype", plane.logit_dtype, runtime.logit_dtype),
        ("runtime.cache.kind", plane.cache.kind, runtime.cache_kind),
        ("runtime.device_class", plane.device_class, runtime.device_class),
        ("runtime.framework_revision", plane.framework_revision, runtime.framework_revision),
    ):
        if bound is not None and bound != found:
            raise NotAdmissible(
                check=name, reason=f"the envelope is bound to {bound} ({plane.compatibility}), and this is {found}"
            )


def _equal(path: str, fact: str) -> Rung:
    """A rung: the envelope's field and the loaded artifact's fact are the same."""
    field, loaded = attrgetter(path), attrgetter(fact)

    def fault(situation: Situation) -> str | None:
        sealed, actual = field(situation.envelope), loaded(situation.facts)
        return None if sealed == actual else f"the envelope says {sealed}, and the loaded artifact has {actual}"

    fault.__doc__ = "It is the loaded artifact's."
    return path, fault


# ---- prompt ---------------------------------------------------------------------------------------------------


def _mask_length(situation: Situation) -> str | None:
    """There is one mask entry for each prompt id."""
    prompt = situation.envelope.prompt
    ids, mask = len(prompt.token_ids), len(prompt.attention_mask)
    return None if ids == mask else f"{ids} token ids have {mask} mask entries"


def _mask_hides(situation: Situation) -> str | None:
    """No prompt token is hidden."""
    # Padding belongs to a batch, not to a request: a hidden token would count as input and change nothing.
    mask = situation.envelope.prompt.attention_mask
    return None if all(mask) else f"token {mask.index(0)} is hidden; leave hidden tokens out of the prompt"


def _empty(situation: Situation) -> str | None:
    """There is a token to start from."""
    return None if situation.envelope.prompt.token_ids else "there is no token to start from"


def _beyond_context(situation: Situation) -> str | None:
    """The prompt fits into the context."""
    length, room = len(situation.envelope.prompt.token_ids), situation.envelope.position_visibility.context_tokens_max
    return None if length <= room else f"{length} prompt tokens do not fit into a context of {room}"


def _within(name: str, ids: Callable[[Envelope], Iterable[int]]) -> Rung:
    """A rung: these ids of the envelope are in the vocabulary."""

    def fault(situation: Situation) -> str | None:
        """Every id is in the vocabulary."""
        size = situation.envelope.text_interface.vocabulary_size
        outside = (one for one in ids(situation.envelope) if one >= size)
        return next((f"id {one} lies outside the vocabulary of {size}" for one in outside), None)

    return name, fault


# ---- special ids ----------------------------------------------------------------------------------------------


def _eos_of_artifact(situation: Situation) -> str | None:
    """They are of the loaded artifact's: end tokens, or its template's end of a turn."""
    # Perhaps fewer: what a request was sealed with stays its own, whatever later releases find in the same files.
    sealed, actual = situation.envelope.text_interface.eos_ids, tuple(sorted(situation.facts.end_ids))
    return None if set(sealed) <= set(actual) else f"the envelope says {sealed}, and the loaded artifact has {actual}"


def _eos_of_planes(situation: Situation) -> str | None:
    """They are of those of text_interface."""
    ends, declared = situation.envelope.termination.eos_ids, situation.envelope.text_interface.eos_ids
    return None if set(ends) <= set(declared) else f"it is {ends}, and text_interface.eos_ids is {declared}"


def _special(envelope: Envelope) -> Iterable[int]:
    text = envelope.text_interface
    return [*text.eos_ids, *(one for one in (text.bos_id, text.pad_id) if one is not None)]


# ---- policy ---------------------------------------------------------------------------------------------------


def _each_once(name: str, kinds: Callable[[Envelope], Iterable[str]]) -> Rung:
    """A rung: no two of these kinds are one."""

    def fault(situation: Situation) -> str | None:
        """No kind is written twice."""
        written = list(kinds(situation.envelope))
        return next((f"{kind} is written twice" for kind in written if written.count(kind) > 1), None)

    return name, fault


def _grammar_conflicts(situation: Situation) -> str | None:
    """A grammar comes first, without ignore_eos, min_new_tokens or detectors."""
    envelope = situation.envelope
    places = [index for index, entry in enumerate(envelope.policy.transforms) if isinstance(entry, Grammar)]
    if not places:
        return None
    if places != [0]:
        return "it must come first, or what is applied before it may leave it no token"
    ends = envelope.termination
    if ends.ignore_eos:
        return "ignore_eos asks for tokens after the end, and a grammar has none; give one of them"
    if ends.min_new_tokens:
        return "min_new_tokens may lie beyond the end of the grammar; give one of them"
    if ends.detectors:
        return "a grammar ends the output where it is whole; leave the detectors out"
    return None


def _policy(name: str, fault: Callable[[Envelope], str | None]) -> Rung:
    """A rung: a check of the policy that needs the envelope alone."""

    def of_situation(situation: Situation) -> str | None:
        return fault(situation.envelope)

    of_situation.__doc__ = fault.__doc__
    return name, of_situation


# ---- cache and positions --------------------------------------------------------------------------------------


def _context_of_model(situation: Situation) -> str | None:
    """The context is no longer than the model has positions."""
    asked, room = situation.envelope.position_visibility.context_tokens_max, situation.facts.context_tokens_max
    return None if asked <= room else f"{asked} positions are asked for, and the model has {room}"


def _cache_start(situation: Situation) -> str | None:
    """The run begins with an empty cache."""
    start = situation.envelope.position_visibility.cache_position_start
    return None if start == 0 else f"it is {start}, and every run begins with an empty cache"


# ---- output ---------------------------------------------------------------------------------------------------


def _unrepairable(situation: Situation) -> str | None:
    """A final cache that holds every token is possible: there is a call to make it, and a row for an output token."""
    envelope = situation.envelope
    if envelope.output.final_cache == "pending":
        return None
    if envelope.termination.zero_token_choice == "no_call":
        return "no_call makes no cache; write prefill_only, or a pending final cache"
    length, room = len(envelope.prompt.token_ids), envelope.position_visibility.context_tokens_max
    if envelope.termination.max_new_tokens and length >= room:
        return f"{length} prompt tokens leave no row for an output token in a context of {room}"
    return None


def _unscored_prompt(situation: Situation) -> str | None:
    """A prompt that is to be scored is prefilled; its alternatives exist, and are not too many."""
    envelope = situation.envelope
    if not envelope.output.extras:
        return None
    if envelope.termination.zero_token_choice == "no_call":
        return "log-probabilities of a prompt need a model call, and no_call has none; write prefill_only"
    top, size = max(extra.top for extra in envelope.output.extras), envelope.text_interface.vocabulary_size
    if top > size:
        return f"{top} alternatives are asked for, and the vocabulary has {size} tokens"
    entries = len(envelope.prompt.token_ids) * (1 + top)
    if entries > PROMPT_ENTRIES_MAX:
        return (
            f"{entries} entries of a prompt are asked for, and the most is {PROMPT_ENTRIES_MAX}; ask for fewer of each"
        )
    return None


ADMISSION: Final[tuple[Rung, ...]] = (
    # Hashes are there by the schema; here they and what they stand for equal the loaded artifact and tokenizer.
    _equal("artifact.release_id", "release_id"),
    _equal("artifact.architecture", "architecture"),
    _equal("artifact.checkpoint_sha256", "checkpoint_sha256"),
    _equal("artifact.config_sha256", "config_sha256"),
    _equal("artifact.weight_dtype", "weight_dtype"),
    _equal("text_interface.tokenizer_sha256", "tokenizer_sha256"),
    _equal("text_interface.template_sha256", "template_sha256"),
    _equal("text_interface.vocabulary_size", "vocabulary_size"),
    # Prompt ids and mask, a prompt or a start state (this version has none), ids in the vocabulary.
    ("prompt_mask_length", _mask_length),
    ("prompt_mask_hides", _mask_hides),
    ("prompt_empty", _empty),
    ("prompt_beyond_context", _beyond_context),
    _within("prompt_ids_in_vocabulary", lambda envelope: envelope.prompt.token_ids),
    _within("stop_ids_in_vocabulary", lambda envelope: envelope.termination.stop_token_ids),
    # Special ids: the artifact's, and the same in both planes.
    _equal("text_interface.bos_id", "bos_id"),
    ("text_interface.eos_ids", _eos_of_artifact),
    _equal("text_interface.pad_id", "pad_id"),
    ("termination.eos_ids", _eos_of_planes),
    _within("special_ids_in_vocabulary", _special),
    # The policy says all that it needs, once, and nothing idle.
    _each_once("policy_transform_repeated", lambda envelope: (each.once for each in envelope.policy.transforms)),
    _policy("policy_greedy_reshapes", policy_checks.greedy_reshapes),
    _policy("policy_temperature_missing", policy_checks.temperature_missing),
    ("policy_grammar", _grammar_conflicts),
    _policy("policy_logprobs_top", policy_checks.too_many_logprobs),
    _within("policy_ids_in_vocabulary", policy_checks.ids),
    _policy("policy_no_token_left", policy_checks.no_token_left),
    _policy("policy_forced_token_conflict", policy_checks.forced_token_conflict),
    # Cache ABI, and the positions that the cache is to hold.
    _equal("runtime.cache.abi", "cache_abi"),
    ("context_of_model", _context_of_model),
    ("cache_position_start", _cache_start),
    # Promises about the output.
    ("output.final_cache", _unrepairable),
    _each_once("output_extra_repeated", lambda envelope: (each.kind for each in envelope.output.extras)),
    ("output_prompt_logprobs", _unscored_prompt),
)
