"""load: a job's log to its transcript and state, for whoever goes on with the job or reads it.

A load asks where the job stands; whether every receipt is right is for the audit to ask, which folds every event. Of a
run of ordinary steps a load folds the first and the last, and jumps over those between: it checks their counts and
releases their text, and issues no receipt and takes no digest. The last step lands the jump. Its receipt must be the
one that the state there issues, which covers the frontier, the horizon and the receipt before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .emission import Moment
from .events import STEP_EVENTS, TokenStep
from .fold import SCORES_BYTES
from .frontier import Frontier
from .ports import EMPTY_HEAD, Head, Record
from .transcript import Transcript


def load(transcript: Transcript, records: Iterable[Record]) -> Head:
    """Take records that follow on the transcript; the log's head after them, EMPTY_HEAD where there are none.

    The transcript is then what it would be had it taken each of their events. Errors: those of `fold`, for an event
    that is folded or a step that is out of order. In the steps that were jumped over these can be wrong unseen:
    digests, receipt ids, log-probabilities, draws, ids of tokens that end nothing, and pieces that show as much.
    """
    newest, run = None, list[TokenStep]()
    for newest in records:
        for entry in newest.entries:
            if isinstance(entry, TokenStep):
                run.append(entry)
            else:
                take_run(transcript, run)
                run.clear()
                transcript.take(entry)
    take_run(transcript, run)
    return Head(newest.last, newest.chain) if newest is not None else EMPTY_HEAD


def take_run(transcript: Transcript, steps: Sequence[TokenStep]) -> None:
    """Take steps that follow one another: fold the first, jump as far as the last, and fold that one too."""
    at = 0
    while at < len(steps):
        for event in steps[at].events:
            transcript.take(event)
        at = jump(transcript, steps, at + 1)


def jump(transcript: Transcript, steps: Sequence[TokenStep], at: int) -> int:
    """Take steps from index `at` on without folding them, and return the index of the one to fold next.

    That is the last, or the first that is out of order: the fold then says what is wrong with it. The transcript has
    just taken the step before `at`, so that nothing is held and no call has failed. Where the output has a structure,
    every step is folded.
    """
    state, sequence = transcript.state, transcript.sequence
    if state is None or state.structure is not None or at >= len(steps) - 1:
        return at
    spec, horizon, due, delta, last_receipt = state.spec, state.horizon, state.due, state.delta, state.last_receipt
    advance, matcher, include_stop, skip_special = spec.advance, spec.matcher, spec.include_stop, spec.skip_special
    prompt, output, processed, unprocessed, suffix = state.frontier
    token_ids, moments = list[int](), list[Moment]()
    for tokens, lanes, scores, _, selection, piece, special, receipt_id, claimed, _, structure in steps[at:-1]:
        if due or tokens != unprocessed or lanes != prompt + output or claimed != output + 1:
            break
        if len(scores) != SCORES_BYTES or structure is not None:
            break
        output, processed, last_receipt, sequence = claimed, lanes, receipt_id, sequence + STEP_EVENTS
        token, before = selection.token, horizon
        hidden, armed = special and skip_special, output >= spec.min_new_tokens
        horizon, delta, match = advance(before, matcher, piece, hidden, include_stop, armed)
        due = spec.due(token, output, match is not None)
        token_ids.append(token)
        moments.append(Moment(sequence, delta, before, horizon, selection, piece, hidden))
    frontier = Frontier(prompt, output, processed, unprocessed, suffix).checked()
    transcript.state = state._replace(
        frontier=frontier, horizon=horizon, last_receipt=last_receipt, delta=delta, due=due
    )
    transcript.sequence = sequence
    transcript.token_ids += token_ids
    transcript.moments += moments
    return at + len(token_ids)
