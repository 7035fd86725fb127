"""A fork: a new job that goes on from a committed prefix of another, with another policy or the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ...fsm.errors import NoSuchStep, NotAdmissible
from ...fsm.machine.events import Parent
from ...fsm.ports import Store
from ...fsm.reading.transcript import Transcript
from ...fsm.request.admission import check
from ...fsm.request.draft import as_lists, draft_from
from ...fsm.request.envelope import Envelope, admitted
from ...fsm.request.seal import seal
from ...fsm.request.transforms import QUESTIONS, Grammar
from ..streams.reading import transcript_of
from .naming import check_key
from .submit import Submitted, admit_job, check_grammar, fresh_seed, new_job_name

if TYPE_CHECKING:
    from ...runtime.model.port import Model

FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "policy": (*QUESTIONS, "logprobs", "json_schema", "regex", "grammar"),
    "rng": ("seed", "choice", "rng_algorithm"),
    "runtime": ("batch_width", "compatibility", "retry_budget"),
    "termination": (
        *("max_new_tokens", "zero_token_choice", "min_new_tokens", "stop", "stop_token_ids", "stop_on_json"),
        *("stop_on_tool_calls", "eos_token_ids", "ignore_eos", "deadline_ms"),
    ),
    "output": (
        *("include_stop", "skip_special_tokens", "echo_prompt", "alignment", "final_cache", "consumer_policy"),
        *("prompt_logprobs",),
    ),
}
"""Which plane of an envelope each field of a draft goes into. A plane of which no field is given is the parent's."""


def fork(
    store: Store,
    model: Model,
    parent: str,
    step: int,
    flags: dict[str, Any],
    now_ms: int,
    idempotency_key: str | None = None,
    retain_ms: int | None = None,
) -> Submitted:
    """Admit a job whose prompt is the prompt of `parent` with its first `step` output tokens; the parent is only read.

    flags       fields of a draft that are to differ from the parent's request. The noise is the fork's own: `seed`, or
                a fresh one where it samples
    retain_ms   as in `submit`; the parent's where none is given
    Errors: NoSuchStep, NotAdmissible (a model that is not the parent's, within a grammar's text, or what else the
    envelope's checks refuse), and `submit`'s.
    """
    check_key(idempotency_key)
    transcript = transcript_of(store, parent)
    origin, prefix = origin_of(transcript, parent, step)
    check(origin, model.facts)  # the prefix is of that model and tokenizer; a name may mean another by now
    envelope = forked(origin, prefix, flags, model, fresh_seed(idempotency_key))
    check(envelope, model.facts)
    check_grammar(envelope, model)
    if step and any(isinstance(each, Grammar) for each in envelope.policy.transforms):
        raise NotAdmissible(
            "fork_grammar", "a grammar would begin anew behind the prefix; fork at step 0, or without it"
        )
    row = store.row(parent)
    retain_ms = row.retain_ms if retain_ms is None else retain_ms
    return admit_job(store, row.model, new_job_name(now_ms), envelope, idempotency_key, Parent(parent, step), retain_ms)


def origin_of(transcript: Transcript, job: str, step: int) -> tuple[Envelope, list[int]]:
    """The parent's request, and the ids of its prompt and first `step` output tokens. Errors: NoSuchStep."""
    state, output = transcript.state, transcript.token_ids
    if state is None or step > len(output):
        raise NoSuchStep(job, step, len(output))
    return state.spec.envelope, [*state.spec.prompt, *output[:step]]


def forked(origin: Envelope, prefix: list[int], flags: dict[str, Any], model: Model, seed: int) -> Envelope:
    """The fork's envelope: a plane that flags speak of is sealed from them alone, any other is the origin's.

    The model is the origin's.
    """
    draft = draft_from(as_lists({"token_ids": prefix, **flags}))
    ends = origin.termination.eos_ids if draft.eos_token_ids is None else draft.eos_token_ids
    draft = draft.model_copy(update={"eos_token_ids": None})  # they are to be of the origin's, which may have turns
    asked = seal(draft, model.facts, model.runtime, model.text, seed).model_dump(by_alias=True)
    value = origin.model_dump(by_alias=True)
    value |= {plane: asked[plane] for plane in ("prompt", "rng")}
    for plane, fields in FIELDS.items():
        if plane != "rng" and not flags.keys().isdisjoint(fields):
            value[plane] = asked[plane]
    value["termination"]["eos_ids"] = ends
    sampled = value["policy"]["family"] == "sample"
    algorithm = flags.get("rng_algorithm", origin.rng.algorithm)
    value["rng"] |= {"seed": flags.get("seed", seed if sampled else 0), "algorithm": algorithm}
    return admitted(as_lists(value))
