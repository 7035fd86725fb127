"""An explained decision for people: what each line is about, and what it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..streams.event_text import named

Facts = dict[str, Any]
Line = tuple[str, str]

_STANDINGS = {
    "incomplete": "incomplete: more must follow",
    "complete": "complete as it stands, and more may follow",
    "terminated": "terminated: complete, and nothing may follow",
    "invalid": "invalid: nothing can complete it",
}


def told(facts: Facts) -> list[Line]:
    """The lines of `explained`'s facts: the choice, then what its commit did, then how the job ended."""
    return [*_choice(facts), *_outcome(facts), *_end(facts)]


def _choice(facts: Facts) -> Iterator[Line]:
    receipt = f"receipt {facts['receipt'][:16]}" if facts["receipt"] is not None else "which is sealed"
    where = f"event {facts['sequence']} of its log, {receipt}"
    yield "decision", f"output token {facts['step']} of job {facts['job']}, {where}"
    yield "token", _token(facts)
    after = " after these, in order" if facts["effects"] else ""
    yield "policy", f"greedy: the best score{after}" if facts["family"] == "greedy" else f"sample: one draw{after}"
    for effect in facts["effects"]:
        chosen = "" if effect["chosen"] is None else f"; the chosen token: {effect['chosen']}"
        yield "", f"{effect['kind']}: {effect['does']}{chosen}"
    yield "support", f"{facts['support']} of {facts['vocabulary']} tokens could be chosen"
    yield "chance", _chance(facts["logprob_raw"], facts["logprob"])
    if facts["family"] == "greedy" or "draw" not in facts["not_kept"]:
        yield "draw", _draw(facts["draw"], facts["tie_rule"])
    if facts["not_kept"]:
        yield "not kept", f"{', '.join(facts['not_kept'])}: running the request again has them"
    else:
        yield "margin", _margin(facts["margin"])
    for rank, each in enumerate(facts["alternatives"], 1):
        yield f"best {rank}", _alternative(each, facts["token"])
    if facts["structure"] is not None:
        yield "grammar", f"after this token the text is {_STANDINGS[facts['structure']]}"


def _token(facts: Facts) -> str:
    piece = bytes.fromhex(facts["bytes"])
    special = f", a special token that is {'shown' if facts['shown'] else 'not shown'}" if facts["hidden"] else ""
    return f"{facts['token']} {facts['text']!r}, bytes {piece.hex(' ') or 'none'}{special}"


def _chance(raw: float, processed: float | None) -> str:
    """Log-probabilities with four places, and no sign where they are all zero."""
    before = f"log-probability {round(raw, 4) + 0.0:.4f}"
    if processed == raw:
        return f"{before}, before the policy and after it"
    if processed is None:
        return f"{before} before the policy, which removed it"
    return f"{before} before the policy, {round(processed, 4) + 0.0:.4f} after it ({processed - raw:+.4f})"


def _margin(margin: float | None) -> str:
    words = "there is no second token" if margin is None else f"{margin:.4f} nats"
    return f"best raw score over the second best, before the policy: {words}"


def _draw(draw: Facts | None, tie_rule: str) -> str:
    if draw is None:
        return f"nothing was drawn; among equals the {tie_rule.replace('_', ' ')} is taken"
    address = ", ".join(f"{name} {draw[name]}" for name in ("seed", "choice", "branch", "step"))
    return f"{draw['unit']:.9f} in [{draw['start']:.9f}, {draw['end']:.9f}), from {draw['algorithm']}, {address}"


def _alternative(each: Facts, chosen: int) -> str:
    by = f": {', '.join(each['removed_by'])}" if each["removed_by"] else ""
    mark = ", chosen" if each["token"] == chosen else ""
    text = f" {each['text']!r}" if "text" in each else ""
    return f"token {each['token']}{text}: {_chance(each['logprob_raw'], each['logprob'])}{by}{mark}"


def _outcome(facts: Facts) -> Iterator[Line]:
    if not facts["committed"]:
        over = facts["finish_reason"] or facts["error"]
        what = f"the job ended before it was: {over}" if over else "whoever runs the job next commits this very token"
        yield "commit", f"recorded and not consumed; {what}"
        return
    yield "commit", f"event {facts['committed_sequence']} of its log"
    place = "character {characters}, byte {bytes}".format_map(facts["released_at"])
    yield "text", f"{facts['released']!r} became visible at {place}" if facts["released"] else "nothing became visible"
    held, undecoded = bytes.fromhex(facts["held"]), bytes.fromhex(facts["undecoded"])
    if undecoded:
        yield "", f"bytes {undecoded.hex(' ')} are held back: no whole character yet"
    if held:
        shared = ", or share a token with one" if facts["alignment"] == "token" else ""
        yield "", f"{held.decode(errors='replace')!r} is held back: it may begin a stop string{shared}"


def _end(facts: Facts) -> Iterator[Line]:
    if not facts["committed"]:
        return
    if facts["finish_reason"] is not None:
        others = [each for each in facts["triggers"] if each != facts["finish_reason"]]
        also = f", which comes before {', '.join(others)}" if others else ""
        stop = facts["matched_stop"]
        by = "" if stop is None else f", stopped by {named(stop)}"
        yield "end", f"the job ended: {facts['finish_reason']}{also}{by}"
    elif facts["error"] is not None:
        yield "end", f"the job failed before another decision: {' '.join(facts['error'].split())}"
    elif facts["due"]:
        yield "end", f"due: {', '.join(facts['due'])}"
    if facts["flushed"]:
        yield "", f"{facts['flushed']!r} became visible with the end"
