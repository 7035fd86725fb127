"""A job in one line of a listing: plain values, ready for JSON, the same from a row and from a state."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ...fsm.machine.states import Status
from ...fsm.ports import JobRow, ModelRef

NOTHING: Final[Mapping[ModelRef, str]] = MappingProxyType({})

UNITS: Final = ((86_400, "d", "h", 3_600), (3_600, "h", "m", 60), (60, "m", "s", 1))

if TYPE_CHECKING:
    from ...fsm.machine.state import State


def missed_by(row: JobRow, missing: Mapping[ModelRef, str]) -> str | None:
    """The worker that has looked for a waiting job's model in vain, where nobody has found it since."""
    return None if row.status.terminal or row.owner is not None else missing.get(row.wanted)


def listed(row: JobRow, missing: Mapping[ModelRef, str] = NOTHING) -> dict[str, Any]:
    """A job as its row says: names, state and token counts; and whether its model is missing."""
    listing = _listing(row.job, row.status, row.finish, row.prompt, row.output)
    listing |= {"model": row.model, "artifact": row.artifact, "model_missed_by": missed_by(row, missing)}
    listing |= {"identity": row.identity, "created_ms": row.created_ms, "owner": row.owner}
    listing |= {"output_max": row.output_max}
    listing |= {name: getattr(row, name) for name in ("ended_ms", "retain_ms", "sealed_ms", "erased_ms")}
    return listing | ({"stalled": row.stalled} if row.stalled else {})


def out_of(output: int, output_max: int | None) -> str:
    """Output tokens, and how many they may become."""
    return f"{output}/{'-' if output_max is None else output_max}"


def age(milliseconds: int) -> str:
    """A length of time in two units at most, like 3m12s."""
    seconds = max(milliseconds, 0) // 1000
    for size, big, small, least in UNITS:
        if seconds >= size:
            return f"{seconds // size}{big}{seconds % size // least:02d}{small}"
    return f"{seconds}s"


def rate(tokens: int, milliseconds: int) -> str:
    """Tokens a second; nothing where no time has passed."""
    return f"{tokens * 1000 / milliseconds:.1f}" if milliseconds > 0 else ""


def owner_of(worker: str | None) -> str:
    """The machine and the process that a worker's name speaks of."""
    parts = (worker or "").rsplit("/", 3)
    return f"{parts[0].partition('/')[0]}:{parts[1]}" if len(parts) == 4 else parts[0]


def ended(state: State) -> dict[str, Any]:
    """A job as its last state says."""
    ending, frontier = state.ending, state.frontier
    finish = None if ending is None else (ending.finish or ending.cause)
    return _listing(state.spec.job, state.status, finish, frontier.prompt, frontier.output)


def line(listing: dict[str, Any]) -> str:
    """The listing in words."""
    usage = listing["usage"]
    how = listing["finish_reason"] or listing.get("error", {}).get("code") or "-"
    return f"{listing['job']}  {listing['state']:<9} {how:<14} {usage['completion_tokens']:>6} tokens"


def _listing(job: str, status: Status, finish: str | None, prompt: int, output: int) -> dict[str, Any]:
    failed = status is Status.FAILED
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    listing: dict[str, Any] = {
        "job": job,
        "state": status.value,
        "finish_reason": None if failed or finish is None else str(finish),
        "usage": usage,
    }
    return listing | {"error": {"code": finish}} if failed else listing
