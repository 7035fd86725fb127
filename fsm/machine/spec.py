"""What a sealed envelope asks of the machine, worked out once a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256

from ..errors import BrokenInvariant
from ..evidence.prompt_record import PromptWish
from ..output.detector import Detector, JsonDetector, ToolCallDetector
from ..output.horizon import Advance, advance, advance_by_tokens
from ..output.standing import Standing
from ..output.stop_matcher import Match, StopMatcher, compile_stops
from ..request.envelope import Alignment, Envelope, PromptLogprobs, ToolCallMarkers, admit
from ..request.finish import FinishReason, MatchedStop, rank
from ..request.transforms import Grammar

BINDING_DOMAIN = b"decodelog.job.v1"
SPECS_KEPT = 64  # a worker loads a job again when it takes it back, and its snapshots have the envelope too

_BY_STANDING: dict[Standing, FinishReason] = {
    Standing.TERMINATED: FinishReason.STRUCTURED_COMPLETE,
    Standing.INVALID: FinishReason.STRUCTURED_ERROR,
}


@dataclass(frozen=True, slots=True)
class Spec:
    """The envelope and what the step reads of it. Equal where job and identity are.

    job, identity    name of this durable run; SHA-256 identity of the request
    binding          digest of both: what every receipt and state digest of the job begins with
    prompt           input token ids
    output_max       output tokens after which the job must end, by its own limit or the context's
    ending_ids       tokens that end it
    withheld_ids     those of them that are kept out of the text for that: stop ids, and under a grammar all, so that
                     the text is the structure; none with include_stop
    advance          how a token's bytes become text, by the request's alignment
    wish             what is to be recorded of the prompt, if anything
    repaired         one more call is to process the last token before the end
    """

    job: str
    identity: bytes
    envelope: Envelope = field(compare=False, repr=False)
    binding: bytes = field(compare=False, repr=False)
    prompt: tuple[int, ...] = field(compare=False, repr=False)
    max_new_tokens: int = field(compare=False, repr=False)
    min_new_tokens: int = field(compare=False, repr=False)
    prefill_only: bool = field(compare=False, repr=False)
    context_output: int = field(compare=False, repr=False)
    output_max: int = field(compare=False, repr=False)
    stop_ids: frozenset[int] = field(compare=False, repr=False)
    eos_ids: frozenset[int] = field(compare=False, repr=False)
    ending_ids: frozenset[int] = field(compare=False, repr=False)
    withheld_ids: frozenset[int] = field(compare=False, repr=False)
    matcher: StopMatcher = field(compare=False, repr=False)
    grammar: Grammar | None = field(compare=False, repr=False)
    detectors: tuple[Detector, ...] = field(compare=False, repr=False)
    alignment: Alignment = field(compare=False, repr=False)
    advance: Advance = field(compare=False, repr=False)
    include_stop: bool = field(compare=False, repr=False)
    skip_special: bool = field(compare=False, repr=False)
    finish_order: tuple[FinishReason, ...] = field(compare=False, repr=False)
    retry_budget: int = field(compare=False, repr=False)
    wish: PromptWish | None = field(compare=False, repr=False)
    repaired: bool = field(compare=False, repr=False)

    @classmethod
    def seal(cls, job: str, canonical: bytes) -> Spec:
        """Read the canonical bytes of an envelope; they are checked as any request is. The newest are remembered."""
        return _sealed(job, canonical)

    @classmethod
    def _read(cls, job: str, canonical: bytes) -> Spec:
        envelope = admit(canonical)
        if envelope.canonical_bytes() != canonical:
            raise BrokenInvariant(clause="ENV-4", reason=f"the envelope of job {job} is not in its canonical form")
        identity = bytes.fromhex(envelope.identity)
        termination, prompt = envelope.termination, envelope.prompt.token_ids
        repaired = envelope.output.final_cache == "repaired"
        grammar = next((entry for entry in envelope.policy.transforms if isinstance(entry, Grammar)), None)
        # The context is full when no further call fits: the last token needs no row, unless its repair is promised.
        context_output = envelope.position_visibility.context_tokens_max - len(prompt) + (not repaired)
        return cls(
            job=job,
            identity=identity,
            envelope=envelope,
            binding=binding_of(job, identity),
            prompt=prompt,
            max_new_tokens=termination.max_new_tokens,
            min_new_tokens=termination.min_new_tokens,
            prefill_only=termination.zero_token_choice == "prefill_only",
            context_output=context_output,
            output_max=min(termination.max_new_tokens, context_output),
            stop_ids=frozenset(termination.stop_token_ids),
            eos_ids=termination.heeded_eos_ids,
            ending_ids=termination.ending_ids,
            withheld_ids=_withheld(envelope, grammar is not None),
            matcher=compile_stops(tuple(text.encode() for text in termination.stop_strings)),
            grammar=grammar,
            detectors=tuple(
                ToolCallDetector.of(asked.begin, asked.end) if isinstance(asked, ToolCallMarkers) else JsonDetector()
                for asked in termination.detectors
            ),
            alignment=envelope.output.alignment,
            advance=advance_by_tokens if envelope.output.alignment == "token" else advance,
            include_stop=envelope.output.include_stop,
            skip_special=envelope.output.skip_special_tokens,
            finish_order=termination.finish_order,
            retry_budget=envelope.runtime.retry_budget,
            wish=_wish(envelope),
            repaired=repaired,
        )

    @property
    def rows(self) -> int:
        """K/V rows that the job can ever need: its last token is processed only by a repair."""
        return len(self.prompt) + max(0, self.output_max - (not self.repaired))

    def due(self, token: int, output: int, stopped: bool, standing: Standing | None = None) -> tuple[FinishReason, ...]:
        """Finish reasons that hold once `token` is output number `output`, by the declared order.

        `stopped` says that it completed a stop string, `standing` where it leaves the structure that was asked for.
        Before min_new_tokens outputs only the limits count.
        """
        decided = None if standing is None else _BY_STANDING.get(standing)
        if not stopped and decided is None and output < self.output_max and token not in self.ending_ids:
            return ()
        held = set() if decided is None else {decided}
        if stopped:
            held.add(FinishReason.STOP_STRING)
        if output >= self.min_new_tokens:
            if token in self.stop_ids:
                held.add(FinishReason.STOP_TOKEN)
            if token in self.eos_ids:
                held.add(FinishReason.EOS)
        if output >= self.max_new_tokens:
            held.add(FinishReason.LENGTH)
        if output >= self.context_output:
            held.add(FinishReason.CONTEXT_LIMIT)
        return rank(held, self.finish_order)

    def matched(self, due: tuple[FinishReason, ...], token: int, match: Match | None) -> MatchedStop | None:
        """The stop among the reasons that `due` gave for this token and match: of several, the first by their order."""
        for reason in due:
            if reason is FinishReason.STOP_STRING and match is not None:
                return self.envelope.termination.stop_strings[match.stop]
            if reason is FinishReason.STOP_TOKEN or reason is FinishReason.EOS:
                return token
        return None


def binding_of(job: str, identity: bytes) -> bytes:
    """The digest of a job's name and its request's identity."""
    return sha256(BINDING_DOMAIN + identity + job.encode()).digest()


@lru_cache(maxsize=SPECS_KEPT)
def _sealed(job: str, canonical: bytes) -> Spec:
    return Spec._read(job, canonical)


def _withheld(envelope: Envelope, structured: bool) -> frozenset[int]:
    if envelope.output.include_stop:
        return frozenset()
    return envelope.termination.ending_ids if structured else frozenset(envelope.termination.stop_token_ids)


def _wish(envelope: Envelope) -> PromptWish | None:
    output = envelope.output
    tops = [extra.top for extra in output.extras if isinstance(extra, PromptLogprobs)]
    return PromptWish(output.echo_prompt, tops[0] if tops else None) if output.echo_prompt or tops else None
