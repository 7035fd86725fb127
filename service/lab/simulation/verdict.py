"""What must hold for a simulated world at its end. Each finding is a sentence; no findings is good."""

from __future__ import annotations

from collections.abc import Iterator

from ....fsm.limits import TENURES_STALLED_MAX
from ....fsm.machine.events import Event, RequestClosed, RequestFailed
from ....fsm.reading.transcript import Transcript
from ....fsm.request.finish import FinishReason
from ...inspect.audit import audit
from .callers import Asked
from .jobs import course, transcript_of, undisturbed
from .world import World

HEEDED_TOKENS = 25
"""A cancel is obeyed within so many tokens: more than are made between two looks at the inbox."""


def verdict(world: World) -> list[str]:
    """Everything that is wrong with a world that has ended."""
    if world.found:
        return world.found
    report = audit(world.store)
    found = [f"audit: {fault.job} event {fault.sequence} [{fault.kind}] {fault.detail}" for fault in report.faults]
    if found:
        return found
    names = {row.job for row in world.store.rows()}
    if names != {asked.job for asked in world.asked}:
        found.append(f"{len(world.asked)} submissions are the jobs {sorted(names)}")
    for asked in world.asked:
        if asked.job in names:
            found += _job(world, asked, asked.job)
    return found + list(_commands(world))


def _job(world: World, asked: Asked, job: str) -> Iterator[str]:
    row, records, whole = world.store.row(job), list(world.store.read(job)), undisturbed(asked.shape.name, job)
    transcript = transcript_of(records)
    here = course(records, transcript.result())
    *before, end = here.events
    if row.owner is not None:
        yield f"{job}: it has ended and {row.owner} holds it"
    if here.events == whole.events:
        if world.device_faults.kills(job) and asked.shape.name != "nothing":
            yield f"{job}: it ended well, and every worker dies of it"
        if asked.shape.envelope.termination.deadline_ms is not None and not world.faults.happened["clock"]:
            yield f"{job}: its time was up long before its end"
        if here.result != whole.result:
            yield f"{job}: its result is not that of the undisturbed run"
    elif tuple(before) != whole.events[: len(before)]:
        yield f"{job}: its events are not those of the undisturbed run"
    elif len(before) not in whole.cuts:
        yield f"{job}: it ends inside an append"
    elif reason := _unexplained(world, asked, job, end):
        yield f"{job}: {reason}"
    yield from _shown(world, job, transcript)


def _unexplained(world: World, asked: Asked, job: str, end: Event) -> str:
    """Why a job that ended otherwise than undisturbed should not have."""
    device_faults = world.device_faults
    if isinstance(end, RequestFailed):
        if job in device_faults.spoiled and end.cause == "non_finite_scores":
            return ""
        if end.cause == "poison_job":
            # Beside a deadly one a job may stall, but not each time: as often as something else struck, and twice.
            struck = device_faults.kills(job) or world.faults.happened.total() + 2 >= TENURES_STALLED_MAX
            enough = struck and world.store.row(job).fence > TENURES_STALLED_MAX
            return "" if enough else "it was given up, and its workers died of something else"
        budget = asked.shape.envelope.runtime.retry_budget
        if device_faults.failed[job] > budget and end.cause in ("model_call.RuntimeError", "prepared_cache_changed"):
            return ""
        return f"it failed with {end.cause}, and {device_faults.failed[job]} of its calls failed"
    if not isinstance(end, RequestClosed):
        return "it has no end"
    if end.reason is FinishReason.CANCELLED:
        posted = any(command.job == job for command in world.store.posted.values())
        given_up = job in world.unread and asked.shape.envelope.output.consumer_policy == "cancel"
        return "" if posted or given_up else "it was cancelled, and nobody asked for that"
    if end.reason is FinishReason.TIMEOUT:
        due_ms = world.store.row(job).created_ms + (asked.shape.envelope.termination.deadline_ms or 0)
        timed = asked.shape.envelope.termination.deadline_ms is not None and world.latest_ms >= due_ms
        return "" if timed else "it timed out before its time"
    return f"it ended with {end.reason}"


def _shown(world: World, job: str, transcript: Transcript) -> Iterator[str]:
    """What readers were shown is the log's own stream, in order and each item once."""
    stream = {emission.sequence: emission for emission in transcript.emissions}
    for (worker, name), shown in world.shown.items():
        if name != job:
            continue
        sequences = [emission.sequence for emission in shown]
        if sequences != sorted(set(sequences)):
            yield f"{job}: {worker} showed the events {sequences}"
        if any(stream.get(emission.sequence) != emission for emission in shown):
            yield f"{job}: {worker} showed what is not in the log"
    followed = world.followed.get(job)
    if followed is not None and followed != list(transcript.emissions):
        yield f"{job}: a reader that followed it got another stream than one that reads it now"


def _commands(world: World) -> Iterator[str]:
    """Every command is answered, with how its job ended, and obeyed in time."""
    store = world.store
    for command_id, (job, output) in store.posted.items():
        row, answer = store.row(job), store.outcome(command_id)
        if (
            answer is None
            or row.finish is None
            or not answer.removeprefix("refused: terminal (").startswith(row.finish)
        ):
            yield f"{job}: its end {row.finish} was answered with {answer}"
        if row.output > output + HEEDED_TOKENS:
            yield f"{job}: a cancel came after {output} tokens, and it went on to {row.output}"
    for job, outcomes in world.told.items():
        for outcome in outcomes:
            if outcome != store.row(job).finish:
                yield f"{job}: a caller was told {outcome}, and it ended with {store.row(job).finish}"
