"""load: from a job's log to its transcript and state, to resume the job or to read it.

A load finds where the job stands; whether every receipt is right is the audit's question, which folds every event. Of a
run of ordinary steps a load folds the first and the last, and jumps over those between: it checks their counts and
releases their text, and issues no receipt and takes no digest. The last step lands the jump. Its receipt must be the
one that the state there issues, which covers the frontier, the horizon and the receipt before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import BrokenInvariant
from ..machine.commit import released
from ..machine.events import STEP_EVENTS, STEPS, Step, TokenStep
from ..machine.fold import SCORES_BYTES
from ..machine.frontier import Frontier
from ..machine.states import Status
from ..machine.thinned import NOT_KEPT, ThinnedStep
from ..ports import EMPTY_HEAD, Head, Record
from .emission import Moment
from .transcript import Transcript


def load(transcript: Transcript, records: Iterable[Record]) -> Head:
    """Take records that follow on the transcript; the log's head after them, EMPTY_HEAD where there are none.

    The transcript is then what it would be had it taken each of their events. Errors: those of `fold`, for an event
    that is folded or a step that is out of order; and those of reading `records`, with what came before taken in. In
    the steps that were jumped over these can be wrong unseen: digests, receipt ids, log-probabilities, draws, ids of
    tokens that end nothing, and pieces that show as much.
    """
    newest, run = None, list[Step]()
    try:
        for newest in records:
            for entry in newest.entries:
                if isinstance(entry, STEPS):
                    run.append(entry)
                else:
                    steps, run = run, []
                    take_run(transcript, steps)
                    transcript.take(entry)
    finally:  # also what was read before the one that cannot be
        take_run(transcript, run)
    return Head(newest.last, newest.chain) if newest is not None else EMPTY_HEAD


def take_run(transcript: Transcript, steps: Sequence[Step]) -> None:
    """Take steps that follow one another: fold the first, jump as far as the last, and fold that one too.

    A reader that had come into the middle of a run before its log was sealed goes on from there by a jump.
    """
    at = 0
    while at < len(steps):
        if unproven(transcript, steps[at]):
            taken = jump(transcript, steps, at)
            if taken == at:
                raise not_following(transcript, steps[at])
            at = taken
        for event in steps[at].events:
            transcript.take(event)
        at = jump(transcript, steps, at + 1)


def unproven(transcript: Transcript, step: Step) -> bool:
    """Whether a step cannot be folded, as it is thinned, or as its receipt covers one that is not kept."""
    state = transcript.state
    return isinstance(step, ThinnedStep) or (state is not None and state.last_receipt == NOT_KEPT)


def not_following(transcript: Transcript, step: Step) -> BrokenInvariant:
    reason = f"the thinned step of output {step.output} does not follow on event {transcript.sequence}"
    return BrokenInvariant(clause="FSM-3", reason=reason)


def jump(transcript: Transcript, steps: Sequence[Step], at: int) -> int:
    """Take steps from index `at` on without folding them, and return the index of the one to fold next.

    That is the last, or the first that is out of order: the fold then says what is wrong with it.
    """
    return at + pass_over(transcript, steps[at:-1]) if at < len(steps) - 1 else at


def pass_over(transcript: Transcript, steps: Sequence[Step]) -> int:
    """Take steps without folding them, as far as they are in order; how many.

    None are where the transcript does not stand right after a step, with nothing held and no call failed since. Where
    the output has a structure, every step is folded.
    """
    state, sequence = transcript.state, transcript.sequence
    if state is None or state.structure is not None or state.status is not Status.PENDING or state.tenure.failures:
        return 0
    spec, horizon, due, delta, last_receipt = state.spec, state.horizon, state.due, state.delta, state.last_receipt
    prompt, output, processed, unprocessed, suffix = state.frontier
    skip_special, token_ids, moments = spec.skip_special, list[int](), list[Moment]()
    for step in steps:
        if isinstance(step, TokenStep):
            tokens, lanes, scores, _, selection, piece, special, receipt_id, claimed, _, structure, _ = step
            if len(scores) != SCORES_BYTES or structure is not None:
                break
        else:
            tokens, lanes, _, selection, piece, special, claimed = step
            receipt_id = NOT_KEPT
        if due or tokens != unprocessed or lanes != prompt + output or claimed != output + 1:
            break
        output, processed, last_receipt, sequence = claimed, lanes, receipt_id, sequence + STEP_EVENTS
        token, before = selection.token, horizon
        hidden = special and skip_special
        horizon, delta, match = released(spec, before, output, token, piece, hidden)
        due = spec.due(token, output, match is not None)
        token_ids.append(token)
        moments.append(Moment(sequence, delta, before, horizon, selection, piece, hidden))
    if token_ids:
        frontier = Frontier(prompt, output, processed, unprocessed, suffix).checked()
        transcript.state = state._replace(
            frontier=frontier, horizon=horizon, last_receipt=last_receipt, delta=delta, due=due
        )
        transcript.sequence = sequence
        transcript.token_ids += token_ids
        transcript.moments += moments
    return len(token_ids)
