"""What a caller may see: the frontier behind which text is final.

A byte becomes visible when neither the stop matcher nor the UTF-8 decoder can still change what it means. The horizon
holds both states, so the text of a job is a fold over its tokens' bytes: the same deltas in a stream, in the result,
and after a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from .detokenize import decode
from .stop_matcher import Match, StopMatcher

_FIELDS = Struct(">IIBBQQ")
_EDGES = b"\xff"  # which begins no other part of a state's digest


class Horizon(NamedTuple):
    """The output state of one branch; every field is a plain value.

    node                 the stop matcher's node
    held                 bytes that the matcher may still need as part of a stop
    undecoded            0 to 3 bytes that the matcher released and that do not make a whole character yet
    bytes_released       exact bytes whose text was returned; `undecoded` and then `held` follow them in the stream
    characters_released  characters (code points) returned
    closed               a stop has matched or the text was flushed: nothing becomes visible any more
    edges                where in `held` a token ends, ascending; only where text is released by whole tokens
    """

    node: int = 0
    held: bytes = b""
    undecoded: bytes = b""
    bytes_released: int = 0
    characters_released: int = 0
    closed: bool = False
    edges: tuple[int, ...] = ()

    @property
    def position(self) -> int:
        """Length of the visible stream so far, in bytes, with what is still held back."""
        _, held, undecoded, released, _, _, _ = self
        return released + len(undecoded) + len(held)

    @property
    def decided(self) -> int:
        """Length of the visible stream that no stop can take away any more, in bytes."""
        return self.bytes_released + len(self.undecoded)

    def digest_bytes(self) -> bytes:
        """All fields as bytes, one way only: different horizons never give equal bytes."""
        node, held, undecoded, bytes_released, characters_released, closed, edges = self
        head = _FIELDS.pack(node, len(held), len(undecoded), closed, bytes_released, characters_released)
        if edges:
            undecoded += _EDGES + b"".join([edge.to_bytes(4) for edge in (len(edges), *edges)])
        return head + held + undecoded


START = Horizon()
"""Nothing was shown yet."""

Advance = Callable[[Horizon, StopMatcher, bytes, bool, bool, bool], tuple[Horizon, str, Match | None]]
"""`advance`, `advance_by_tokens`, or `end_before`."""


def advance(
    horizon: Horizon,
    matcher: StopMatcher,
    piece: bytes,
    hidden: bool = False,
    include_stop: bool = False,
    armed: bool = True,
) -> tuple[Horizon, str, Match | None]:
    """Take one token's bytes; return the new horizon, the text that became visible, and the stop that completed.

    piece         exact bytes of the token; for a special token its text
    hidden        the token is not shown: it adds no visible byte and removes none, and it ends the text where it
                  stands if it is a stop
    include_stop  the text ends after the stop's visible bytes, and not before them
    armed         whether a stop that completes in this token counts (it does not before the least number of tokens)

    After a match the horizon is closed, and a closed horizon takes every further token without effect. Pure; the cost
    depends on the piece and the stops alone.
    """
    node, held, undecoded, bytes_released, characters_released, closed, _ = horizon
    if closed:
        return horizon, "", None
    if not (node or hidden) and matcher.starts.isdisjoint(piece):
        # Most tokens: no stop has begun, so nothing is held, and none begins here: all of the piece is text.
        text, left = decode(undecoded, piece)
        bytes_released += len(undecoded) + len(piece) - len(left)
        return Horizon(0, b"", left, bytes_released, characters_released + len(text)), text, None
    position = horizon.position
    if hidden:
        return _advance_hidden(horizon, matcher, piece, armed)

    data = held + piece
    if armed:
        node, match = matcher.feed(node, piece, position)
        if match is not None:
            cut = match.end if include_stop else match.start
            return *_close(horizon, data[: len(held) + cut - position]), match
    else:
        node = matcher.skip(node, piece)
    released = len(data) - matcher.holdback(node)
    text, left = decode(undecoded, data[:released])
    bytes_released += len(undecoded) + released - len(left)
    return Horizon(node, data[released:], left, bytes_released, characters_released + len(text)), text, None


def advance_by_tokens(
    horizon: Horizon,
    matcher: StopMatcher,
    piece: bytes,
    hidden: bool = False,
    include_stop: bool = False,
    armed: bool = True,
) -> tuple[Horizon, str, Match | None]:
    """The same where text ends at a token's end: a token's bytes become text together, or none of them does.

    Before a stop the text ends with the last token that has nothing of it, which may leave out bytes that stand before
    the stop in its first token. With include_stop it ends with the token that completes the stop, which may add bytes
    that follow the stop in it.
    """
    node, held, undecoded, bytes_released, characters_released, closed, edges = horizon
    if closed:
        return horizon, "", None
    if hidden:
        return _advance_hidden(horizon, matcher, piece, armed)
    position, data = horizon.position, held + piece
    edges = (*edges, len(data)) if piece else edges
    match = None
    if armed:
        node, match = matcher.feed(node, piece, position)
    else:
        node = matcher.skip(node, piece)
    if match is not None:
        last = len(data) if include_stop else _last(edges, len(held) + match.start - position)
        return *_close(horizon, data[:last]), match
    last = _last(edges, len(data) - matcher.holdback(node))
    text, left = decode(undecoded, data[:last])
    bytes_released += len(undecoded) + last - len(left)
    edges = tuple([edge - last for edge in edges if edge > last])
    return Horizon(node, data[last:], left, bytes_released, characters_released + len(text), False, edges), text, None


def end_before(
    horizon: Horizon,
    matcher: StopMatcher,
    piece: bytes,
    hidden: bool = False,
    include_stop: bool = False,
    armed: bool = True,
) -> tuple[Horizon, str, Match | None]:
    """The same for a token that ends the output by itself, where the text is to end before what stopped it.

    None of the token's bytes is text. Where a stop string completes in it as well, the text ends before the earlier.
    """
    if horizon.closed:
        return horizon, "", None
    if hidden:
        return _advance_hidden(horizon, matcher, piece, armed)
    held, edges, position, last = horizon.held, horizon.edges, horizon.position, len(horizon.held)
    match = matcher.feed(horizon.node, piece, position)[1] if armed else None
    if match is not None and match.start < position:
        last += match.start - position
    return *_close(horizon, held[: _last(edges, last) if edges else last]), match


def flush(horizon: Horizon) -> tuple[Horizon, str]:
    """Close the horizon at a finish that is not a stop: what was held back was ordinary text, and is returned."""
    if horizon.closed:
        return horizon, ""
    return _close(horizon, horizon.held)


def _advance_hidden(
    horizon: Horizon, matcher: StopMatcher, piece: bytes, armed: bool
) -> tuple[Horizon, str, Match | None]:
    """Take a token that is not shown: if it is a stop, what is held was ordinary text."""
    stop = matcher.whole(piece) if armed else None
    if stop is None:
        return horizon, "", None
    return *_close(horizon, horizon.held), Match(stop, horizon.position, horizon.position)


def _last(edges: tuple[int, ...], limit: int) -> int:
    """The last token's end at or before `limit`, 0 where there is none."""
    return max([edge for edge in edges if edge <= limit], default=0)


def _close(horizon: Horizon, last: bytes) -> tuple[Horizon, str]:
    text, _ = decode(horizon.undecoded, last, final=True)
    closed = Horizon(
        bytes_released=horizon.bytes_released + len(horizon.undecoded) + len(last),
        characters_released=horizon.characters_released + len(text),
        closed=True,
    )
    return closed, text
